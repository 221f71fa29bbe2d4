"""The canonical tensors of a torch module: the names, ties and buffers that ``save_pretrained`` writes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ._errors import make
from ._frameworks import Reading
from ._part import Part
from ._tensors import Placement, check_plain, placement


@dataclass
class ModelTensor:
    name: str
    tensor: torch.Tensor
    """The elements that this rank holds."""
    is_parameter: bool
    aliases: list[str] = field(default_factory=list)
    held: torch.Tensor = None  # type: ignore[assignment]
    """The model's object: the tensor itself, or what a framework keeps in its place."""
    part: Part = None  # type: ignore[assignment]
    """Which elements those are; all of them by default."""

    def __post_init__(self) -> None:
        if self.held is None:
            self.held = self.tensor
        if self.part is None:
            self.part = Part.whole(tuple(self.tensor.shape))


def all_names(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Every parameter and buffer under each of its names; what a receiver offers."""
    named: list[tuple[str, torch.Tensor]] = [*model.named_parameters(remove_duplicate=False)]
    named += list(model.named_buffers(remove_duplicate=False))
    return named


def state_names(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The names that the checkpoint has, in order, with the model's objects behind them."""
    # First of all: at this call FSDP2 puts its sharded parameters back where a forward has left whole ones.
    state = model.state_dict(keep_vars=True)
    ignored = getattr(model, "_keys_to_ignore_on_save", None) or ()
    named = []
    for name, tensor in state.items():
        if name in ignored:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise make(
                "unsupported",
                f"state {name} is a {type(tensor).__name__}; a published state is all tensors",
            )
        named.append((name, tensor))
    return named


def live_names(
    model: torch.nn.Module, reading: Reading
) -> dict[str, tuple[torch.Tensor, torch.Tensor, Part]]:
    """By the checkpoint's names: the model's object, this rank's elements of it, and which these are."""
    named = {}
    for name, held in state_names(model):
        tensor, part = reading.read(name, held)
        check_plain(name, tensor)
        named[name] = (held, tensor, part)
    known = {placement(reading.read(name, held)[0]) for name, held in all_names(model)}
    for name, (_, tensor, _) in named.items():
        if placement(tensor) not in known:
            raise make(
                "unsupported",
                f"tensor {name}: state_dict() gives a copy, not the live tensor; publish the module inside",
            )
    return named


def live_places(model: torch.nn.Module, reading: Reading) -> dict[str, Placement]:
    """Where the elements of every name are now."""
    return {name: placement(tensor) for name, (_, tensor, _) in live_names(model, reading).items()}


def walk(model: torch.nn.Module, reading: Reading) -> list[ModelTensor]:
    """The canonical tensors, ties once, in the order of the state dict.

    Refuses what it can't separate.
    """
    named = live_names(model, reading)
    tied_patterns = _tied_patterns(model)
    groups: dict[Any, list[str]] = {}
    for name, (held, tensor, part) in named.items():
        key: Any = placement(tensor)
        if not tensor.numel():
            # Tensors without elements share no bytes, whatever their address says; objects can still be one.
            key = name if part.is_whole else id(held)
        groups.setdefault(key, []).append(name)
    out = []
    for members in groups.values():
        kept = _kept_name(members, tied_patterns)
        held, tensor, part = named[kept]
        is_parameter = any(isinstance(named[name][0], torch.nn.Parameter) for name in members)
        out.append(ModelTensor(kept, tensor, is_parameter, [n for n in members if n != kept], held, part))
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


def check_saved_names(model: torch.nn.Module) -> None:
    """Refuses models that have other names or shapes in memory than save_pretrained writes."""
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        return
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # transformers before 5 saves what it holds
        return
    held = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in state_names(model)
    }
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


def check_whole(tensors: Iterable[ModelTensor]) -> None:
    """Refuses tensors of which other ranks hold a part."""
    for entry in tensors:
        if not entry.part.is_whole:
            raise make(
                "unsupported",
                f"tensor {entry.name}: this rank holds {entry.part.elements} of the elements of shape "
                f"{list(entry.part.shape)}, and a Publisher publishes whole tensors. Publishing from several "
                "ranks is not built yet (docs/frameworks.md); deltawire.ChangeDetector finds what changed on "
                "each rank, or gather the model on one rank and publish it from there",
            )


def check_overlap(tensors: Iterable[ModelTensor]) -> None:
    """Refuses two tensors that share bytes without being the same tensor."""
    by_storage: dict[tuple[torch.device, int], list[ModelTensor]] = {}
    for entry in tensors:
        if entry.tensor.numel():
            storage = (entry.tensor.device, entry.tensor.untyped_storage().data_ptr())
            by_storage.setdefault(storage, []).append(entry)
    for entries in by_storage.values():
        spans = sorted(((*byte_span(entry.tensor), entry) for entry in entries), key=lambda span: span[:2])
        for (_, end, first), (start, _, second) in itertools.pairwise(spans):
            if start < end and share_bytes(first.tensor, second.tensor):
                raise make(
                    "unsupported",
                    f"tensors {first.name} and {second.name} overlap in memory but are not the same tensor; "
                    "give one of them its own storage",
                )


def byte_span(tensor: torch.Tensor) -> tuple[int, int]:
    low = int(tensor.storage_offset())
    high = low + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return low * tensor.element_size(), high * tensor.element_size()


def share_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Exact for interleaved views of one dtype; views of different dtypes count as sharing."""
    if a.dtype != b.dtype:
        return True
    used = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.uint8)
    # Assignment, not addition: a view may meet itself (expand).
    used.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(1)
    return bool(used.as_strided(b.shape, b.stride(), b.storage_offset()).any())
