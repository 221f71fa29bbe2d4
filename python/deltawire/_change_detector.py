"""Change detection by itself: what one rank of a training job changed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch

from . import _core
from ._calls import Calls
from ._detector import detectors_of, log_choices
from ._model import ModelTensor
from ._opening import Opening
from ._part import Part
from ._rules import AdamFamily
from ._serving import DtypeRule
from ._tensors import Views
from ._watch import Watch, core_tensors

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class TensorChanges:
    """The changes of this rank's elements of one tensor: parallel arrays of shape (n,).

    Bits are unsigned integers as wide as the served dtype. Every element whose served bits differ from those
    of the last confirmed collection is there; where ``known`` is False, others may be.
    """

    name: str
    dtype: str
    """That engines are served, as safetensors names it."""
    part: Part
    """Which elements of the tensor this rank holds."""
    positions: np.ndarray
    """uint64, ascending, row-major in the part; ``part.in_whole(positions)`` are those in the tensor."""
    old: np.ndarray
    """Bits at the last confirmed collection; 0 where they are not known."""
    new: np.ndarray
    """Present bits."""
    known: np.ndarray
    """bool: the old bits are proved, and differ from the new ones."""


class ChangeDetector:
    """The watching half of a Publisher, for one rank: finds what changed, and leaves sending it to you.

    ``model``: the torch module that is trained, in whatever DDP, FSDP2 (``fully_shard``), DeepSpeed,
    Megatron-core or Accelerate have made of it; create the detector after that. ``optimizer``: what these
    gave you as the optimizer, a list of them, or None. ``detector``: "auto", or the name of the one to use
    for all tensors that something steps (an error where it can't be). ``adam_family``, ``dtype`` (no FP8) and
    ``threads``: as for a Publisher.

    Each rank has its own detector, of the elements that it holds; none of the calls communicates. Threads:
    calls are serialised by a lock, but nobody may write weights during a call.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        *,
        detector: str = "auto",
        adam_family: AdamFamily | Sequence[AdamFamily] = (),
        dtype: DtypeRule | Mapping[str, DtypeRule] = None,
        threads: int = 0,
        _backend: str = "auto",
    ) -> None:
        self._calls = Calls("detector")
        opening = Opening(
            model, optimizer, detector=detector, adam_family=adam_family, dtype=dtype, publishes=False
        )
        self._tensors, self._served, self._choices = opening.tensors, opening.served, opening.choices
        views = Views(torch_ops=_backend == "torch")
        self._core = _core.Detector(
            core_tensors(self._tensors, self._served, self._choices, views),
            threads=views.threads(threads, (entry.tensor for entry in self._tensors)),
        )
        self._notes: tuple[str, ...] = ()
        self._watch = Watch(
            "detector",
            self._core,
            self._calls,
            views,
            opening.model,
            opening.reading,
            self._tensors,
            self._choices,
            opening.stepping,
        )
        self._finalizer = weakref.finalize(self, self._watch.close)
        log_choices(self._choices)

    def collect(self) -> list[TensorChanges]:
        """What changed since the last confirmed collection, of the tensors with any change.

        ``confirm()`` or ``abandon()`` it before the next one.
        """
        with self._calls():
            self._watch.before_collection()
            try:
                collected = self._core.collect()
            finally:
                self._watch.after_collection()
            names = [entry.name for entry in self._tensors]
            of_tensors = (f"{names[i]}: {note}" for i, note in self._core.take_notes())
            self._notes = (*of_tensors, *self._watch.notes())
            self._watch.keep_order()
            return [
                _changes(entry, served, change)
                for entry, served, change in zip(self._tensors, self._served, collected, strict=True)
                if change.known
            ]

    def confirm(self) -> None:
        """What was collected is where it belongs: changes count from there."""
        with self._calls():
            self._core.confirm()

    def abandon(self) -> None:
        """What was collected went nowhere: the next collection has it, too."""
        with self._calls():
            self._core.abandon()

    def digests(self) -> dict[str, str]:
        """For each tensor: a digest of the present served bits of this rank's elements, 32 hex digits.

        Reads all of them once.
        """
        with self._calls():
            self._watch.check_model()
            names = [entry.name for entry in self._tensors]
            return dict(zip(names, self._core.digests(), strict=True))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was out of the ordinary in the last collection, naming tensors."""
        return self._notes

    @property
    def detectors(self) -> dict[str, tuple[str, str]]:
        """For each tensor: its detector, and why."""
        return detectors_of(self._tensors, self._choices)

    @property
    def parts(self) -> dict[str, Part]:
        """For each tensor: which of its elements this rank holds."""
        return {entry.name: entry.part for entry in self._tensors}

    @property
    def memory_bytes(self) -> int:
        """Held beyond the model and the optimizer."""
        with self._calls.lock:
            return 0 if self._calls.closed else self._core.memory_bytes

    def close(self) -> None:
        """Stops observing. May be repeated."""
        with self._calls.lock:
            if not self._calls.closed:
                self._calls.closed = True
                self._finalizer()

    def __enter__(self) -> ChangeDetector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltawire.ChangeDetector of {len(self._tensors)} tensors>"


def _changes(entry: ModelTensor, served: str, change: _core.TensorChange) -> TensorChanges:
    known = np.frombuffer(change.known, bool)
    bits = _BITS[len(change.new_bits) // len(known)]
    return TensorChanges(
        name=entry.name,
        dtype=served,
        part=entry.part,
        positions=np.frombuffer(change.positions, np.uint64),
        old=np.frombuffer(change.old_bits, bits),
        new=np.frombuffer(change.new_bits, bits),
        known=known,
    )
