"""Checks of the verdict: it must notice every comparison that failed, and every one that was not made."""

from pathlib import Path

import pytest
from fleet import Evidence, Farewell
from record import PublishedVersion, Run, failures
from report import as_json, as_text


def _evidence(engine: int, version: int, digest: str = "", hashes: dict[str, str] | None = None) -> Evidence:
    return Evidence(
        engine=engine,
        life=1,
        version=version,
        digest=digest or f"digest {version}",
        hashes=hashes or {"w": f"hash {version}"},
        apply_seconds=0.1 * version if version else None,
        pause_seconds=0.01 if version else None,
    )


def _sound_run() -> Run:
    run = Run(engines=2, steps=2, publish_every=1, model_bytes=1000, tensors=1)
    run.base_digest, run.base_hashes = "digest 0", {"w": "hash 0"}
    for number in (1, 2):
        run.versions.append(
            PublishedVersion(
                number=number,
                step=number,
                changed=5,
                uncertain=0,
                total=500,
                sent_bytes=10,
                is_patch=True,
                publish_seconds=0.5,
                detectors={"snapshot": 1},
                digest=f"digest {number}",
                hashes={"w": f"hash {number}"},
                reward=0.5,
            )
        )
    run.evidence = [_evidence(engine, version) for engine in (0, 1) for version in (0, 1, 2)]
    run.farewells = [Farewell(engine, 2, "digest 2", Path("x"), 1) for engine in (0, 1)]
    run.final_bit_differences = {0: [], 1: []}
    run.killed_engine, run.killed_at_version, run.rejoined_at_version = 1, 1, 2
    return run


def test_a_sound_run_is_verified() -> None:
    run = _sound_run()
    assert failures(run) == []
    assert "VERIFIED" in as_text(run)
    report = as_json(run)
    assert report["verified"] is True
    assert (report["full_bytes"], report["sent_bytes"]) == (2000, 20)
    assert report["changed_share"] == [0.01, 0.01]
    assert report["apply_seconds"] == [0.1, 0.2]


def test_an_anchor_counts_neither_as_sent_nor_as_whole() -> None:
    run = _sound_run()
    run.versions[0] = PublishedVersion(**{**vars(run.versions[0]), "is_patch": False, "sent_bytes": 1000})
    report = as_json(run)
    assert (report["full_bytes"], report["sent_bytes"]) == (1000, 10)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: run.evidence.append(_evidence(0, 1, digest="other")), "digest other"),
        (
            lambda run: run.evidence.append(_evidence(1, 2, hashes={"w": "x"})),
            "the bytes of 1 tensors differ",
        ),
        (lambda run: run.evidence.append(_evidence(1, 2, hashes={"v": "hash 2"})), "2 tensors differ"),
        (lambda run: run.evidence.append(_evidence(1, 7)), "never published"),
        (lambda run: run.evidence.pop(), "engine 1 was never compared at version 2"),
        (lambda run: run.farewells.pop(), "not compared bit by bit"),
        (lambda run: run.final_bit_differences.pop(0), "not compared bit by bit"),
        (lambda run: run.final_bit_differences[0].append("w: 1 of 500 elements differ"), "1 of 500 elements"),
        (
            lambda run: setattr(run, "farewells", [Farewell(0, 1, "digest 1", Path("x"), 1)] * 2),
            "ended at version 1",
        ),
        (lambda run: setattr(run, "rejoined_at_version", None), "no engine was killed and restarted"),
        (lambda run: setattr(run, "error", "EngineFailure: gone"), "EngineFailure: gone"),
    ],
)
def test_every_kind_of_failure_is_told(spoil, message: str) -> None:
    run = _sound_run()
    spoil(run)
    assert any(message in line for line in failures(run)), failures(run)
    assert as_json(run)["verified"] is False
    assert "NOT VERIFIED" in as_text(run)


def test_a_run_that_failed_before_the_first_version_still_has_a_report() -> None:
    run = Run(engines=2, steps=2, publish_every=1, error="OSError: disk full")
    assert "disk full" in as_text(run)
    assert as_json(run)["verified"] is False
