"""Training prepared by Accelerate. This function runs on every rank."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch_jobs import Net, loss_of, plain_state
from whole import Report, watch


def train(optimizer: type[torch.optim.Optimizer]) -> Report:
    """DDP in BF16 mixed precision; of two calls of step() the second does it."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    net = Net()
    stepping = optimizer((p for p in net.parameters() if p.requires_grad), lr=3e-6)
    model, prepared = accelerator.prepare(net, stepping)
    assert type(model) is torch.nn.parallel.DistributedDataParallel
    assert type(prepared) is AcceleratedOptimizer

    def step() -> None:
        for _ in range(2):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                prepared.step()
                prepared.zero_grad()

    return watch(model, prepared, step, lambda: plain_state(model.module))
