"""The report of a run: a table for people, and JSON for programs."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from record import PublishedVersion, Run, failures

_WIDTH = 100
_INDENT = " " * 11


def as_json(run: Run) -> dict[str, Any]:
    """The run as plain values. Bytes, seconds, shares in 0..1; the lists by version are in version order.

    ``apply_seconds`` and ``pause_seconds`` hold the slowest engine's for each version; ``applications`` all.
    """
    problems = failures(run)
    patches = [version for version in run.versions if version.is_patch]
    return {
        "verified": not problems,
        "failures": problems,
        "versions": len(run.versions),
        "engines": run.engines,
        "full_bytes": run.model_bytes * len(patches),
        "sent_bytes": sum(version.sent_bytes for version in patches),
        "changed_share": [version.changed / version.total for version in run.versions],
        "uncertain_share": [version.uncertain / version.total for version in run.versions],
        "publish_seconds": [version.publish_seconds for version in run.versions],
        "apply_seconds": list(_slowest(run, "apply_seconds").values()),
        "pause_seconds": list(_slowest(run, "pause_seconds").values()),
        "applications": [
            {
                "engine": item.engine,
                "life": item.life,
                "version": item.version,
                "apply_seconds": item.apply_seconds,
                "pause_seconds": item.pause_seconds,
            }
            for item in run.evidence
        ],
        "detectors": dict(_detectors(run)),
        "steps": run.steps,
        "publish_every": run.publish_every,
        "killed_engine": run.killed_engine,
        "killed_at_version": run.killed_at_version,
        "rejoined_at_version": run.rejoined_at_version,
        "train_seconds": run.train_seconds,
        "wait_seconds": run.wait_seconds,
        "sample_seconds": run.sample_seconds,
        "rewards": run.rewards,
        "version_lag": run.lags,
        "completions": run.completions,
        "run_seconds": run.run_seconds,
        "peak_rss_bytes": {
            "trainer": run.trainer_peak_rss_bytes,
            "engines": [farewell.peak_rss_bytes for farewell in run.farewells],
        },
    }


def write_json(run: Run, path: Path) -> None:
    """Writes ``as_json`` to a file."""
    path.write_text(json.dumps(as_json(run), indent=2) + "\n")


def as_text(run: Run) -> str:
    """The run as a table and a few sentences, without colours."""
    lines = []
    if run.versions:
        lines += [*_table(run), ""]
    if run.error is None:
        lines += [*_figures(run), ""]
    problems = failures(run)
    if problems:
        shown = problems[:20]
        lines += ["NOT VERIFIED", *(f"  {line}" for line in shown)]
        lines += [f"  and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
    else:
        lines += _verdict(run)
    return "\n".join(lines)


def _table(run: Run) -> list[str]:
    lines = [
        "version  step   changed        %       sent   full/sent   publish     apply    pause   reward",
        "                elements             bytes                seconds   seconds       ms",
    ]
    apply_seconds, pause_seconds = _slowest(run, "apply_seconds"), _slowest(run, "pause_seconds")
    for version in run.versions:
        applied = version.number in apply_seconds
        columns = [
            f"{version.number:7d}",
            f"{version.step:5d}",
            f"{version.changed:9d}",
            f"{100 * version.changed / version.total:8.3f}",
            f"{version.sent_bytes:10d}",
            f"{_ratio(run, version):>11}",
            f"{version.publish_seconds:9.3f}",
            f"{apply_seconds[version.number]:9.3f}" if applied else f"{'-':>9}",
            f"{1e3 * pause_seconds[version.number]:8.1f}" if applied else f"{'-':>8}",
            f"{version.reward:8.3f}",
        ]
        lines.append(" ".join(columns))
    return lines


def _ratio(run: Run, version: PublishedVersion) -> str:
    if not version.is_patch:
        return "anchor"
    return f"{run.model_bytes / version.sent_bytes:.0f}" if version.sent_bytes else "-"


def _figures(run: Run) -> list[str]:
    patches = [version for version in run.versions if version.is_patch]
    sent, full = sum(v.sent_bytes for v in patches), run.model_bytes * len(patches)
    changed = sum(v.changed for v in patches)
    publish = [v.publish_seconds for v in run.versions]
    applied = [item for item in run.evidence if item.apply_seconds is not None]
    lines = []
    if sent:
        each = f", {sent / changed:.2f} a changed weight" if changed else ""
        lines.append(
            f"sent       {sent:,} bytes in {_count(len(patches), 'patch', 'es')}{each}; "
            f"sent whole they are {full:,}, {full / sent:.0f} times as many"
        )
    lines.append(
        f"p50        publish {_median(publish):.3f} s · "
        f"apply {_median([item.apply_seconds for item in applied]):.3f} s · "
        f"weights locked {1e3 * _median([item.pause_seconds for item in applied]):.1f} ms · "
        f"training step {_median(run.train_seconds):.2f} s"
    )
    lines.append("detectors  " + ", ".join(f"{name} on {count} tensors" for name, count in _detectors(run)))
    lines.append(
        f"learning   {run.completions} completions, mean reward {_mean(run.rewards):.3f}, sampled by weights "
        f"{_mean(run.lags):.1f} versions old on average"
    )
    peak = run.trainer_peak_rss_bytes + sum(f.peak_rss_bytes for f in run.farewells)
    lines.append(f"run        {run.run_seconds:.0f} s, all processes together at most {peak / 2**30:.1f} GiB")
    return lines


def _verdict(run: Run) -> list[str]:
    newest = run.versions[-1].number
    sentences = [
        f"{_count(run.engines, 'engine')}, versions 0 to {newest}, in {len(run.evidence)} comparisons with "
        f"the trainer: the digests are equal, and so is the SHA-256 of each of {run.tensors} tensors, taken "
        "from the engine's memory and from the BF16 cast of the FP32 masters without any part of deltawire.",
        f"At version {newest} the weights of each engine equal the trainer's bit by bit, element by element.",
        f"Engine {run.killed_engine} was killed with SIGKILL as version {run.killed_at_version} came out. "
        f"Restarted after version {run.rejoined_at_version}, it rejoined from the base and the store.",
    ]
    heads = ["VERIFIED   ", _INDENT, _INDENT]
    return [
        line
        for head, sentence in zip(heads, sentences, strict=True)
        for line in textwrap.wrap(sentence, _WIDTH, initial_indent=head, subsequent_indent=_INDENT)
    ]


def _slowest(run: Run, name: str) -> dict[int, float]:
    """By version, in order, the longest time any engine took; versions that nobody applied are left out."""
    times: dict[int, float] = {}
    for item in run.evidence:
        seconds = getattr(item, name)
        if seconds is not None:
            times[item.version] = max(seconds, times.get(item.version, 0.0))
    return dict(sorted(times.items()))


def _detectors(run: Run) -> list[tuple[str, int]]:
    """Detectors and the most tensors that each examined in one version, most used first."""
    most: Counter[str] = Counter()
    for version in run.versions:
        most |= Counter(version.detectors)
    return most.most_common()


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else float("nan")


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")
