"""Writes golden files with the deltawire that is on the path. Run by hand, for a new format version only:

    ./dev exec python tests/golden/make.py tests/golden/format-N

Random ids and the clock enter the runs, so two of them differ in some bytes; patches are made of their inputs
alone. What was committed once is never made anew: it must stay decodable.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import deltawire
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reader"))

from safetensors_file import FILE_ORDER, Tensor, serialize, unsigned

SEED = 41


class Model(torch.nn.Module):
    """Tied weights, a norm, and an FP32 buffer."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, 24)
        self.mix = torch.nn.Linear(24, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.head = torch.nn.Linear(24, 40, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.linspace(0.5, 2, 5, dtype=torch.float64))

    def forward(self, ids):
        return self.head(self.norm(torch.tanh(self.mix(self.embed(ids)))))


def served(model) -> bytes:
    """The checkpoint that engines should have, from the model itself."""
    out = {}
    for name, tensor in model.state_dict().items():
        if name == "head.weight":
            continue
        if tensor.dtype == torch.float32:
            bits = tensor.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().view("<u2")
            out[name] = Tensor("BF16", bits.copy())
        else:
            out[name] = Tensor("F64", tensor.numpy().view("<u8").copy())
    return serialize(out)


def patches(folder: Path) -> None:
    """One pair of checkpoints, and the patches between them."""
    random = np.random.default_rng(SEED)

    def bits(shape, dtype):
        return random.integers(0, 1 << 8 * np.dtype(dtype).itemsize, shape, dtype=dtype)

    def weights(shape):
        values = random.normal(0, 0.02, shape).astype("<f4")
        return (values.view("<u4") >> 16).astype("<u2")

    old = {
        "bf16": Tensor("BF16", bits((40, 30), "<u2")),
        "classes": Tensor("BF16", weights((120, 80))),
        "f16": Tensor("F16", bits((9, 5, 3), "<u2")),
        "f32": Tensor("F32", bits(77, "<u4")),
        "u8": Tensor("U8", bits((3, 70), "u1")),
        "scalar": Tensor("F32", bits((), "<u4")),
        "empty": Tensor("BF16", bits((0, 4), "<u2")),
        "kept": Tensor("I64", bits(4, "<u8")),
    }
    new = {name: Tensor(tensor.dtype, tensor.bits.copy()) for name, tensor in old.items()}
    for name, share in (("bf16", 0.1), ("f16", 0.2), ("f32", 0.3), ("u8", 0.6)):
        flat = new[name].bits.reshape(-1)
        places = random.choice(flat.size, int(share * flat.size), replace=False)
        one = flat.dtype.type(1)
        flat[places] = np.where(random.random(places.size) < 0.5, flat[places] + one, flat[places] - one)
    flat = new["classes"].bits.reshape(-1)
    small = np.flatnonzero(((flat >> 7 & 0xFF) < 118) & (random.random(flat.size) < 0.5))
    flat[small] += np.where(random.random(small.size) < 0.5, 1, 0xFFFF).astype("<u2")
    new["f32"].bits[3] = 0x7FC00001  # a NaN
    new["bf16"].bits[0, 0] ^= np.uint16(0x8000)
    new["scalar"].bits[()] ^= np.uint32(0x80000000)
    other = {
        name: Tensor(tensor.dtype, bits(tensor.bits.shape, tensor.bits.dtype)) for name, tensor in old.items()
    }
    folder.mkdir()
    for name, checkpoint in (("old", old), ("new", new), ("other", other)):
        (folder / f"{name}.safetensors").write_bytes(serialize(checkpoint))
    for to, coding, name in (
        ("new", "class", "class"),
        ("new", "step", "step"),
        ("new", "absolute", "absolute"),
        ("other", "step", "all"),
        ("other", "absolute", "all-absolute"),
        ("old", "step", "empty"),
    ):
        deltawire.diff(
            folder / "old.safetensors",
            folder / f"{to}.safetensors",
            folder / f"{name}.patch.safetensors",
            coding=coding,
        )
    fold_patches(folder, new, random)


def fold_patches(folder: Path, new: dict[str, Tensor], random: np.random.Generator) -> None:
    """A third checkpoint after old and new, its patch, and one patch from both of them to it."""
    later = {name: Tensor(tensor.dtype, tensor.bits.copy()) for name, tensor in new.items()}
    for name in ("bf16", "classes", "f16", "f32", "u8"):
        flat = later[name].bits.reshape(-1)
        flat[random.choice(flat.size, flat.size // 20, replace=False)] += flat.dtype.type(1)
    (folder / "later.safetensors").write_bytes(serialize(later))
    names = ("old", "class.patch", "later.patch", "fold.patch")
    old, first, second, fold = (folder / f"{name}.safetensors" for name in names)
    deltawire.diff(folder / "new.safetensors", folder / "later.safetensors", second, coding="class")
    subprocess.run(
        ["deltawire", "fold", old, first, second, "-o", fold], check=True, stdout=subprocess.DEVNULL
    )


def dtype_patches(folder: Path) -> None:
    """A pair with every dtype: for each a tensor of small steps, one of anything, and one element.

    Beside the FP8 weights stand their scales, as a blockwise quantised checkpoint has them.
    """
    random = np.random.default_rng([SEED, 2])
    old: dict[str, Tensor] = {}
    new: dict[str, Tensor] = {}

    def add(name: str, dtype: str, shape, share: float, jumps: bool) -> None:
        kind = unsigned(dtype)
        bits = random.integers(0, 1 << 8 * kind.itemsize, shape, dtype=kind)
        if dtype == "BOOL":
            bits &= 1
        old[name] = Tensor(dtype, bits)
        changed = bits.copy()
        flat = changed.reshape(-1)
        places = np.flatnonzero(random.random(flat.size) < share)
        if dtype == "BOOL":
            flat[places] ^= 1
        elif jumps:
            flat[places] = random.integers(0, 1 << 8 * kind.itemsize, places.size, dtype=kind)
        else:
            one = kind.type(1)
            flat[places] = np.where(random.random(places.size) < 0.5, flat[places] + one, flat[places] - one)
        new[name] = Tensor(dtype, changed)

    for dtype in FILE_ORDER:
        add(f"{dtype}.steps", dtype, (20, 30), 0.05, False)
        add(f"{dtype}.jumps", dtype, (9, 7, 3), 0.5, True)
        add(f"{dtype}.one", dtype, (), 1, False)
    for layer in range(3):
        add(f"layer.{layer}.weight", "F8_E4M3", (30, 20), 0.03, False)
        add(f"layer.{layer}.weight_scale_inv", "F32", (2, 2), 0.5, False)
    for name, checkpoint in (("dtypes-old", old), ("dtypes-new", new)):
        (folder / f"{name}.safetensors").write_bytes(serialize(checkpoint))
    for coding in ("class", "step", "absolute"):
        deltawire.diff(
            folder / "dtypes-old.safetensors",
            folder / "dtypes-new.safetensors",
            folder / f"dtypes-{coding}.patch.safetensors",
            coding=coding,
        )


def step(model, optimizer) -> None:
    optimizer.zero_grad()
    ids = torch.randint(0, 40, (16,))
    torch.nn.functional.cross_entropy(model(ids), ids.roll(1)).backward()
    optimizer.step()


def run(folder: Path) -> None:
    """Version 0 in an anchor; a step; two steps and edits beside them; an alias that a resume made."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    states = [served(model)]
    with deltawire.Publisher(
        model, optimizer, folder / "run", codings=["step", "absolute", "class"], run="golden"
    ) as publisher:
        step(model, optimizer)
        publisher.publish()
        states.append(served(model))
        step(model, optimizer)
        step(model, optimizer)
        with torch.no_grad():  # what no optimizer observed is sent whole
            model.norm.bias[3:7] += 0.5
            model.scale[2] = -0.0
        publisher.publish()
        states.append(served(model))
    with deltawire.Publisher(model, optimizer, folder / "run", resume=True):
        states.append(served(model))
    write_states(folder / "run.states", states)


def run_on_checkpoint(folder: Path) -> None:
    """Version 0 is a patch on a checkpoint."""
    base = Model()
    (folder / "base").mkdir()
    (folder / "base/model.safetensors").write_bytes(served(base))
    model = Model()
    model.load_state_dict(base.state_dict())
    with torch.no_grad():
        model.mix.bias[5:9] += 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    states = [served(model)]
    with deltawire.Publisher(
        model, optimizer, folder / "run-on-base", base=folder / "base", run="golden2"
    ) as publisher:
        step(model, optimizer)
        publisher.publish()
        states.append(served(model))
    write_states(folder / "run-on-base.states", states)


def write_states(folder: Path, states: list[bytes]) -> None:
    folder.mkdir()
    for number, state in enumerate(states):
        (folder / f"{number:08d}.safetensors").write_bytes(state)


def main() -> None:
    folder = Path(sys.argv[1])
    for path in folder.iterdir() if folder.exists() else ():
        if path.name != "README.md":
            sys.exit(f"{folder} has {path.name}: golden files are made once")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    try:
        patches(folder / "patches")
        dtype_patches(folder / "patches")
        run(folder)
        run_on_checkpoint(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise


if __name__ == "__main__":
    main()
