"""DeepSpeed ZeRO: FP32 partitions that are cast into the served ones after each step.

Known by the attributes of its classes; the package is never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._errors import make
from .._part import Part
from .copies import BeforeCopy, Piece, elements_of
from .method_hook import MethodHook


def is_partitioned(parameter: torch.Tensor) -> bool:
    """Whether ZeRO-3 keeps only this rank's elements of it."""
    return hasattr(parameter, "ds_tensor") and hasattr(parameter, "ds_shape")


def part_of(name: str, parameter: Any) -> Part:
    """Which elements of a ZeRO-3 parameter this rank holds."""
    group = parameter.ds_process_group
    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    total, held = int(parameter.ds_numel), int(parameter.ds_tensor.numel())
    padded = -(-total // ranks)
    if held != padded:
        raise make(
            "unsupported",
            f"tensor {name}: ZeRO-3 holds {held} of its {total} elements here, expected {padded} on each of "
            f"{ranks} ranks (partitions that are on NVMe are not read)",
        )
    return Part.range(tuple(parameter.ds_shape), min(rank * padded, total), min((rank + 1) * padded, total))


def partition(parameter: Any, elements: int) -> torch.Tensor:
    """This rank's elements of a ZeRO-3 parameter, without the padding behind them."""
    held: torch.Tensor = parameter.ds_tensor
    return held.detach()[:elements]


class Zero3:
    reason = "DeepSpeed ZeRO-3 casts FP32 partitions into it"
    steps_in_pieces = True

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._groups = [self._pieces_of(group) for group in range(len(optimizer.fp16_groups))]

    def _pieces_of(self, group: int) -> list[Piece]:
        optimizer = self._optimizer
        served, masters = optimizer.fp16_partitioned_groups_flat, optimizer.fp32_partitioned_groups_flat
        refusal = ""
        if served[group] is not None and served[group].data_ptr() == masters[group].data_ptr():
            refusal = "DeepSpeed ZeRO-3 trains in FP32: it steps the served partitions themselves"
        pieces = []
        offset = 0
        for parameter in optimizer.fp16_groups[group]:
            part = part_of(f"{parameter.ds_id} of DeepSpeed", parameter)

            def live(parameter: Any = parameter, part: Part = part) -> torch.Tensor:
                return partition(parameter, part.elements)

            def master(offset: int = offset, part: Part = part) -> torch.Tensor:
                flat: torch.Tensor = masters[group]
                return flat.detach()[offset : offset + part.elements]

            pieces.append(Piece(parameter, part, live, None if refusal else master, refusal))
            offset += int(parameter.ds_tensor.ds_numel)
        return pieces

    @property
    def pieces(self) -> Sequence[Piece]:
        return [piece for group in self._groups for piece in group]

    def attach(self, before_copy: BeforeCopy, after_step: Callable[[], None]) -> list[MethodHook]:
        def before(sub_group_id: int) -> None:
            before_copy(self._groups[sub_group_id])

        return [
            MethodHook(self._optimizer, "_reassign_or_swap_out_partitioned_parameters", before=before),
            _after_steps(self._optimizer, after_step),
        ]


class Zero12:
    reason = "DeepSpeed ZeRO casts an FP32 partition into it"
    steps_in_pieces = True

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        ranks = [torch.distributed.get_rank(group) for group in optimizer.real_dp_process_group]
        self._groups = [
            _pieces_in(parameters, partitions[rank], optimizer.single_partition_of_fp32_groups, group)
            for group, (parameters, partitions, rank) in enumerate(
                zip(optimizer.bit16_groups, optimizer.parallel_partitioned_bit16_groups, ranks, strict=True)
            )
        ]

    @property
    def pieces(self) -> Sequence[Piece]:
        return [piece for group in self._groups for piece in group]

    def attach(self, before_copy: BeforeCopy, after_step: Callable[[], None]) -> list[MethodHook]:
        # step() casts a group right after this.
        def after(group_no: int) -> None:
            before_copy(self._groups[group_no])

        return [
            MethodHook(self._optimizer, "_optimizer_step", after=after),
            _after_steps(self._optimizer, after_step),
        ]


class Bf16:
    reason = "DeepSpeed's BF16 optimizer casts an FP32 partition into it"
    steps_in_pieces = False

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        ranks = [torch.distributed.get_rank(group) for group in optimizer.real_dp_process_group]
        self._pieces = [
            piece
            for group, (parameters, partitions, rank) in enumerate(
                zip(optimizer.bf16_groups, optimizer.bf16_partitioned_groups, ranks, strict=True)
            )
            for piece in _pieces_in(parameters, partitions[rank], optimizer.fp32_groups_flat_partition, group)
        ]

    @property
    def pieces(self) -> Sequence[Piece]:
        return self._pieces

    def attach(self, before_copy: BeforeCopy, after_step: Callable[[], None]) -> list[MethodHook]:
        return [MethodHook(self._optimizer, "update_lp_params", before=lambda: before_copy(self._pieces))]


def _after_steps(optimizer: Any, after_step: Callable[[], None]) -> MethodHook:
    def after(*_: Any, **__: Any) -> None:
        if not optimizer.overflow:  # else it has left everything as it was
            after_step()

    return MethodHook(optimizer, "step", after=after)


def _pieces_in(
    parameters: Sequence[torch.Tensor], own: torch.Tensor, masters: Sequence[torch.Tensor], group: int
) -> list[Piece]:
    """What lies of each parameter in this rank's partition of the flat buffer that they are views of."""
    pieces = []
    for parameter in parameters:
        if parameter.untyped_storage().data_ptr() != own.untyped_storage().data_ptr():
            raise make(
                "unsupported",
                f"a parameter of shape {list(parameter.shape)} is not in DeepSpeed's flat buffer; open the "
                "detector after deepspeed.initialize() and while states are not offloaded",
            )
        at = int(parameter.storage_offset() - own.storage_offset())
        start = min(max(0, -at), parameter.numel())
        stop = max(start, min(parameter.numel(), own.numel() - at))

        def master(first: int = at + start, elements: int = stop - start) -> torch.Tensor:
            return masters[group].detach()[first : first + elements]

        pieces.append(elements_of(parameter, start, stop, master))
    return pieces
