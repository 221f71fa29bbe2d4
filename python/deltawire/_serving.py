"""Which dtype engines serve each tensor in."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from . import _core
from ._errors import make
from ._fp8 import Fp8
from ._quantize import ScalePlan, plan_of, plan_of_scales
from ._tensors import SERVED_NAMES, dtype_name

if TYPE_CHECKING:
    from ._errors import Error
    from ._model import ModelTensor

DtypeRule = torch.dtype | str | Fp8 | None
# Small tensors whose FP32 bits decide something: routing, state-space decay, dequantisation.
KEPT_NAMES = ("*e_score_correction_bias", "*A_log", "*scale", "*scales", "*scale_inv")
MAX_RULE_BYTES = 4096  # docs/formats/inventory.md
_SCALE_SUFFIXES = ("_scale_inv", "_scale")
_QUANTIZABLE = ("F32", "BF16", "F16")


def parse_dtype(rule: torch.dtype | str | None, where: str) -> str | None:
    """The safetensors name of a dtype as users write it; None keeps each tensor's own."""
    if rule is None:
        return None
    if isinstance(rule, torch.dtype):
        name = dtype_name(rule)
    elif rule.upper() in SERVED_NAMES:
        name = rule.upper()
    else:
        dtype = getattr(torch, rule.removeprefix("torch."), None)
        name = dtype_name(dtype) if isinstance(dtype, torch.dtype) else None
    if name is None:
        raise make("invalid_argument", f"{where}: {rule!r} is not a dtype that engines can be served in")
    return name


class ServingRule:
    """``base`` (the checkpoint that engines have) decides if given; else ``dtype``, else the default rule.

    ``text`` is the rule in words. ``fp8``: the tensors that are quantised, by canonical name; ``served()`` is
    for the others.
    """

    def __init__(
        self, dtype: DtypeRule | Mapping[str, DtypeRule], base: str | None, tensors: list[ModelTensor]
    ) -> None:
        if base is not None and dtype is not None:
            raise make(
                "invalid_argument",
                "give base= or dtype=, not both: the dtypes of the base are what engines serve",
            )
        self.fp8: dict[str, ScalePlan] = {}
        self._base: dict[str, str] | None = None
        self._rules: dict[str, str | Fp8 | None] = {}
        self._float = "BF16"
        self._all_floats = False
        if base is not None:
            self._read_base(base, tensors)
        elif isinstance(dtype, Mapping):
            self._read_rules(dtype, tensors)
        elif isinstance(dtype, Fp8):
            raise make(
                "invalid_argument",
                "dtype=Fp8(...) would quantise embeddings and norms too: say which weights, as in "
                'dtype={"*_proj.weight": Fp8(...)}',
            )
        else:
            self._all_floats = dtype is not None
            self._float = parse_dtype(dtype, "dtype") or self._float
            self.text = self._text([])
        self.text = _bounded(self.text)
        check_scale_names(tensors, self.fp8)

    def served(self, entry: ModelTensor) -> str:
        stored = _stored(entry)
        if self._base is not None:
            return self._base.get(_name_in(self._base, entry), stored)
        served = self._by_rule(entry, stored)
        if served.startswith("F8") and served != stored:
            raise make(
                "unsupported",
                f"tensor {entry.name} can't be served as {served} by a cast: FP8 weights have scales; ask "
                "for them with dtype={...: deltawire.Fp8(...)}",
            )
        return served

    def _by_rule(self, entry: ModelTensor, stored: str) -> str:
        for pattern, served in self._rules.items():
            if _matches(pattern, entry):
                assert not isinstance(served, Fp8), "quantised tensors have no served dtype of their own"
                return served or stored
        casts = ("F32", "F16", "BF16") if self._all_floats else ("F32",)
        if not entry.is_parameter or stored not in casts:
            return stored
        if any(_matches(pattern, entry) for pattern in KEPT_NAMES):
            return stored
        return self._float

    def _read_rules(self, rules: Mapping[str, DtypeRule], tensors: list[ModelTensor]) -> None:
        self._rules = {
            pattern: rule if isinstance(rule, Fp8) else parse_dtype(rule, f"dtype[{pattern!r}]")
            for pattern, rule in rules.items()
        }
        for pattern in self._rules:
            if not any(_matches(pattern, entry) for entry in tensors):
                raise make("not_found", f"dtype rule {pattern!r} matches no tensor; rules match whole names")
        for entry in tensors:
            rule = next((rule for pattern, rule in self._rules.items() if _matches(pattern, entry)), None)
            if isinstance(rule, Fp8):
                if why := fp8_refusal(entry):
                    raise _refused(entry, f"{why}; the first rule that matches decides, so except it before")
                self.fp8[entry.name] = plan_of(entry.name, tuple(entry.tensor.shape), rule)
        self.text = self._text(
            [
                f"{pattern} as {rule.text if isinstance(rule, Fp8) else rule or 'stored'}"
                for pattern, rule in self._rules.items()
            ]
        )

    def _read_base(self, base: str, tensors: list[ModelTensor]) -> None:
        held = {name: (dtype, tuple(shape)) for name, dtype, shape in _core.checkpoint_tensors(base)}
        self._base = {name: dtype for name, (dtype, _) in held.items()}
        texts = set()
        for entry in tensors:
            name = _name_in(self._base, entry)
            if self._base.get(name) != "F8_E4M3" or _stored(entry) == "F8_E4M3":
                continue
            if why := fp8_refusal(entry):
                raise _refused(entry, f"{base} holds it so, but {why}")
            plan, text = self._plan_from_base(base, held, entry, name)
            self.fp8[entry.name] = plan
            texts.add(text)
        self.text = "; ".join(["dtypes of the base checkpoint", *sorted(texts)])

    @staticmethod
    def _plan_from_base(
        base: str, held: Mapping[str, tuple[str, tuple[int, ...]]], entry: ModelTensor, name: str
    ) -> tuple[ScalePlan, str]:
        found = [name + suffix for suffix in _SCALE_SUFFIXES if name + suffix in held]
        if len(found) != 1:
            names = " and ".join(found) or f"neither {name}_scale_inv nor {name}_scale"
            raise _refused(entry, f"{base} holds it so, with {names}; exactly one tensor of scales is needed")
        scale_dtype, scale_shape = held[found[0]]
        shape = tuple(entry.tensor.shape)
        if held[name][1] != shape:
            raise make(
                "mismatch",
                f"tensor {entry.name} has shape {list(shape)}, in {base} it has {list(held[name][1])}",
            )
        if scale_dtype not in ("F32", "BF16"):
            raise _refused(
                entry, f"{base} has its scales as {scale_dtype}; F32 and BF16 scales are supported"
            )
        planned = plan_of_scales(shape, found[0], scale_shape, scale_dtype)
        if planned is None:
            raise _refused(
                entry,
                f"{base} has scales of shape {list(scale_shape)} for {list(shape)}, which is neither one for "
                "the tensor, nor one for each row, nor one for each block of 128x128",
            )
        plan, shared_by = planned
        return plan, f"F8_E4M3 with one {scale_dtype} scale a {shared_by} in X{found[0].removeprefix(name)}"

    def _text(self, rules: list[str]) -> str:
        kept = ", ".join(KEPT_NAMES)
        floats = "floating" if self._all_floats else "FP32"
        return "; ".join(
            [*rules, f"{floats} parameters as {self._float} except {kept}", "everything else as stored"]
        )


def _bounded(text: str) -> str:
    """What an inventory has room for: its end is replaced by a hash, so that other rules stay different."""
    encoded = text.encode()
    if len(encoded) <= MAX_RULE_BYTES:
        return text
    end = f"... (SHA-256 {hashlib.sha256(encoded).hexdigest()})"
    return encoded[: MAX_RULE_BYTES - len(end)].decode(errors="ignore") + end


def fp8_refusal(entry: ModelTensor) -> str:
    """Why a tensor can't be served as FP8; empty if it can."""
    stored = _stored(entry)
    if not entry.is_parameter:
        return "it is a buffer; only weights are quantised"
    if not entry.part.is_whole:
        return f"this process holds {entry.part.elements} of its elements; scales need all of them"
    if entry.aliases:
        return f"it is tied to {', '.join(entry.aliases)}, whose users expect it unquantised"
    if stored not in _QUANTIZABLE:
        return f"it is {stored}; weights of {', '.join(_QUANTIZABLE)} are quantised"
    shape = list(entry.tensor.shape)
    if len(shape) not in (2, 3):
        return f"it has shape {shape}, not [out, in] or [experts, out, in]"
    if not entry.tensor.numel():
        return f"it has shape {shape}, without elements"
    return ""


def check_scale_names(tensors: list[ModelTensor], fp8: Mapping[str, ScalePlan]) -> None:
    """Refuses scales whose name the model has already."""
    taken = {name for entry in tensors for name in (entry.name, *entry.aliases)}
    for name, plan in fp8.items():
        if plan.scale_name in taken:
            raise make(
                "unsupported",
                f"tensor {name} can't be served as FP8: its scales would be named {plan.scale_name}, and the "
                "model has a tensor of that name; choose another with Fp8(suffix=...)",
            )


def _refused(entry: ModelTensor, why: str) -> Error:
    return make(
        "unsupported",
        f"tensor {entry.name} can't be served as FP8: {why}",
    )


def _stored(entry: ModelTensor) -> str:
    stored = dtype_name(entry.tensor.dtype)
    if stored is None:
        raise make("unsupported", f"tensor {entry.name}: deltawire does not carry {entry.tensor.dtype}")
    return stored


def _name_in(base: Mapping[str, str], entry: ModelTensor) -> str:
    """The tensor's name in the base. One that is missing there is reported by the core, with all others."""
    return next((name for name in (entry.name, *entry.aliases) if name in base), entry.name)


def _matches(pattern: str, entry: ModelTensor) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (entry.name, *entry.aliases))
