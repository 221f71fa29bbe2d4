from __future__ import annotations

import accelerate_jobs as jobs
import deltawire as dw
import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from ranks import Ranks
from small_models import Mlp
from torch_jobs import TRAINED
from whole import check, served_bits


@pytest.mark.parametrize(
    ("optimizer", "method"), [(torch.optim.AdamW, "inversion"), (torch.optim.RMSprop, "capture")]
)
def test_prepared_for_ddp(two: Ranks, optimizer: type[torch.optim.Optimizer], method: str) -> None:
    check(two.run(jobs.train, optimizer), dict.fromkeys(TRAINED, method))


@pytest.mark.parametrize(
    ("optimizer", "method"), [(torch.optim.AdamW, "inversion"), (torch.optim.RMSprop, "snapshot")]
)
def test_skipped_steps_under_a_scaler(optimizer: type[torch.optim.Optimizer], method: str) -> None:
    """accelerate#4242: it replaces the optimizer's step() around each step, and the scaler may skip that."""
    Accelerator(cpu=True)  # the state that its optimizers ask for
    model = Mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=1)
    prepared = AcceleratedOptimizer(optimizer(model.parameters(), lr=1e-5), scaler=scaler)
    with dw.ChangeDetector(model, prepared) as detector:
        assert detector.detectors["up.weight"][0] == method
        for turn in range(4):
            before = served_bits(model.state_dict(keep_vars=True))
            loss = model(torch.randn(16, 32)).square().mean()
            if turn == 2:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            prepared.step()
            prepared.zero_grad()
            assert prepared.step_was_skipped == (turn == 2)
            after = served_bits(model.state_dict(keep_vars=True))
            changes = {change.name: change for change in detector.collect()}
            for name, bits in after.items():
                true = (bits != before[name]).nonzero()[0]
                found = changes[name].positions.tolist() if name in changes else []
                assert set(true.tolist()) <= set(found), (turn, name, detector.notes)
                assert len(found) <= len(true) + 2 + len(bits) // 20, (turn, name, detector.notes)
            assert bool(changes) == (turn != 2)
            detector.confirm()
