"""What calls report: plain, immutable values."""

from __future__ import annotations

from dataclasses import dataclass

from . import _core

# Every stage that a publish or an update may go through; metrics have a key for each, always.
STAGES = ("plan", "stage", "quantize", "detect", "encode", "write", "anchor", "commit")


@dataclass(frozen=True)
class DetectorUse:
    """How much a detector watched, and why it was chosen."""

    tensors: int
    elements: int
    reasons: tuple[str, ...]
    """Each once."""


@dataclass(frozen=True)
class Version:
    """One version of a run, as the call that made it (or made it live) saw it. Counts are elements."""

    number: int
    base: int | None
    """The version before; None where it starts from a checkpoint or from nothing."""
    steps: int
    """Optimizer steps since the version before."""
    changed: int
    """Known to differ from the base."""
    sent: int
    """changed + uncertain + dense."""
    uncertain: int
    """Sent because the base is not known exactly; most of them did not change."""
    dense: int
    """In blocks that were sent whole: of buffers that changed, and of tensors that ``notes`` name."""
    total: int
    """All served elements."""
    bytes: int
    """Written to the store by a publisher, read from it by a subscriber."""
    seconds: float
    """Wall time of the call."""
    detectors: dict[str, DetectorUse]
    """By name: copy_back, inversion, capture, snapshot, fence."""
    digest: str
    """State digest of the served bits, 32 hexadecimal digits."""
    stages: dict[str, float]
    """Wall seconds by stage; they do not overlap."""
    notes: tuple[str, ...]
    """What was out of the ordinary, naming tensors."""

    @staticmethod
    def _of(core: _core.Version, quantize_seconds: float = 0.0) -> Version:
        detectors: dict[str, DetectorUse] = {}
        for name, reason, tensors, elements in core.detectors:
            have = detectors.get(name, DetectorUse(0, 0, ()))
            detectors[name] = DetectorUse(
                have.tensors + tensors, have.elements + elements, (*have.reasons, reason)
            )
        stages: dict[str, float] = {"quantize": quantize_seconds} if quantize_seconds else {}
        for name, seconds in core.stages:
            stages[name] = stages.get(name, 0.0) + seconds
        return Version(
            number=core.number,
            base=core.base,
            steps=core.steps,
            changed=core.changed,
            sent=core.sent,
            uncertain=core.uncertain,
            dense=core.dense,
            total=core.total,
            bytes=core.bytes,
            seconds=core.seconds + quantize_seconds,
            detectors=detectors,
            digest=core.digest,
            stages=stages,
            notes=tuple(core.notes),
        )

    def metrics(self) -> dict[str, float]:
        """A flat dict for a metrics logger. The keys are the same at every call."""
        return version_metrics(self)


def version_metrics(version: Version | None) -> dict[str, float]:
    """Metrics of a version, or all zero where there is none."""
    v = version
    out = {
        "deltawire/version": v.number if v else 0,
        "deltawire/steps": v.steps if v else 0,
        "deltawire/changed_elements": v.changed if v else 0,
        "deltawire/sent_elements": v.sent if v else 0,
        "deltawire/uncertain_elements": v.uncertain if v else 0,
        "deltawire/dense_elements": v.dense if v else 0,
        "deltawire/total_elements": v.total if v else 0,
        "deltawire/changed_share": v.changed / v.total if v and v.total else 0,
        "deltawire/bytes": v.bytes if v else 0,
        "deltawire/seconds": v.seconds if v else 0,
        "deltawire/notes": len(v.notes) if v else 0,
    }
    for stage in STAGES:
        out[f"deltawire/{stage}_seconds"] = v.stages.get(stage, 0) if v else 0
    return {key: float(value) for key, value in out.items()}


@dataclass(frozen=True)
class AuditReport:
    """The newest version, rebuilt from the store as a receiver would, against the live bits."""

    number: int
    tensors: int
    elements: int
    compared: int
    """Elements compared bit by bit; the others have changed since and were checked by digest."""
    different: int
    blocks_wrong: int
    first_wrong: tuple[str, ...]
    """Up to ten wrong blocks, with their tensor."""

    @property
    def ok(self) -> bool:
        return self.different == 0 and self.blocks_wrong == 0

    @staticmethod
    def _of(core: _core.AuditReport) -> AuditReport:
        return AuditReport(
            number=core.number,
            tensors=core.tensors,
            elements=core.elements,
            compared=core.compared,
            different=core.different,
            blocks_wrong=core.blocks_wrong,
            first_wrong=tuple(core.first_wrong),
        )
