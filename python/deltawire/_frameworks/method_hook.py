"""Calls between the calls of somebody else's method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class MethodHook:
    """Runs ``before(*args)`` or ``after(*args)`` around one object's method, until it is removed.

    An exception of the method skips ``after``.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        inner = getattr(owner, name)
        self._owner, self._name = owner, name
        self._had_own = name in vars(owner)
        self._inner = inner
        self._active = True

        @functools.wraps(inner)
        def method(*args: Any, **kwargs: Any) -> Any:
            if self._active and before is not None:
                before(*args, **kwargs)
            result = inner(*args, **kwargs)
            if self._active and after is not None:
                after(*args, **kwargs)
            return result

        self._method = method
        setattr(owner, name, method)

    def remove(self) -> None:
        """May be repeated. Where somebody has wrapped the method since, the hook stays and does nothing."""
        self._active = False
        if vars(self._owner).get(self._name) is not self._method:
            return
        if self._had_own:
            setattr(self._owner, self._name, self._inner)
        else:
            delattr(self._owner, self._name)
