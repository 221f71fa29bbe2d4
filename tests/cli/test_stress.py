"""`deltawire stress detect`: what it writes, how it goes on after a kill, what it says of a failure."""

import json
import os
import signal
import subprocess
import time

import pytest
from cli_driver import deltawire, program

SEED = 20261130
BATCH = 65536
TIMES = ("seconds", "elements_per_second")


def stress(*arguments, **options):
    return deltawire("stress", "detect", "--seed", SEED, *arguments, **options)


def counts(path):
    """The report without what depends on the clock."""
    report = json.loads(path.read_text())
    return {name: value for name, value in report.items() if name not in TIMES}


def test_the_report_has_the_counts_by_class(tmp_path):
    path = tmp_path / "found.json"
    done = stress("--count", 2_000_000, "--json", path)
    report = json.loads(path.read_text())
    assert report["complete"] and report["seed"] == SEED
    assert report["elements"] == 31 * BATCH >= 2_000_000
    assert report["false_negatives"] == report["wrong_certificates"] == report["refused"] == 0
    assert report["naive_false_negatives"] > 1000
    assert 0 < report["excess_share"] < 1 and 0 < report["uncertain_share"] < 1
    assert report["first_failure"] is None
    for values in report["by"].values():
        assert sum(tally["elements"] for tally in values.values()) == report["elements"]
    assert all(name.count("/") == 2 for name in report["by"]["class"])
    assert "naive missed" in done.stdout and "false negatives" in done.stdout
    assert done.stderr == ""


def test_threads_and_notation_change_nothing(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    stress("--count", "1e6", "--threads", 1, "--json", one)
    stress("--count", 1_000_000, "--threads", 2, "--json", two)
    assert counts(one) == counts(two)


def test_a_killed_run_goes_on(tmp_path):
    whole, state = tmp_path / "whole.json", tmp_path / "state.json"
    command = [program("deltawire"), "stress", "detect", "--seed", str(SEED), "--threads", "1"]
    # Far more than it will get to: it stops, with what it has, when asked.
    with subprocess.Popen(
        [*command, "--count", "1e12", "--state", str(state)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 50
        while (not state.exists() or counts(state)["next_batch"] == 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=50)
    assert process.returncode == 4 and b"cancelled: stopped after" in error, error
    part = counts(state)
    assert not part["complete"] and 0 < part["elements"] == part["next_batch"] * BATCH
    count = part["elements"] + 10 * BATCH
    stress("--count", count, "--state", state)
    stress("--count", count, "--json", whole)
    assert counts(state) == counts(whole)
    # Nothing is left to do, and what was done stays.
    stress("--count", BATCH, "--state", state)
    assert counts(state) == counts(whole)


def test_a_failure_is_printed_with_its_case_and_ends_with_1(tmp_path):
    state = tmp_path / "state.json"
    stress("--count", BATCH, "--state", state)
    report = json.loads(state.read_text())
    case = [["theta.before", "0x3f808000 (1.00391)"], ["lr", "0x1p-20 (9.53674e-07)"]]
    report["false_negatives"] = 3
    report["first_failure"] = {"what": "false negative", "batch": 17, "case": case}
    state.write_text(json.dumps(report))
    done = stress("--count", 2 * BATCH, "--state", state, expect=1)
    assert done.stderr.startswith("deltawire: detector_fault: false negative, the first of 3: ")
    assert "theta.before=0x3f808000 (1.00391); lr=0x1p-20 (9.53674e-07);" in done.stderr
    assert f"--seed {SEED} --batch 17" in done.stderr
    assert json.loads(state.read_text())["first_failure"]["case"] == case


def test_one_batch_again(tmp_path):
    path = tmp_path / "batch.json"
    stress("--batch", 4711, "--json", path)
    report = json.loads(path.read_text())
    assert (report["first_batch"], report["next_batch"], report["elements"]) == (4711, 4712, BATCH)
    assert all(len(values) == 1 for values in report["by"].values())


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--count", "0"), 2, "--count"),
        (("--count", "-5"), 2, "--count"),
        (("--count", "many"), 2, "--count"),
        (("--count", "1e30"), 2, "--count"),
        (("--count", "nan"), 2, "--count"),
        (("--batch", "1", "--state", "s"), 2, "--state"),
        (("--threads", "x"), 2, "--threads"),
        (("--json", "gone/found.json"), 4, "gone/found.json"),
    ],
)
def test_bad_requests(tmp_path, arguments, code, named):
    done = stress(*arguments, expect=code, cwd=tmp_path)
    assert named in done.stderr and done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda report: report.update(seed=SEED + 1), f"is of seed {SEED + 1}, not {SEED}"),
        (lambda report: report.update(plan_version=99), "plan 99"),
        (lambda report: report.update(first_batch=1), "began at batch 1"),
        (lambda report: report.pop("by"), "by"),
    ],
)
def test_a_foreign_state_is_refused_and_kept(tmp_path, change, named):
    state = tmp_path / "state.json"
    stress("--count", BATCH, "--state", state)
    report = json.loads(state.read_text())
    change(report)
    state.write_text(json.dumps(report))
    before = state.read_bytes()
    done = stress("--count", 2 * BATCH, "--state", state, expect=3)
    assert named in done.stderr and str(state) in done.stderr
    assert state.read_bytes() == before
    state.write_text(state.read_text()[:100])
    assert str(state) in stress("--state", state, expect=3).stderr
