"""Draws docs/wire.svg, bytes a change by density, from `./dev bench wire --only sweep --json FILE`."""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
OURS = {"class": "C0", "step": "C1", "absolute": "C2"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path, help="what ./dev bench wire --only sweep --json wrote")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "wire.svg")
    options = parser.parse_args()
    lines = defaultdict(list)
    for figure in json.loads(options.figures.read_text()):
        _, _, name, density = figure["name"].split(".", 3)
        lines[name].append((100 * float(density), figure["value"]))

    plt.rcParams["svg.hashsalt"] = "deltawire"
    picture, axes = plt.subplots(figsize=(7.5, 5))
    for name, points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        if name == "floor":
            axes.plot(x, y, color="black", linestyle=":", label="entropy given the exponent")
        elif name in OURS:
            axes.plot(
                x, y, color=OURS[name], linewidth=2.2, marker="o", markersize=3, label=f"deltawire {name}"
            )
        else:
            axes.plot(x, y, linewidth=0.9, alpha=0.8, label=name)
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(0.3, 12),
        xlabel="changed elements, %",
        ylabel="bytes a changed element",
    )
    axes.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
    picture.tight_layout()
    picture.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
