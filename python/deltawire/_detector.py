"""Which detector watches each tensor, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._errors import make
from ._tensors import dtype_name, placement

if TYPE_CHECKING:
    from ._model import ModelTensor


@dataclass(frozen=True)
class Choice:
    method: str
    """inversion, snapshot or fence."""
    reason: str
    optimizer: torch.optim.Optimizer | None = None
    parameter: torch.Tensor | None = None
    """The object that the optimizer holds, where there is exactly one."""


def unwrap_optimizers(
    given: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
) -> list[torch.optim.Optimizer]:
    """The optimizers that really step; accelerate and others wrap them."""
    if given is None:
        return []
    out = []
    for optimizer in given if isinstance(given, (list, tuple)) else [given]:
        inner: Any = optimizer
        while isinstance(getattr(inner, "optimizer", None), torch.optim.Optimizer):
            inner = inner.optimizer
        if not isinstance(inner, torch.optim.Optimizer):
            raise make(
                "invalid_argument", f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer"
            )
        out.append(inner)
    return out


def group_refusal(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> str:
    """Why a group's steps can't be inverted; empty if they can. The flags may change between steps."""
    if type(optimizer) is not torch.optim.AdamW:
        kind = type(optimizer)
        return f"the optimizer is {kind.__module__}.{kind.__qualname__}, not torch.optim.AdamW"
    for flag in ("amsgrad", "differentiable", "capturable"):
        if group.get(flag):
            return f"its parameter group has {flag}=True"
    if not group.get("decoupled_weight_decay", True):
        return "its parameter group has decoupled_weight_decay=False"
    if not float(group["eps"]) > 0:
        return "its parameter group has eps=0"
    return ""


def choose(
    tensors: list[ModelTensor],
    served: list[str],
    optimizers: list[torch.optim.Optimizer],
    wanted: str,
) -> list[Choice]:
    if wanted not in ("auto", "inversion", "snapshot"):
        raise make("invalid_argument", f"detector={wanted!r} is not one of 'auto', 'inversion', 'snapshot'")
    owners: dict[Any, list[tuple[torch.optim.Optimizer, dict[str, Any], torch.Tensor]]] = {}
    stepped_storages = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.numel():
                    owners.setdefault(placement(parameter), []).append((optimizer, group, parameter))
                    stepped_storages.add((parameter.device, parameter.untyped_storage().data_ptr()))
    choices = []
    for entry, served_dtype in zip(tensors, served, strict=True):
        owner = owners.get(placement(entry.tensor), []) if entry.tensor.numel() else []
        storage = (entry.tensor.device, entry.tensor.untyped_storage().data_ptr())
        choice = _choose_one(entry, served_dtype, owner, storage in stepped_storages, wanted)
        if wanted == "inversion" and choice.method == "snapshot":
            raise make("unsupported", f"tensor {entry.name} can't use inversion: {choice.reason}")
        choices.append(choice)
    return choices


def _choose_one(
    entry: ModelTensor,
    served: str,
    owner: list[tuple[torch.optim.Optimizer, dict[str, Any], torch.Tensor]],
    storage_is_stepped: bool,
    wanted: str,
) -> Choice:
    if not owner:
        if storage_is_stepped and entry.tensor.numel():
            return Choice("snapshot", "the optimizer steps another view of its memory")
        if not entry.is_parameter:
            return Choice("fence", "a buffer, no optimizer steps it")
        return Choice("fence", "no optimizer steps it" if entry.tensor.requires_grad else "frozen")
    if len(owner) > 1:
        return Choice("snapshot", "the optimizers hold it more than once")
    optimizer, group, parameter = owner[0]
    if wanted == "snapshot":
        return Choice("snapshot", "asked for", optimizer, parameter)
    reason = group_refusal(optimizer, group)
    if not reason and (entry.tensor.dtype != torch.float32 or served != "BF16"):
        reason = (
            f"inversion needs F32 weights served as BF16, not {dtype_name(entry.tensor.dtype)} as {served}"
        )
    if not reason and (wrong := moments_refusal(optimizer, parameter)):
        reason = wrong
    if reason:
        return Choice("snapshot", reason, optimizer, parameter)
    return Choice("inversion", "torch.optim.AdamW, F32 weights served as BF16", optimizer, parameter)


def moments_refusal(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> str:
    """Why the optimizer's state does not allow inversion; empty if it does or there is none yet."""
    state = optimizer.state.get(parameter)
    if not state:
        return ""
    for name in ("exp_avg", "exp_avg_sq"):
        moment = state.get(name)
        if not isinstance(moment, torch.Tensor) or hasattr(moment, "_local_tensor"):
            return f"its optimizer state has no plain tensor {name}"
        if moment.dtype != torch.float32:
            return f"its optimizer state {name} is {dtype_name(moment.dtype) or moment.dtype}, not F32"
        if moment.shape != parameter.shape:
            return f"its optimizer state {name} has shape {list(moment.shape)}, not {list(parameter.shape)}"
        if moment.device != parameter.device:
            return f"its optimizer state {name} is on {moment.device}, the weights are on {parameter.device}"
    if "step" not in state:
        return "its optimizer state has no step counter"
    return ""
