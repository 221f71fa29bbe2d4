"""Draws docs/why-bf16.svg and prints the numbers of docs/why-bf16.md, from real consecutive weight versions.

The data (about 100 MB) is not in the repository: SHARED/data, SHARED being `../shared` or the first argument.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
PAIRS = {  # label -> folder, versions, learning rate
    "steady": ("steady", "v0010", "v0011", 1e-6),  # the step whose optimizer state is there
    "early": ("early", "v0011", "v0012", 1e-6),
    "dense": ("dense", "v0009", "v0010", 1e-5),
}
RATES = [1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 2e-5]
FEWEST = 2000  # elements in an exponent's class before its share is drawn


def bits(path):
    """All served bits of a file, as uint16, tensors in the order of their names."""
    tensors = load_file(path)
    return np.concatenate([tensors[name].view(torch.int16).numpy().ravel() for name in sorted(tensors)]).view(
        np.uint16
    )


def ordinal(values):
    """Sign-magnitude bits as integers in the order of the numbers that they stand for."""
    signed = values.astype(np.int32)
    return np.where(signed & 0x8000, -(signed & 0x7FFF) - 1, signed)


def by_exponent(old, changed):
    """Elements and changed elements for each biased exponent of the old value."""
    exponent = (old >> 7) & 0xFF
    return np.bincount(exponent, minlength=256), np.bincount(exponent[changed], minlength=256)


def updates(folder):
    """(|update| of each element, share of FP32 weights that the update changes), of one AdamW step."""
    state = load_file(folder / "opt_v0011.safetensors")
    group = json.loads((folder / "opt_v0011.json").read_text())
    beta1, beta2 = group["beta1"], group["beta2"]
    step = group["step"]
    sizes, moved = [], []
    for name in sorted({name.rsplit(".", 1)[0] for name in state}):
        theta, m, v = (state[f"{name}.{part}"].double().numpy().ravel() for part in ("theta", "m", "v"))
        update = group["lr"] / (1 - beta1**step) * m / (np.sqrt(v / (1 - beta2**step)) + group["eps"])
        sizes.append(np.abs(update))
        moved.append((theta + update).astype(np.float32) != theta.astype(np.float32))
    return np.concatenate(sizes), np.concatenate(moved).mean()


def predicted(update, exponent):
    """Chance that `update` crosses a rounding boundary. The spacing of BF16 at exponent e is 2^(e-134)."""
    return np.minimum(1.0, update * np.exp2(134.0 - exponent))


def main():
    shared = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared"
    data = shared / "data"
    if not data.is_dir():
        print(
            f"no weight versions at {data}: give the folder that holds data/ as the argument", file=sys.stderr
        )
        return 1

    sizes, moved = updates(data / "steady")
    mean_update = sizes.mean()
    print(f"FP32 weights that the step changes: {moved:.2%}")
    steady = [bits(data / f"steady/v{version:04d}.safetensors") for version in range(8, 13)]
    single = sum((old != new).mean() for old, new in pairwise(steady))
    print(
        f"four steps: {(steady[0] != steady[-1]).mean():.3%} changed, the four shares add up to {single:.3%}"
    )
    print(f"mean |update| at lr 1e-6: {mean_update:.2e}, largest {sizes.max():.2e}")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=[3, 2])
    exponents = np.arange(256)
    for label, (folder, before, after, rate) in PAIRS.items():
        old, new = bits(data / folder / f"{before}.safetensors"), bits(data / folder / f"{after}.safetensors")
        changed = old != new
        steps = np.abs(ordinal(new)[changed] - ordinal(old)[changed])
        print(
            f"{label}: lr {rate:g}, {changed.sum():,} of {changed.size:,} changed = {changed.mean():.3%}; "
            f"{(steps == 1).mean():.1%} of them by one step"
        )
        count, hits = by_exponent(old, changed)
        drawn = (count >= FEWEST) & (hits > 0)
        left.plot(
            exponents[drawn] - 127,
            hits[drawn] / count[drawn],
            "o-",
            ms=3,
            lw=1,
            label=f"{label}, lr {rate:g}",
        )
        if label == "steady":
            total = count
            left.plot(
                exponents[drawn] - 127,
                predicted(mean_update, exponents[drawn]),
                "k--",
                lw=1,
                label="steady, predicted",
            )
            for e in (116, 118, 120, 122):
                print(
                    f"  |w| in [2^{e - 127}, 2^{e - 126}): {count[e] / count.sum():.1%} of the weights, "
                    f"changed {hits[e] / count[e]:.4%}, predicted {predicted(mean_update, e):.4%}"
                )
    left.set(yscale="log", xlabel="base-2 exponent of the weight", ylabel="share changed by one step")
    left.legend(fontsize=8, frameon=False)

    shares = [(total * predicted(mean_update * rate / 1e-6, exponents)).sum() / total.sum() for rate in RATES]
    for rate, share in zip(RATES, shares, strict=True):
        print(f"predicted for lr {rate:g}: {share:.3%}")
    right.plot(RATES, shares, "k--", lw=1, label="predicted")
    for label, (folder, before, after, rate) in PAIRS.items():
        old, new = bits(data / folder / f"{before}.safetensors"), bits(data / folder / f"{after}.safetensors")
        right.plot([rate], [(old != new).mean()], "o", ms=5, label=label)
    right.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="share of BF16 weights changed")
    right.legend(fontsize=8, frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    # The same bytes on every run: no date, and ids that don't depend on the process.
    matplotlib.rcParams["svg.hashsalt"] = "deltawire"
    figure.savefig(ROOT / "docs/why-bf16.svg", metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
