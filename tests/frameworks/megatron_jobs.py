"""Training with Megatron-core's own classes, which insist on CUDA tensors, on the CPU.

Only the questions are answered differently: what a tensor's type is called, which device is the current one.
Buckets, ranges, main parameters and every copy are Megatron's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import deltawire as dw
import torch
from torch.overrides import TorchFunctionMode
from torch_jobs import loss_of
from whole import Report, publish_and_follow, watch


class _CpuAsCuda(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        out = function(*args, **kwargs)
        return (
            out.replace("torch.", "torch.cuda.")
            if function is torch.Tensor.type and type(out) is str
            else out
        )


@contextmanager
def _megatron() -> Iterator[None]:
    """Megatron's process groups over all ranks, for data parallelism."""
    warnings.simplefilter("ignore")
    with mock.patch("torch.cuda.current_device", lambda: torch.device("cpu")), _CpuAsCuda():
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        try:
            yield
        finally:
            parallel_state.destroy_model_parallel()


def train(
    distributed: bool, bucket_size: int | None = None, url: str | None = None, masters: bool = True
) -> Report | None:
    """A BF16 model with an FP32 norm. distributed: the optimizer's state is cut over the ranks.

    url: of a run to publish and follow, on the only rank. Without masters nothing is trained: these lists are
    as they are around TransformerEngine's precision-aware optimizer, which needs a GPU.
    """
    with _megatron():
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer.module import MegatronModule
        from megatron.core.transformer.transformer_config import TransformerConfig

        config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=2, bf16=True)

        class Net(MegatronModule):
            def __init__(self) -> None:
                super().__init__(config)
                self.up = torch.nn.Linear(64, 129, dtype=torch.bfloat16)
                self.down = torch.nn.Linear(129, 6, dtype=torch.bfloat16)
                self.norm = torch.nn.LayerNorm(6)
                self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
                torch.nn.init.normal_(self.norm.bias)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.norm(self.down(torch.tanh(self.up(x.bfloat16()))).float())

        model = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                use_distributed_optimizer=distributed, overlap_grad_reduce=False, bucket_size=bucket_size
            ),
            Net(),
        )
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=1e-4,
                bf16=True,
                params_dtype=torch.bfloat16,
                use_distributed_optimizer=distributed,
            ),
            [model],
            use_gloo_process_groups=False,
        )

        if not masters:
            for group in optimizer.chained_optimizers[0].shard_fp32_from_float16_groups:
                group[:] = [None] * len(group)
            with dw.ChangeDetector(model, optimizer) as detector:
                return Report(detector.parts, detector.detectors, [])

        def step() -> None:
            model.zero_grad_buffer()
            optimizer.zero_grad()
            loss_of(model).backward()
            model.finish_grad_sync()
            done, _, _ = optimizer.step()
            assert done

        def gather() -> dict[str, torch.Tensor]:
            return model.module.state_dict(keep_vars=True)

        if url is not None:
            return publish_and_follow(model, optimizer, step, gather, url)

        def edit() -> None:
            model.module.up.weight.data.mul_(1.5)

        return watch(model, optimizer, step, gather, edit)
