"""A subscriber that keeps up by itself, in a thread."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

from . import _core
from ._errors import Error
from ._types import Version

if TYPE_CHECKING:
    from ._subscriber import Subscriber

_LOG = logging.getLogger("deltawire")
_WAIT_MS = 60_000
_EXIT_SECONDS = 5.0  # a callback of the user may hang; the exit may not
# May pass by themselves: the next look tries again.
_PASSING = frozenset({"io", "not_found", "no_space"})


class Follower:
    """Started by ``Subscriber.follow()``. ``stop()`` it, or leave its ``with`` block."""

    def __init__(
        self,
        subscriber: Subscriber,
        core: _core.Subscriber,
        poll_seconds: float,
        on_commit: Callable[[Version], None] | None,
        pause: Callable[[], AbstractContextManager[object]] | None,
    ) -> None:
        self._subscriber = subscriber
        self._core = core
        self._poll_ms = max(1, round(poll_seconds * 1000))
        self._on_commit = on_commit
        self._pause: Callable[[], AbstractContextManager[object]] = pause or nullcontext
        self._cancel = _core.Cancel()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._raised = False
        self._thread = threading.Thread(target=self._run, name="deltawire-follow", daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """What ended the following; None while it runs and after a plain stop."""
        return self._error

    def stop(self) -> None:
        """Ends the following after the commit in progress, if any. Raises what had ended it before."""
        self._halt()
        self._raise_once()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._halt()
        # The exception that ends the block is the cause to report.
        if kind is None:
            self._raise_once()

    def _start(self) -> None:
        self._thread.start()
        # The running thread keeps this object alive, so this is for the interpreter's exit.
        weakref.finalize(self, _end, self._stopped, self._cancel, self._thread)

    def _is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _halt(self) -> None:
        self._stopped.set()
        self._cancel.cancel()
        if not self._is_this_thread():
            self._thread.join()

    def _raise_once(self) -> None:
        if self._error is not None and not self._raised:
            self._raised = True
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._follow_once()
                except Error as e:
                    if e.code == "cancelled":
                        return
                    if e.code not in _PASSING:
                        raise
                    _LOG.warning("following: %s; trying again", e)
                    self._stopped.wait(self._poll_ms / 1000)
        except BaseException as e:
            self._error = e
            _LOG.error("following ended: %s", e)

    def _follow_once(self) -> None:
        subscriber = self._subscriber
        if subscriber.pinned:
            self._stopped.wait(self._poll_ms / 1000)
            return
        live = subscriber.version
        than = None if live is None else live.number
        newest = self._core.newer_version(than, _WAIT_MS, self._poll_ms, self._cancel)
        if newest is None and live is None and not self._stopped.is_set():
            # A trainer that is late, or a mistyped place: nobody else would say so.
            _LOG.warning("following: %s has no version yet; waiting", subscriber.url)
        if newest is None or self._stopped.is_set():
            return
        with subscriber._calls.lock:
            if subscriber.pinned:
                return
            subscriber.stage()
        # Not under the lock: the engine that is to hold still may be calling the subscriber.
        with self._pause(), subscriber._calls.lock:
            if not self._core.has_staged:
                return  # another call committed or rolled back meanwhile
            version = subscriber.commit()
        if self._on_commit is not None:
            self._on_commit(version)


def _end(stopped: threading.Event, cancel: _core.Cancel, thread: threading.Thread) -> None:
    stopped.set()
    cancel.cancel()
    thread.join(_EXIT_SECONDS)
