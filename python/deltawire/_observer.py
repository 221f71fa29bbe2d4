"""Watches optimizers step: what each step used, and what the state holds after it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ._detector import Choice, group_refusal, moments_refusal
from ._tensors import Views

Hyper = tuple[float, float, float, float, float]
StepTuple = tuple[int, int, Any, str]


class StepListener(Protocol):
    def before_step(self) -> None: ...
    def after_step(self, optimizer: torch.optim.Optimizer, hypers: dict[int, Hyper | str]) -> None: ...


def as_read(value: Any) -> float:
    """A hyperparameter as the number that the step's kernel reads."""
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)


def capture(optimizer: torch.optim.Optimizer) -> dict[int, Hyper | str]:
    """For each parameter (by id): what the coming step will use, or why it can't be inverted."""
    out: dict[int, Hyper | str] = {}
    for group in optimizer.param_groups:
        used: Hyper | str = group_refusal(optimizer, group)
        if not used:
            beta1, beta2 = group["betas"]
            used = (
                as_read(group["lr"]),
                as_read(group["weight_decay"]),
                as_read(beta1),
                as_read(beta2),
                as_read(group["eps"]),
            )
        for parameter in group["params"]:
            out[id(parameter)] = used
    return out


@dataclass
class OptimizerHooks:
    """Calls the listener around every step, as near to the update itself as hooks allow."""

    optimizer: torch.optim.Optimizer
    _handles: list[Any] = field(default_factory=list)
    _hypers: dict[int, Hyper | str] | None = None

    def attach(self, listener: StepListener) -> None:
        # The optimizer outlives many publishers: it must not keep one alive.
        ref = weakref.ref(listener)

        def observe_before() -> None:
            if (target := ref()) is not None:
                target.before_step()
                self._hypers = capture(self.optimizer)
                if not self._is_last():
                    # It may edit weights or hyperparameters between here and the update.
                    self._hypers = dict.fromkeys(self._hypers, "another step pre-hook runs after deltawire's")

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

        def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hypers, self._hypers = self._hypers, None
            if hypers is not None and (target := ref()) is not None:
                now = capture(self.optimizer)
                for parameter, used in hypers.items():
                    if now.get(parameter) != used and not isinstance(used, str):
                        hypers[parameter] = "its hyperparameters changed during the step"
                target.after_step(optimizer, hypers)

        self._handles = [
            self.optimizer.register_step_pre_hook(before),
            self.optimizer.register_step_post_hook(after),
        ]
        self.keep_order()

    def keep_order(self) -> None:
        """Last before the update and first after it: other hooks may edit weights too (EMA swaps)."""
        for handle, name, last in zip(
            self._handles,
            ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
            (True, False),
            strict=True,
        ):
            hooks = getattr(self.optimizer, name, None)
            if hooks is not None and handle.id in hooks:
                hooks.move_to_end(handle.id, last=last)

    def _is_last(self) -> bool:
        hooks = getattr(self.optimizer, "_optimizer_step_pre_hooks", None)
        return not hooks or not self._handles or next(reversed(hooks)) == self._handles[0].id

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


def counters(choices: list[Choice]) -> list[int]:
    """The optimizer's step counter of each tensor now; 0 where there is none."""
    out = [0] * len(choices)
    tensors: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for i, choice in enumerate(choices):
        if choice.optimizer is None or choice.parameter is None:
            continue
        step = choice.optimizer.state.get(choice.parameter, {}).get("step", 0)
        if isinstance(step, torch.Tensor):
            tensors.setdefault(step.device, []).append((i, step))
        else:
            out[i] = int(step)
    for steps in tensors.values():
        # One transfer a device, not one a tensor.
        values = torch.stack([step.detach().reshape(()).to(torch.float64) for _, step in steps]).tolist()
        for (i, _), value in zip(steps, values, strict=True):
            out[i] = int(value)
    return out


def observed_steps(
    optimizer: torch.optim.Optimizer, choices: list[Choice], hypers: dict[int, Hyper | str], views: Views
) -> list[StepTuple]:
    """What the core needs to undo the step that this optimizer has just made."""
    mine = [
        (i, choice.parameter)
        for i, choice in enumerate(choices)
        if choice.method == "inversion" and choice.optimizer is optimizer and choice.parameter is not None
    ]
    now = counters([choices[i] for i, _ in mine])
    out: list[StepTuple] = []
    for (i, parameter), step in zip(mine, now, strict=True):
        state = optimizer.state.get(parameter)
        if not state:
            continue  # it has never been stepped
        used = hypers.get(id(parameter), "it was in no parameter group before the step")
        refusal = used if isinstance(used, str) else moments_refusal(optimizer, parameter)
        if refusal:
            out.append((i, step, None, refusal))
            continue
        assert not isinstance(used, str)
        m = views.of(f"exp_avg of tensor {i}", state["exp_avg"])
        v = views.of(f"exp_avg_sq of tensor {i}", state["exp_avg_sq"])
        out.append((i, step, ("adam", (*used, True), m, v), ""))
    return out
