"""Runs an optimizer's step one parameter at a time, so that capture needs memory for one parameter only.

``step()`` of a foreach or fused optimizer changes every parameter in one call. Where the update of a
parameter depends on that parameter alone, the class's own step can be called once for each: the same
arithmetic on the same numbers, and so the same bits (tests/python/test_optimizers_split.py compares them for
every class in ``SPLITTABLE``).
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ._classes import class_name
from ._step_wrapper import mark_as_update

# Exactly these classes: a subclass may do anything. Not here: LBFGS (all parameters are one vector, and it
# calls the closure several times) and SparseAdam (its gradients touch rows).
SPLITTABLE: tuple[type[torch.optim.Optimizer], ...] = tuple(
    getattr(torch.optim, name)
    for name in (
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "ASGD",
        "Muon",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
    if hasattr(torch.optim, name)  # Adafactor is younger than torch 2.4, Muon than 2.8
)


class CaptureListener(Protocol):
    def begin_capture(self, indices: list[int]) -> None: ...
    def end_capture(self, indices: list[int]) -> None: ...


def split_refusal(optimizer: torch.optim.Optimizer) -> str:
    """Why an optimizer's step can't be run parameter by parameter; empty if it can."""
    kind = type(optimizer)
    if kind not in SPLITTABLE:
        return f"{class_name(kind)} is not on the list of optimizers whose step can be split"
    if own_step(kind) is None:
        return f"step() of {kind.__qualname__} has been replaced"
    present = optimizer.__dict__.get("step")
    if present is not None and find_split(optimizer) is None and not _is_schedulers(present):
        return "its step() has been replaced (torch.compile, or a wrapper)"
    for group in optimizer.param_groups:
        if refusal := _group_refusal(kind, group):
            return refusal
    return ""


def _group_refusal(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> str:
    """Where one parameter of the group has a say in how another is updated."""
    parameters = group["params"]
    # With neither set, torch chooses foreach if every parameter of the group allows it.
    torch_chooses = group.get("foreach") is None and not group.get("fused")
    if torch_chooses and len({(type(p), p.device.type) for p in parameters}) > 1:
        return "a parameter group mixes devices, and has neither foreach nor fused set"
    if kind.__name__ == "Adafactor" and len({p.dtype for p in parameters}) > 1:
        # Its default eps is that of the first parameter's dtype.
        return "a parameter group of Adafactor mixes dtypes"
    return ""


def find_split(optimizer: torch.optim.Optimizer) -> Split | None:
    """The split in the optimizer's present step; None where there is none or something replaced it."""
    # Wrappers by functools.wraps (a learning-rate scheduler's) show the attribute of what they wrap.
    return getattr(optimizer.step, "_deltawire_split", None)


@dataclass(eq=False)
class _Watcher:
    listener: weakref.ref[CaptureListener]
    indices: dict[int, list[int]]
    """id(parameter) -> the listener's tensors in its memory."""


class SplitHandle:
    """One listener's part in a split."""

    def __init__(self, split: Split, watcher: _Watcher) -> None:
        self._split = split
        self._watcher = watcher

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self._split.optimizer

    @property
    def indices(self) -> set[int]:
        """The listener's tensors."""
        return {i for indices in self._watcher.indices.values() for i in indices}

    def stepped(self) -> set[int]:
        """Those that a step with the present gradients updates."""
        optimizer = self.optimizer
        return {
            i
            for group in ([] if optimizer is None else optimizer.param_groups)
            for p in group["params"]
            if p.grad is not None
            for i in self._watcher.indices.get(id(p), ())
        }

    @property
    def bypassed(self) -> bool:
        """Something has replaced the optimizer's step since."""
        return self._split.bypassed

    def why_not(self) -> str:
        """Why steps are not split now."""
        optimizer = self.optimizer
        kind = type(optimizer).__name__
        if self.bypassed:
            return f"the step() of the {kind} was replaced since"
        if optimizer is not None and (coupled := coupling(optimizer)):
            return f"the {kind} stepped them together: {coupled}"
        return (
            f"the {kind} stepped them together (a step() compiled by torch.compile, or called by its class)"
        )

    def remove(self) -> None:
        """May be repeated. With the last one the optimizer's step is what it was."""
        self._split._remove(self._watcher)


class Split:
    """An optimizer's ``step`` attribute that steps watched parameters one by one, and the others together.

    For everybody else it is one call of ``step``: the closure runs once, hooks and the profiler see one step,
    a scheduler counts one. The optimizer's groups are never changed: the class's step is called on a stand-in
    that shares all attributes and state but shows fewer parameters.

    An exception inside of it leaves what it would leave without a split where parameters are stepped one by
    one (the default on the CPU): those before the one that raised have moved. But state that is made at a
    parameter's first step is made when its turn comes, not for all of them first. What a foreach or fused
    step leaves when it raises is its kernels' affair: here what is not captured has moved, or nothing has.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer)
        inner = own_step(kind)
        assert inner is not None, "split_refusal() was not asked"
        self._optimizer = weakref.ref(optimizer)
        self._inner = inner
        self._stand_in = _stand_in_of(kind)
        self._watchers: list[_Watcher] = []
        self._before = optimizer.__dict__.get("step")
        self._installed = self._make_step(optimizer)
        optimizer.step = self._installed  # type: ignore[method-assign]

    @staticmethod
    def attach(
        optimizer: torch.optim.Optimizer, listener: CaptureListener, indices: dict[int, list[int]]
    ) -> SplitHandle:
        """Calls the listener around each update of the parameters whose ids are keys of ``indices``.

        Ask ``split_refusal`` before. The listener is not kept alive.
        """
        split = find_split(optimizer) or Split(optimizer)
        watcher = _Watcher(weakref.ref(listener), indices)
        split._watchers.append(watcher)
        return SplitHandle(split, watcher)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self._optimizer()

    @property
    def bypassed(self) -> bool:
        optimizer = self._optimizer()
        return optimizer is not None and find_split(optimizer) is not self

    def _remove(self, watcher: _Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        optimizer = self._optimizer()
        # A scheduler may have wrapped it since: then it stays, and passes calls on.
        if self._watchers or optimizer is None or optimizer.__dict__.get("step") is not self._installed:
            return
        if self._before is None:
            del optimizer.step
        else:
            optimizer.step = self._before  # type: ignore[method-assign]

    def _make_step(self, optimizer: torch.optim.Optimizer) -> types.MethodType:
        scheduled = self._before is not None

        @functools.wraps(self._inner)
        def step(self_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(self_, closure)

        mark_as_update(step)
        hooked: Any = torch.optim.Optimizer.profile_hook_step(step)
        outer = hooked
        if scheduled:

            @functools.wraps(hooked)
            def outer(self_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
                # What the scheduler's wrapper, which this one replaces, tells the scheduler.
                self_._opt_called = True  # type: ignore[attr-defined]
                return hooked(self_, *args, **kwargs)

            outer._wrapped_by_lr_sched = True
        outer.hooked = True
        outer._deltawire_split = self
        # A method: schedulers look for its __func__.
        return types.MethodType(outer, optimizer)

    def _step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> Any:
        if torch.compiler.is_compiling() or not self._watchers or coupling(optimizer):
            # Nobody watches, or the parts would not be the whole. What changes is then noticed by the fence.
            return self._inner(optimizer, closure)
        watched = {key for watcher in self._watchers for key in watcher.indices}
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stand_in = self._stand_in(optimizer)
        for group in optimizer.param_groups:
            self._step_group(stand_in, group, watched)
        return loss

    def _step_group(self, stand_in: Any, group: dict[str, Any], watched: set[int]) -> None:
        """The watched parameters alone, the others in runs.

        In the order in which the class's own loop goes through them: an exception in the middle of it leaves
        the weights and state that it leaves there. Kernels that take all tensors at once have no order.
        """
        stepped = [p for p in group["params"] if p.grad is not None]
        if not _in_order(group):
            stepped.sort(key=lambda p: id(p) in watched)  # stable
        runs: list[list[torch.Tensor]] = []
        for parameter in stepped:
            if runs and id(parameter) not in watched and id(runs[-1][0]) not in watched:
                runs[-1].append(parameter)
            else:
                runs.append([parameter])
        for run in runs:
            stand_in.shown = [_showing(group, run)]
            if id(run[0]) in watched:
                self._update(stand_in, run[0])
            else:
                self._inner(stand_in)

    def _update(self, stand_in: Any, parameter: torch.Tensor) -> None:
        with ExitStack() as ends:
            for watcher in self._watchers:
                indices = watcher.indices.get(id(parameter))
                listener = watcher.listener()
                if indices and listener is not None:
                    listener.begin_capture(indices)
                    # Also after an exception: whatever was written by then is compared.
                    ends.callback(listener.end_capture, indices)
            self._inner(stand_in)


def own_step(kind: type[torch.optim.Optimizer]) -> Callable[..., Any] | None:
    """The class's step inside the wrapper that calls hooks; None where it is not torch's."""
    hooked: Any = inspect.getattr_static(kind, "step")
    inner = getattr(hooked, "__wrapped__", None)
    if not getattr(hooked, "hooked", False) or inner is None or getattr(inner, "hooked", False):
        return None
    if not str(getattr(inner, "__module__", "")).startswith("torch.optim."):
        return None
    return inner  # type: ignore[no-any-return]


def _is_schedulers(step: Any) -> bool:
    """Whether an instance's step is the wrapper that a learning-rate scheduler puts there."""
    return getattr(step, "__globals__", None) is vars(torch.optim.lr_scheduler) and getattr(
        getattr(step, "__wrapped__", None), "hooked", False
    )


def coupling(optimizer: torch.optim.Optimizer) -> str:
    """How one parameter decides, in the coming step, by which kernels another is updated; else empty."""
    for group in optimizer.param_groups:
        if refusal := _group_refusal(type(optimizer), group) or _coupling(optimizer, group):
            return refusal
    return ""


def _coupling(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> str:
    stepped = [p for p in group["params"] if p.grad is not None]
    if any(p.grad.layout is not torch.strided for p in stepped):
        return "a gradient is sparse"
    off_cpu = any(p.device.type != "cpu" for p in stepped)
    foreach = group.get("foreach")
    if not (foreach or (foreach is None and not group.get("fused") and off_cpu)):
        return ""
    # Off the CPU, foreach kernels take all tensors together or, if one of them has other strides, one by one;
    # in low precision their roundings differ.
    if off_cpu and not all(p.is_contiguous() and p.grad.is_contiguous() for p in stepped):
        return "not all of them are contiguous"
    # foreach SGD falls back to single operations, with other roundings, while some have no momentum yet.
    if type(optimizer) is torch.optim.SGD and group["momentum"] != 0:
        started = sum(optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in stepped)
        if 0 < started < len(stepped):
            return "some have no momentum yet"
    return ""


def _in_order(group: dict[str, Any]) -> bool:
    """Whether the class's step goes through the group's parameters one by one, as it does on the CPU."""
    if group.get("foreach") is None and not group.get("fused"):
        return all(p.device.type == "cpu" for p in group["params"])
    return not group.get("foreach") and not group.get("fused")


def _showing(group: dict[str, Any], parameters: Iterable[torch.Tensor]) -> dict[str, Any]:
    return {**group, "params": list(parameters)}


def _stand_in_of(kind: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], Any]:
    """Makes objects that are an optimizer in everything (attributes, state) but the groups that they show."""

    def make(optimizer: torch.optim.Optimizer) -> Any:
        stand_in = object.__new__(stand_in_type)
        # The very same dict: what the step sets on itself stays.
        stand_in.__dict__ = optimizer.__dict__
        return stand_in

    stand_in_type = type(
        kind.__name__,
        (kind,),
        {
            "__slots__": ("shown",),
            "__module__": kind.__module__,
            "__doc__": None,
            "param_groups": property(lambda self: self.shown),
        },
    )
    return make
