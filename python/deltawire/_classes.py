"""Names of classes, as tables and messages have them."""

from __future__ import annotations


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def class_of(thing: object) -> str:
    return class_name(type(thing))
