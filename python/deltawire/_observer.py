"""Watches optimizers step: what each step used, and what the state holds after it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ._detector import Choice
from ._rules import Group, Used, tensor_refusal
from ._step_wrapper import stranger_behind, updates_of
from ._tensors import Views, local

_NO_COUNTER = 2**63
# index, counter after the step, what undoes it (None: nothing does), why nothing does
StepTuple = tuple[int, int, "tuple[Any, ...] | None", str]


@dataclass(frozen=True)
class ObservedStep:
    """One optimizer step of one tensor."""

    tensor: int
    counter: int
    """After the step."""
    used: Used | None
    """None: it can't be undone, for ``refusal``."""
    beside: tuple[torch.Tensor, ...]
    """What lies beside the weights after it and undoes it, in the core's order."""
    refusal: str

    def for_core(self, views: Views) -> StepTuple:
        if self.used is None:
            return self.tensor, self.counter, None, self.refusal
        first, *second = (views.of(f"state of tensor {self.tensor}", local(each)) for each in self.beside)
        undo = (self.used.rule.kind, self.used.numbers, first, second[0] if second else None)
        return self.tensor, self.counter, undo, ""


class StepListener(Protocol):
    def before_step(self, optimizer: torch.optim.Optimizer, between: str) -> None:
        """``between``: what may still edit weights or settings before the update; empty if nothing may."""

    def after_step(self, optimizer: torch.optim.Optimizer, between: str) -> None:
        """``between``: what may have edited weights since the update; empty if nothing may have."""


@dataclass
class OptimizerHooks:
    """Calls the listener around every step, as near to the update itself as hooks allow."""

    optimizer: torch.optim.Optimizer
    stranger: str = ""
    """The function that the last step ran in the place of its class's, hooks and all; empty if none."""
    _handles: list[Any] = field(default_factory=list)

    def attach(self, listener: StepListener) -> None:
        # The optimizer outlives many publishers: it must not keep one alive.
        ref = weakref.ref(listener)

        updates = updates_of(type(self.optimizer))

        # A compiled step calls its hooks, and would trace into them.
        @torch.compiler.disable
        def observe_before() -> None:
            if (target := ref()) is not None:
                self.stranger = stranger_behind(sys._getframe(1), updates)
                between = f"its step() has been replaced by {self.stranger}" if self.stranger else ""
                if not self._is_outermost(0, last=True):
                    between = "another step pre-hook runs after deltawire's"
                target.before_step(self.optimizer, between)

        @torch.compiler.disable
        def before(
            optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
            observe_before()
            # A closure may do anything to the weights before the update reads them.
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            if closure is None:
                return None
            wrapped = _observed(closure, observe_before)
            if "closure" in kwargs:
                return args, {**kwargs, "closure": wrapped}
            return (args[0], wrapped, *args[2:]), kwargs

        @torch.compiler.disable
        def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (target := ref()) is not None:
                early = not self._is_outermost(1, last=False)
                target.after_step(
                    self.optimizer, "another step post-hook ran before deltawire's" if early else ""
                )

        for hook in (before, after):
            hook._deltawire = True  # type: ignore[attr-defined]
        self._handles = [
            self.optimizer.register_step_pre_hook(before),
            self.optimizer.register_step_post_hook(after),
        ]
        self.keep_order()

    def keep_order(self) -> None:
        """Last before the update and first after it: other hooks may edit weights too (EMA swaps)."""
        for which, last in ((0, True), (1, False)):
            hooks = self._hooks(which)
            # Only if need be: torch may be going through the hooks right now, and publishers share the place.
            if self._handles and self._handles[which].id in hooks and not self._is_outermost(which, last):
                hooks.move_to_end(self._handles[which].id, last=last)

    def _hooks(self, which: int) -> Any:
        name = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")[which]
        return getattr(self.optimizer, name, {})

    def _is_outermost(self, which: int, last: bool) -> bool:
        """Whether only hooks of deltawire, which edit nothing, lie between this one and the update."""
        hooks = self._hooks(which)
        for key in reversed(hooks) if last else hooks:
            if self._handles and key == self._handles[which].id:
                return True
            if not getattr(hooks[key], "_deltawire", False):
                return False
        return True

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _observed(closure: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = closure(*args, **kwargs)
        then()
        return result

    return run


@dataclass
class _Before:
    """An inverted parameter as the coming step finds it."""

    used: Used | str
    """Or why its step can't be undone."""
    # Where the optimizer does not count its steps:
    gradient: torch.Tensor | None = None
    gradient_version: int = 0
    weights_version: int = 0


class Inversion:
    """The steps of the inverted tensors: what each used, what it left, and the counters of both."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices
        self._mine: dict[int, list[int]] = {}  # id(optimizer) -> tensors
        for i, choice in enumerate(choices):
            if choice.method == "inversion":
                self._mine.setdefault(id(choice.optimizer), []).append(i)
        # Of tensors whose optimizer does not count: steps that are known to have been made.
        self._counted = {i: 0 for i in self._indices() if self._counter(i) is None}
        self._before: dict[int, _Before] = {}

    def _indices(self) -> list[int]:
        return [i for mine in self._mine.values() for i in mine]

    def _counter(self, i: int) -> str | None:
        rule = self._choices[i].rule
        assert rule is not None
        return rule.counter

    def drop(self, i: int) -> None:
        """The tensor is not inverted any more."""
        for mine in self._mine.values():
            if i in mine:
                mine.remove(i)
        self._counted.pop(i, None)
        self._before.pop(i, None)

    def tensors_of(self, optimizer: torch.optim.Optimizer) -> list[int]:
        return self._mine.get(id(optimizer), [])

    def counters(self) -> list[int]:
        """The step counter of each tensor now; 0 where there is none."""
        return self._counters(range(len(self._choices)))

    def _counters(self, indices: Sequence[int]) -> list[int]:
        out = [0] * len(indices)
        tensors: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
        for at, i in enumerate(indices):
            choice = self._choices[i]
            if i in self._counted:
                out[at] = self._counted[i]
            elif choice.method == "inversion":
                assert choice.optimizer is not None and choice.parameter is not None
                step = choice.optimizer.state.get(choice.parameter, {}).get(self._counter(i), 0)
                if isinstance(step, torch.Tensor):
                    step = local(step).detach().reshape(())
                    tensors.setdefault(step.device, []).append((at, step))
                else:
                    out[at] = _whole(step)
        for steps in tensors.values():
            # One transfer a device, not one a tensor.
            values = torch.stack([step.to(torch.float64) for _, step in steps]).tolist()
            for (at, _), value in zip(steps, values, strict=True):
                out[at] = _whole(value)
        return out

    def before_step(
        self, optimizer: torch.optim.Optimizer, between: str, also_stepped: Mapping[int, str]
    ) -> None:
        """Remembers what the coming step will use.

        ``also_stepped``: tensors that are stepped by something else as well, and how that came.
        """
        settings = self._settings(optimizer)
        for i in self.tensors_of(optimizer):
            parameter = self._parameter(i)
            used = settings.get(id(parameter), "it was in no parameter group before the step")
            before = _Before(between or also_stepped.get(i) or used)
            if i in self._counted:
                before.gradient = parameter.grad
                before.gradient_version = _version(parameter.grad) if parameter.grad is not None else 0
                before.weights_version = _version(parameter)
            self._before[i] = before

    def forget(self) -> None:
        """Lets go of gradients that a step which never ended has left."""
        self._before.clear()

    def after_step(self, optimizer: torch.optim.Optimizer, between: str) -> list[ObservedStep]:
        """What undoes the step that this optimizer has just made. Tensors that it left alone may miss."""
        settings = self._settings(optimizer)
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        mine = [i for i in self.tensors_of(optimizer) if i in self._before]
        out = []
        for i, counter in zip(mine, self._counters(mine), strict=True):
            parameter, before = self._parameter(i), self._before.pop(i)
            used = before.used
            if isinstance(used, Used) and settings.get(id(parameter)) != used:
                used = "its hyperparameters changed during the step"
            if isinstance(used, Used) and between:
                used = between
            if i in self._counted:
                stepped = _evidence(optimizer, parameter, before, groups.get(id(parameter)))
                if stepped is False:
                    continue
                if isinstance(stepped, str):
                    used = stepped
                self._counted[i] = counter = counter + 1
            elif not optimizer.state.get(parameter):
                continue  # it has never been stepped
            out.append(_observed_step(i, counter, used, optimizer, parameter, before))
        return out

    def _parameter(self, i: int) -> torch.Tensor:
        parameter = self._choices[i].parameter
        assert parameter is not None
        return parameter

    def _settings(self, optimizer: torch.optim.Optimizer) -> dict[int, Used | str]:
        """By id of each inverted parameter: what a step would use now, or why it could not be undone."""
        mine = self.tensors_of(optimizer)
        if not mine:
            return {}
        rule = self._choices[mine[0]].rule
        assert rule is not None
        out: dict[int, Used | str] = {}
        for index, group in enumerate(optimizer.param_groups):
            used: Used | str = rule.refusal(group, index)
            if not used:
                used = rule.used(group)
            for parameter in group["params"]:
                out[id(parameter)] = "the optimizer holds it twice" if id(parameter) in out else used
        return out


def _observed_step(
    i: int,
    counter: int,
    used: Used | str,
    optimizer: torch.optim.Optimizer,
    parameter: torch.Tensor,
    before: _Before,
) -> ObservedStep:
    if isinstance(used, str):
        return ObservedStep(i, counter, None, (), used)
    state = optimizer.state.get(parameter, {})
    refusal = used.rule.state_refusal(used, parameter, state)
    if not refusal and used.gradient:
        refusal = _gradient_refusal(optimizer, parameter, before, used.by_memory)
    if refusal:
        return ObservedStep(i, counter, None, (), refusal)
    beside = [state[key] for key in used.states]
    if used.gradient:
        assert parameter.grad is not None
        beside.insert(0, parameter.grad)
    return ObservedStep(i, counter, used, tuple(beside), "")


def _whole(counter: float) -> int:
    """A counter as the core takes it. What is none (NaN, negative, too large) is a jump, and goes dense."""
    return int(counter) if 0 <= counter < _NO_COUNTER else _NO_COUNTER


def _version(tensor: torch.Tensor) -> int:
    return local(tensor)._version


def _evidence(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, before: _Before, group: Group | None
) -> bool | str:
    """Whether a step that has returned has updated a parameter; or why that can't be told.

    To answer no is safe: should it be wrong, the fence notices. To answer yes must be right.
    """
    if before.gradient is None:
        return False if parameter.grad is None else "its gradient appeared during the step"
    if group is None:
        return "it left its parameter group during the step"
    if not group.get("fused"):
        if local(parameter) is not parameter:
            # foreach steps of DTensors move no version. Without a GradScaler's part in it, step() updates
            # everything that has a gradient.
            return True
        # Fused kernels don't move it.
        return _version(parameter) != before.weights_version
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return True
    # A GradScaler's: the kernels do nothing where it is 1.
    value = float(found_inf)
    return True if value == 0 else False if value == 1 else f"found_inf is {value}"


def _gradient_refusal(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, before: _Before, by_memory: bool
) -> str:
    """Why the parameter's gradient is not the one that the step used; empty if it is."""
    gradient = parameter.grad
    if gradient is None or gradient is not before.gradient or _version(gradient) != before.gradient_version:
        return "the gradient that the step read is not held any more"
    if getattr(optimizer, "grad_scale", None) is not None:
        return "the step divided its gradient by a loss scale"
    return tensor_refusal("its gradient", gradient, parameter, (torch.float32,), by_memory)


def counters(choices: Sequence[Choice]) -> list[int]:
    """The counters that inversion starts from: those of the optimizers now, 0 where there is none."""
    return Inversion(choices).counters()
