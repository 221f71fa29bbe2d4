"""What a run did, and the verdict: every comparison that has to hold, whether it was made and held."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet import Evidence, Farewell
from tensor_hashes import hash_differences


@dataclass(frozen=True)
class PublishedVersion:
    """One version as the trainer published it."""

    number: int
    step: int
    """Optimizer steps done when it was published."""
    changed: int
    """Elements whose BF16 bits differ from the version before."""
    uncertain: int
    """Elements sent because the detector could not exclude a change."""
    total: int
    sent_bytes: int
    is_patch: bool
    """False for an anchor, which is the whole model."""
    publish_seconds: float
    detectors: dict[str, int]
    """Tensors by the detector that examined them."""
    digest: str
    hashes: dict[str, str]
    """The independent check: SHA-256 of the BF16 cast of each FP32 master tensor."""
    reward: float
    """Mean reward of the samples trained on since the version before."""


@dataclass
class Run:
    """Everything the report is made of."""

    engines: int
    steps: int
    publish_every: int
    model_bytes: int = 0
    """The serving weights sent whole."""
    tensors: int = 0
    base_hashes: dict[str, str] = field(default_factory=dict)
    """Version 0."""
    base_digest: str = ""
    versions: list[PublishedVersion] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    farewells: list[Farewell] = field(default_factory=list)
    final_bit_differences: dict[int, list[str]] = field(default_factory=dict)
    """By engine: the full compare at the end, one line a tensor that differs."""
    killed_engine: int | None = None
    killed_at_version: int | None = None
    rejoined_at_version: int | None = None
    train_seconds: list[float] = field(default_factory=list)
    wait_seconds: list[float] = field(default_factory=list)
    sample_seconds: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    """By rollout: versions between the weights that sampled it and the newest when it was trained on."""
    completions: int = 0
    run_seconds: float = 0.0
    trainer_peak_rss_bytes: int = 0
    error: str | None = None
    """Why the run ended early."""


def failures(run: Run) -> list[str]:
    """Each comparison that was not made or did not hold, in words. Empty means verified."""
    if run.error is not None:
        return [run.error]
    expected = {0: (run.base_digest, run.base_hashes)}
    expected |= {version.number: (version.digest, version.hashes) for version in run.versions}
    found = [line for evidence in run.evidence for line in _evidence_failures(evidence, expected)]
    seen = {(evidence.engine, evidence.version) for evidence in run.evidence}
    for engine in range(run.engines):
        found += [
            f"engine {engine} was never compared at version {number}"
            for number in sorted(expected)
            if (engine, number) not in seen
        ]
        found += _final_failures(run, engine)
    if run.killed_engine is None or run.rejoined_at_version is None:
        found.append("no engine was killed and restarted")
    return found


def _evidence_failures(evidence: Evidence, expected: dict[int, tuple[str, dict[str, str]]]) -> list[str]:
    where = f"engine {evidence.engine} (life {evidence.life}) at version {evidence.version}"
    if evidence.version not in expected:
        return [f"{where}: the trainer never published this version"]
    digest, hashes = expected[evidence.version]
    lines = []
    if evidence.digest != digest:
        lines.append(f"{where}: digest {evidence.digest}, the trainer's is {digest}")
    if names := hash_differences(hashes, evidence.hashes):
        lines.append(
            f"{where}: the bytes of {len(names)} tensors differ from the trainer's, first {names[0]}"
        )
    return lines


def _final_failures(run: Run, engine: int) -> list[str]:
    farewell = next((f for f in run.farewells if f.engine == engine), None)
    if farewell is None or engine not in run.final_bit_differences:
        return [f"engine {engine} was not compared bit by bit at the end"]
    newest = run.versions[-1]
    lines = [f"engine {engine} at the end: {line}" for line in run.final_bit_differences[engine]]
    if (farewell.version, farewell.digest) != (newest.number, newest.digest):
        lines.append(
            f"engine {engine} ended at version {farewell.version} with digest {farewell.digest}, "
            f"the trainer at version {newest.number} with {newest.digest}"
        )
    return lines
