from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20)
    torch.set_num_threads(1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "run")
