"""deltawire keeps rollout engines bit-identical to their trainer by sending only the weights that changed."""

from ._core import __version__

__all__ = ["__version__"]
