"""What is done to an optimizer after a publisher has begun to watch it: handled or refused, and said."""

from __future__ import annotations

import types
from typing import Any

import deltawire as dw
import pytest
import torch
from detection_loop import Loop
from small_models import Bag

AdamW = torch.optim.AdamW
MAKES = {
    "inversion": lambda parameters: AdamW(parameters, lr=1e-3),
    "fused inversion": lambda parameters: AdamW(parameters, lr=1e-3, fused=True),
    "capture": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-3),
    "snapshot": lambda parameters: type("Own", (AdamW,), {})(parameters, lr=1e-3),
}


def bag() -> torch.nn.Module:
    return Bag({"w": torch.randn(20, 10) * 0.02, "b": torch.randn(30) * 0.02})


def step(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.randn_like(p)
    optimizer.step()


@pytest.mark.parametrize("part", ["whole", "rows"])
@pytest.mark.parametrize("name", MAKES)
def test_a_view_of_a_watched_tensor_in_a_new_group(url: str, name: str, part: str) -> None:
    model = bag()
    optimizer = MAKES[name](model.parameters())
    loop = Loop(model, optimizer, url)
    assert set(loop.methods().values()) == {name.split()[-1]}
    step(optimizer)
    loop.publish()
    view = model.w.detach()[3:9] if part == "rows" else model.w.detach()
    optimizer.add_param_group({"params": [view.requires_grad_()]})
    for _ in range(3):
        step(optimizer)
        version = loop.publish(quiet=name == "snapshot")
        if name != "snapshot":
            note = next(note for note in version.notes if "given to an optimizer" in note)
            assert "1 tensors (w)" in note and "a view of it later, in parameter group 1" in note
            assert version.dense == model.w.numel() and version.changed > 0  # b goes on as before
    if name.endswith("inversion"):
        assert any("inversion does not hold: the AdamW was given a view of it" in n for n in version.notes)


def test_a_new_publisher_after_that_is_quiet(url: str) -> None:
    model = bag()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    optimizer.add_param_group({"params": [model.w.detach()[3:9].requires_grad_()]})
    loop = Loop(model, optimizer, url)
    assert loop.methods() == {"w": "snapshot", "b": "inversion"}
    for _ in range(2):
        step(optimizer)
        assert loop.publish().dense == 0


def noisy(self: torch.optim.Optimizer, closure: Any = None) -> None:
    with torch.no_grad():
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=1e-2)
                if "step" in self.state[p]:
                    self.state[p]["step"] += 1


def replace_step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step = types.MethodType(  # type: ignore[method-assign]
        torch.optim.Optimizer.profile_hook_step(noisy), optimizer
    )


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("name", ["inversion", "capture"])
def test_a_step_replaced_by_one_that_calls_the_hooks(url: str, name: str, started: bool) -> None:
    """Hooks, counter and state say that the class has made a step, and it has not."""
    model = bag()
    optimizer = MAKES[name](model.parameters())
    loop = Loop(model, optimizer, url)
    if started:
        step(optimizer)
        loop.publish()
    replace_step(optimizer)
    for _ in range(3):
        step(optimizer)
        version = loop.publish(quiet=False)
        assert version.dense == version.total
        assert any("test_optimizers_changed_later.noisy, whose arithmetic" in note for note in version.notes)
    if started and name == "inversion":
        assert any("inversion does not hold: its step() has been replaced by" in n for n in version.notes)
    del optimizer.step
    if name == "inversion":
        step(optimizer)
        if started:
            assert loop.publish().dense == 0


def test_a_step_replaced_before(url: str) -> None:
    model = bag()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    replace_step(optimizer)
    loop = Loop(model, optimizer, url)
    assert set(loop.methods().values()) == {"snapshot"}
    assert "has been replaced by test_optimizers_changed_later.noisy" in loop.publisher.detectors["w"][1]
    step(optimizer)
    loop.publish(quiet=False)


@pytest.mark.parametrize("compiled", ["step", "inside the loop"])
def test_a_step_compiled_after_capture_was_set_up(url: str, compiled: str) -> None:
    model = bag()
    optimizer = MAKES["capture"](model.parameters())
    loop = Loop(model, optimizer, url)
    step(optimizer)
    loop.publish()
    if compiled == "step":
        optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
        run = step
    else:
        run = torch.compile(step, backend="eager")
    for _ in range(2):
        run(optimizer)
        version = loop.publish(quiet=False)
        why = version.notes[-1]
        assert "2 tensors (b, w) are watched by capture, but" in why or "2 tensors (w, b)" in why
        assert "torch.compile" in why or "was replaced since" in why


HYPERPARAMETERS = {
    "lr": [None, "fast", object(), torch.ones(3)],
    "betas": [None, 0.9, (0.9,), (None, 0.999), (0.9, "b")],
    "eps": [None],
    "weight_decay": [None],
}


class OwnAdam(AdamW):
    """A family that we are told of."""


@pytest.mark.parametrize("key", HYPERPARAMETERS)
def test_a_hyperparameter_that_is_no_number(url: str, key: str) -> None:
    for value in HYPERPARAMETERS[key]:
        model = bag()
        optimizer = OwnAdam([{"params": [model.b]}, {"params": [model.w]}], lr=1e-3)
        optimizer.param_groups[1][key] = value
        said = f"its parameter group 1 has {key}"
        rows = {row.tensor: row for row in dw.explain(model, optimizer, adam_family=dw.AdamFamily(OwnAdam))}
        assert rows["b"].detector == "inversion"
        assert rows["w"].detector == "snapshot" and said in rows["w"].reason, rows["w"]
        with pytest.raises(dw.Error, match=said):
            dw.explain(model, optimizer, "inversion", adam_family=dw.AdamFamily(OwnAdam))


def test_a_rate_that_is_lost_between_two_steps(url: str) -> None:
    """It can't be undone then, and nothing of deltawire raises inside of step()."""
    model = bag()

    class Schedules(AdamW):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["lr"] = group["lr"] or 1e-3
            return super().step(closure)

    optimizer = Schedules(model.parameters(), lr=1e-3)
    loop = Loop(model, optimizer, url, adam_family=dw.AdamFamily(Schedules))
    assert set(loop.methods().values()) == {"inversion"}
    for _ in range(2):
        optimizer.param_groups[0]["lr"] = None
        step(optimizer)
        loop.publish(quiet=False)


@pytest.mark.parametrize("key", ["lr", "momentum", "weight_decay"])
def test_the_same_of_sgd(key: str) -> None:
    model = bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.param_groups[0][key] = None
    assert f"its parameter group 0 has {key}=None" in next(iter(dw.explain(model, optimizer))).reason
