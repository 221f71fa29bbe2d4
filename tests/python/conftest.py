from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20)
    torch.set_num_threads(1)


@pytest.fixture
def url() -> Iterator[str]:
    """A folder in memory where there is one: these tests write thousands of small files durably."""
    shm = Path("/dev/shm")
    place = tempfile.mkdtemp(prefix="deltawire-test-", dir=shm if shm.is_dir() else None)
    yield str(Path(place) / "run")
    shutil.rmtree(place, ignore_errors=True)
