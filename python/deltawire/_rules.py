"""How the steps of optimizers are undone: for which classes, with which numbers, from which state.

Exactly these classes, not their subclasses: what an optimizer does is known by its class or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ._classes import class_name
from ._errors import make
from ._tensors import dtype_name, local

Group = dict[str, Any]
State = dict[str, Any]


@dataclass(frozen=True)
class AdamFamily:
    """Declares that an optimizer class of yours updates parameters as Adam does, so that it can be inverted.

    You vouch, for each parameter θ by itself and each of its elements (docs/numerics.md has the proof that
    rests on it): a step computes, in FP32 and in any order of operations,
    θ ← θ − lr · m/(1−β1ᵗ) / (√(v/(1−β2ᵗ)) + eps), preceded, accompanied or followed by the decay
    θ ← θ − lr · weight_decay · θ where that is decoupled; m and v are kept in the parameter's state as they
    were used, except that they may be rounded (to nearest) to BF16 after it; t counts the parameter's
    updates, in its state, by one each; and nothing else writes θ, m or v. Not of this form: 8-bit moments,
    Kahan summation, stochastic rounding, trust ratios, averaging of iterates.

    ``optimizer_class``: this class exactly, a ``torch.optim.Optimizer``. ``first_moment``, ``second_moment``,
    ``step``: keys of the parameter's state. ``lr``, ``betas`` (a pair), ``eps``, ``weight_decay``: keys of
    its group, read right before each step. ``decoupled``, ``bias_correction``: True, False, or the key of the
    group's flag. Decay that is not decoupled is added to the gradient.
    """

    optimizer_class: type[torch.optim.Optimizer]
    first_moment: str = "exp_avg"
    second_moment: str = "exp_avg_sq"
    step: str = "step"
    lr: str = "lr"
    betas: str = "betas"
    eps: str = "eps"
    weight_decay: str = "weight_decay"
    decoupled: bool | str = True
    bias_correction: bool | str = True


@dataclass(frozen=True)
class Used:
    """What one step of a group uses, as its kernels read it."""

    rule: Rule
    numbers: tuple[float, ...]
    """As the core takes them."""
    states: tuple[str, ...]
    """Keys of the parameter's state that undo the step."""
    gradient: bool = False
    """The gradient is needed, too."""
    by_memory: bool = False
    """The step's kernels may pair elements by their place in memory, whatever the strides say."""


class Rule(Protocol):
    @property
    def kind(self) -> str:
        """The core's name of it: adam, sgd."""

    @property
    def name(self) -> str:
        """For reports."""

    @property
    def counter(self) -> str | None:
        """The state's key of the step counter; None: it has none."""

    def refusal(self, group: Group, index: int) -> str:
        """Why the steps of that group can't be undone under its present settings; empty if they can.

        ``index``: which of the optimizer's groups it is, for messages.
        """

    def used(self, group: Group) -> Used:
        """What a step under these settings uses. Ask ``refusal`` before."""

    def state_refusal(self, used: Used, parameter: torch.Tensor, state: State) -> str:
        """Why that is not what the step left in the parameter's state; empty if it is."""


def as_read(value: Any) -> float:
    """A hyperparameter as the number that the step's kernel reads."""
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)


def _number_refusal(group: Group, index: int, keys: Sequence[str]) -> str:
    """Which hyperparameter is no number; empty if all are."""
    for key in keys:
        value = group.get(key)
        try:
            as_read(value)
        except (TypeError, ValueError, RuntimeError):
            return f"its parameter group {index} has {key}={value!r}, which is no number"
    return ""


def tensor_refusal(
    what: str, tensor: Any, parameter: torch.Tensor, dtypes: tuple[torch.dtype, ...], by_memory: bool = False
) -> str:
    """Why a tensor does not lie beside a parameter's elements one by one; empty if it does."""
    if not isinstance(tensor, torch.Tensor):
        return f"{what} is not a tensor"
    here, there = local(tensor), local(parameter)
    if getattr(tensor, "placements", None) != getattr(parameter, "placements", None):
        return f"{what} is sharded otherwise than the weights"
    if tensor.layout is not torch.strided or (
        type(here).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    ):
        return f"{what} is a {type(tensor).__name__}, {tensor.layout}: no plain tensor"
    if here.dtype not in dtypes:
        names = " or ".join(str(dtype_name(dtype)) for dtype in dtypes)
        return f"{what} is {dtype_name(here.dtype) or here.dtype}, not {names}"
    if here.shape != there.shape:
        return f"{what} has shape {list(here.shape)}, the weights have {list(there.shape)}"
    if here.device != there.device:
        return f"{what} is on {here.device}, the weights are on {there.device}"
    if by_memory and _places(here) != _places(there):
        return f"{what} has strides {here.stride()}, the weights have {there.stride()}; the step ignores that"
    return ""


def _places(tensor: torch.Tensor) -> list[int]:
    """The strides that matter."""
    return [stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent > 1]


class AdamRule:
    """A declared family."""

    kind = "adam"
    moment_dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)

    def __init__(self, family: AdamFamily) -> None:
        self.name = class_name(family.optimizer_class)
        self.counter = family.step
        self._family = family

    def refusal(self, group: Group, index: int) -> str:
        f = self._family
        flags = [key for key in (f.decoupled, f.bias_correction) if isinstance(key, str)]
        missing = [key for key in (f.lr, f.betas, f.eps, f.weight_decay, *flags) if key not in group]
        if missing:
            return f"its parameter group {index} has no {', '.join(map(repr, missing))}"
        try:
            beta1, beta2 = group[f.betas]
        except (TypeError, ValueError):
            return (
                f"its parameter group {index} has {f.betas}={group[f.betas]!r}, which is no pair of numbers"
            )
        pair = {f"{f.betas}[0]": beta1, f"{f.betas}[1]": beta2}
        if refusal := _number_refusal(group | pair, index, (f.lr, *pair, f.eps, f.weight_decay)):
            return refusal
        if not as_read(group[f.eps]) > 0:
            return f"its parameter group {index} has {f.eps}=0"
        return ""

    def used(self, group: Group) -> Used:
        f = self._family
        beta1, beta2 = group[f.betas]
        numbers = (
            as_read(group[f.lr]),
            # Where it is not decoupled it is in the gradient, and so in the moments.
            as_read(group[f.weight_decay]) if self._decoupled(group) else 0.0,
            as_read(beta1),
            as_read(beta2),
            as_read(group[f.eps]),
            bool(group[f.bias_correction]) if isinstance(f.bias_correction, str) else f.bias_correction,
        )
        moments = (f.first_moment, self._second_moment(group))
        return Used(self, numbers, moments, by_memory=self._by_memory(group))

    def _by_memory(self, group: Group) -> bool:
        return True  # nothing is known of a declared optimizer's kernels

    def _decoupled(self, group: Group) -> bool:
        flag = self._family.decoupled
        return bool(group[flag]) if isinstance(flag, str) else flag

    def _second_moment(self, group: Group) -> str:
        return self._family.second_moment

    def state_refusal(self, used: Used, parameter: torch.Tensor, state: State) -> str:
        for key in used.states:
            if key not in state:
                return f"its optimizer state has no {key}"
            what = f"its optimizer state {key}"
            if refusal := tensor_refusal(what, state[key], parameter, self.moment_dtypes, used.by_memory):
                return refusal
        if self.counter not in state:
            return f"its optimizer state has no step counter {self.counter!r}"
        return ""


class TorchAdamRule(AdamRule):
    """torch's Adam and AdamW, with AMSGrad."""

    # With BF16 moments torch computes the update in BF16, too: not the form that the proof covers.
    moment_dtypes = (torch.float32,)

    def _by_memory(self, group: Group) -> bool:
        return bool(group.get("fused"))

    def _decoupled(self, group: Group) -> bool:
        # Versions of torch in which AdamW was no subclass of Adam have no such flag.
        return bool(group.get("decoupled_weight_decay", self._family.decoupled))

    def _second_moment(self, group: Group) -> str:
        # The step divides by the running maximum.
        return "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"


class SgdRule:
    """torch's SGD: from the momentum buffer, or from the gradient while it is the one that the step read."""

    kind = "sgd"
    name = "torch.optim.sgd.SGD"
    counter = None

    def refusal(self, group: Group, index: int) -> str:
        if refusal := _number_refusal(group, index, ("lr", "momentum", "weight_decay")):
            return refusal
        foreach = group.get("foreach")
        if foreach is None and not group.get("fused"):
            # torch's choice where neither is set.
            foreach = any(local(p).device.type != "cpu" for p in group["params"])
        overwrites = foreach and not group["maximize"] and as_read(group["weight_decay"]) == 0
        if group["nesterov"] and overwrites:
            return "foreach Nesterov steps without weight decay overwrite the gradient"
        return ""

    def used(self, group: Group) -> Used:
        lr, mu = as_read(group["lr"]), as_read(group["momentum"])
        fused = bool(group.get("fused"))
        if mu != 0 and not group["nesterov"]:
            # The buffer holds gradient and decay.
            return Used(self, (lr, 0.0, 0.0), ("momentum_buffer",), by_memory=fused)
        # A step that maximizes reads the gradient negated.
        sign = -1.0 if group["maximize"] else 1.0
        decay = as_read(group["weight_decay"])
        if mu == 0:
            return Used(self, (sign * lr, sign * decay, 0.0), (), gradient=True, by_memory=fused)
        numbers = (sign * lr, sign * decay, sign * mu)
        return Used(self, numbers, ("momentum_buffer",), gradient=True, by_memory=fused)

    def state_refusal(self, used: Used, parameter: torch.Tensor, state: State) -> str:
        for key in used.states:
            if state.get(key) is None:
                return f"its optimizer state has no {key}"
            what = f"its optimizer state {key}"
            if refusal := tensor_refusal(what, state[key], parameter, (torch.float32,), used.by_memory):
                return refusal
        return ""


_TORCH_RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.Adam: TorchAdamRule(AdamFamily(torch.optim.Adam, decoupled=False)),
    torch.optim.AdamW: TorchAdamRule(AdamFamily(torch.optim.AdamW, decoupled=True)),
    torch.optim.SGD: SgdRule(),
}


def is_torchs(rule: Rule) -> bool:
    """Not one that the user declared: the class's step must be torch's own."""
    return rule in _TORCH_RULES.values()


class Rules:
    """torch's optimizers and those that the user declares."""

    def __init__(self, declared: AdamFamily | Sequence[AdamFamily] = ()) -> None:
        self._rules = dict(_TORCH_RULES)
        for family in [declared] if isinstance(declared, AdamFamily) else declared:
            if not isinstance(family, AdamFamily):
                raise make("invalid_argument", f"adam_family holds {family!r}, not a deltawire.AdamFamily")
            kind = family.optimizer_class
            if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
                raise make(
                    "invalid_argument", f"AdamFamily: {kind!r} is not a class of torch.optim.Optimizer"
                )
            if kind.__module__.startswith("torch.optim"):
                raise make("invalid_argument", f"AdamFamily: {kind.__qualname__} is torch's; it is known")
            self._rules[kind] = AdamRule(family)

    def of(self, optimizer: torch.optim.Optimizer) -> Rule | None:
        return self._rules.get(type(optimizer))
