"""Which detector watches each tensor, and why: the first in order whose preconditions hold."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch

from ._classes import class_of
from ._errors import make
from ._model import ModelTensor, byte_span, share_bytes
from ._rules import Group, Rule, Rules, is_torchs
from ._split import own_step, split_refusal
from ._step_wrapper import strange_step
from ._tensors import Placement, dtype_name, local, placement

_LOG = logging.getLogger("deltawire")
# In order of preference; buffers and what nobody steps are fenced.
DETECTORS = ("copy_back", "inversion", "capture", "snapshot")
NO_MASTER = "no framework is known to cast it from a master copy"
HELD_TWICE = "the optimizers hold it more than once"
_CAPTURED_BYTES = 4  # an element's, at most


@dataclass(frozen=True)
class Choice:
    method: str
    """copy_back, inversion, capture, snapshot or fence."""
    reason: str
    optimizer: torch.optim.Optimizer | None = None
    parameter: torch.Tensor | None = None
    """The object that the optimizer holds, where there is exactly one with these elements."""
    rule: Rule | None = None
    """Inversion: how the optimizer's steps are undone."""
    captured: tuple[tuple[torch.optim.Optimizer, torch.Tensor], ...] = ()
    """Capture: everything that steps elements of the tensor."""


@dataclass(frozen=True)
class Stepper:
    """A parameter that an optimizer holds."""

    optimizer: torch.optim.Optimizer
    group: Group
    index: int
    """Of the group."""
    parameter: torch.Tensor
    place: Placement


@dataclass
class Steppers:
    """All parameters of the optimizers, by where they are."""

    by_storage: dict[tuple[torch.device, int], list[Stepper]] = field(default_factory=dict)

    @staticmethod
    def of(optimizers: Sequence[torch.optim.Optimizer], but: Container[int] = ()) -> Steppers:
        """``but``: without the parameters of these ids."""
        out = Steppers()
        for optimizer in optimizers:
            for index, group in enumerate(optimizer.param_groups):
                for parameter in group["params"]:
                    if id(parameter) in but:
                        continue
                    here = local(parameter)
                    if here.numel() and here.layout is torch.strided and here.device.type != "meta":
                        stepper = Stepper(optimizer, group, index, parameter, placement(here))
                        out.by_storage.setdefault(_storage(here), []).append(stepper)
        return out

    def on(self, tensor: torch.Tensor) -> list[Stepper]:
        """Those that hold elements of the tensor."""
        if not tensor.numel():
            return []
        low, high = byte_span(tensor)
        place = placement(tensor)
        out = []
        for stepper in self.by_storage.get(_storage(tensor), []):
            if stepper.place == place:
                out.append(stepper)
                continue
            other = local(stepper.parameter)
            start, end = byte_span(other)
            if start < high and low < end:
                whole = other.is_contiguous() and tensor.is_contiguous()
                if whole or share_bytes(other, tensor):
                    out.append(stepper)
        return out


def _storage(tensor: torch.Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def choose(
    tensors: Sequence[ModelTensor],
    served: Sequence[str],
    optimizers: Sequence[torch.optim.Optimizer],
    wanted: str,
    rules: Rules | None = None,
) -> list[Choice]:
    """The detector of each tensor, as far as torch's optimizers decide it.

    ``served``: their dtypes for engines. ``wanted``: "auto" or the name of a detector, which must then do
    wherever something steps a tensor.
    """
    if wanted not in ("auto", *DETECTORS):
        names = ", ".join(map(repr, ("auto", *DETECTORS)))
        raise make("invalid_argument", f"detector={wanted!r} is not one of {names}")
    chooser = _Chooser(Steppers.of(optimizers), rules or Rules())
    return [
        chooser.options(entry, served_dtype).take(entry.name, wanted)
        for entry, served_dtype in zip(tensors, served, strict=True)
    ]


def check_held(tensors: Sequence[ModelTensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuses an optimizer that steps other tensors than the model's."""
    held = {_storage(entry.tensor) for entry in tensors if entry.tensor.numel()}
    for optimizer in optimizers:
        parameters = [local(p) for group in optimizer.param_groups for p in group["params"]]
        parameters = [p for p in parameters if p.numel()]
        found = sum(p.layout is torch.strided and _storage(p) in held for p in parameters)
        kind = type(optimizer).__name__
        if parameters and found == 0:
            raise make(
                "invalid_argument",
                f"the {kind} given steps {len(parameters)} parameters, and none of them is the model's: it "
                "was built for another model, or before model.to(), a wrapper or a load replaced them. Build "
                "it from this model's parameters(); if it steps copies that something casts into the "
                "model, give detector='snapshot'",
            )
        if found < len(parameters):
            _LOG.info(
                "%d of %d parameters of the %s are not the model's",
                len(parameters) - found,
                len(parameters),
                kind,
            )


@dataclass
class _Options:
    """What may watch one tensor, and why the rest may not."""

    candidates: dict[str, Choice] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, wanted: str) -> Choice:
        if "fence" in self.candidates:
            return self.candidates["fence"]
        auto = next(self.candidates[each] for each in DETECTORS if each in self.candidates)
        if wanted == "auto":
            return auto
        if wanted == "snapshot":
            return Choice("snapshot", "asked for", auto.optimizer, auto.parameter)
        if wanted in self.candidates:
            return self.candidates[wanted]
        raise make(
            "unsupported",
            f"tensor {name} can't use {wanted}: {self.refusals.get(wanted, NO_MASTER)}. With detector='auto' "
            f"it is watched by {auto.method}",
        )


class _Chooser:
    def __init__(self, steppers: Steppers, rules: Rules) -> None:
        self._steppers = steppers
        self._rules = rules
        self._splits: dict[int, str] = {}  # id(optimizer) -> split_refusal

    def options(self, entry: ModelTensor, served: str) -> _Options:
        on = self._steppers.on(entry.tensor)
        if not on:
            return _Options({"fence": Choice("fence", _why_unstepped(entry))})
        exact = on[0] if len(on) == 1 and on[0].place == placement(entry.tensor) else None
        optimizer, parameter = (exact.optimizer, exact.parameter) if exact else (None, None)
        out = _Options()
        rule = self._rules.of(exact.optimizer) if exact else None
        if refusal := self._inversion_refusal(entry, served, on, exact, rule):
            out.refusals["inversion"] = refusal
        else:
            assert rule is not None
            reason = f"{rule.name}, F32 weights served as BF16"
            out.candidates["inversion"] = Choice("inversion", reason, optimizer, parameter, rule)
        if refusal := self._capture_refusal(entry, on):
            out.refusals["capture"] = refusal
        else:
            reason = f"stepped one parameter at a time: {out.refusals.get('inversion', 'asked for')}"
            captured = tuple((stepper.optimizer, stepper.parameter) for stepper in on)
            out.candidates["capture"] = Choice("capture", reason, optimizer, parameter, None, captured)
        if not out.candidates:
            reason = "; ".join(dict.fromkeys(out.refusals.values()))
            out.candidates["snapshot"] = Choice("snapshot", reason, optimizer, parameter)
        return out

    def _inversion_refusal(
        self, entry: ModelTensor, served: str, on: list[Stepper], exact: Stepper | None, rule: Rule | None
    ) -> str:
        if exact is None:
            if len(on) > 1:
                return HELD_TWICE
            return "the optimizer steps another view of its memory"
        if rule is None:
            return f"no inverse is known of {class_of(exact.optimizer)}"
        if is_torchs(rule) and own_step(type(exact.optimizer)) is None:
            return f"step() of {type(exact.optimizer).__qualname__} has been replaced"
        if stranger := strange_step(exact.optimizer):
            return f"its step() has been replaced by {stranger}"
        if refusal := rule.refusal(exact.group, exact.index):
            return refusal
        stored = entry.tensor.dtype
        if stored != torch.float32 or served != "BF16":
            return f"inversion needs F32 weights served as BF16, not {dtype_name(stored)} as {served}"
        state = exact.optimizer.state.get(exact.parameter)
        if state:
            return rule.state_refusal(rule.used(exact.group), exact.parameter, state)
        return ""

    def _capture_refusal(self, entry: ModelTensor, on: list[Stepper]) -> str:
        by_optimizer = {id(stepper.optimizer): stepper.optimizer for stepper in on}
        if len(by_optimizer) < len(on):
            return HELD_TWICE  # by one of them: it steps it twice in one step
        if entry.tensor.element_size() > _CAPTURED_BYTES:
            return f"capture does not watch {dtype_name(entry.tensor.dtype)}"
        for key, optimizer in by_optimizer.items():
            if key not in self._splits:
                self._splits[key] = split_refusal(optimizer)
            if self._splits[key]:
                return self._splits[key]
        return ""


def _why_unstepped(entry: ModelTensor) -> str:
    if not entry.is_parameter:
        return "a buffer, no optimizer steps it"
    return "no optimizer steps it" if entry.held.requires_grad else "frozen"


def detectors_of(tensors: Sequence[ModelTensor], choices: Sequence[Choice]) -> dict[str, tuple[str, str]]:
    """For each tensor: its detector, and why."""
    return {
        entry.name: (choice.method, choice.reason) for entry, choice in zip(tensors, choices, strict=True)
    }


def log_choices(choices: Sequence[Choice]) -> None:
    """A line for each detector and reason."""
    uses = Counter((choice.method, choice.reason) for choice in choices)
    for (method, reason), count in sorted(uses.items()):
        _LOG.info("%d tensors watched by %s: %s", count, method, reason)
