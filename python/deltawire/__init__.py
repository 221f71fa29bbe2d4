"""deltawire keeps rollout engines bit-identical to their trainer by sending only the weights that changed.

pub = deltawire.Publisher(model, optimizer, "/shared/run7", base="models/Qwen3-8B")
optimizer.step()
version = pub.publish()

sub = deltawire.Subscriber("/shared/run7", model)
sub.update()
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _core
from ._errors import EngineError, Error, PeerError, RequestError, UpdateError, needing_torch
from ._files import apply, diff
from ._follower import Follower
from ._fp8 import Fp8
from ._subscriber import Subscriber
from ._types import AuditReport, DetectorUse, Version

__version__ = _core.version()

if TYPE_CHECKING:
    from ._change_detector import ChangeDetector, TensorChanges
    from ._explain import Explanation, TensorDetector, explain
    from ._part import Part
    from ._publisher import Publisher
    from ._rules import AdamFamily

__all__ = [
    "AdamFamily",
    "AuditReport",
    "ChangeDetector",
    "DetectorUse",
    "EngineError",
    "Error",
    "Explanation",
    "Follower",
    "Fp8",
    "Part",
    "PeerError",
    "Publisher",
    "RequestError",
    "Subscriber",
    "TensorChanges",
    "TensorDetector",
    "UpdateError",
    "Version",
    "__version__",
    "apply",
    "diff",
    "explain",
]


# What needs torch, whose import takes seconds; folders and patches do not.
_OF_TORCH = {
    "AdamFamily": "_rules",
    "ChangeDetector": "_change_detector",
    "Explanation": "_explain",
    "Part": "_part",
    "Publisher": "_publisher",
    "TensorChanges": "_change_detector",
    "TensorDetector": "_explain",
    "explain": "_explain",
}


def __getattr__(name: str) -> Any:
    if name in _OF_TORCH:
        with needing_torch(f"deltawire.{name}"):
            return getattr(importlib.import_module(f".{_OF_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
