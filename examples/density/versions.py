"""Publishers at several intervals on one training run, and the truth about what they had to send.

The truth is counted here from copies of the served bits, cast by torch; nothing of the product's is used.
"""

from __future__ import annotations

import copy
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import deltawire as dw
import numpy as np
import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class VersionCount:
    """One published version. Counts are elements."""

    true: int
    """Bits that differ between the two published versions."""
    moved: int
    """Bits that differed after at least one of the steps between: ``true`` and those that came back. This is
    what the publisher's log holds before it drops what came back."""
    sent: int
    uncertain: int
    dense: int
    """Sent because their block was sent whole."""
    bytes: int
    """Of the new files in the store."""


@dataclass(frozen=True)
class Interval:
    """All versions of one publisher."""

    every: int
    versions: list[VersionCount]
    replay_differences: int
    """Elements of a receiver that started from the base and took every version, against the masters' cast."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def served_bits(parameter: torch.Tensor) -> np.ndarray:
    """uint16, flat: a fresh copy of what engines must hold."""
    cast = parameter.detach().to(torch.bfloat16).contiguous().flatten()
    return cast.view(torch.int16).numpy().view(np.uint16)


class Truth:
    """Follows the served bits of a model over steps, for publish intervals ``every`` (at most eight).

    Holds 2 bytes an element for each interval and for the last step, and 1 byte of flags.
    """

    def __init__(self, model: PreTrainedModel, every: list[int]) -> None:
        self._parameters = list(model.parameters())
        self._every = every
        self.elements = sum(parameter.numel() for parameter in self._parameters)
        self._last_step = [served_bits(parameter) for parameter in self._parameters]
        # Where every step is published, the last step is the last version.
        self._last_version = {
            k: [bits.copy() for bits in self._last_step] if k > 1 else self._last_step for k in every
        }
        self._moved = [np.zeros(bits.shape, np.uint8) for bits in self._last_step]

    def observe(self, publishing: list[int]) -> dict[int, tuple[int, int]]:
        """After a step: (true, moved) of each interval in ``publishing``, which is counted anew from here."""
        counts = dict.fromkeys(publishing, (0, 0))
        all_flags = (1 << len(self._every)) - 1
        for i, parameter in enumerate(self._parameters):
            now = served_bits(parameter)
            self._moved[i][np.flatnonzero(now != self._last_step[i])] |= all_flags
            for k in publishing:
                flag = np.uint8(1 << self._every.index(k))
                true = int(np.count_nonzero(now != self._last_version[k][i]))
                moved = int(np.count_nonzero(self._moved[i] & flag))
                counts[k] = (counts[k][0] + true, counts[k][1] + moved)
                self._moved[i] &= ~flag
                self._last_version[k][i] = now
            self._last_step[i] = now
        return counts

    def differences(self, other: PreTrainedModel) -> int:
        """Elements of ``other`` whose bits are not the last observed ones."""
        return sum(
            int(np.count_nonzero(served_bits(parameter) != bits))
            for parameter, bits in zip(other.parameters(), self._last_step, strict=True)
        )


class Publishers:
    """One publisher for each interval, all on one model and optimizer, each with a store of its own."""

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        every: list[int],
        folder: Path,
        base: Path | None,
        threads: int,
    ) -> None:
        self._wrap = base is None
        self._threads = threads
        named = self._named(model)
        self._stores = {k: folder / f"every-{k}" for k in every}
        self._truth = Truth(model, every)
        self._publishers = {
            k: dw.Publisher(named, optimizer, store, base=base, threads=threads)
            for k, store in self._stores.items()
        }
        self._versions: dict[int, list[VersionCount]] = {k: [] for k in every}
        self._sizes = {k: _file_bytes(store) for k, store in self._stores.items()}

    @property
    def elements(self) -> int:
        return self._truth.elements

    @property
    def detectors(self) -> dict[str, int]:
        """Elements by the detector that watches them."""
        version = next(iter(self._publishers.values())).version
        return {name: use.elements for name, use in version.detectors.items()}

    def after_step(self, step: int) -> None:
        """Publishes whatever is due after ``step`` (1 is the first) and counts it."""
        due = [k for k in self._publishers if step % k == 0]
        for k, (true, moved) in self._truth.observe(due).items():
            version = self._publishers[k].publish()
            size = _file_bytes(self._stores[k])
            if not version.changed <= true <= version.sent:
                raise AssertionError(
                    f"interval {k}, version {version.number}: {true} elements differ, but the publisher says "
                    f"{version.changed} known to differ and {version.sent} sent"
                )
            self._versions[k].append(
                VersionCount(
                    true=true,
                    moved=moved,
                    sent=version.sent,
                    uncertain=version.uncertain,
                    dense=version.sent - version.changed - version.uncertain,
                    bytes=size - self._sizes[k],
                )
            )
            self._sizes[k] = size

    def finish(self, receiver: PreTrainedModel) -> list[Interval]:
        """Closes the publishers and replays each store into a copy of ``receiver``, which holds the base's
        weights where there is a base."""
        out = []
        for k, publisher in self._publishers.items():
            publisher.close()
            engine = copy.deepcopy(receiver)
            with dw.Subscriber(self._stores[k], self._named(engine), threads=self._threads) as subscriber:
                subscriber.update()
            out.append(Interval(k, self._versions[k], self._truth.differences(engine)))
        return out

    def _named(self, model: PreTrainedModel) -> torch.nn.Module:
        # transformers saves fused experts under other names than it holds them, which a publisher of the
        # bare model refuses: receivers of its checkpoints would not know them. Ours holds the same model.
        return torch.nn.ModuleDict({"model": model}) if self._wrap else model

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()


def _file_bytes(folder: Path) -> int:
    return sum(
        os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names
    )
