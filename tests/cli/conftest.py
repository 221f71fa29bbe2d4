"""Fixtures of the command's tests."""

import numpy as np
import pytest
from cli_driver import DTYPES, Tensor, random_tensor


@pytest.fixture
def rng(request):
    seed = 20240607
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def small(rng):
    """A model of a few kilobytes with every kind of trouble."""
    tensors = {f"dtype.{dtype}": random_tensor(rng, dtype, (7, 5)) for dtype in DTYPES}
    tensors["empty"] = random_tensor(rng, "bfloat16", (0, 4))
    tensors["scalar"] = random_tensor(rng, "float32", ())
    tensors['weird \u00fc"\\ name'] = random_tensor(rng, "bfloat16", (3, 1, 11))
    special = np.array([0x0000, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0, 0x7F80, 0x0001, 0x8001], np.uint16)
    tensors["special"] = Tensor("bfloat16", special)
    tensors["matrix"] = random_tensor(rng, "bfloat16", (300, 70))
    return tensors
