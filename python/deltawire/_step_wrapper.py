"""What torch wraps around the step of every optimizer: it calls the hooks, and what it was given."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch


def _place_of_code(function: Callable[..., object]) -> tuple[str, str]:
    code = function.__code__
    return code.co_filename, code.co_name


# By name: compiled code has other objects.
_WRAPPER = _place_of_code(torch.optim.Optimizer.profile_hook_step(lambda self: None))


def is_wrapper(code: CodeType) -> bool:
    return (code.co_filename, code.co_name) == _WRAPPER


def updates_of(kind: type[torch.optim.Optimizer]) -> set[CodeType]:
    """What may stand between the hooks: the step of the class, and those of the classes above it."""
    out = set()
    for each in kind.__mro__:
        step = getattr(vars(each).get("step"), "__wrapped__", None)
        while step is not None:  # decorators of the class's own, too
            if isinstance(step, FunctionType):
                out.add(step.__code__)
            step = getattr(step, "__wrapped__", None)
    return out


def mark_as_update(step: Any) -> None:
    """Of a step that does what the class's own does."""
    step._deltawire_step = True


def stranger_behind(frame: FrameType | None, updates: set[CodeType]) -> str:
    """The function whose hooks are being called from the frame, if it is none of these; else empty.

    An instance's own step, wrapped like a class's, has the same hooks and any arithmetic.
    """
    while frame is not None:
        if is_wrapper(frame.f_code):
            # Compiled frames do not show it: there it was seen when it was compiled.
            return _stranger(frame.f_locals.get("func"), updates)
        frame = frame.f_back
    return ""


def strange_step(optimizer: torch.optim.Optimizer) -> str:
    """The same of the step that an instance has for itself. One that calls the class's is none."""
    step = optimizer.__dict__.get("step")
    function = getattr(step, "__func__", step)
    if not isinstance(function, FunctionType) or not is_wrapper(function.__code__):
        return ""
    return _stranger(getattr(function, "__wrapped__", None), updates_of(type(optimizer)))


def _stranger(step: Any, updates: set[CodeType]) -> str:
    if not isinstance(step, FunctionType) or step.__code__ in updates:
        return ""
    if getattr(step, "_deltawire_step", False):
        return ""
    return f"{step.__module__}.{step.__qualname__}"
