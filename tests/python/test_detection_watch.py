"""What the core is told of each step: which tensors, which numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deltawire._calls import Calls
from deltawire._frameworks import Reading, stepping_of
from deltawire._frameworks.choices import choose_detectors
from deltawire._model import walk
from deltawire._serving import ServingRule
from deltawire._tensors import Views
from deltawire._watch import Watch
from small_models import Bag, random_step


class Core:
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def before_step(self, tensors: list[int]) -> None:
        self.calls.append(("before", tensors))

    def after_step(self, steps: list[Any]) -> None:
        self.calls.append(
            ("after", [(i, counter, undo and undo[:2], why) for i, counter, undo, why in steps])
        )

    def check_steps(self, counters: list[int]) -> None:
        self.calls.append(("check", counters))

    def begin_capture(self, tensors: list[int]) -> None:
        self.calls.append(("begin", tensors))

    def end_capture(self, tensors: list[int]) -> None:
        self.calls.append(("end", tensors))

    def copy_back(self, tensor: int, master: Any) -> None:
        raise AssertionError("nothing is copied here")

    def rebind(self, tensor: int, live: Any) -> None:
        self.calls.append(("rebind", tensor))

    def taken(self) -> list[tuple[str, Any]]:
        taken, self.calls = self.calls, []
        return taken


def watch(model: torch.nn.Module, optimizers: Any) -> tuple[Core, Watch]:
    core, stepping, reading = Core(), stepping_of(optimizers), Reading([])
    tensors = walk(model, reading)
    rule = ServingRule(None, None, tensors)
    choices = choose_detectors(tensors, [rule.served(entry) for entry in tensors], stepping, "auto", ())
    return core, Watch("test", core, Calls("test"), Views(), model, reading, tensors, choices, stepping)


def tensors(*names: str, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: torch.ones(3, 2, dtype=dtype) for name in names}


def test_only_what_the_optimizer_steps_is_looked_at_before_its_step() -> None:
    model = Bag(tensors("a", "b", "c") | tensors("low", dtype=torch.bfloat16), {"seen": torch.zeros(2)})
    first = torch.optim.AdamW([model.b, model.low])
    second = torch.optim.SGD([model.a], momentum=0.9)
    third = torch.optim.Adagrad([model.c])
    core, kept = watch(model, [first, second, third])
    assert core.taken() == []
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    first.step()
    assert [(what, of) for what, of in core.taken() if what != "after"] == [
        ("before", [1]),
        ("begin", [3]),
        ("end", [3]),
    ]
    second.step()
    assert [what for what, _ in core.calls] == ["before", "after"] and core.taken()[0][1] == [0]
    third.step()
    assert core.taken() == [("before", []), ("begin", [2]), ("end", [2]), ("after", [])]
    kept.close()
    first.step()
    assert core.taken() == []


def test_after_a_closure_it_looks_again() -> None:
    model = Bag(tensors("a"))
    optimizer = torch.optim.AdamW(model.parameters())
    core, _kept = watch(model, optimizer)

    def closure() -> None:
        model.a.grad = torch.ones(3, 2)

    optimizer.step(closure)
    assert [what for what, _ in core.taken()] == ["before", "before", "after"]


ADAM: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "AdamW": ({"weight_decay": 0.25}, (0.5, 0.25, 0.5, 0.75, 0.125, True)),
    "Adam": ({"weight_decay": 0.25}, (0.5, 0.0, 0.5, 0.75, 0.125, True)),
    "Adam decoupled": (
        {"weight_decay": 0.25, "decoupled_weight_decay": True, "maximize": True},
        (0.5, 0.25, 0.5, 0.75, 0.125, True),
    ),
}


@pytest.mark.parametrize("name", ADAM)
def test_numbers_of_adam(name: str) -> None:
    model = Bag(tensors("a"))
    options, numbers = ADAM[name]
    kind = getattr(torch.optim, name.split()[0])
    optimizer = kind(model.parameters(), lr=0.5, betas=(0.5, 0.75), eps=0.125, **options)
    core, _kept = watch(model, optimizer)
    for step in (1, 2):
        random_step(model, optimizer)
        assert core.taken()[-1] == ("after", [(0, step, ("adam", numbers), "")])
    # A schedule that moves on right after the step does not change what it used.
    optimizer.param_groups[0]["lr"] = 0.25
    random_step(model, optimizer)
    assert core.taken()[-1] == ("after", [(0, 3, ("adam", (0.25, *numbers[1:])), "")])


SGD: dict[str, tuple[dict[str, Any], tuple[float, float, float]]] = {
    "momentum": ({"momentum": 0.75, "weight_decay": 0.25, "maximize": True}, (0.5, 0.0, 0.0)),
    "plain": ({"weight_decay": 0.25}, (0.5, 0.25, 0.0)),
    "plain, maximize": ({"weight_decay": 0.25, "maximize": True}, (-0.5, -0.25, 0.0)),
    "nesterov": ({"momentum": 0.75, "nesterov": True, "weight_decay": 0.25}, (0.5, 0.25, 0.75)),
    "nesterov, maximize": ({"momentum": 0.75, "nesterov": True, "maximize": True}, (-0.5, -0.0, -0.75)),
}


@pytest.mark.parametrize("name", SGD)
def test_numbers_of_sgd(name: str) -> None:
    model = Bag(tensors("a", "b"))
    options, numbers = SGD[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, **options)
    core, kept = watch(model, optimizer)
    random_step(model, optimizer)
    random_step(model, optimizer, skip=("a",))
    assert core.taken() == [
        ("before", [0, 1]),
        ("after", [(0, 1, ("sgd", numbers), ""), (1, 1, ("sgd", numbers), "")]),
        ("before", [0, 1]),
        ("after", [(1, 2, ("sgd", numbers), "")]),
    ]
    kept.before_collection()
    assert core.taken() == [("check", [1, 2])]


def test_hyperparameters_that_change_inside_the_step() -> None:
    model = Bag(tensors("a"))
    optimizer = torch.optim.AdamW(model.parameters())
    core, _kept = watch(model, optimizer)

    class Meddling(dict[str, Any]):
        reads = 0

        def __getitem__(self, key: str) -> Any:
            if key == "lr":
                Meddling.reads += 1
                return 0.5 / Meddling.reads
            return super().__getitem__(key)

    optimizer.param_groups[0] = Meddling(optimizer.param_groups[0])
    random_step(model, optimizer)
    assert core.taken()[-1] == ("after", [(0, 1, None, "its hyperparameters changed during the step")])


def test_memory_that_was_exchanged_is_rebound_once() -> None:
    model = Bag(tensors("a", "b"), {"seen": torch.zeros(2)})
    optimizer = torch.optim.AdamW([model.a])
    core, kept = watch(model, optimizer)
    model.a.data = torch.zeros(3, 2)
    model.b.data = torch.zeros(3, 2)  # nobody steps it: found at the next publish
    random_step(model, optimizer)
    assert [(what, of) for what, of in core.taken() if what == "rebind"] == [("rebind", 0), ("rebind", 1)]
    model.seen = torch.ones(2)
    kept.before_collection()
    assert core.taken() == [("rebind", 2), ("check", [1, 0, 0])]
    kept.before_collection()
    assert core.taken() == [("check", [1, 0, 0])]


def test_another_hook_between_ours_and_the_update() -> None:
    model = Bag(tensors("a"))
    optimizer = torch.optim.AdamW(model.parameters())
    core, kept = watch(model, optimizer)
    optimizer.register_step_pre_hook(lambda *_: None)
    random_step(model, optimizer)
    ((_, (step,)),) = core.taken()[1:]
    assert step[2] is None and "pre-hook runs after" in step[3]
    # From then on ours is the last again.
    random_step(model, optimizer)
    assert core.taken()[-1][1][0][3] == ""
    # Another watch's hooks edit nothing.
    other, _kept_too = watch(model, optimizer)
    for each in (kept, _kept_too):
        each.keep_order()
    random_step(model, optimizer)
    assert core.taken()[-1][1][0][3] == "" and other.taken()[-1][1][0][3] == ""
