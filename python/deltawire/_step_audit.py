"""Checks the inversion against the truth inside the user's own loop: `deltawire doctor --audit STEPS`.

Around each step the true served bits of a sample of tensors are kept, and compared with what inversion
says of it.
"""

from __future__ import annotations

import json
import logging
import math
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from . import _core
from ._torch_ops import SMALL_MAGNITUDE

if TYPE_CHECKING:
    from ._detector import Choice
    from ._model import ModelTensor
    from ._observer import ObservedStep
    from ._rules import Used

_LOG = logging.getLogger("deltawire")
SAMPLE_ELEMENTS = 1 << 24
_BLOCK = 1 << 21
_SEED = 0


@dataclass
class StepAuditReport:
    """Element-steps. Sound: missed and wrong_old are 0."""

    steps: int = 0
    tensors: int = 0
    elements: int = 0
    compared: int = 0
    changed: int = 0
    """Really changed, by bits."""
    missed: int = 0
    """Changed, but neither reported nor among the small values that are always compared."""
    excess: int = 0
    """Reported, but unchanged: sent with correct bits."""
    uncertain: int = 0
    wrong_old: int = 0
    """Certified old bits that are not the true ones."""
    skipped: int = 0
    """Tensor-steps to which inversion did not apply."""
    unaudited: int = 0
    """Tensors outside the sample: watched by another detector, which compares bits, or left out of it."""


class StepAudit:
    def __init__(
        self, tensors: list[ModelTensor], choices: list[Choice], steps: int, report_file: str | None
    ) -> None:
        self._steps = steps
        self._report_file = report_file
        self._report: StepAuditReport | None = StepAuditReport()
        self._kernels = _core.Kernels("cpu")
        self._choices = choices
        candidates = [i for i, choice in enumerate(choices) if choice.method == "inversion"]
        random.Random(_SEED).shuffle(candidates)
        self._sample: list[tuple[int, int]] = []
        left = SAMPLE_ELEMENTS
        for i in candidates:
            if left == 0:
                break
            count = min(left, tensors[i].tensor.numel())
            self._sample.append((i, count))
            left -= count
        self._report.tensors = len(self._sample)
        self._report.unaudited = len(choices) - len(self._sample)
        self._report.elements = SAMPLE_ELEMENTS - left
        self._began = False
        self._before: dict[int, np.ndarray] = {}
        self._counters_before: list[int] = []

    def before_step(self, counters: list[int]) -> None:
        """``counters``: of all tensors, before the step."""
        if self._report is None:
            return
        self._before = {i: _served(self._head(self._weights(i), count)) for i, count in self._sample}
        self._counters_before = counters
        self._began = True

    def after_step(self, optimizer: torch.optim.Optimizer, steps: list[ObservedStep]) -> None:
        report = self._report
        if report is None or not self._began:
            return
        self._began = False
        observed = {step.tensor: step for step in steps}
        for i, count in self._sample:
            if self._choices[i].optimizer is not optimizer:
                continue
            step = observed.get(i)
            theta = self._head(self._weights(i), count)
            if step is None or step.counter == self._counters_before[i]:
                # The optimizer left it alone, and so does the watch.
                report.compared += count
                report.missed += int((self._before[i] != _served(theta)).sum())
            elif step.used is None or not _invertible(step.used):
                report.skipped += 1
            else:
                self._compare(report, self._before[i], theta, step)
        self._before = {}
        report.steps += 1
        if report.steps == self._steps:
            self.finish()

    def finish(self) -> None:
        """Writes and logs the report, once."""
        report, self._report = self._report, None
        if report is None:
            return
        _LOG.info("step audit: %s", json.dumps(asdict(report)))
        if self._report_file:
            Path(self._report_file).write_text(json.dumps(asdict(report)) + "\n")

    def _weights(self, i: int) -> torch.Tensor:
        parameter = self._choices[i].parameter
        assert parameter is not None
        return parameter

    @staticmethod
    def _head(tensor: torch.Tensor, count: int) -> torch.Tensor:
        return tensor.detach().reshape(-1)[:count].to("cpu").contiguous()

    def _compare(
        self, report: StepAuditReport, before: np.ndarray, theta: torch.Tensor, step: ObservedStep
    ) -> None:
        after = _served(theta)
        changed = before != after
        reported = np.zeros(len(before), dtype=bool)
        for first in range(0, len(before), _BLOCK):
            n = min(_BLOCK, len(before) - first)
            found, old, uncertain = self._invert(theta, step, first, n)
            positions = np.frombuffer(found, np.uint32) + first
            reported[positions] = True
            report.wrong_old += int((before[positions] != np.frombuffer(old, np.uint16)).sum())
            reported[np.frombuffer(uncertain, np.uint32) + first] = True
            report.uncertain += len(uncertain) // 4
        # The watch keeps the bits of these and compares them itself (set Z).
        size = before & 0x7FFF
        small = (before == 0x8000) | ((size >= 1) & (size <= SMALL_MAGNITUDE))
        report.compared += len(before)
        report.changed += int(changed.sum())
        report.missed += int((changed & ~reported & ~small).sum())
        report.excess += int((reported & ~changed).sum())

    def _invert(
        self, theta: torch.Tensor, step: ObservedStep, first: int, n: int
    ) -> tuple[bytes, bytes, bytes]:
        """Changed positions, their old bits, uncertain positions; all of one block."""
        used = step.used
        assert used is not None
        heads = [self._head(each, theta.numel()) for each in step.beside]
        memories = [_memory(head) for head in heads]
        if used.rule.kind == "adam":
            bf16 = [head.dtype == torch.bfloat16 for head in heads]
            hyper = used.numbers[:5]
            out = self._kernels.invert_adamw(
                _memory(theta), *memories, 4 * first, n, step.counter, hyper, 0, 0, *bf16
            )
        else:
            y = memories[1] if len(memories) > 1 else None
            out = self._kernels.invert_sgd(_memory(theta), memories[0], y, 4 * first, n, used.numbers, 0, 0)
        _, found, old, uncertain, _, _ = out
        return found, old, uncertain


def _invertible(used: Used) -> bool:
    """Whether the kernels take these numbers; the watch sends the tensor whole where they don't."""
    if not all(map(math.isfinite, used.numbers)) or not 0 <= used.numbers[0] * used.numbers[1] <= 0.5:
        return False
    # The kernels' binding corrects the bias always.
    return used.rule.kind != "adam" or bool(used.numbers[5])


def _served(weights: torch.Tensor) -> np.ndarray:
    return weights.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def _memory(tensor: torch.Tensor) -> _core.Memory:
    storage = tensor.untyped_storage()
    address = tensor.data_ptr()
    return _core.host_memory(address, tensor.numel() * tensor.element_size(), storage)
