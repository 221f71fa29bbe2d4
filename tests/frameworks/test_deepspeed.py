from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import deepspeed_jobs as jobs
import pytest
from ranks import Ranks
from torch_jobs import TRAINED
from whole import check

pytestmark = pytest.mark.skipif(
    "DELTAWIRE_TEST_FRAMEWORKS" not in os.environ,
    reason="./dev test --frameworks installs and tests DeepSpeed",
)
COPIED = dict.fromkeys(TRAINED, "copy_back")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_in_bf16(two: Ranks, stage: int) -> None:
    check(two.run(jobs.train, stage, {}), COPIED)


def test_zero_3_in_small_groups_with_parameters_that_stay_whole(two: Ranks) -> None:
    zero = {"sub_group_size": 600, "stage3_param_persistence_threshold": 1000}
    check(two.run(jobs.train, 3, {"zero_optimization": zero}), COPIED)


def test_zero_1_on_four_ranks(four: Ranks) -> None:
    reports = four.run(jobs.train, 1, {})
    check(reports, COPIED)
    held = [report.parts["up.weight"] for report in reports]
    # Its middle and its end are other ranks' than its start.
    assert [part.start[0] > 0 and part.elements > 0 for part in held] == [False, True, True, True]


def test_zero_3_on_four_ranks(four: Ranks) -> None:
    reports = four.run(jobs.train, 3, {})
    check(reports, COPIED)
    assert [report.parts["down.bias"].size for report in reports] == [(2,), (2,), (2,), (0,)]


def test_bf16_optimizer(two: Ranks) -> None:
    check(two.run(jobs.train, 1, {"data_types": {"grad_accum_dtype": "fp32"}}), COPIED)


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_in_fp32(two: Ranks, stage: int) -> None:
    reports = two.run(jobs.train, stage, {"bf16": {"enabled": False}})
    check(reports, dict.fromkeys(TRAINED, "snapshot"))
    assert "F32 is served as BF16" in reports[0].detectors["up.weight"][1]


def test_zero_3_with_bf16_masters(two: Ranks) -> None:
    masters = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    check(two.run(jobs.train, 3, {"bf16": masters}), COPIED)


@pytest.mark.parametrize("stage", [2, 3])
def test_offloaded_optimizer(two: Ranks, stage: int) -> None:
    offload: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}
    check(two.run(jobs.train, stage, {"zero_optimization": offload}), COPIED)


def test_an_optimizer_of_deepspeed_that_is_not_known_gets_snapshots(two: Ranks) -> None:
    reports = two.run(jobs.train, 0, {})
    check(reports, dict.fromkeys(TRAINED, "snapshot"))
    assert "not the model's" in reports[0].detectors["up.weight"][1]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_publisher_on_the_only_rank(one: Ranks, tmp_path: Path, stage: int) -> None:
    zero = {"sub_group_size": 600} if stage == 3 else {}
    one.run(jobs.train, stage, {"zero_optimization": zero}, str(tmp_path / "run"))
