"""The engine's side: live tensors at exactly one verified version."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from . import _core
from ._calls import Calls
from ._errors import make, needing_torch
from ._follower import Follower
from ._types import Version, version_metrics

if TYPE_CHECKING:
    import torch

    from ._tensors import Placement


class Subscriber:
    """Keeps a target at one version of a run, known by number and digest, and moves it to newer ones.

    ``target``: a torch module (its parameters and buffers are written in place), a checkpoint folder, or a
    .safetensors file. ``url``: the run; a folder that is not there yet may appear later, and is never made:
    until then ``update()`` says ``not_found`` and ``follow()`` waits. ``run``: refuse any other run;
    otherwise the first seen is kept to. ``codings``: which may be used. ``threads``: 0 for one a core.

    ``stage()`` fetches, checks and proves without touching the target; ``commit()`` writes; ``update()`` does
    both. After any error but ``EngineError`` the target holds what it held before. Calls are serialised by a
    lock.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        target: torch.nn.Module | str | os.PathLike[str],
        *,
        run: str | None = None,
        codings: Sequence[str] | None = None,
        threads: int = 0,
        _backend: str = "auto",
    ) -> None:
        self._url = os.fspath(url)
        self._calls = Calls("subscriber", self._before_call)
        self._follower: Follower | None = None
        self._module: torch.nn.Module | None = None
        self._places: dict[str, Placement] = {}
        targets: list[tuple[str, _core.Tensor]] = []
        folder = None
        if isinstance(target, (str, os.PathLike)):
            folder = os.fspath(target)
        else:
            with needing_torch("a Subscriber whose target is in memory"):
                from ._frameworks import module_of
                from ._model import all_names
                from ._tensors import Views, placement

            views = Views(torch_ops=_backend == "torch")
            self._module = module_of(target, "target", else_=", nor the path of a checkpoint")
            named = all_names(self._module)
            self._places = {name: placement(tensor) for name, tensor in named}
            targets = [(name, views.of(name, tensor)) for name, tensor in named]
            threads = views.threads(threads, (tensor for _, tensor in named))
        self._core = _core.Subscriber(
            self._url,
            targets,
            folder=folder,
            run=run,
            codings=list(codings) if codings is not None else None,
            threads=threads,
        )
        self._version: Version | None = None
        self._last: Version | None = None

    # Versions

    def stage(self, version: int | None = None) -> Version:
        """Fetches, checks and proves everything up to ``version`` (None: the newest).

        The target is only read. Returns the version that ``commit()`` would make live.
        """
        with self._calls():
            return Version._of(self._core.stage(version))

    def commit(self) -> Version:
        """The pause: writes what is staged."""
        with self._calls():
            return self._made_live(self._core.commit())

    def update(self, version: int | None = None) -> Version:
        """``stage()`` and ``commit()``."""
        with self._calls():
            return self._made_live(self._core.update(version))

    def rollback(self) -> Version:
        """Back to the version before the last commit, once.

        Newer versions are then refused until ``unpin()`` or an explicit number.
        """
        with self._calls():
            return self._made_live(self._core.rollback())

    def unpin(self) -> None:
        """Follows newer versions again after ``rollback()``."""
        with self._calls():
            self._core.unpin()

    def verify(self) -> None:
        """Reads every live bit again; ``EngineError`` names the tensors that are not what was committed."""
        with self._calls():
            self._core.verify()

    def follow(
        self,
        poll_seconds: float = 1.0,
        on_commit: Callable[[Version], None] | None = None,
        pause: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> Follower:
        """Keeps up with the run in a background thread until ``stop()``.

        ``pause()`` gives a context manager that is entered around each commit: the engine holds still inside.
        ``on_commit(version)`` is called after it. An error ends the following and is raised by ``stop()`` and
        by the subscriber's next call.
        """
        with self._calls():
            if self._follower is not None and self._follower.running:
                raise make("invalid_argument", "this subscriber is being followed already; stop() that first")
            self._follower = Follower(self, self._core, poll_seconds, on_commit, pause)
            self._follower._start()
            return self._follower

    # State

    @property
    def url(self) -> str:
        """As it was given."""
        return self._url

    @property
    def version(self) -> Version | None:
        """The committed version; None before the first commit. Never blocks."""
        return self._version

    @property
    def digest(self) -> str:
        """State digest of the live bits, as proved."""
        with self._calls(counted=False):
            return self._core.digest

    @property
    def run(self) -> str | None:
        """The run that this subscriber keeps to; None before one has been seen."""
        with self._calls.lock:
            return self._core.run or None

    @property
    def pinned(self) -> bool:
        """Whether ``rollback()`` holds it at its version."""
        with self._calls.lock:
            return self._core.pinned

    @property
    def unmanaged(self) -> list[str]:
        """Tensors of the target that the run does not manage (rotary caches); empty before the first."""
        with self._calls.lock:
            return self._core.unmanaged

    def metrics(self) -> dict[str, float]:
        """A flat dict for a metrics logger, always with the same keys: the last update's and its own."""
        with self._calls.lock:
            out = version_metrics(self._last)
            out |= self._calls.metrics()
            out["deltawire/refusals_total"] = 0.0 if self._calls.closed else float(self._core.refusals)
            out["deltawire/memory_bytes"] = 0.0 if self._calls.closed else float(self._core.memory_bytes)
            return out

    # Life cycle

    def close(self) -> None:
        """Stops following and lets go of the target. Further calls are refused."""
        if self._follower is not None:
            self._follower._halt()
        with self._calls.lock:
            if not self._calls.closed:
                self._calls.closed = True
                self._core.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        at = "no version" if self._version is None else f"version {self._version.number}"
        return f"<deltawire.Subscriber at {at}>"

    def _made_live(self, version: _core.Version) -> Version:
        self._last = Version._of(version)
        live = self._core.version
        self._version = None if live is None else self._last
        return self._last

    def _before_call(self) -> None:
        self._raise_what_ended_following()
        self._check_places()

    def _check_places(self) -> None:
        """What the module computes with must be what this subscriber writes."""
        if self._module is None:
            return
        from ._model import all_names
        from ._tensors import placement

        now = {name: placement(tensor) for name, tensor in all_names(self._module)}
        if now == self._places:
            return
        names = now.keys() | self._places.keys()
        moved = sorted(name for name in names if now.get(name) != self._places.get(name))
        first = ", ".join(moved[:3]) + (", ..." if len(moved) > 3 else "")
        raise make(
            "mismatch",
            f"{len(moved)} tensors of the engine are not where they were when the subscriber was opened "
            f"({first}): p.data = ..., model.to(), an untied weight. Updates would not reach them: open a "
            "new subscriber",
        )

    def _raise_what_ended_following(self) -> None:
        if self._follower is not None and not self._follower._is_this_thread():
            self._follower._raise_once()
