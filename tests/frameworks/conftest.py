from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Ranks

_HERE = Path(__file__).parent
# The oracle and the small models of the Python tests serve here too.
_PATHS = [str(_HERE), str(_HERE.parent / "python")]
sys.path += [path for path in _PATHS if path not in sys.path]


def _start(count: int) -> Ranks:
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [p for p in _PATHS if p not in known] + list(filter(None, known))
    )
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["ranks", "deltawire._change_detector", "torch._dynamo", "torch.distributed.fsdp"]
    )
    return Ranks(count)


class _Group:
    """Ranks that are started when first asked for, and again after a failure."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.ranks: Ranks | None = None

    def get(self) -> Ranks:
        if self.ranks is None or self.ranks.failed:
            self.ranks = _start(self._count)
        return self.ranks


@pytest.fixture(scope="session")
def _one() -> Iterator[_Group]:
    group = _Group(1)
    yield group
    if group.ranks is not None:
        group.ranks.close()


@pytest.fixture(scope="session")
def _two() -> Iterator[_Group]:
    group = _Group(2)
    yield group
    if group.ranks is not None:
        group.ranks.close()


@pytest.fixture(scope="session")
def _four() -> Iterator[_Group]:
    group = _Group(4)
    yield group
    if group.ranks is not None:
        group.ranks.close()


@pytest.fixture
def one(_one: _Group) -> Ranks:
    return _one.get()


@pytest.fixture
def two(_two: _Group) -> Ranks:
    """Two ranks; their torch process group lives as long as the session."""
    return _two.get()


@pytest.fixture
def four(_four: _Group) -> Ranks:
    return _four.get()
