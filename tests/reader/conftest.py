"""Paths and helpers that the reader's tests share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def golden() -> Path:
    return GOLDEN / "format-1"


@pytest.fixture
def command():
    """Runs the deltawire command, which must exit with `code` or one of them; its output, or its stderr."""
    program = shutil.which("deltawire")
    if program is None:
        pytest.fail("deltawire is not on the PATH: run the tests with ./dev test")

    def run(*arguments, code: int | tuple[int, ...] = 0, stderr: bool = False) -> str:
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
        )
        allowed = code if isinstance(code, tuple) else (code,)
        assert done.returncode in allowed, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stderr if stderr else done.stdout

    return run


@pytest.fixture
def same():
    def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
        assert list(found) == list(expected)
        for name, bits in expected.items():
            assert found[name].dtype == bits.dtype and found[name].shape == bits.shape, name
            assert np.array_equal(found[name], bits), name

    return assert_same
