"""Patches between checkpoints on disk, without a store."""

from __future__ import annotations

import os

from . import _core
from ._types import Version


def diff(
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    coding: str = "step",
    threads: int = 0,
) -> Version:
    """Writes to ``out`` the patch that turns checkpoint ``old`` into ``new`` (files or folders)."""
    return Version._of(_core.diff(os.fspath(old), os.fspath(new), os.fspath(out), coding, threads))


def apply(
    base: str | os.PathLike[str],
    patch: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    threads: int = 0,
) -> Version:
    """Writes to ``out``, which must not exist, what ``patch`` makes of ``base``, once it is proved."""
    return Version._of(_core.apply(os.fspath(base), os.fspath(patch), os.fspath(out), threads))
