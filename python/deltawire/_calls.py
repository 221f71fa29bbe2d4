"""The calls of one publisher or subscriber: serialised, refused after close, counted when they fail."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ._errors import make

_OPEN: weakref.WeakSet[Calls] = weakref.WeakSet()


class Calls:
    """``check`` runs at the start of each call, under the lock."""

    def __init__(self, owner: str, check: Callable[[], None] = lambda: None) -> None:
        # An RLock: callbacks of a call (hooks, log handlers) may call again.
        self.lock = threading.RLock()
        self.closed = False
        self.failures = 0
        self.last_failed = False
        self._owner = owner
        self._check = check
        self._forked = False
        _OPEN.add(self)

    @contextmanager
    def __call__(self, counted: bool = True) -> Iterator[None]:
        """``counted``: a failure shows in the metrics."""
        with self.lock:
            if self._forked:
                raise make(
                    "invalid_argument",
                    f"this {self._owner} belongs to the process that was forked: its threads and uploads "
                    "are there. Open a new one in this process",
                )
            if self.closed:
                raise make("invalid_argument", f"this {self._owner} is closed; open a new one")
            self._check()
            try:
                yield
            except BaseException:
                self.failures += counted
                self.last_failed |= counted
                raise
            if counted:
                self.last_failed = False

    def _leave_behind(self) -> None:
        # Whoever held the lock is not in this process.
        self.lock = threading.RLock()
        self.closed = self._forked = True

    def metrics(self) -> dict[str, float]:
        return {
            "deltawire/failed": float(self.last_failed),
            "deltawire/failures_total": float(self.failures),
        }


def _after_fork() -> None:
    """In the child: hooks on the copied optimizers do nothing, and calls are refused."""
    for calls in list(_OPEN):
        calls._leave_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
