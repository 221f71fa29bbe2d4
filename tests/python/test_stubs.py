"""The typed stub of the extension is what the extension is."""

from __future__ import annotations

import ast
from pathlib import Path

import deltawire
import pytest
from deltawire import _core


def test_golden_stub() -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    stub = stubgen.StubGen(_core)
    stub.put(_core)
    golden = Path(deltawire.__file__).with_name("_core.pyi").read_text()
    # Compared as syntax: ./dev format may lay the file out.
    assert ast.dump(ast.parse(golden)) == ast.dump(ast.parse(stub.get())), (
        "python/deltawire/_core.pyi is out of date: "
        "python -m nanobind.stubgen -m deltawire._core -o python/deltawire/_core.pyi, then ./dev format"
    )


def test_package_is_typed() -> None:
    assert Path(deltawire.__file__).with_name("py.typed").exists()
    assert all(hasattr(deltawire, name) for name in deltawire.__all__)
