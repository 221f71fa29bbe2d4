"""Capture: exact changes of optimizers that can't be undone, without a copy of the model."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import deltawire as dw
import pytest
import torch
from deltawire._split import SPLITTABLE, find_split
from detection_loop import Loop
from oracle import bits
from small_models import Bag, Mlp, random_step

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def matrices(dtype: torch.dtype = torch.float32) -> Bag:
    return Bag({"a": (torch.randn(40, 24) * 0.05).to(dtype), "b": (torch.randn(7, 130) * 0.05).to(dtype)})


def served_as(model: torch.nn.Module, dtype: torch.dtype | None) -> dict[str, torch.dtype | None]:
    return dict.fromkeys((name for name, _ in model.named_parameters()), dtype)


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("kind", SPLITTABLE, ids=lambda kind: kind.__name__)
def test_every_optimizer_on_the_list(
    url: str, kind: Callable[..., torch.optim.Optimizer], stored: str
) -> None:
    model = matrices(DTYPES[stored])
    optimizer = kind(model.parameters(), lr=3e-3)
    loop = Loop(model, optimizer, url, detector="capture")
    assert set(loop.methods().values()) == {"capture"}
    changed = 0
    for steps in (1, 3):
        for _ in range(steps):
            random_step(model, optimizer)
        version = loop.publish()
        assert version.uncertain == version.dense == 0
        assert version.steps == steps
        changed += version.changed
    assert changed > 0


@pytest.mark.parametrize("served", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("mode", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_served_dtypes(url: str, served: str, mode: dict[str, Any]) -> None:
    model = matrices()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **mode)
    rules = served_as(model, DTYPES[served])
    loop = Loop(model, optimizer, url, rules, dtype=DTYPES[served], detector="capture")
    for steps in (1, 2):
        for _ in range(steps):
            random_step(model, optimizer)
        version = loop.publish()
        assert 0 < version.changed == version.sent


@pytest.mark.parametrize(
    "mode", [{}, {"foreach": True}, {"fused": True}], ids=["default", "foreach", "fused"]
)
def test_training_is_the_same_with_and_without(url: str, mode: dict[str, Any]) -> None:
    """Weights and optimizer state, bit by bit, through hooks, publishes and missing gradients."""
    ends = []
    for publish in (False, True):
        torch.manual_seed(3)
        model = Mlp().to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **mode)
        publisher = dw.Publisher(model, optimizer, url) if publish else None
        if publisher is not None:
            assert publisher.detectors["up.weight"][0] == "capture"
        for step in range(6):
            random_step(model, optimizer, skip=("up.bias",) if step % 2 else ())
            if publisher is not None:
                assert publisher.publish().changed > 0
        state = optimizer.state_dict()["state"]
        ends.append(
            [bits(p) for p in model.parameters()] + [bits(x) for s in state.values() for x in s.values()]
        )
    assert len(ends[0]) == 6 + 3 * 6
    assert all(bool((a == b).all()) for a, b in zip(*ends, strict=True))


def test_one_optimizer_of_two_dtypes_keeps_both_detectors(url: str) -> None:
    """F32 parameters are inverted and stepped together; the BF16 ones are captured one by one."""
    model = Mlp()
    model.up.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop = Loop(model, optimizer, url)
    assert loop.methods() == {
        "up.weight": "capture",
        "up.bias": "capture",
        "norm.weight": "inversion",
        "norm.bias": "inversion",
        "down.weight": "inversion",
        "down.bias": "inversion",
        "seen": "fence",
    }
    for _ in range(3):
        random_step(model, optimizer)
        loop.publish()


def test_memory_is_that_of_the_largest_parameter(url: str) -> None:
    model = Bag({f"w{i}": torch.randn(64, 64).to(torch.bfloat16) for i in range(32)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    loop = Loop(model, optimizer, url)
    held_before = loop.publisher.metrics()["deltawire/memory_bytes"]
    snapshot = dw.Publisher(model, optimizer, url + "2", detector="snapshot")
    largest, all_of_them = 2 * 64 * 64, 2 * 64 * 64 * 32
    assert snapshot.metrics()["deltawire/memory_bytes"] >= all_of_them
    for _ in range(3):
        random_step(model, optimizer)
    changed = loop.publish().changed
    held = loop.publisher.metrics()["deltawire/memory_bytes"]
    # The logs are 8 bytes a changed element, and empty after a publish.
    assert held - held_before <= largest + 8 * changed
    assert held < all_of_them / 2


def test_parameters_that_are_views_of_one_flat_parameter(url: str) -> None:
    """The optimizer steps the flat one; the model's tensors lie in it."""
    flat = torch.nn.Parameter(torch.randn(600) * 0.05)
    model = Bag({"a": flat.data[:200].view(10, 20), "b": flat.data[200:560].view(36, 10)})
    optimizer = torch.optim.AdamW([flat], lr=1e-3)
    loop = Loop(model, optimizer, url)
    method, reason = loop.publisher.detectors["a"]
    assert method == "capture" and "another view of its memory" in reason
    for _ in range(3):
        flat.grad = torch.randn(600)
        optimizer.step()
        version = loop.publish()
        assert version.changed > 0 and version.dense == 0


def test_two_optimizers_that_step_one_parameter(url: str) -> None:
    model = matrices()
    optimizers = [torch.optim.AdamW([model.a, model.b], lr=1e-4), torch.optim.SGD([model.a], lr=1e-3)]
    loop = Loop(model, optimizers, url)
    assert loop.methods() == {"a": "capture", "b": "inversion"}
    for _ in range(3):
        for optimizer in optimizers:
            random_step(model, optimizer)
        version = loop.publish()
        assert version.steps == 2 and version.dense == 0


def test_schedulers_and_closures(url: str) -> None:
    model = matrices()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (t + 1))
    loop = Loop(model, optimizer, url)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        with torch.no_grad():
            model.a += 0.01  # before the update reads it
        return torch.tensor(2.0)

    for _ in range(3):
        assert float(optimizer.step(closure)) == 2.0
        scheduler.step()
        assert loop.publish(quiet=False).changed > 0


def test_two_publishers_on_one_optimizer(url: str) -> None:
    model = Mlp()
    model.down.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first, second = Loop(model, optimizer, url), Loop(model, optimizer, url + "2")
    random_step(model, optimizer)
    first.publish()
    for _ in range(2):
        random_step(model, optimizer)
    first.publish()
    assert second.publish().steps == 3
    first.publisher.close()
    random_step(model, optimizer)
    second.publish()
    third = Loop(model, optimizer, url + "3")
    random_step(model, optimizer)
    second.publish()
    third.publish()
    second.publisher.close()
    third.publisher.close()
    assert "step" not in vars(optimizer)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_dropped_publisher_lets_go(url: str) -> None:
    model = matrices(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    publisher = dw.Publisher(model, optimizer, url)
    assert find_split(optimizer) is not None
    del publisher
    gc.collect()
    assert "step" not in vars(optimizer)
    random_step(model, optimizer)


BYPASSES: dict[str, Callable[[torch.optim.Optimizer], Callable[[], Any]]] = {
    "called through the class": lambda optimizer: lambda: type(optimizer).step(optimizer),
    "the original method restored": lambda optimizer: (vars(optimizer).pop("step"), optimizer.step)[1],
    "compiled": lambda optimizer: torch.compile(optimizer.step, backend="eager"),
}


@pytest.mark.parametrize("how", BYPASSES)
def test_nothing_is_missed_when_the_split_is_bypassed(url: str, how: str) -> None:
    model = matrices(torch.bfloat16)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loop = Loop(model, optimizer, url)
    random_step(model, optimizer)
    loop.publish()
    step = BYPASSES[how](optimizer)
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        step()
        version = loop.publish(quiet=False)
        assert version.dense == version.total
        *dense, why = version.notes
        assert all("not by an observed" in note for note in dense)
        assert f"{len(list(model.parameters()))} tensors (" in why and "are watched by capture, but" in why
        assert ("was replaced since" if "restored" in how else "stepped them together") in why


def test_asked_for_where_it_cannot_be(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(dw.Error, match=r"can't use capture: .*LBFGS is not on the list.*watched by snapshot"):
        dw.Publisher(model, optimizer, url, detector="capture")
    with pytest.raises(dw.Error, match=r"can't use copy_back: no framework .* watched by inversion"):
        dw.Publisher(model, torch.optim.AdamW(model.parameters()), url, detector="copy_back")
    doubles = Bag({"w": torch.randn(3, dtype=torch.float64)})
    with pytest.raises(dw.Error, match="capture does not watch F64"):
        dw.Publisher(doubles, torch.optim.AdamW(doubles.parameters()), url, detector="capture")
    loop = Loop(doubles, torch.optim.AdamW(doubles.parameters()), url)
    assert loop.methods() == {"w": "snapshot"}


def test_a_copied_optimizer_steps_nothing_of_ours(url: str) -> None:
    model = matrices(torch.bfloat16)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    loop = Loop(model, optimizer, url)
    other_model = copy.deepcopy(model)
    other = copy.deepcopy(optimizer)
    assert find_split(other) is None
    other.param_groups[0]["params"] = list(other_model.parameters())
    random_step(other_model, other)
    assert loop.publish().sent == 0
    random_step(model, optimizer)
    assert loop.publish().changed > 0


def test_DET_09_a_tensor_kept_in_fp32_is_captured_too(url: str) -> None:
    model = Mlp().to(torch.bfloat16)
    model.norm.float()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rules = {name: None for name, _ in model.named_parameters()}
    loop = Loop(model, optimizer, url, rules, detector="capture", dtype={"norm.*": None})
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    model.norm.weight.grad = torch.ones(48)  # 1e-6 of a weight of 1: below BF16's resolution
    optimizer.step()
    assert loop.publish().changed == 48
