"""Inversion: every variant of Adam, AdamW, AMSGrad and SGD that can be undone, and what can not."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import deltawire as dw
import pytest
import torch
from detection_loop import Loop
from small_models import Bag, Mlp, random_step, train_step

Make = Callable[..., torch.optim.Optimizer]
Adam, AdamW, SGD = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD

INVERTED: dict[str, tuple[Make, dict[str, Any]]] = {
    "adam": (Adam, {}),
    "adam-l2": (Adam, {"weight_decay": 0.1}),
    "adam-decoupled": (Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": (AdamW, {"weight_decay": 0.1}),
    "amsgrad": (AdamW, {"amsgrad": True}),
    "amsgrad-l2": (Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "maximize": (AdamW, {"maximize": True}),
    "betas-eps": (AdamW, {"betas": (0.8, 0.95), "eps": 1e-5}),
    "no-beta1": (AdamW, {"betas": (0.0, 0.999)}),
    "sgd-momentum": (SGD, {"momentum": 0.9}),
    "sgd-momentum-decay": (SGD, {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.2}),
    "sgd-momentum-maximize": (SGD, {"momentum": 0.9, "maximize": True, "weight_decay": 0.1}),
    "sgd-plain": (SGD, {}),
    "sgd-plain-decay": (SGD, {"weight_decay": 0.1}),
    "sgd-plain-maximize": (SGD, {"weight_decay": 0.1, "maximize": True}),
    "sgd-nesterov": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd-nesterov-maximize": (
        SGD,
        {"momentum": 0.9, "nesterov": True, "maximize": True, "weight_decay": 0.1},
    ),
}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def assert_all_inverted(loop: Loop) -> None:
    assert "inversion" in loop.methods().values() and set(loop.methods().values()) <= {"inversion", "fence"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", INVERTED)
def test_variants_of_the_step(url: str, name: str, mode: str) -> None:
    kind, options = INVERTED[name]
    model = Mlp()
    optimizer = kind(model.parameters(), lr=1e-4, **options, **MODES[mode])
    loop = Loop(model, optimizer, url)
    assert_all_inverted(loop)
    changed = 0
    for steps in (1, 3, 1):
        for _ in range(steps):
            train_step(model, optimizer)
        version = loop.publish()
        assert version.dense == 0 and version.steps == steps
        changed += version.changed
    assert changed > 0


@pytest.mark.parametrize("mode", MODES)
def test_amsgrad_divides_by_the_largest_second_moment(url: str, mode: str) -> None:
    """Gradients that become small: the second moment follows, its maximum does not."""
    model = Mlp()
    optimizer = Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.5), amsgrad=True, **MODES[mode])
    loop = Loop(model, optimizer, url)
    for step in range(5):
        for p in model.parameters():
            p.grad = torch.randn_like(p) * 0.1**step
        optimizer.step()
        loop.publish()
    state = optimizer.state[model.up.weight]
    assert bool((state["max_exp_avg_sq"] > 2 * state["exp_avg_sq"]).all())


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_differentiable_and_capturable_arithmetic(url: str, kind: Make, amsgrad: bool) -> None:
    """The step that differentiates is the capturable one's arithmetic; capturable itself needs a GPU."""
    model = Bag({"w": torch.randn(70, 31) * 0.02})
    model.w.requires_grad_(False)  # written with grad enabled: no leaf that requires it
    optimizer = kind([model.w], lr=1e-4, weight_decay=0.1, differentiable=True, amsgrad=amsgrad)
    loop = Loop(model, optimizer, url)
    assert_all_inverted(loop)
    for _ in range(4):
        model.w.grad = torch.randn(70, 31) * 1e-3
        optimizer.step()
        loop.publish()


@pytest.mark.parametrize("mode", [{"foreach": False}, {"fused": True}], ids=["single", "fused"])
def test_rates_and_betas_as_tensors(url: str, mode: dict[str, Any]) -> None:
    model = Mlp()
    rate = torch.tensor(1e-4)
    betas: Any = (torch.tensor(0.9), torch.tensor(0.95)) if "foreach" in mode else (0.9, 0.95)
    optimizer = AdamW(model.parameters(), lr=rate, betas=betas, **mode)
    loop = Loop(model, optimizer, url)
    assert_all_inverted(loop)
    for _ in range(4):
        train_step(model, optimizer)
        rate.mul_(0.5)  # in place, right after the step: as schedulers do
        loop.publish()
    model, rate = Mlp(), torch.tensor(1e-3)
    optimizer = SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=torch.tensor(0.1), foreach=False)
    loop = Loop(model, optimizer, url + "2")
    assert_all_inverted(loop)
    for _ in range(3):
        train_step(model, optimizer)
        rate.mul_(0.5)
        loop.publish()


def test_values_of_each_group(url: str) -> None:
    model = Bag({name: torch.randn(40, 33) * 0.02 for name in ("a", "b", "c", "d")})
    optimizer = Adam(
        [
            {"params": [model.a], "lr": 1e-5, "betas": (0.5, 0.9)},
            {"params": [model.b], "eps": 1e-3, "decoupled_weight_decay": True, "weight_decay": 0.5},
            {"params": [model.c], "amsgrad": True, "weight_decay": 0.2},
            {"params": [model.d], "maximize": True, "lr": 0.0},
        ],
        lr=1e-4,
    )
    loop = Loop(model, optimizer, url)
    for _ in range(4):
        random_step(model, optimizer)
        loop.publish()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_steps_are_those_of_parameters_with_gradients(url: str, mode: str, momentum: float) -> None:
    """SGD has no counters, and fused kernels don't even move a version."""
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=1e-2, momentum=momentum, **MODES[mode])
    loop = Loop(model, optimizer, url)
    for skip in ((), ("up.weight",), ("norm.weight", "down.bias"), ()):
        random_step(model, optimizer, skip=skip)
        loop.publish()
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()
    assert loop.publish().sent == 0


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {}], ids=["momentum", "plain"])
def test_sgd_momentum_switched_on_and_off(url: str, options: dict[str, Any]) -> None:
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=1e-3, **options)
    loop = Loop(model, optimizer, url)
    for momentum in (0.0, 0.9, 0.9, 0.0, 0.5):
        optimizer.param_groups[0]["momentum"] = momentum
        train_step(model, optimizer)
        loop.publish()


def test_sgd_needs_the_gradient_that_the_step_read(url: str) -> None:
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=1e-3)
    loop = Loop(model, optimizer, url)
    train_step(model, optimizer)
    loop.publish()
    # Gone, edited or exchanged before deltawire's hook comes to see it.
    for edit in ("gone", "edited", "exchanged"):

        def spoil(*_: Any, edit: str = edit) -> None:
            for p in model.parameters():
                if edit == "edited":
                    p.grad.mul_(2)  # type: ignore[union-attr]
                else:
                    p.grad = None if edit == "gone" else torch.ones_like(p)

        handle = optimizer.register_step_post_hook(spoil)
        optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)
        train_step(model, optimizer)
        assert any("post-hook" in note for note in loop.publish(quiet=False).notes)
        handle.remove()
        train_step(model, optimizer)
        loop.publish()


@pytest.mark.parametrize("edit", ["edited", "exchanged"])
def test_sgd_whose_step_itself_spoils_the_gradient(
    url: str, edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As foreach Nesterov steps do; by whatever version of torch."""
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    loop = Loop(model, optimizer, url)
    module = sys.modules["torch.optim.sgd"]
    whole = module.sgd

    def spoiling(params: list[torch.Tensor], grads: list[torch.Tensor], *rest: Any, **options: Any) -> None:
        whole(params, grads, *rest, **options)
        for p in params:
            assert p.grad is not None
            if edit == "edited":
                p.grad.mul_(1.5)
            else:
                p.grad = torch.ones_like(p)

    monkeypatch.setattr(module, "sgd", spoiling)
    train_step(model, optimizer)
    notes = loop.publish(quiet=False).notes
    assert notes and all("the step read is not held any more" in note for note in notes)


def test_sgd_that_overwrites_gradients_is_not_inverted(url: str) -> None:
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, foreach=True)
    loop = Loop(model, optimizer, url)
    method, reason = loop.publisher.detectors["up.weight"]
    assert method == "capture" and "overwrite the gradient" in reason
    for _ in range(3):
        train_step(model, optimizer)
        loop.publish()


class Halved(torch.optim.Optimizer):
    """Adam of one's own: moments kept in BF16, no bias correction if told so, counts in Python numbers."""

    def __init__(self, params: Any, lr: float = 1e-3, correct: bool = True) -> None:
        super().__init__(params, {"rate": lr, "b": (0.9, 0.95), "e": 1e-8, "wd": 0.1, "correct": correct})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["b"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s.update(
                        n=0, m=torch.zeros_like(p, dtype=torch.bfloat16), v=torch.zeros_like(p).bfloat16()
                    )
                s["n"] += 1
                m = s["m"].float().lerp_(p.grad, 1 - beta1)
                v = s["v"].float().mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                c1, c2 = (1 - beta1 ** s["n"], 1 - beta2 ** s["n"]) if group["correct"] else (1.0, 1.0)
                p.mul_(1 - group["rate"] * group["wd"])
                p.addcdiv_(m, (v / c2).sqrt_().add_(group["e"]), value=-group["rate"] / c1)
                s["m"].copy_(m)
                s["v"].copy_(v)


HALVED = dw.AdamFamily(
    Halved,
    first_moment="m",
    second_moment="v",
    step="n",
    lr="rate",
    betas="b",
    eps="e",
    weight_decay="wd",
    bias_correction="correct",
)


@pytest.mark.parametrize("correct", [True, False])
def test_a_declared_optimizer_with_bf16_moments(url: str, correct: bool) -> None:
    model = Mlp()
    optimizer = Halved(model.parameters(), lr=1e-4, correct=correct)
    loop = Loop(model, optimizer, url, adam_family=[HALVED])
    assert_all_inverted(loop)
    assert "Halved" in loop.publisher.detectors["up.weight"][1]
    for _ in range(4):
        train_step(model, optimizer)
        version = loop.publish()
        assert version.dense == 0 and version.changed > 0


def test_declarations_are_exact_and_checked(url: str) -> None:
    class More(Halved):
        pass

    model = Mlp()
    assert Loop(model, Halved(model.parameters()), url).methods()["up.weight"] == "snapshot"
    loop = Loop(model, More(model.parameters()), url + "2", adam_family=[HALVED])
    assert loop.methods()["up.weight"] == "snapshot"
    wrong = dw.AdamFamily(Halved, first_moment="m", second_moment="v", step="n", betas="b", weight_decay="wd")
    loop = Loop(model, Halved(model.parameters()), url + "3", adam_family=[wrong])
    method, reason = loop.publisher.detectors["up.weight"]
    assert method == "snapshot" and "no 'lr', 'eps'" in reason
    with pytest.raises(dw.Error, match="AdamW is torch's"):
        dw.Publisher(model, None, url + "4", adam_family=[dw.AdamFamily(AdamW)])
    with pytest.raises(dw.Error, match="not a class of torch"):
        dw.Publisher(model, None, url + "4", adam_family=[dw.AdamFamily(Mlp)])  # type: ignore[arg-type]


def test_a_declared_state_that_is_not_there_goes_dense(url: str) -> None:
    model = Mlp()
    optimizer = Halved(model.parameters(), lr=1e-4)
    loop = Loop(model, optimizer, url, adam_family=[dataclass_with(HALVED, second_moment="w")])
    train_step(model, optimizer)
    assert any("has no w" in note for note in loop.publish(quiet=False).notes)


def dataclass_with(family: dw.AdamFamily, **changes: Any) -> dw.AdamFamily:
    out = copy.copy(family)
    for name, value in changes.items():
        object.__setattr__(out, name, value)
    return out


NEVER: dict[str, Make] = {
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
    "Adafactor": torch.optim.Adafactor,
    "Adamax": torch.optim.Adamax,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "Adadelta": torch.optim.Adadelta,
    "LBFGS": torch.optim.LBFGS,
    "Halved": Halved,
    "a subclass of AdamW": type("Mine", (AdamW,), {}),
}


@pytest.mark.parametrize("name", NEVER)
def test_never_inverted(url: str, name: str) -> None:
    model = Mlp()
    optimizer = NEVER[name](model.parameters(), lr=0.3 if name == "LBFGS" else 1e-3)
    loop = Loop(model, optimizer, url)
    for method, reason in loop.publisher.detectors.values():
        assert method in ("capture", "snapshot", "fence")
        assert method == "fence" or "no inverse is known" in reason
    with pytest.raises(
        dw.Error, match=r"tensor .* can't use inversion: no inverse is known.*detector='auto'"
    ):
        dw.Publisher(model, optimizer, url + "2", detector="inversion")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        if name == "LBFGS":
            optimizer.step(closure)
        else:
            train_step(model, optimizer)
        assert loop.publish().changed > 0
