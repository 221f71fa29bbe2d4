from __future__ import annotations

from pathlib import Path

import megatron_jobs as jobs
import pytest
from ranks import Ranks
from whole import check

HALVES = {"up.weight", "up.bias", "down.weight", "down.bias"}
METHODS = dict.fromkeys(HALVES, "copy_back") | {"norm.weight": "inversion", "norm.bias": "inversion"}


@pytest.mark.parametrize("bucket_size", [None, 1000])
def test_distributed_optimizer(two: Ranks, bucket_size: int | None) -> None:
    reports = two.run(jobs.train, True, bucket_size)
    check(reports, METHODS)
    owned = [sum(report.parts[name].elements for name in HALVES) for report in reports]
    assert sum(owned) == 64 * 129 + 129 + 129 * 6 + 6, "each element has one owner"
    assert all(owned)


def test_replicated_main_parameters(two: Ranks) -> None:
    check(two.run(jobs.train, False), METHODS)


def test_without_main_parameters_weights_are_snapshot(one: Ranks) -> None:
    detectors = one.run(jobs.train, True, None, None, False)[0].detectors
    assert {detectors[name][0] for name in HALVES} == {"snapshot"}
    assert "precision-aware" in detectors["up.weight"][1]
    assert detectors["norm.weight"][0] == "inversion"


@pytest.mark.parametrize("distributed", [False, True])
def test_a_publisher_on_the_only_rank(one: Ranks, tmp_path: Path, distributed: bool) -> None:
    one.run(jobs.train, distributed, None, str(tmp_path / "run"))
