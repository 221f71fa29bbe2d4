"""The independent compare: the bits of whole tensors before and after, against what the ranks report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import deltawire as dw
import numpy as np
import torch

Bits = dict[str, np.ndarray]
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
EXACT = ("copy_back", "capture", "snapshot")


@dataclass
class Round:
    """One collection on one rank. Whole tensors are sent by rank 0 only."""

    before: Bits
    after: Bits
    changes: list[dw.TensorChanges]
    notes: tuple[str, ...]
    edited: bool


@dataclass
class Report:
    parts: dict[str, dw.Part]
    detectors: dict[str, tuple[str, str]]
    rounds: list[Round]


def served_bits(tensors: Mapping[str, torch.Tensor]) -> Bits:
    """By name: what engines are served, flat. Trainable FP32 tensors are served as BF16."""
    out = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().clone(memory_format=torch.contiguous_format)
        if tensor.dtype == torch.float32 and isinstance(tensor, torch.nn.Parameter):
            plain = plain.to(torch.bfloat16)
        flat = plain.reshape(-1)
        out[name] = flat.view(_WIDTHS[flat.element_size()]).numpy().view(f"u{flat.element_size()}").copy()
    return out


def watch(
    model: Any,
    optimizer: Any,
    step: Callable[[], None],
    gather: Callable[[], Mapping[str, torch.Tensor]],
    edit: Callable[[], None] | None = None,
    **options: Any,
) -> Report:
    """Trains, and collects after 1, 1 and 3 steps; the second collection is abandoned.

    edit: changes weights behind everybody's back. It happens after one more step, and is followed by one.
    """
    rounds = []
    with dw.ChangeDetector(model, optimizer, **options) as detector:
        before = served_bits(gather())
        turns: list[list[Callable[[], None]]] = [[step], [step], [step] * 3]
        if edit is not None:
            turns += [[step, edit], [step]]
        for turn, actions in enumerate(turns):
            for action in actions:
                action()
            changes = detector.collect()
            after = served_bits(gather())
            here = torch.distributed.get_rank() == 0
            rounds.append(
                Round(before if here else {}, after if here else {}, changes, detector.notes, edit in actions)
            )
            if turn == 1:
                detector.abandon()
            else:
                detector.confirm()
                before = after
        return Report(detector.parts, detector.detectors, rounds)


def publish_and_follow(
    model: Any,
    optimizer: Any,
    step: Callable[[], None],
    gather: Callable[[], Mapping[str, torch.Tensor]],
    url: str,
) -> None:
    """A publisher on the only rank, and an engine that follows it, compared bit by bit."""
    with dw.Publisher(model, optimizer, url) as publisher:
        engine = _engine(gather())
        subscriber = dw.Subscriber(url, engine)
        for turn in range(3):
            if turn:
                step()
                version = publisher.publish()
                assert 0 < version.changed < version.total
                assert version.steps == 1
                assert not version.notes
            subscriber.update()
            wanted = served_bits(gather())
            held = served_bits(engine.state_dict())
            assert held.keys() == wanted.keys()
            for name, bits in held.items():
                assert np.array_equal(bits, wanted[name]), name
        subscriber.close()


def _engine(tensors: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """Modules with buffers of these names, in the served dtypes, of other values."""
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for key in path:
            if not hasattr(module, key):
                module.add_module(key, torch.nn.Module())
            module = getattr(module, key)
        as_bf16 = tensor.dtype == torch.float32 and isinstance(tensor, torch.nn.Parameter)
        dtype = torch.bfloat16 if as_bf16 else tensor.dtype
        module.register_buffer(last, torch.zeros(tensor.shape, dtype=dtype))
    return root


def check(reports: list[Report], methods: Mapping[str, str]) -> None:
    """methods: how tensors had to be watched on ranks that hold any of them; those not named, by fence."""
    shapes = {name: part.shape for name, part in reports[0].parts.items()}
    held = {}
    for name, shape in shapes.items():
        cover = np.zeros(int(np.prod(shape)), dtype=bool)
        for rank, report in enumerate(reports):
            part = report.parts[name]
            mine = part.in_whole(np.arange(part.elements, dtype=np.uint64)).astype(np.int64)
            held[rank, name] = mine
            cover[mine] = True
            if part.elements:
                assert report.detectors[name][0] == methods.get(name, "fence"), report.detectors[name]
        assert cover.all(), f"{name}: no rank holds {np.flatnonzero(~cover)[:5]} of {shape}"
    moved = 0
    for turn in range(len(reports[0].rounds)):
        before, after = reports[0].rounds[turn].before, reports[0].rounds[turn].after
        assert before.keys() == shapes.keys()
        for rank, report in enumerate(reports):
            reported = {change.name: change for change in report.rounds[turn].changes}
            notes, edited = report.rounds[turn].notes, report.rounds[turn].edited
            assert edited or not notes, notes
            for name in shapes:
                moved += _check_tensor(
                    f"rank {rank}, round {turn}, {name} by {report.detectors[name]}, noted {notes}",
                    report.detectors[name][0] in EXACT,
                    edited,
                    reported.get(name),
                    held[rank, name],
                    before[name],
                    after[name],
                )
            assert reported.keys() <= shapes.keys()
    assert moved > 0, "nothing changed: the test shows nothing"


def _check_tensor(
    where: str,
    exact: bool,
    edited: bool,
    change: dw.TensorChanges | None,
    mine: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
) -> int:
    true = np.flatnonzero(before[mine] != after[mine]).astype(np.uint64)
    if change is None:
        assert not len(true), f"{where}: {len(true)} changes are missing"
        return 0
    assert np.array_equal(np.unique(change.positions), change.positions), where
    at = change.part.in_whole(change.positions).astype(np.int64)
    assert np.array_equal(at, mine[change.positions.astype(np.int64)]), where
    missed = np.setdiff1d(true, change.positions)
    assert not len(missed), f"{where}: {len(missed)} of {len(true)} changes are missing"
    assert np.array_equal(change.new, after[at]), where
    known = change.known
    assert np.array_equal(change.old[known], before[at[known]]), f"{where}: wrong old bits"
    assert not (change.old[known] == change.new[known]).any(), f"{where}: unchanged elements are reported"
    if edited and not known.all():
        return len(true)
    if exact:
        assert known.all() and np.array_equal(change.positions, true), where
    else:
        # Uncertain elements are few; a block that went dense would show here.
        assert (~known).sum() <= 3 + len(mine) // 50, f"{where}: {(~known).sum()} of {len(mine)} uncertain"
    return len(true)
