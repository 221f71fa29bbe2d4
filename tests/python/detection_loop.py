"""A trainer, its publisher and an engine that follows, whose weights are compared after every publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import deltawire as dw
import torch
from oracle import assert_exact, engine_of

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


class Loop:
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
        url: str,
        rules: Mapping[str, torch.dtype | None] | None = None,
        **options: Any,
    ) -> None:
        """``rules``: served dtypes that are exceptions from the default, for the oracle."""
        self.model = model
        self._rules = rules
        self.engine = engine_of(model, rules)
        self.publisher = dw.Publisher(model, optimizer, url, **options)
        self.subscriber = dw.Subscriber(url, self.engine)
        self.check()

    def check(self) -> None:
        """The engine takes the newest version and holds the trainer's served bits; it refused none before."""
        self.subscriber.update()
        assert self.subscriber.metrics()["deltawire/refusals_total"] == 0
        assert_exact(self.model, self.engine, self._rules)

    def publish(self, quiet: bool = True) -> dw.Version:
        """``quiet``: nothing out of the ordinary is to be noted."""
        version = self.publisher.publish()
        if quiet:
            assert version.notes == ()
        self.check()
        return version

    def methods(self) -> dict[str, str]:
        return {name: method for name, (method, _) in self.publisher.detectors.items()}
