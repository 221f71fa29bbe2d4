from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch_jobs as jobs
from ranks import Ranks
from whole import check

INVERTED = dict.fromkeys(jobs.TRAINED, "inversion")
METHODS = [
    (jobs.adamw, "auto", "inversion"),
    (jobs.adamw_fused, "auto", "inversion"),
    (jobs.sgd, "auto", "inversion"),
    (jobs.rmsprop, "auto", "capture"),
    (jobs.adamw, "snapshot", "snapshot"),
]


@pytest.mark.parametrize(("optimizer", "detector", "method"), METHODS)
def test_DDP(two: Ranks, optimizer: Callable[[Any], Any], detector: str, method: str) -> None:
    reports = two.run(jobs.ddp, optimizer, detector)
    check(reports, dict.fromkeys(jobs.TRAINED, method))
    assert all(part.is_whole for report in reports for part in report.parts.values())


@pytest.mark.parametrize(("optimizer", "detector", "method"), METHODS)
def test_FSDP2(two: Ranks, optimizer: Callable[[Any], Any], detector: str, method: str) -> None:
    check(two.run(jobs.fsdp2, optimizer, detector), dict.fromkeys(jobs.TRAINED, method))


def test_FSDP2_with_uneven_and_empty_shards(four: Ranks) -> None:
    reports = four.run(jobs.fsdp2, jobs.adamw)
    check(reports, INVERTED)
    assert [report.parts["out.bias"].size for report in reports] == [(1,), (0,), (0,), (0,)]
    assert [report.parts["down.weight"].size for report in reports] == [
        (2, 129),
        (2, 129),
        (2, 129),
        (0, 129),
    ]
    assert reports[2].parts["up.weight"].start == (66, 0)


def test_FSDP2_over_tensor_parallelism(four: Ranks) -> None:
    reports = four.run(jobs.fsdp2_on_two_axes, True)
    check(reports, dict.fromkeys(jobs.Pair().state_dict(), "inversion"))
    # Tensor parallelism cuts first: the rows of ranks 0 and 2 are neighbours.
    assert [report.parts["up.weight"].start for report in reports] == [(0, 0), (65, 0), (33, 0), (98, 0)]
    assert [report.parts["down.weight"].start for report in reports] == [(0, 0), (0, 65), (3, 0), (3, 65)]


def test_FSDP2_with_replicas(four: Ranks) -> None:
    reports = four.run(jobs.fsdp2_on_two_axes, False)
    check(reports, dict.fromkeys(jobs.Pair().state_dict(), "inversion"))
    assert [report.parts["up.weight"].start for report in reports] == [(0, 0), (65, 0), (0, 0), (65, 0)]


def test_edits_of_shards_are_noticed(two: Ranks) -> None:
    for noted in two.run(jobs.edited_shards):
        assert noted == [[], ["down.weight"], ["up.bias"]]


def test_two_detectors_on_one_optimizer(two: Ranks) -> None:
    for lasting, passing in two.run(jobs.two_detectors):
        assert lasting[0] == passing[0] > 0
        assert lasting[1] > 0


def test_a_publisher_on_the_only_rank(one: Ranks, tmp_path: Path) -> None:
    one.run(jobs.publish, str(tmp_path / "run"))


def test_a_publisher_refuses_shards(two: Ranks) -> None:
    for refusal in two.run(jobs.publisher_refusal):
        assert refusal.startswith("unsupported: tensor up.weight: this rank holds 4")
        assert "deltawire.ChangeDetector" in refusal
