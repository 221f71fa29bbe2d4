"""Training with DeepSpeed's own classes on its CPU accelerator. These functions run on every rank."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch_jobs import Net, loss_of
from whole import Report, publish_and_follow, watch

# Where ./dev test --frameworks puts what is too large for everybody.
FOLDER = Path(__file__).parents[2] / "build" / "frameworks"


def _deepspeed() -> Any:
    warnings.simplefilter("ignore")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # Its own all-reduce over shared memory: a minute of compiling, for what gloo does as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.init_distributed("gloo", verbose=False)
    return deepspeed


def train(stage: int, config: dict[str, Any], url: str | None = None) -> Report | None:
    """BF16 by default; clipping and gradient accumulation on.

    url: of a run to publish and follow, on the only rank.
    """
    deepspeed = _deepspeed()
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(trained, lr=1e-4),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "zero_force_ds_cpu_optimizer": False,
            **config,
            "zero_optimization": {
                "stage": stage,
                # Else these small parameters are whole on every rank all the time, beside their partitions.
                "stage3_param_persistence_threshold": 0,
                **config.get("zero_optimization", {}),
            },
        },
    )

    def forward(x: torch.Tensor) -> torch.Tensor:
        return engine(x.to(next(iter(trained)).dtype))

    def step() -> None:
        for _ in range(2):
            engine.backward(loss_of(forward))
            engine.step()

    def gather() -> dict[str, torch.Tensor]:
        # A model of its own copy of everything that all ranks hold.
        held = dict(engine.module.named_parameters())
        with deepspeed.zero.GatheredParameters(list(held.values()), enabled=stage == 3):
            return {
                name: torch.nn.Parameter(p.detach().clone(), False) if name in held else p.clone()
                for name, p in engine.module.state_dict(keep_vars=True).items()
            }

    def edit() -> None:
        weight = engine.module.up.weight
        (weight.ds_tensor if stage == 3 else weight).data.mul_(1.5)

    if url is not None:
        report = publish_and_follow(engine, optimizer, step, gather, url)
    else:
        report = watch(engine, optimizer, step, gather, edit)
    engine.destroy()
    return report
