"""The detector by itself, in one process."""

from __future__ import annotations

import gc
from typing import Any

import deltawire as dw
import numpy as np
import pytest
import torch
from deltawire._frameworks import MethodHook
from small_models import Mlp, Tied, train_step
from torch.optim import AdamW
from whole import served_bits


def opened(model: torch.nn.Module, **options: Any) -> tuple[dw.ChangeDetector, AdamW]:
    optimizer = AdamW(model.parameters(), lr=1e-5)
    return dw.ChangeDetector(model, optimizer, **options), optimizer


@pytest.mark.parametrize("detector", ["auto", "inversion", "capture", "snapshot"])
def test_changes_are_those_of_the_bits(detector: str) -> None:
    model = Mlp()
    watching, optimizer = opened(model, detector=detector)
    before = served_bits(model.state_dict(keep_vars=True))
    assert watching.collect() == []
    watching.confirm()
    train_step(model, optimizer)
    changes = {change.name: change for change in watching.collect()}
    after = served_bits(model.state_dict(keep_vars=True))
    assert changes.keys() == {name for name in before if not np.array_equal(before[name], after[name])}
    for name, change in changes.items():
        assert change.dtype == "BF16" and change.part == dw.Part.whole(model.get_parameter(name).shape)
        assert change.positions.dtype == np.uint64 and change.new.dtype == np.uint16
        at = change.positions.astype(np.int64)
        assert np.array_equal(change.new, after[name][at])
        assert np.array_equal(change.old[change.known], before[name][at][change.known])
        assert set(np.flatnonzero(before[name] != after[name])) <= set(at)
    watching.close()
    watching.close()
    with pytest.raises(dw.RequestError, match="this detector is closed"):
        watching.collect()


def test_a_collection_is_settled_once() -> None:
    model = Mlp()
    watching, optimizer = opened(model)
    with pytest.raises(dw.RequestError, match="nothing was collected"):
        watching.confirm()
    train_step(model, optimizer)
    first = watching.collect()
    with pytest.raises(dw.RequestError, match=r"confirm\(\) or abandon\(\)"):
        watching.collect()
    watching.abandon()
    second = watching.collect()
    assert [change.positions.tolist() for change in first] == [change.positions.tolist() for change in second]


def test_digests_are_of_the_served_bits() -> None:
    model = Mlp()
    watching, optimizer = opened(model)
    digests = watching.digests()
    assert watching.digests() == digests
    train_step(model, optimizer)
    moved = {name for name, digest in watching.digests().items() if digest != digests[name]}
    assert moved == {change.name for change in watching.collect()}


def test_other_dtypes_and_ties() -> None:
    model = Tied()
    watching, optimizer = opened(model, dtype=None)
    assert list(watching.parts) == ["embed.weight"]
    model.embed.weight.grad = torch.ones_like(model.embed.weight)
    optimizer.step()
    assert [change.name for change in watching.collect()] == ["embed.weight"]
    half, _ = opened(Mlp(), dtype={"up.weight": torch.float16, "*": None})
    assert half.detectors["up.weight"][0] == "capture"


def test_what_is_refused() -> None:
    model = Mlp()
    with pytest.raises(dw.RequestError, match="optimizer is a SimpleNamespace"):
        dw.ChangeDetector(model, __import__("types").SimpleNamespace())
    with pytest.raises(dw.RequestError, match="only a Publisher quantises to FP8"):
        dw.ChangeDetector(model, None, dtype={"up.weight": dw.Fp8(), "*": None})
    with pytest.raises(dw.RequestError, match=r"up\.weight can't use copy_back"):
        opened(model, detector="copy_back")


def test_detectors_that_are_dropped_leave_the_optimizer_alone() -> None:
    model = Mlp()
    watching, optimizer = opened(model, detector="capture")
    assert "step" in vars(optimizer)
    del watching
    gc.collect()
    assert "step" not in vars(optimizer)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


class _Worker:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def work(self, what: str) -> str:
        self.calls.append(what)
        return what + "!"


def test_method_hooks_come_off_in_any_order() -> None:
    worker = _Worker()
    first = MethodHook(worker, "work", before=lambda what: worker.calls.append(f"before {what}"))
    second = MethodHook(worker, "work", after=lambda what: worker.calls.append(f"after {what}"))
    assert worker.work("a") == "a!"
    assert worker.calls == ["before a", "a", "after a"]
    first.remove()  # below the second
    worker.work("b")
    assert worker.calls[3:] == ["b", "after b"]
    second.remove()
    second.remove()
    worker.work("c")
    assert worker.calls[5:] == ["c"]
