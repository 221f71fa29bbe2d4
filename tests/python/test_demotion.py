"""A detector that was wrong about a tensor: its block goes whole, and it is not believed again."""

from __future__ import annotations

from typing import Any

import deltawire as dw
import numpy as np
import torch
from detection_loop import Loop
from small_models import Bag


class NotAdam(torch.optim.Optimizer):
    """Keeps Adam's state, but takes twenty of its steps at once."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].lerp_(p.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                m = state["exp_avg"] / (1 - beta1 ** state["step"])
                v = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
                p.sub_(20 * group["lr"] * m / (v.sqrt() + group["eps"]))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


def served(p: torch.Tensor) -> np.ndarray:
    return p.detach().reshape(-1).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


FAMILY = dw.AdamFamily(NotAdam)


def small_model() -> torch.nn.Module:
    """So small that inversion leaves no element uncertain: then, and only then, changes can be added up."""
    return Bag({name: torch.randn(6, 4) * 0.02 + 0.1 for name in ("a", "b")})


def test_a_family_that_is_none_costs_one_whole_version(url: str) -> None:
    model = small_model()
    liar, honest = NotAdam([model.a], lr=1e-4), torch.optim.AdamW([model.b], lr=1e-4)
    loop = Loop(model, [liar, honest], url, adam_family=FAMILY)
    assert loop.methods() == {"a": "inversion", "b": "inversion"}
    for turn in range(4):
        step(model, liar)
        honest.step()
        version = loop.publish(quiet=turn > 0)
        assert version.uncertain == 0 < version.changed
        assert version.dense == (model.a.numel() if turn == 0 else 0)
        assert loop.methods() == {"a": "snapshot", "b": "inversion"}
        assert version.detectors["snapshot"].elements == model.a.numel()
        if turn == 0:
            (note,) = version.notes
            assert "tensor a: block [0:6, 0:4] sent dense: inversion did not account for all" in note
            assert "watched by snapshot from now on" in note
    _, reason = loop.publisher.detectors["a"]
    assert "inversion did not account for all of its change; it was: " in reason and "NotAdam" in reason


def test_what_a_demoted_tensor_sent_in_vain_is_sent_again() -> None:
    model = small_model()
    optimizer = NotAdam(model.parameters(), lr=1e-4)
    with dw.ChangeDetector(model, optimizer, adam_family=FAMILY) as detector:
        names = dict(model.named_parameters())
        step(model, optimizer)
        for confirm in (False, False, True):
            changes = {each.name: each for each in detector.collect()}
            assert {method for name, (method, _) in detector.detectors.items() if name in names} == {
                "snapshot"
            }
            for name, p in model.named_parameters():
                # Whole: nothing is known of the old bits.
                assert len(changes[name].positions) == p.numel() and not changes[name].known.any()
                assert (changes[name].new == served(p)).all()
            detector.confirm() if confirm else detector.abandon()
        old = {name: served(p) for name, p in model.named_parameters()}
        step(model, optimizer)
        for confirm in (False, True):
            changes = {each.name: each for each in detector.collect()}
            for name, p in model.named_parameters():
                assert changes[name].known.all()
                assert (changes[name].positions == (old[name] != served(p)).nonzero()[0]).all()
            detector.confirm() if confirm else detector.abandon()
        assert detector.collect() == []
