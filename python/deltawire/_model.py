"""The canonical tensors of a torch module: the names, ties and buffers that ``save_pretrained`` writes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ._errors import make
from ._tensors import check_plain, placement


@dataclass
class ModelTensor:
    name: str
    tensor: torch.Tensor
    is_parameter: bool
    aliases: list[str] = field(default_factory=list)


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module behind torch.compile and data-parallel wrappers, whose names are not the checkpoint's."""
    while True:
        if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def all_names(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Every parameter and buffer under each of its names; what a receiver offers."""
    named: list[tuple[str, torch.Tensor]] = [*model.named_parameters(remove_duplicate=False)]
    named += list(model.named_buffers(remove_duplicate=False))
    return named


def state_names(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The names that the checkpoint has, in order, with the live tensors behind them."""
    live = {placement(tensor): tensor for _, tensor in all_names(model)}
    ignored = getattr(model, "_keys_to_ignore_on_save", None) or ()
    named = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in ignored:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise make(
                "unsupported",
                f"state {name} is a {type(tensor).__name__}; a published state is all tensors",
            )
        check_plain(name, tensor)
        if placement(tensor) not in live:
            raise make(
                "unsupported",
                f"tensor {name}: state_dict() gives a copy, not the live tensor; publish the module inside",
            )
        named.append((name, tensor))
    return named


def walk(model: torch.nn.Module) -> list[ModelTensor]:
    """The canonical tensors, ties once, in the order of the state dict.

    Refuses what it can't name or separate.
    """
    named = state_names(model)
    check_saved_names(model, named)
    tied_patterns = _tied_patterns(model)
    groups: dict[Any, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in named:
        # Tensors without elements share no bytes, whatever their address says.
        key = placement(tensor) if tensor.numel() else name
        groups.setdefault(key, []).append((name, tensor))
    out = []
    for members in groups.values():
        kept = _kept_name([name for name, _ in members], tied_patterns)
        tensor = next(tensor for name, tensor in members if name == kept)
        is_parameter = any(isinstance(tensor, torch.nn.Parameter) for _, tensor in members)
        out.append(ModelTensor(kept, tensor, is_parameter, [name for name, _ in members if name != kept]))
    check_overlap(out)
    return out


def _tied_patterns(model: torch.nn.Module) -> list[str]:
    patterns = []
    for name, module in model.named_modules():
        tied = getattr(module, "_tied_weights_keys", None) or ()
        patterns += [f"{name}.{key}" if name else key for key in tied]
    return patterns


def _kept_name(names: list[str], tied_patterns: list[str]) -> str:
    """Of names for one tensor, the one that save_pretrained keeps.

    It drops declared ties, in sorted order, but never all of them.
    """
    dropped: set[str] = set()
    declared = [name for name in sorted(names) if any(re.search(pattern, name) for pattern in tied_patterns)]
    dropped.update(declared if len(declared) < len(names) else declared[:-1])
    return next(name for name in names if name not in dropped)


def check_saved_names(model: torch.nn.Module, named: list[tuple[str, torch.Tensor]]) -> None:
    """Refuses models that have other names or shapes in memory than save_pretrained writes."""
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        return
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # transformers before 5 saves what it holds
        return
    held = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    saved = revert_weight_conversion(model, dict(held))  # type: ignore[arg-type]
    renamed = sorted(name for name in held if name not in saved or saved[name].shape != held[name].shape)
    if renamed:
        examples = ", ".join(renamed[:3])
        new = ", ".join(sorted(name for name in saved if name not in held)[:3])
        raise make(
            "unsupported",
            f"{len(renamed)} tensors of {type(model).__name__} have other names or shapes in memory than in "
            f"its checkpoint ({examples} ... are saved as {new} ...); unsupported until layouts map them",
        )


def check_overlap(tensors: Iterable[ModelTensor]) -> None:
    """Refuses two tensors that share bytes without being the same tensor."""
    by_storage: dict[tuple[torch.device, int], list[ModelTensor]] = {}
    for entry in tensors:
        if entry.tensor.numel():
            storage = (entry.tensor.device, entry.tensor.untyped_storage().data_ptr())
            by_storage.setdefault(storage, []).append(entry)
    for entries in by_storage.values():
        spans = sorted(((*_byte_span(entry.tensor), entry) for entry in entries), key=lambda span: span[:2])
        for (_, end, first), (start, _, second) in itertools.pairwise(spans):
            if start < end and _share_bytes(first.tensor, second.tensor):
                raise make(
                    "unsupported",
                    f"tensors {first.name} and {second.name} overlap in memory but are not the same tensor; "
                    "give one of them its own storage",
                )


def _byte_span(tensor: torch.Tensor) -> tuple[int, int]:
    low = int(tensor.storage_offset())
    high = low + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return low * tensor.element_size(), high * tensor.element_size()


def _share_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Exact for interleaved views of one dtype; views of different dtypes count as sharing."""
    if a.dtype != b.dtype:
        return True
    used = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.uint8)
    # Assignment, not addition: a view may meet itself (expand).
    used.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(1)
    return bool(used.as_strided(b.shape, b.stride(), b.storage_offset()).any())
