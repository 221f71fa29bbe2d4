"""Detection at the sizes that the rows DET of docs/failures.md ask for; smaller cases are in tests/python."""

from __future__ import annotations

import math
import os
import random
import statistics
import threading
import time
from typing import Any

import deltawire as dw
import numpy as np
import pytest
import torch
from deltawire import _core
from oracle import assert_exact, engine_of
from small_models import Bag, Mlp, random_step, train_step

BLOCK = 1 << 21
VARIANTS: dict[str, dict[str, Any]] = {
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def host_memory(tensor: torch.Tensor) -> _core.Memory:
    return _core.host_memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


def bf16_bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.bfloat16).view(torch.int16).numpy().copy()


def around_midpoints(n: int, generator: torch.Generator) -> torch.Tensor:
    """FP32 weights 0 to 4 ulp from a BF16 midpoint or from a BF16 value, every eighth at a power of two or
    just below one, of both signs."""
    cell = torch.randint(0x3000, 0x41FF, (n,), generator=generator, dtype=torch.int32)
    cell[::16] &= ~0x7F
    cell[8::16] |= 0x7F
    half = (torch.rand(n, generator=generator) < 0.75).to(torch.int32) * 0x8000
    pattern = (cell << 16) + half + torch.randint(-4, 5, (n,), generator=generator, dtype=torch.int32)
    sign = torch.randint(0, 2, (n,), generator=generator, dtype=torch.int32) << 31
    return (pattern | sign).view(torch.float32)


@pytest.mark.parametrize("variant", VARIANTS)
def test_DET_04_no_miss_in_a_hundred_million_element_steps(variant: str) -> None:
    """Real torch steps from weights around midpoints, by a 16th to 2^22 times the weight's ulp.

    A miss is an element whose BF16 bits changed and which is not listed.
    """
    torch.set_num_threads(2)
    seed = {"single": 40, "foreach": 41, "fused": 42}[variant]
    print("seed", seed)
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    n, steps = 2 * BLOCK, 9
    theta = torch.nn.Parameter(torch.zeros(n))
    optimizer = torch.optim.AdamW([theta], lr=1e-6, **VARIANTS[variant])
    theta.grad = torch.zeros(n)
    optimizer.step()
    state = optimizer.state[theta]
    kernels = _core.Kernels("cpu")
    start = around_midpoints(n, generator)
    log_u = torch.rand(n, generator=generator) * 26 - 4
    log_v = torch.rand(n, generator=generator) * 50 - 60
    sign = torch.randint(0, 2, (n,), generator=generator).float() * 2 - 1
    changed_in_all = listed_in_all = 0
    for turn in range(steps):
        lr = rng.choice([1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1])
        decay = rng.choice([0.0, 0.01, 0.1, 1.0, 5.0])
        beta1, beta2 = rng.choice([0.8, 0.9, 0.95, 0.99]), rng.choice([0.95, 0.98, 0.999, 0.9999])
        eps = rng.choice([1e-5, 1e-8, 1e-12, 1e-15])
        t = rng.choice([2, 3, 10, 100, 1000, 20000])
        if lr * decay > 0.5:
            decay = 1.0
        optimizer.param_groups[0].update(lr=lr, weight_decay=decay, betas=(beta1, beta2), eps=eps)
        with torch.no_grad():
            shift = rng.randrange(n)
            theta.copy_(start.roll(shift))
            v = torch.exp2(log_v.roll(rng.randrange(n)))
            u = torch.exp2(log_u.roll(rng.randrange(n))) * theta.abs() * 2.0**-24 * sign
            m = u * ((v / (1 - beta2**t)).sqrt() + eps) * ((1 - beta1**t) / lr)
            # A gradient that leaves these moments behind, in half of the turns from zero.
            theta.grad = m.clone() if turn % 2 else torch.zeros(n)
            state["exp_avg"].copy_(m if turn % 2 else m / beta1)
            state["exp_avg_sq"].copy_(v / beta2)
            state["step"].fill_(t - 1)
        before = bf16_bits(theta)
        optimizer.step()
        after = bf16_bits(theta)
        listed = np.zeros(n, dtype=bool)
        memories = [host_memory(each) for each in (theta.data, state["exp_avg"], state["exp_avg_sq"])]
        for at in range(0, n, BLOCK):
            _, changed, changed_old, uncertain, _, _ = kernels.invert_adamw(
                *memories, 4 * at, BLOCK, t, (lr, decay, beta1, beta2, eps), 2 * at, 0
            )
            sure = np.frombuffer(changed, np.uint32).astype(np.int64) + at
            assert (np.frombuffer(changed_old, np.int16) == before[sure]).all(), (
                "a certified old value is wrong"
            )
            listed[sure] = True
            listed[np.frombuffer(uncertain, np.uint32).astype(np.int64) + at] = True
        moved = before != after
        missed = int((moved & ~listed).sum())
        assert missed == 0, (missed, turn, lr, decay, beta1, beta2, eps, t)
        changed_in_all += int(moved.sum())
        listed_in_all += int(listed.sum())
    share, excess = changed_in_all / (n * steps), (listed_in_all - changed_in_all) / (n * steps)
    print(f"{n * steps:.3g} element-steps, {share:.3f} changed, {excess:.3f} listed beside them, 0 missed")
    assert share > 0.2  # the weights were where it matters


def test_DET_03_schedule_on_a_million_weights(url: str) -> None:
    """Warm-up and linear decay to 0 over 200 steps; the schedule advances between step and publish."""
    model = Bag({"w": torch.randn(1000, 1000) * 0.02})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    steps = 200
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min(1.0, (t + 1) / 20) * (1 - t / steps if t < steps else 0.0)
    )
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    noise = [torch.randn(1000, 1000) * 1e-3 for _ in range(7)]
    for step in range(steps):
        model.w.grad = noise[step % 7]
        optimizer.step()
        schedule.step()
        # Each step near the end, where rates are next to 0.
        if step % 8 == 7 or step > steps - 6:
            assert publisher.publish().notes == ()
            subscriber.update()
            assert_exact(model, engine)
    assert schedule.get_last_lr() == [0.0]
    random_step(model, optimizer)
    assert publisher.publish().changed == 0  # a step at rate 0 changes nothing
    subscriber.update()
    assert_exact(model, engine)


@pytest.mark.parametrize("key", ["lr", "weight_decay", "eps", "beta1", "beta2"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_hyperparameters_never_miss(url: str, key: str, value: float) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = engine_of(model)
    publisher = dw.Publisher(model, optimizer, url)
    subscriber = dw.Subscriber(url, engine)
    train_step(model, optimizer)
    publisher.publish()
    group = optimizer.param_groups[0]
    kept = {**group}
    if key.startswith("beta"):
        group["betas"] = (value, 0.999) if key == "beta1" else (0.9, value)
    else:
        group[key] = value
    train_step(model, optimizer)
    version = publisher.publish()
    # Nothing was inverted: each parameter whose bits moved says that it went whole.
    assert version.changed == version.uncertain == 0
    assert bool(version.notes) == (version.sent > 0)
    subscriber.update()
    assert_exact(model, engine)
    # And the step after it, from weights that may be NaN.
    group.update(kept)
    train_step(model, optimizer)
    publisher.publish()
    subscriber.update()
    assert_exact(model, engine)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_MEM_07_a_thousand_publishes_cost_what_the_first_did(url: str) -> None:
    """An old publisher beside a young one of the same model: the same memory, files and bytes.

    Both publish every step from then on. That a publish and an update make the same store calls at any age is
    asserted where these can be counted: the PubSub and Catalog tests named after this row. Times are printed.
    """
    model = Mlp()
    model.down.to(torch.bfloat16)  # captured; the others are inverted, a buffer fenced
    own = type("Own", (torch.optim.AdamW,), {})  # and one that needs a snapshot
    optimizers = [
        torch.optim.AdamW([*model.up.parameters(), *model.down.parameters(), model.norm.bias], lr=1e-3),
        own([model.norm.weight], lr=1e-3),
    ]

    def step() -> None:
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        for optimizer in optimizers:
            optimizer.step()
        model.seen += 1

    def sync(publisher: dw.Publisher, subscriber: dw.Subscriber) -> tuple[float, float, int]:
        joined = subscriber.version is not None
        start = time.perf_counter()
        version = publisher.publish()
        published = time.perf_counter()
        taken = subscriber.update()
        updated = time.perf_counter()
        assert version.notes == () and version.sent < version.total
        # What a receiver that is up to date reads is this version, and nothing of those before.
        assert not joined or taken.bytes == version.bytes
        return published - start, updated - published, version.bytes

    def work(publisher: dw.Publisher, subscriber: dw.Subscriber) -> list[float]:
        return [end.metrics()["deltawire/memory_bytes"] for end in (publisher, subscriber)]

    ages = 1000
    old = dw.Publisher(model, optimizers, url), dw.Subscriber(url, engine_of(model))
    assert {method for method, _ in old[0].detectors.values()} == {
        "inversion",
        "capture",
        "snapshot",
        "fence",
    }
    step()
    sync(*old)
    files, threads = open_files(), threading.active_count()
    held = []
    for _ in range(ages):
        step()
        sync(*old)
        held.append(sum(work(*old)))
    # What a receiver keeps to undo goes with the changes of one version.
    assert max(held[-100:]) <= 1.1 * max(held[:100])
    assert (open_files(), threading.active_count()) == (files, threads)

    young = dw.Publisher(model, optimizers, url + "-young"), dw.Subscriber(url + "-young", engine_of(model))
    costs: dict[str, list[tuple[float, float, int]]] = {"old": [], "young": []}
    for _ in range(100):
        step()
        costs["old"].append(sync(*old))
        costs["young"].append(sync(*young))
    assert work(*old)[0] == work(*young)[0]
    # The same changes, coded alike; names of versions differ in length.
    for (*_, old_bytes), (*_, young_bytes) in zip(costs["old"][1:], costs["young"][1:], strict=True):
        assert abs(old_bytes - young_bytes) <= 64
    for age, each in costs.items():
        publish, update, _ = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{age}: publish {1e3 * publish:.2f} ms, update {1e3 * update:.2f} ms")
