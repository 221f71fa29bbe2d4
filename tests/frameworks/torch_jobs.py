"""Training with what torch itself has for several ranks. These functions run on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import deltawire as dw
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, RMSprop
from whole import Report, publish_and_follow, watch


class Net(torch.nn.Module):
    """Rows that 2 and 4 ranks do not divide, a bias of one element, a buffer, a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 129)
        self.norm = torch.nn.LayerNorm(129)
        self.down = torch.nn.Linear(129, 6)
        self.out = torch.nn.Linear(6, 1)
        self.frozen = torch.nn.Parameter(torch.randn(7, 3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        # Inversion can't know what a weight of zero was before.
        torch.nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.down(self.norm(torch.tanh(self.up(x)))))


TRAINED = [name for name, p in Net().named_parameters() if p.requires_grad]


def loss_of(model: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Of other data on each rank."""
    generator = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())) + torch.distributed.get_rank())
    return model(torch.randn(16, 64, generator=generator)).float().square().mean()


def stepper(model: Any, optimizer: torch.optim.Optimizer, accumulate: int = 1) -> Callable[[], None]:
    def step() -> None:
        for _ in range(accumulate):
            loss_of(model).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain_state(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    return model.state_dict(keep_vars=True)


def ddp(optimizer: Callable[[Any], torch.optim.Optimizer], detector: str = "auto") -> Report:
    model = DistributedDataParallel(Net())
    stepping = optimizer(p for p in model.parameters() if p.requires_grad)
    return watch(
        model, stepping, stepper(model, stepping, 2), lambda: plain_state(model.module), detector=detector
    )


def adamw(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=3e-6, weight_decay=0.1)


def adamw_fused(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=3e-6, fused=True)


def sgd(parameters: Any) -> SGD:
    return SGD(parameters, lr=3e-4, momentum=0.9, nesterov=True)


def rmsprop(parameters: Any) -> RMSprop:
    return RMSprop(parameters, lr=3e-6)


def whole_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gathered from all ranks, parameters as such."""
    out = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        out[name] = (
            torch.nn.Parameter(full.detach(), False) if isinstance(tensor, torch.nn.Parameter) else full
        )
    return out


def shard(model: Net, mesh: Any, policy: MixedPrecisionPolicy) -> FSDPModule:
    for block in (model.up, model.down, model.out):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy, ignored_params={model.frozen})


def fsdp2(optimizer: Callable[[Any], torch.optim.Optimizer], detector: str = "auto") -> Report:
    """FP32 shards, computed in BF16; the forward of an evaluation leaves the root's parameters whole."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model: Any = shard(
        Net(), mesh, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
    stepping = optimizer(p for p in model.parameters() if p.requires_grad)
    train = stepper(model, stepping)

    def step() -> None:
        train()
        with torch.no_grad():
            loss_of(model)

    return watch(model, stepping, step, lambda: whole_state(model), detector=detector)


class Pair(torch.nn.Module):
    """As a transformer's MLP is cut for tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 130)
        self.down = torch.nn.Linear(130, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


def fsdp2_on_two_axes(tensor_parallel: bool) -> Report:
    """Four ranks: sharded over tensor parallelism, or sharded twice and replicated twice."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    model: Any = Pair()
    if tensor_parallel:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model = parallelize_module(model, mesh["inner"], plan)
        fully_shard(model, mesh=mesh["outer"])
    else:
        fully_shard(model, mesh=mesh)
    stepping = adamw(model.parameters())

    def step() -> None:
        # Ranks that hold parts of one matrix see the same data.
        generator = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))
        model(torch.randn(16, 64, generator=generator)).square().mean().backward()
        stepping.step()
        stepping.zero_grad()

    return watch(model, stepping, step, lambda: whole_state(model))


def edited_shards() -> list[list[str]]:
    """Of each collection the tensors that changed otherwise than by steps."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model: Any = shard(Net(), mesh, MixedPrecisionPolicy())
    stepping = adamw(p for p in model.parameters() if p.requires_grad)
    train = stepper(model, stepping)
    edits: list[Callable[[], Any]] = [
        lambda: None,
        lambda: model.down.weight.data.mul_(1.5),
        lambda: model.load_state_dict(
            {k: v * 2 for k, v in model.state_dict().items() if k == "up.bias"}, strict=False
        ),
    ]
    noted = []
    with dw.ChangeDetector(model, stepping) as detector:
        for edit in edits:
            before = {name: p.detach().clone() for name, p in shards_of(model).items()}
            train()
            edit()
            train()
            changes = {change.name: change for change in detector.collect()}
            for name, old in before.items():
                found = set(changes[name].positions.tolist()) if name in changes else set()
                now = shards_of(model)[name].detach()
                moved = (
                    old.bfloat16().view(torch.int16).flatten() != now.bfloat16().view(torch.int16).flatten()
                )
                assert set(moved.nonzero().flatten().tolist()) <= found, name
            noted.append(sorted({note.split(":")[0] for note in detector.notes}))
            detector.confirm()
    return noted


def shards_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return {name: p.to_local() for name, p in model.named_parameters() if hasattr(p, "to_local")}


def two_detectors() -> tuple[list[int], list[int]]:
    """Two detectors on one optimizer, one of which goes away: changed elements that each sees."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model: Any = shard(Net(), mesh, MixedPrecisionPolicy())
    stepping = rmsprop(p for p in model.parameters() if p.requires_grad)
    train = stepper(model, stepping)
    seen: tuple[list[int], list[int]] = ([], [])
    with dw.ChangeDetector(model, stepping) as lasting:
        with dw.ChangeDetector(model, stepping) as passing:
            train()
            for detector, counts in zip((lasting, passing), seen, strict=True):
                counts.append(sum(int(change.known.sum()) for change in detector.collect()))
                detector.confirm()
        train()
        seen[0].append(sum(int(change.known.sum()) for change in lasting.collect()))
    assert "step" not in vars(stepping), "the optimizer's step is its own again"
    return seen


def publish(url: str) -> None:
    """On one rank a sharded model is whole, and a Publisher takes it."""
    mesh = init_device_mesh("cpu", (1,))
    model: Any = shard(Net(), mesh, MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    stepping = adamw(p for p in model.parameters() if p.requires_grad)
    publish_and_follow(model, stepping, stepper(model, stepping), lambda: whole_state(model), url)


def publisher_refusal() -> str:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model: Any = shard(Net(), mesh, MixedPrecisionPolicy())
    try:
        dw.Publisher(model, adamw(model.parameters()), "/nonexistent/run")
    except dw.Error as e:
        return f"{e.code}: {e}"
    return "published"
