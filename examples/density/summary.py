"""From the records of finished runs: a CSV with a row for each interval, the tables of the docs, a plot."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One workload at one learning rate and one publish interval. Shares are of all served elements."""

    workload: str
    learning_rate: float
    every: int
    elements: int
    versions: int
    true_mean: float
    true_worst: float
    """Share that differs between two published versions: mean and largest over the versions."""
    union_mean: float
    """Share that differed after at least one of the steps between: the publisher's log before pruning."""
    sent_mean: float
    """Share sent: after pruning, uncertain elements included."""
    uncertain_mean: float
    dense_mean: float
    bytes_a_change: float
    """All bytes of the new files, by truly changed element."""
    reward_first_quarter: float
    reward_last_quarter: float
    steps_without_gradient: int
    """Of steps and warmup together: all samples of each task earned the same, so only momentum moved."""
    steps: int
    warmup: int
    seed: int
    replay_differences: int

    @property
    def sent_over_true(self) -> float:
        return self.sent_mean / self.true_mean if self.true_mean else float("nan")

    @property
    def union_over_true(self) -> float:
        return self.union_mean / self.true_mean if self.true_mean else float("nan")


def rows_of(records: Iterable[dict]) -> list[Row]:
    out = []
    for record in records:
        total = record["elements"]
        for interval in record["intervals"]:
            versions = interval["versions"]

            def mean(key: str, versions: list[dict] = versions, total: int = total) -> float:
                return sum(version[key] for version in versions) / len(versions) / total

            changed = sum(version["true"] for version in versions)
            out.append(
                Row(
                    workload=record["workload"],
                    learning_rate=record["learning_rate"],
                    every=interval["every"],
                    elements=total,
                    versions=len(versions),
                    true_mean=mean("true"),
                    true_worst=max(version["true"] for version in versions) / total,
                    union_mean=mean("moved"),
                    sent_mean=mean("sent"),
                    uncertain_mean=mean("uncertain"),
                    dense_mean=mean("dense"),
                    bytes_a_change=sum(version["bytes"] for version in versions) / max(1, changed),
                    reward_first_quarter=record["reward_first_quarter"],
                    reward_last_quarter=record["reward_last_quarter"],
                    steps_without_gradient=record["still_steps"],
                    steps=record["steps"],
                    warmup=record["warmup"],
                    seed=record["seed"],
                    replay_differences=interval["replay_differences"],
                )
            )
    return sorted(out, key=lambda row: (row.workload, row.learning_rate, row.every))


def write_csv(records: Iterable[dict], path: Path) -> None:
    rows = rows_of(records)
    with open(path, "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(Row.__dataclass_fields__)
        for row in rows:
            values = [getattr(row, name) for name in Row.__dataclass_fields__]
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])


def as_markdown(records: Iterable[dict]) -> str:
    """Two tables: what changed, by workload; what was sent for it, as ranges over the workloads."""
    rows = rows_of(records)
    intervals = sorted({row.every for row in rows})
    lines = [
        "| workload | lr | " + " | ".join(f"K = {k}" for k in intervals) + " |",
        "|---|---|" + "---:|" * len(intervals),
    ]
    for workload, rate in sorted({(row.workload, row.learning_rate) for row in rows}):
        cells = []
        for k in intervals:
            found = [r for r in rows if (r.workload, r.learning_rate, r.every) == (workload, rate, k)]
            cells.append(f"{_percent(found[0].true_mean)} ({_percent(found[0].true_worst)})" if found else "")
        lines.append(f"| {workload} | {rate:g} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| lr | K | union / true | sent / true | uncertain, % of all | B a changed element |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for rate, k in sorted({(row.learning_rate, row.every) for row in rows}):
        found = [row for row in rows if (row.learning_rate, row.every) == (rate, k)]
        lines.append(
            f"| {rate:g} | {k} | {_range(found, lambda r: r.union_over_true, '.3f')} | "
            f"{_range(found, lambda r: r.sent_over_true, '.4f')} | "
            f"{_range(found, lambda r: 100 * r.uncertain_mean, '.4f')} | "
            f"{_range(found, lambda r: r.bytes_a_change, '.2f')} |"
        )
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}"


def _range(rows: list[Row], value: Callable[[Row], float], form: str) -> str:
    low, high = (format(f(map(value, rows)), form) for f in (min, max))
    return low if low == high else f"{low} to {high}"


def draw(records: Iterable[dict], path: Path) -> bool:
    """The plot as SVG, the same bytes on every run. False where matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    rows = rows_of(records)
    rates = sorted({row.learning_rate for row in rows})
    intervals = sorted({row.every for row in rows})
    colours = [plt.get_cmap("viridis")(0.9 * i / max(1, len(rates) - 1)) for i in range(len(rates))]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for rate, colour in zip(rates, colours, strict=True):
        mine = [row for row in rows if row.learning_rate == rate]
        for workload in sorted({row.workload for row in mine}):
            line = [row for row in mine if row.workload == workload]
            left.plot(
                [row.every for row in line],
                [100 * row.true_mean for row in line],
                "--" if workload == "moe" else "-",
                lw=1,
                color=colour,
            )
        right.plot(
            [100 * row.true_mean for row in mine],
            [row.bytes_a_change for row in mine],
            "o",
            ms=4,
            color=colour,
            label=f"lr {rate:g}",
        )
    left.set(
        xscale="log",
        yscale="log",
        xlabel="steps between two versions (K)",
        ylabel="changed between versions, % (dashed: moe)",
    )
    left.set_xticks(intervals, [str(k) for k in intervals])
    left.minorticks_off()
    right.set(xscale="log", xlabel="changed between versions, %", ylabel="bytes a changed element")
    right.legend(fontsize=8, frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = "deltawire"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return True
