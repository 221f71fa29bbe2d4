"""The calls of one publisher or subscriber: serialised, refused after close, counted when they fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ._errors import make


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

    @contextmanager
    def __call__(self, counted: bool = True) -> Iterator[None]:
        """``counted``: a failure shows in the metrics."""
        with self.lock:
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

    def metrics(self) -> dict[str, float]:
        return {
            "deltawire/failed": float(self.last_failed),
            "deltawire/failures_total": float(self.failures),
        }
