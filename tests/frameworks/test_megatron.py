from __future__ import annotations

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
