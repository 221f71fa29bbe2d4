"""Exceptions. Everything deltawire raises on purpose is an ``Error``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Error(Exception):
    """What was found, what was expected, where, and what to do.

    ``code`` is the stable identifier of the cause (``"wrong_base"``), as in docs/failures.md.
    """

    code: str

    def __init__(self, message: str, code: str = "invalid_argument") -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[Error], tuple[str, str]]:
        return type(self), (str(self), self.code)


class RequestError(Error):
    """The request can't be carried out; nothing else is harmed. Correct or repeat it."""


class WrongTypeError(RequestError, TypeError):
    """An argument is of another type than the call takes."""


class UpdateError(Error):
    """These bytes, this run or these tensors do not belong together; nothing was applied."""


class PeerError(Error):
    """This publisher must not go on: another one owns the run."""


class EngineError(Error):
    """The state of the live tensors is no longer known. Load a whole checkpoint."""


_GROUPS: dict[str, type[Error]] = {
    "invalid_argument": RequestError,
    "not_found": RequestError,
    "exists": RequestError,
    "unsupported": RequestError,
    "io": RequestError,
    "no_space": RequestError,
    "cancelled": RequestError,
    "corrupt": UpdateError,
    "wrong_base": UpdateError,
    "wrong_run": UpdateError,
    "mismatch": UpdateError,
    "detector_fault": UpdateError,
    "fenced": PeerError,
    "unusable": EngineError,
}


@contextmanager
def needing_torch(what: str) -> Iterator[None]:
    """Around imports of torch and of modules that import it."""
    try:
        yield
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        raise ImportError(
            f"{what} needs torch, and it is not installed in this environment: pip install torch. Patches "
            "(deltawire.diff, deltawire.apply) and checkpoint folders do without",
            name="torch",
        ) from e


def make(code: str, message: str) -> Error:
    """The exception of a code's group; called by the core for each of its errors."""
    return _GROUPS.get(code, Error)(message, code)
