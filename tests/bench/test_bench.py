"""Each suite of `deltawire bench` runs and reports what it promises. Timings are never judged here."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT / ".." / "shared" / "data"

# Figures that must be there, for one thread and for all.
SUITES = {
    "core": [
        "detect.snapshot",
        "detect.adamw_inversion",
        "detect.adamw_inversion_with_digest",
        "delta.digest_update",
        "delta.apply",
        "digest.full",
        "codec.encode",
        "codec.decode",
        "e2e.publish_to_applied",
        "e2e.share.publish.detect",
        "e2e.share.publish.encode",
        "e2e.share.update.stage",
        "e2e.share.update.commit",
        "memory.publisher_peak",
        "memory.subscriber_peak",
    ],
    "detect": [
        "detect.snapshot",
        "detect.adamw_inversion",
        "detect.adamw_inversion_with_digest",
        "detect.adamw_inversion_bf16_moments",
        "detect.adamw_inversion_bf16_moments_with_digest",
        "detect.sgd_inversion",
        "detect.sgd_inversion_with_digest",
        "detect.sgd_nesterov_inversion",
        "detect.observe_step",
        "detect.capture",
        "detect.capture_bf16",
    ],
}


def bench(tmp_path, *arguments, data=SHARED_DATA):
    program = shutil.which("deltawire")
    if not program:
        pytest.fail("deltawire is not on the PATH; run ./dev test, or build and add build/*/src/cli")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [program, "bench", *arguments, "--quick", "--threads", "2", "--data", data, "--json", report],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text()), done.stdout


def check_shape(figures):
    names = [figure["name"] for figure in figures]
    assert len(names) == len(set(names))
    for figure in figures:
        assert list(figure) == ["name", "value", "unit", "floor", "ratio"], figure
        assert math.isfinite(figure["value"]) and figure["unit"], figure
        assert (figure["floor"] is None) == (figure["ratio"] is None), figure
        if figure["floor"] is not None:
            assert figure["ratio"] == pytest.approx(figure["value"] / figure["floor"]), figure


@pytest.mark.parametrize("suite", SUITES)
def test_suite_reports_its_figures(tmp_path, suite):
    figures, table = bench(tmp_path, suite)
    check_shape(figures)
    names = {figure["name"] for figure in figures}
    for name in SUITES[suite]:
        assert {name, f"{name}.all_threads"} <= names
        assert name in table


def test_every_suite_runs_without_a_name(tmp_path):
    figures, _ = bench(tmp_path)
    check_shape(figures)
    names = {figure["name"] for figure in figures}
    assert all(name in names for suite in SUITES.values() for name in suite)


def test_real_patch_is_measured_exactly(tmp_path):
    """A size, not a time: the same on every machine."""
    figures, _ = bench(tmp_path, "core")
    figure = next(figure for figure in figures if figure["name"] == "codec.bytes_per_changed")
    assert figure["unit"] == "B/change"
    assert figure["floor"] < figure["value"] <= 1.70


def test_missing_data_is_said_and_leaves_the_rest(tmp_path):
    figures, table = bench(tmp_path, "core", data=tmp_path / "nothing")
    assert "codec.bytes_per_changed" not in {figure["name"] for figure in figures}
    assert "codec.bytes_per_changed: not measured: " in table


def test_unknown_suite_is_an_error():
    program = shutil.which("deltawire")
    done = subprocess.run([program, "bench", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "nonsense" in done.stderr
