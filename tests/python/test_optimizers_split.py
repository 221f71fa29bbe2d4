"""Stepping one parameter at a time gives the bits of one call, and looks like one call to everybody."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from deltawire._split import SPLITTABLE, Split, find_split, split_refusal
from oracle import bits
from torch.optim.optimizer import register_optimizer_step_post_hook

OptimizerClass = type[torch.optim.Optimizer]
SHAPES = ((33, 17), (64,), (5, 6), (), (8, 3, 3), (1, 40))

# Beyond the default: every setting of each class that changes its arithmetic.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Adadelta": [{"weight_decay": 0.1}, {"maximize": True}],
    "Adafactor": [{"weight_decay": 0.1}, {"maximize": True}, {"lr": torch.tensor(1e-2)}],
    "Adagrad": [
        {"weight_decay": 0.1},
        {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
        {"maximize": True},
    ],
    "Adam": [
        {"weight_decay": 0.1},
        {"amsgrad": True},
        {"maximize": True, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ],
    "AdamW": [{"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}],
    "Adamax": [{"weight_decay": 0.1}, {"maximize": True}],
    "ASGD": [{"weight_decay": 0.1, "t0": 2}, {"maximize": True}],
    "Muon": [{"weight_decay": 0.1}, {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw"}],
    "NAdam": [
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"maximize": True},
    ],
    "RAdam": [
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"maximize": True},
    ],
    "RMSprop": [{"weight_decay": 0.1, "momentum": 0.9}, {"centered": True}, {"maximize": True}],
    "Rprop": [{"maximize": True}],
    "SGD": [
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.3, "maximize": True},
    ],
}


def modes() -> Iterator[Any]:
    for kind in SPLITTABLE:
        parameters = inspect.signature(kind).parameters
        options: list[dict[str, Any]] = [{}]
        if "foreach" in parameters:
            options += [{"foreach": True}, {"foreach": False}]
        options += [{name: True} for name in ("fused", "differentiable") if name in parameters]
        for mode in options:
            yield pytest.param(
                kind, mode, id=f"{kind.__name__}-{''.join(f'{k}={v}' for k, v in mode.items())}"
            )


def cases(kind: OptimizerClass, mode: dict[str, Any]) -> Iterator[tuple[dict[str, Any], torch.dtype]]:
    """Each mode in all dtypes, each setting in two of them."""
    for settings in [{}, *SETTINGS[kind.__name__]]:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if settings and (dtype == torch.float16 or "differentiable" in mode):
                continue
            if kind is torch.optim.SGD and "fused" in mode and settings and dtype != torch.float32:
                continue  # torch 2.13 on CPUs: other results at each run, from uninitialised memory
            if mode.get("foreach") and isinstance(settings.get("lr"), torch.Tensor):
                continue  # torch refuses it
            yield {**mode, **settings}, dtype


class Watch:
    """Notes the calls around updates, and that nothing else than the announced tensor changes in between."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self._before: list[torch.Tensor] = []

    def begin_capture(self, indices: list[int]) -> None:
        self.calls.append(("begin", tuple(indices)))
        self._before = [bits(p).clone() for p in self.parameters]

    def end_capture(self, indices: list[int]) -> None:
        self.calls.append(("end", tuple(indices)))
        for i, (p, before) in enumerate(zip(self.parameters, self._before, strict=True)):
            assert i in indices or bool((bits(p) == before).all()), (
                f"{i} moved during the update of {indices}"
            )


def parameters_of(kind: OptimizerClass, dtype: torch.dtype, differentiable: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = [s for s in SHAPES if len(s) == 2] if kind.__name__ == "Muon" else SHAPES
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    # One that is not contiguous.
    tensors.append(torch.randn(9, 24, generator=generator).to(dtype)[:, ::2])
    # A differentiable step writes parameters with grad enabled: no leaves that require it.
    return [t if differentiable else torch.nn.Parameter(t) for t in tensors]


def make(
    kind: OptimizerClass, parameters: list[torch.Tensor], options: dict[str, Any]
) -> torch.optim.Optimizer:
    """Two groups with different rates; options as given, tensors copied."""
    options = copy.deepcopy(options)
    groups = [{"params": parameters[:3]}, {"params": parameters[3:], "lr": 3e-3}]
    if isinstance(options.get("lr"), torch.Tensor):
        groups[1]["lr"] = torch.tensor(3e-3)
    return kind(groups, **options)


def gradients(parameters: list[torch.Tensor], step: int, generator: torch.Generator, may_miss: bool) -> None:
    for i, p in enumerate(parameters):
        gradient = torch.randn(p.shape, generator=generator).to(p.dtype) * 0.1
        # Some are missing, from the start or later.
        p.grad = None if may_miss and (step + i) % 4 == 3 else gradient


def run(kind: OptimizerClass, options: dict[str, Any], dtype: torch.dtype, split: bool) -> Any:
    differentiable = bool(options.get("differentiable"))
    parameters = parameters_of(kind, dtype, differentiable)
    optimizer = make(kind, parameters, options)
    watch = Watch(parameters)
    handle = None
    if split:
        assert split_refusal(optimizer) == ""
        # The last one is stepped with the rest.
        handle = Split.attach(optimizer, watch, {id(p): [i] for i, p in enumerate(parameters[:-1])})
    generator = torch.Generator().manual_seed(8)
    # SGD: fused fails by itself where only some parameters have momentum buffers; for foreach see below.
    may_miss = kind is not torch.optim.SGD or not (options.get("fused") or options.get("foreach"))
    moved = 0
    for step in range(5):
        gradients(parameters, step, generator, may_miss)
        before = [bits(p).clone() for p in parameters]
        watch.calls.clear()
        optimizer.step()
        moved += sum(bool((bits(p) != b).any()) for p, b in zip(parameters, before, strict=True))
        if split:
            stepped = [i for i, p in enumerate(parameters[:-1]) if p.grad is not None]
            assert watch.calls == [(what, (i,)) for i in stepped for what in ("begin", "end")]
    assert moved >= len(parameters)  # at its least in BF16, which swallows small updates
    if handle is not None:
        handle.remove()
        assert "step" not in vars(optimizer)
    return optimizer, parameters


def flat(value: Any) -> Any:
    """State with tensors as their dtype and bits."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), bits(value).tolist()
    if isinstance(value, dict):
        return {key: flat(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(each) for each in value]
    return value


@pytest.mark.parametrize(("kind", "mode"), list(modes()))
def test_weights_and_state_have_the_bits_of_one_call(kind: OptimizerClass, mode: dict[str, Any]) -> None:
    for options, dtype in cases(kind, mode):
        together, weights = run(kind, options, dtype, split=False)
        apart, split_weights = run(kind, options, dtype, split=True)
        for i, (a, b) in enumerate(zip(weights, split_weights, strict=True)):
            assert bool((bits(a) == bits(b)).all()), f"weights of parameter {i}: {options}, {dtype}"
        assert flat(together.state_dict()) == flat(apart.state_dict()), f"state: {options}, {dtype}"


def pair(kind: OptimizerClass = torch.optim.Adam, **options: Any) -> tuple[torch.optim.Optimizer, Watch]:
    parameters = parameters_of(kind, torch.float32, differentiable=False)
    return make(kind, parameters, options), Watch(parameters)


def attach(optimizer: torch.optim.Optimizer, watch: Watch) -> Any:
    return Split.attach(optimizer, watch, {id(p): [i] for i, p in enumerate(watch.parameters)})


def give_gradients(watch: Watch, seed: int = 1) -> None:
    gradients(watch.parameters, 0, torch.Generator().manual_seed(seed), may_miss=False)


def test_only_listed_classes_with_their_own_step() -> None:
    class Mine(torch.optim.Adam):
        pass

    p = torch.nn.Parameter(torch.zeros(3, 3))
    assert "not on the list" in split_refusal(Mine([p]))
    assert "LBFGS is not on the list" in split_refusal(torch.optim.LBFGS([p]))
    assert "SparseAdam is not on the list" in split_refusal(torch.optim.SparseAdam([p]))
    assert split_refusal(torch.optim.Adam([p])) == ""
    replaced = torch.optim.Adam([p])
    replaced.step = lambda closure=None: None  # type: ignore[method-assign]
    assert "its step() has been replaced" in split_refusal(replaced)
    compiled = torch.optim.Adam([p])
    compiled.step = torch.compile(compiled.step, backend="eager")  # type: ignore[method-assign]
    assert "its step() has been replaced" in split_refusal(compiled)


def test_a_replaced_step_of_the_class_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adamax([p])
    monkeypatch.setattr(torch.optim.Adamax, "step", lambda self, closure=None: None)
    assert "step() of Adamax has been replaced" in split_refusal(optimizer)


def test_groups_whose_parameters_decide_together_are_not_split() -> None:
    p, elsewhere = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3, device="meta"))
    assert "mixes devices" in split_refusal(torch.optim.Adam([p, elsewhere]))
    assert split_refusal(torch.optim.Adam([p, elsewhere], foreach=False)) == ""
    half = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    assert "mixes dtypes" in split_refusal(torch.optim.Adafactor([p, half]))
    assert split_refusal(torch.optim.Adam([p, half])) == ""


def test_the_closure_runs_once_with_gradients_before_any_update() -> None:
    optimizer, watch = pair()
    attach(optimizer, watch)
    seen = []

    def closure() -> torch.Tensor:
        seen.append((torch.is_grad_enabled(), list(watch.calls)))
        give_gradients(watch)
        return torch.tensor(4.0)

    assert float(optimizer.step(closure)) == 4.0
    assert float(optimizer.step(closure=closure)) == 4.0
    assert [grad for grad, _ in seen] == [True, True]
    assert seen[0][1] == []
    assert len(watch.calls) == 2 * 2 * len(watch.parameters)


def test_hooks_and_the_profiler_see_one_step() -> None:
    optimizer, watch = pair()
    calls: list[str] = []
    shown = [list(group["params"]) for group in optimizer.param_groups]

    def note(what: str) -> Callable[..., None]:
        def hook(given: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            assert given is optimizer and args[0] is optimizer
            assert [group["params"] for group in given.param_groups] == shown
            calls.append(what)

        return hook

    optimizer.register_step_pre_hook(note("pre"))
    optimizer.register_step_post_hook(note("post"))
    everywhere = register_optimizer_step_post_hook(note("global post"))
    attach(optimizer, watch)
    give_gradients(watch)
    try:
        with torch.profiler.profile() as profile:
            optimizer.step()
    finally:
        everywhere.remove()
    assert calls == ["pre", "post", "global post"]
    steps = [event.count for event in profile.key_averages() if event.key == "Optimizer.step#Adam.step"]
    assert steps == [1]


def test_state_dict_during_a_step_is_whole() -> None:
    optimizer, watch = pair()

    class Saver(Watch):
        def begin_capture(self, indices: list[int]) -> None:
            super().begin_capture(indices)
            state = optimizer.state_dict()
            assert [len(group["params"]) for group in state["param_groups"]] == [3, len(self.parameters) - 3]

    saver = Saver(watch.parameters)
    attach(optimizer, saver)
    for _ in range(2):
        give_gradients(watch)
        optimizer.step()
    assert len(saver.calls) == 2 * 2 * len(watch.parameters)


@pytest.mark.parametrize("built", ["before", "after"])
@pytest.mark.filterwarnings("error")  # a scheduler warns if it does not see steps
def test_learning_rate_schedulers_count_steps(built: str) -> None:
    optimizer, watch = pair(lr=0.1)

    def schedule() -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    scheduler = schedule() if built == "before" else None
    own = vars(optimizer).get("step")
    handle = attach(optimizer, watch)
    scheduler = scheduler or schedule()
    assert not handle.bypassed
    for _ in range(2):
        give_gradients(watch)
        optimizer.step()
        scheduler.step()
    assert optimizer._opt_called  # type: ignore[attr-defined]
    assert len(watch.calls) == 2 * 2 * len(watch.parameters)
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.25
    handle.remove()
    if built == "before":
        assert vars(optimizer)["step"] is own
    watch.calls.clear()
    before = bits(watch.parameters[0]).clone()
    optimizer.step()  # goes through whatever stayed
    assert watch.calls == [] and bool((bits(watch.parameters[0]) != before).any())
    # And a new one on top of what stayed.
    attach(optimizer, watch)
    optimizer.step()
    scheduler.step()
    assert len(watch.calls) == 2 * len(watch.parameters)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_grad_scaler_skips_and_unscales_as_for_one_call(options: dict[str, Any]) -> None:
    found = []
    for split in (False, True):
        optimizer, watch = pair(**options)
        handle = attach(optimizer, watch) if split else None
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        for step in range(4):
            scaler.scale(torch.zeros((), requires_grad=True) * 1.0)  # sets the scaler up
            give_gradients(watch, step)
            if step == 2:
                watch.parameters[1].grad[5] = torch.inf  # type: ignore[index]
            scaler.step(optimizer)
            scaler.update()
        assert not hasattr(optimizer, "found_inf")
        assert int(optimizer.state[watch.parameters[0]]["step"]) == 3
        found.append((flat(optimizer.state_dict()), flat(watch.parameters), scaler.get_scale()))
        if handle is not None:
            assert watch.calls
    assert found[0] == found[1]


def test_exceptions_leave_the_optimizer_whole() -> None:
    optimizer, watch = pair(foreach=False)
    attach(optimizer, watch)
    give_gradients(watch)
    optimizer.step()
    watch.calls.clear()
    groups = [list(group["params"]) for group in optimizer.param_groups]
    # The third parameter's moments don't fit: its update raises in the middle of the step.
    state = optimizer.state[watch.parameters[2]]
    right, state["exp_avg"] = state["exp_avg"], torch.zeros(2)
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert watch.calls == [(what, (i,)) for i in range(3) for what in ("begin", "end")]
    assert [group["params"] for group in optimizer.param_groups] == groups

    def fails() -> None:
        raise FloatingPointError("in the closure")

    with pytest.raises(FloatingPointError):
        optimizer.step(fails)
    assert len(watch.calls) == 6
    state["exp_avg"] = right
    optimizer.step()
    assert len(watch.calls) == 6 + 2 * len(watch.parameters)


@pytest.mark.parametrize("watched", [(), (1, 2, 5), (0, 2, 4), (0, 1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("at", range(7))
def test_an_exception_in_the_middle_leaves_what_a_plain_step_leaves(
    at: int, watched: tuple[int, ...]
) -> None:
    """Which parameters have moved, and all state, however captured and other parameters are mixed."""

    def interrupted(split: bool) -> list[torch.Tensor]:
        parameters = parameters_of(torch.optim.AdamW, torch.float32, False)
        optimizer = make(torch.optim.AdamW, parameters, {})
        if split:
            Split.attach(optimizer, Watch(parameters), {id(parameters[i]): [i] for i in watched})
        generator = torch.Generator().manual_seed(3)
        gradients(parameters, 0, generator, may_miss=False)
        optimizer.step()
        gradients(parameters, 1, generator, may_miss=False)
        optimizer.state[parameters[at]]["exp_avg_sq"] = torch.zeros(2)
        with pytest.raises(RuntimeError):
            optimizer.step()
        state = [value for p in parameters for value in optimizer.state[p].values()]
        return [bits(each).clone() for each in (*parameters, *state)]

    for split, plain in zip(interrupted(True), interrupted(False), strict=True):
        assert torch.equal(split, plain)


def test_two_listeners_share_one_split() -> None:
    optimizer, first = pair()
    second = Watch(first.parameters)
    one, two = attach(optimizer, first), Split.attach(optimizer, second, {id(first.parameters[4]): [9, 4]})
    installed = vars(optimizer)["step"]
    give_gradients(first)
    optimizer.step()
    assert len(first.calls) == 2 * len(first.parameters)
    assert second.calls == [("begin", (9, 4)), ("end", (9, 4))]
    one.remove()
    one.remove()
    assert vars(optimizer)["step"] is installed
    optimizer.step()
    assert len(first.calls) == 2 * len(first.parameters) and len(second.calls) == 4
    two.remove()
    assert "step" not in vars(optimizer)
    optimizer.step()
    assert len(second.calls) == 4


def test_a_split_keeps_nobody_alive() -> None:
    optimizer, watch = pair()
    attach(optimizer, watch)
    parameters = watch.parameters
    alive = weakref.ref(watch)
    del watch
    gc.collect()
    assert alive() is None
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.step()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_steps_that_go_around_it_are_seen() -> None:
    optimizer, watch = pair()
    handle = attach(optimizer, watch)
    give_gradients(watch)
    type(optimizer).step(optimizer)  # through the class: the fence's business
    assert watch.calls == [] and not handle.bypassed
    wrapped = optimizer.step
    del optimizer.step  # as accelerate restores what it found
    assert handle.bypassed
    optimizer.step()
    assert watch.calls == []
    optimizer.step = wrapped  # type: ignore[method-assign]
    optimizer.step()
    assert watch.calls


def test_copies_and_pickles_are_not_split() -> None:
    optimizer, watch = pair()
    attach(optimizer, watch)
    copied = copy.deepcopy(optimizer)
    assert "step" not in vars(copied)
    assert find_split(copied) is None and find_split(optimizer) is not None
    assert list(inspect.signature(optimizer.step).parameters) == ["closure"]


def test_a_compiled_step_is_left_whole() -> None:
    optimizer, watch = pair(foreach=True)
    attach(optimizer, watch)
    give_gradients(watch)
    before = bits(watch.parameters[0]).clone()
    torch.compile(optimizer.step, backend="eager")()
    assert watch.calls == []
    assert bool((bits(watch.parameters[0]) != before).any())


def test_steps_in_which_parameters_decide_for_each_other_are_left_whole() -> None:
    # foreach SGD, some parameters without momentum yet: torch takes other kernels for all of them.
    runs = []
    for split in (False, True):
        parameters = parameters_of(torch.optim.SGD, torch.bfloat16, differentiable=False)
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
        watch = Watch(parameters)
        if split:
            attach(optimizer, watch)
        counts = []
        for step in range(4):
            give_gradients(watch, step)
            if step < 2:
                parameters[0].grad = None
            optimizer.step()
            counts.append(len(watch.calls))
        runs.append(flat(optimizer.state_dict()["state"]))
    n = len(parameters)
    assert counts == [2 * n - 2, 4 * n - 4, 4 * n - 4, 6 * n - 4]
    assert runs[0] == runs[1]
    # Sparse gradients.
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    watch = Watch(list(embedding.parameters()))
    attach(optimizer, watch)
    embedding(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert watch.calls == []
