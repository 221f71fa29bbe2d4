"""Megatron-core: FP32 main parameters that are copied to the 16-bit model after each step.

Known by the attributes of its classes; the package is never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._part import Part
from .copies import BeforeCopy, Piece, elements_of
from .method_hook import MethodHook

_COPY = "_copy_main_params_to_model_params"


class DistributedOptimizer:
    """Each data-parallel rank steps its range of the parameter buffers."""

    reason = "Megatron's distributed optimizer copies FP32 main parameters to it"
    steps_in_pieces = False

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._pieces: list[Piece] = []
        if optimizer.is_stub_optimizer or optimizer.ddp_config.use_megatron_fsdp:
            return
        for parameters, mains in zip(
            optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True
        ):
            for i, parameter in enumerate(parameters):
                self._add(parameter, *_copied(mains, i))
        # The FP32 ones are stepped where they are.
        for parameters in optimizer.model_fp32_groups:
            for parameter in parameters:
                self._add(parameter, None, "")
        owned = {id(piece.parameter) for piece in self._pieces}
        for buffer in optimizer.buffers:
            # What other ranks step: nothing of it is this one's.
            self._pieces += [elements_of(p, 0, 0) for p in buffer.params if id(p) not in owned]

    def _add(self, parameter: torch.Tensor, master: Callable[[], torch.Tensor] | None, refusal: str) -> None:
        owned = self._optimizer._get_model_param_range_map(parameter)["param"]
        self._pieces.append(elements_of(parameter, owned.start, owned.end, master, refusal))

    @property
    def pieces(self) -> Sequence[Piece]:
        return self._pieces

    def attach(self, before_copy: BeforeCopy, after_step: Callable[[], None]) -> list[MethodHook]:
        return _before_copies(self._optimizer, self._pieces, before_copy)


class Float16Optimizer:
    """Every rank steps all main parameters of its model."""

    reason = "Megatron's mixed-precision optimizer copies FP32 main parameters to it"
    steps_in_pieces = False

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._pieces: list[Piece] = []
        if optimizer.is_stub_optimizer:
            return
        for parameters, mains in zip(
            optimizer.float16_groups, optimizer.fp32_from_float16_groups, strict=True
        ):
            for i, parameter in enumerate(parameters):
                part = Part.whole(tuple(parameter.shape))
                self._pieces.append(Piece(parameter, part, parameter.detach, *_copied(mains, i)))

    @property
    def pieces(self) -> Sequence[Piece]:
        return self._pieces

    def attach(self, before_copy: BeforeCopy, after_step: Callable[[], None]) -> list[MethodHook]:
        return _before_copies(self._optimizer, self._pieces, before_copy)


def _copied(mains: Sequence[torch.Tensor | None], i: int) -> tuple[Callable[[], torch.Tensor] | None, str]:
    """Where a model parameter is copied from, or why from nowhere."""
    if mains[i] is None:
        return None, "TransformerEngine's precision-aware optimizer writes the served weights itself"

    def master() -> torch.Tensor:
        main = mains[i]
        assert main is not None
        return main.detach()

    return master, ""


def _before_copies(optimizer: Any, pieces: Sequence[Piece], before_copy: BeforeCopy) -> list[MethodHook]:
    copied = [piece for piece in pieces if piece.master is not None]
    return [MethodHook(optimizer, _COPY, before=lambda: before_copy(copied))] if copied else []
