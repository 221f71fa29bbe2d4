"""Paths and models that the tests of foreign formats share."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

_CLI = str(Path(__file__).resolve().parents[1] / "cli")
if _CLI not in sys.path:
    sys.path.append(_CLI)

from cli_driver import Tensor, changed, random_tensor, write_file  # noqa: E402


@pytest.fixture
def rng() -> np.random.Generator:
    seed = 20251130
    print(f"seed {seed}")
    return np.random.default_rng(seed)


class Pair:
    """An old and a new checkpoint, in memory and on disk."""

    def __init__(self, folder: Path, old: dict[str, Tensor], new: dict[str, Tensor]) -> None:
        self.old, self.new = old, new
        self.old_path = write_file(folder / "old.safetensors", old)
        self.new_path = write_file(folder / "new.safetensors", new)


@pytest.fixture
def pair(tmp_path: Path, rng: np.random.Generator) -> Pair:
    """Several dtypes, a scalar, an empty tensor, one that does not change, one of several blocks."""
    old = {
        "bf16": random_tensor(rng, "bfloat16", (70, 33)),
        "f8": random_tensor(rng, "float8_e4m3fn", (40, 9)),
        "f32": random_tensor(rng, "float32", (25,)),
        "i64": random_tensor(rng, "int64", (3, 3)),
        "scalar": random_tensor(rng, "float32", ()),
        "empty": random_tensor(rng, "bfloat16", (0, 4)),
        "same": random_tensor(rng, "bfloat16", (30, 2)),
        "blocks": random_tensor(rng, "bfloat16", (2200, 1000)),
    }
    new = changed(rng, old, 0.02)
    new["same"] = old["same"].copy()
    return Pair(tmp_path, old, new)
