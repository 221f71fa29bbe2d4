from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# The oracle and the small models of the Python tests serve here too.
sys.path.append(str(Path(__file__).parents[1] / "python"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20)
    torch.set_num_threads(1)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: these tests write thousands of small files durably."""
    shm = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="deltawire-test-", dir=shm if shm.is_dir() else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def url(place: Path) -> str:
    return str(place / "run")
