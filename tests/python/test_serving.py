"""Serving FP16, FP32, and several dtypes in one model (rows DTY and DET of docs/failures.md)."""

from __future__ import annotations

import itertools
from typing import Any

import deltawire as dw
import numpy as np
import pytest
import torch
from deltawire import Fp8
from fp8_oracle import assert_served
from oracle import assert_exact, bits, engine_of, served
from small_models import Bag, random_step

F16 = torch.float16


def hybrid() -> torch.nn.Module:
    """A layer with a router, a correction bias, norms and a state-space decay."""
    model = torch.nn.Module()
    model.mlp = torch.nn.Module()
    model.mlp.gate = Bag({"weight": torch.randn(4, 48)}, {"e_score_correction_bias": torch.randn(4)})
    model.mlp.up_proj = Bag({"weight": torch.randn(130, 48) * 0.02})
    model.mixer = Bag({"A_log": torch.randn(16), "in_proj": torch.randn(64, 48) * 0.02})
    model.norm = Bag({"weight": torch.ones(48)})
    model.embed = Bag({"weight": torch.randn(40, 48)})
    return model


HYBRID_RULES: dict[str, Any] = {
    "*.gate.weight": torch.float32,
    "*norm.weight": "F32",
    "*_proj.weight": Fp8("channel"),
    "*in_proj": F16,
}
# What these mean for the oracle; A_log and the bias stay FP32 by the default rule.
HYBRID_ORACLE: dict[str, torch.dtype | None] = {
    "mlp.gate.weight": None,
    "mlp.gate.e_score_correction_bias": None,
    "norm.weight": None,
    "mixer.A_log": None,
    "mixer.in_proj": F16,
}


class HybridPair:
    def __init__(self, url: str, **options: Any) -> None:
        self.model = hybrid()
        self.engine = engine_of(self.model, HYBRID_ORACLE)
        up = self.engine.mlp.up_proj
        up.weight = torch.nn.Parameter(torch.zeros(130, 48).to(torch.float8_e4m3fn), requires_grad=False)
        up.register_buffer("weight_scale", torch.zeros(130, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.publisher = dw.Publisher(self.model, self.optimizer, url, dtype=HYBRID_RULES, **options)
        self.subscriber = dw.Subscriber(url, self.engine)

    def update(self) -> dw.Version:
        version = self.publisher.publish()
        self.subscriber.update()
        up = self.engine.mlp.up_proj
        assert_served(self.model.mlp.up_proj.weight, up.weight, up.weight_scale, "channel")
        live = dict(self.engine.state_dict())
        for name, tensor in served(self.model, HYBRID_ORACLE).items():
            if not name.startswith("mlp.up_proj"):
                assert live[name].dtype == tensor.dtype, name
                assert bool((bits(live[name]) == bits(tensor)).all()), name
        return version


@pytest.mark.parametrize("detector", ["auto", "capture", "snapshot"])
def test_DTY_02_each_tensor_in_its_own_dtype(url: str, detector: str) -> None:
    pair = HybridPair(url, detector=detector)
    for steps in (1, 3, 2):
        for _ in range(steps):
            random_step(pair.model, pair.optimizer)
        assert pair.update().sent > 0
    pair.subscriber.verify()


@pytest.mark.parametrize("detector", ["auto", "capture", "snapshot"])
@pytest.mark.parametrize("name", ["mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mixer.A_log"])
def test_DET_09_only_an_fp32_tensor_changes(url: str, detector: str, name: str) -> None:
    pair = HybridPair(url, detector=detector)
    random_step(pair.model, pair.optimizer)
    pair.update()
    tensor = pair.model.state_dict()[name]
    # By less than BF16 can tell, in one optimizer step where one makes it.
    before = tensor.clone()
    if tensor.numel() and name in dict(pair.model.named_parameters()):
        everything_else = tuple(other for other, _ in pair.model.named_parameters() if other != name)
        for group in pair.optimizer.param_groups:
            group["lr"] = 1e-6
        random_step(pair.model, pair.optimizer, skip=everything_else)
    else:
        tensor.view(torch.int32)[0] ^= 1
    changed = int((bits(tensor) != bits(before)).sum())
    assert changed and bool((bits(tensor.bfloat16()) == bits(before.bfloat16())).any())
    version = pair.update()
    assert changed <= version.sent <= tensor.numel()


def follow(
    url: str, model: torch.nn.Module, dtype: Any, rules: dict[str, Any], **options: Any
) -> tuple[dw.Publisher, list[tuple[torch.nn.Module, dw.Subscriber]]]:
    """A publisher of both codings and a receiver for each."""
    publisher = dw.Publisher(model, None, url, dtype=dtype, codings=["step", "absolute"], **options)
    engines = [engine_of(model, rules) for _ in range(2)]
    return publisher, [
        (engine, dw.Subscriber(url, engine, codings=[coding]))
        for engine, coding in zip(engines, ("step", "absolute"), strict=True)
    ]


@pytest.mark.parametrize("variant", [{}, {"foreach": True}, {"fused": True}])
def test_fp16_over_many_steps(url: str, variant: dict[str, Any]) -> None:
    """Through subnormals, zero and overflow: to infinity and back, and NaN."""
    generator = torch.Generator().manual_seed(16)
    weight = torch.randn(64, 48, generator=generator) * torch.logspace(-9, 4, 64)[:, None]
    weight[0] = 65519.9  # 65520 rounds to infinity
    weight[1] = -65519.99
    weight[2, :4] = torch.tensor([0.0, -0.0, 2.0**-25, 65520.0])
    model = Bag({"w": weight, "b": torch.randn(48, generator=generator)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, **variant)
    engine = engine_of(model, {"w": F16, "b": F16})
    publisher = dw.Publisher(model, optimizer, url, dtype=F16)
    subscriber = dw.Subscriber(url, engine)
    infinite = []
    for version in range(24):
        for group in optimizer.param_groups:
            group["lr"] = (1e-6, 1e-2, 3.0, 1e-5)[version % 4]
        for _ in range(1 + version % 3):
            random_step(model, optimizer)
        if version == 20:
            with torch.no_grad():
                model.w[5, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine, {"w": F16, "b": F16})
        infinite.append(int(engine.w[:2].isinf().sum()))
    # It did overflow, and some of it came back.
    assert max(infinite) > 0 and any(later < earlier for earlier, later in itertools.pairwise(infinite))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("stepped", [True, False])
def test_a_nan_is_served_as_the_same_bits_in_every_form(url: str, stepped: bool, backend: str) -> None:
    """Contiguous, strided, of one element and of no dimension: torch's own casts of these differ."""
    model = Bag(
        {
            "flat": torch.ones(40),
            "strided": torch.ones(12, 30)[:, ::3],
            "one": torch.ones(1),
            "scalar": torch.tensor(1.0),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = engine_of(model)
    options = {"_backend": backend}
    publisher = dw.Publisher(model, optimizer if stepped else None, url, **options)
    detector = dw.ChangeDetector(model, optimizer if stepped else None, **options)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    for nan in (0x7FC00000, -0x400000, 0x7F800001, -1):  # quiet, negative, signalling, all ones
        if stepped:
            random_step(model, optimizer)
        with torch.no_grad():
            for p in model.parameters():
                p.view(torch.int32)[(0,) * p.dim()] = nan
        publisher.publish()
        subscriber.update()
        assert subscriber.digest == publisher.digest and publisher.audit().ok
        subscriber.verify()
        found = {each.name: each for each in detector.collect()}
        detector.confirm()
        for name, p in engine.named_parameters():
            held = bits(p).numpy().view(np.uint16)
            assert held[0] == 0xFFFF
            changes = found.get(name)
            if changes is not None:  # what this process says it serves is what the engine holds
                assert (held[changes.positions] == changes.new).all()
        assert_exact(model, engine)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(1.0)
        publisher.publish()
        detector.collect()
        detector.confirm()


def test_fp16_weights_are_served_as_stored(url: str) -> None:
    model = Bag({"w": (torch.randn(40, 30) * 100).half()})
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0, momentum=0.9)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    for _ in range(12):
        random_step(model, optimizer)
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)


def test_DTY_03_fp16_steps_never_drift(url: str) -> None:
    """±1 to 3 units in the last place, over all exponents, subnormals and both zeros, in each coding."""
    generator = torch.Generator().manual_seed(3)
    start = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)[::7].clone()
    model = Bag({"w": start.view(F16)})
    publisher, engines = follow(url, model, None, {"w": F16})
    for _ in range(40):
        step = torch.randint(-3, 4, start.shape, generator=generator, dtype=torch.int16)
        model.w.data.view(torch.int16).add_(step)
        publisher.publish()
        for engine, subscriber in engines:
            subscriber.update()
            assert_exact(model, engine)


def test_DTY_03_fp8_codes_never_drift(url: str) -> None:
    """A weight that walks over the boundaries of its codes, by a code or two at each version."""
    generator = torch.Generator().manual_seed(8)
    weight = torch.randn(128, 40, generator=generator)
    weight[0, 0] = 4.0
    model = Bag({"w": weight})
    publisher = dw.Publisher(model, None, url, dtype={"w": Fp8()}, codings=["step", "absolute"])
    engines = []
    for coding in ("step", "absolute"):
        engine = Bag(
            {"w": torch.nn.Parameter(torch.zeros(128, 40).to(torch.float8_e4m3fn), requires_grad=False)},
            {"w_scale_inv": torch.zeros(1, 1)},
        )
        engines.append((engine, dw.Subscriber(url, engine, codings=[coding])))
    for version in range(40):
        with torch.no_grad():
            model.w[1:] *= 1 + (torch.rand(127, 40, generator=generator) - 0.5) / 4
            if version % 5 == 0:
                model.w[0, 0] *= 1.001
        publisher.publish()
        for engine, subscriber in engines:
            subscriber.update()
            assert_served(model.w, engine.w, engine.w_scale_inv, (128, 128))


def test_DTY_02_fp32_passes_through(url: str) -> None:
    """Served FP32, a step changes nearly every element, and each of them arrives."""
    model = Bag({"w": torch.randn(120, 50), "norm": torch.ones(50)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    engine = engine_of(model, {"w": None, "norm": None})
    publisher = dw.Publisher(model, optimizer, url, dtype=torch.float32)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    for _ in range(4):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        random_step(model, optimizer)
        version = publisher.publish()
        changed = sum(int((bits(before[name]) != bits(t)).sum()) for name, t in model.state_dict().items())
        assert version.changed == changed > 0.9 * version.total
        subscriber.update()
        assert_exact(model, engine, {"w": None, "norm": None})


def test_the_same_training_in_four_dtypes(url: str) -> None:
    """Coarser dtypes change less, by what the dtype resolves."""
    shares = {}
    for name, dtype in (
        ("F32", torch.float32),
        ("F16", F16),
        ("BF16", None),
        ("F8", {"w": Fp8("tensor")}),
    ):
        generator = torch.Generator().manual_seed(1)
        model = Bag({"w": torch.randn(256, 128, generator=generator) * 0.02})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
        publisher = dw.Publisher(model, optimizer, f"{url}-{name}", dtype=dtype)
        changed = []
        for _ in range(4):
            model.w.grad = torch.randn(256, 128, generator=generator) * 1e-3
            optimizer.step()
            changed.append(publisher.publish().changed / model.w.numel())
        shares[name] = float(np.mean(changed))
    assert 1 >= shares["F32"] > 0.9 > shares["F16"] > shares["BF16"] > shares["F8"] > 0
    # Three bits of mantissa more: eight times as many boundaries to cross.
    assert 5 < shares["F16"] / shares["BF16"] < 11
