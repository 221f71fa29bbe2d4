"""Exceptions. Everything deltawire raises on purpose is an ``Error``."""

from __future__ import annotations


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


def make(code: str, message: str) -> Error:
    """The exception of a code's group; called by the core for each of its errors."""
    return _GROUPS.get(code, Error)(message, code)
