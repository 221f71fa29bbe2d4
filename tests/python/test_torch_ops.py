"""The kernel table in torch operations gives the bits of kernels/ref, op by op, on CPU tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import deltawire as dw
import numpy as np
import pytest
import torch
from deltawire import _core
from deltawire._torch_ops import Storage
from oracle import assert_exact, engine_of
from small_models import Bag, Mlp, random_step, train_step

# Cast -> (stored bytes, served bytes), as kernels::Cast numbers them.
CASTS = {0: (1, 1), 1: (2, 2), 2: (4, 4), 3: (8, 8), 4: (4, 2), 5: (4, 2), 6: (2, 4), 7: (2, 4)}
SIZES = (1, 2, 7, 64, 1021, 4099)
REF = _core.Kernels("ref")
TORCH = _core.Kernels("torch")


class Twin:
    """The same bytes as a host memory and as a torch memory."""

    def __init__(self, data: bytes) -> None:
        self.a = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8).clone()
        self.b = self.a.clone()
        storage = self.b.untyped_storage()
        self.host = _core.host_memory(self.a.data_ptr(), self.a.numel(), self.a)
        self.torch = _core.torch_memory(Storage(storage), storage.nbytes())

    def equal(self) -> bool:
        return torch.equal(self.a, self.b)

    def __getitem__(self, kernels: Any) -> Any:
        return self.host if kernels is REF else self.torch


def both(call: Callable[[Any], Any]) -> Any:
    expected = call(REF)
    assert call(TORCH) == expected
    return expected


def awkward(rng: np.random.Generator, count: int, width: int) -> bytes:
    """Random bits; for floats, with the values at which casts and comparisons turn."""
    raw = rng.integers(0, 256, count * width, dtype=np.uint8)
    if width == 4:
        words = raw.view(np.uint32)
        special = [
            0,
            1 << 31,
            1,
            0x7F800000,
            0xFF800000,
            0x7F800001,
            0x7FC01234,
            0xFFFFFFFF,
            0x7F7FFFFF,
            0x477FEFFF,
            0x477FF000,
            0x33000000,
            0x33000001,
            0x38800000,
            0x387FFFFF,
            0x3F808000,
            0x3F818000,
        ]
        words[:: max(1, count // 40)] = rng.choice(
            np.array(special, np.uint32), len(words[:: max(1, count // 40)])
        )
        ordinary = rng.random(count) < 0.5
        words[ordinary] = rng.normal(0, 1, count).astype(np.float32).view(np.uint32)[ordinary]
    return raw.tobytes()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("n", SIZES)
def test_reads(rng: np.random.Generator, cast: int, n: int) -> None:
    stored, served = CASTS[cast]
    data = Twin(awkward(rng, n + 3, stored))
    for first in (0, 1, 3):
        offset = first * stored
        both(lambda k, o=offset: k.read(data[k], o, cast, 1, n))
        for canonical in (0, served, 4096 - served, 40960 + 5 * served):
            both(lambda k, o=offset, c=canonical: k.digest(data[k], o, cast, n, c, 0xC0FFEE1234567890))
    last = (n + 2) * stored
    for stride, offset, count in ((2, 0, n // 2), (0, stored, n), (-1, last, n), (-3, last, n // 3)):
        both(lambda k, s=stride, o=offset, c=count: k.read(data[k], o, cast, s, c))
    positions = np.flatnonzero(rng.random(n) < 0.3).astype(np.uint32).tobytes()
    both(lambda k: k.gather(data[k], stored, cast, positions))
    target = Twin(bytes((n + 2) * served))
    both(lambda k: k.copy(data[k], stored, cast, n, target[k], served))
    assert target.equal()


def test_all_halves_are_widened_alike() -> None:
    data = Twin(np.arange(1 << 16, dtype=np.uint16).tobytes())
    for cast in (6, 7):
        both(lambda k, c=cast: k.read(data[k], 0, c, 1, 1 << 16))


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("n", SIZES)
def test_compare(rng: np.random.Generator, cast: int, n: int) -> None:
    stored, served = CASTS[cast]
    live = Twin(awkward(rng, n, stored))
    old = Twin(REF.read(live.host, 0, cast, 1, n))
    assert both(lambda k: k.compare(old[k], 0, live[k], 0, cast, n)) == (b"", b"", b"")
    flips = np.flatnonzero(rng.random(n) < 0.2)
    for position in flips:
        byte = int(position) * served + int(rng.integers(served))
        old.a[byte] ^= 0x80
        old.b[byte] ^= 0x80
    positions, _, _ = both(lambda k: k.compare(old[k], 0, live[k], 0, cast, n))
    assert np.array_equal(np.frombuffer(positions, np.uint32), flips)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_writes(rng: np.random.Generator, width: int) -> None:
    data = Twin(awkward(rng, 500, width))
    bits = rng.integers(0, 256, 40 * width, dtype=np.uint8).tobytes()
    for kernels in (REF, TORCH):
        kernels.write(data[kernels], 7 * width, width, bits)
    assert data.equal()
    # The offset may stand before the memory: only sums with positions are used.
    positions = np.sort(rng.choice(np.arange(100, 400), 40, replace=False)).astype(np.uint32).tobytes()
    for offset in (0, 100 * width, -100 * width):
        for kernels in (REF, TORCH):
            kernels.scatter(data[kernels], offset, width, positions, bits)
        assert data.equal()
    both(lambda k: k.gather(data[k], -100 * width, {1: 0, 2: 1, 4: 2, 8: 3}[width], positions))


def trial_weights(rng: np.random.Generator, n: int) -> np.ndarray:
    """Natural weights, weights next to the edges of BF16 cells, and awkward bits."""
    theta = np.frombuffer(awkward(rng, n, 4), np.float32).copy()
    theta[: n // 2] = rng.normal(0, 0.02, n // 2)
    near = ((theta[: n // 4].view(np.uint32) & 0xFFFF0000) | 0x8000) + rng.integers(-40, 41, n // 4).astype(
        np.uint32
    )
    theta[: n // 4] = near.astype(np.uint32).view(np.float32)
    theta[::83] = 0
    theta[::79] = -0.0
    return theta


def stored(values: np.ndarray, is_bf16: bool) -> Twin:
    if not is_bf16:
        return Twin(values.tobytes())
    return Twin(torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().tobytes())


@pytest.mark.parametrize("eps", [1e-8, 1e-6, 1e-15])
@pytest.mark.parametrize("lr", [1e-6, 1e-3, 0.0])
@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("bf16", [(False, False), (True, True), (True, False), (False, True)])
def test_invert_adamw(
    rng: np.random.Generator, eps: float, lr: float, step: int, bf16: tuple[bool, bool]
) -> None:
    n = 20000
    theta = trial_weights(rng, n)
    m = (rng.normal(0, 1, n) * np.exp2(rng.integers(-40, 5, n))).astype(np.float32)
    v = np.square(rng.normal(0, 1, n) * np.exp2(rng.integers(-40, 5, n))).astype(np.float32)
    m[::97] = 0
    v[::89] = 0
    m[::71] = np.nan
    v[::67] = 2.0**101
    memories = [Twin(theta.tobytes()), stored(m, bf16[0]), stored(v, bf16[1])]
    hyper = (lr, 0.1, 0.9, 0.999, eps)
    result = both(
        lambda k: k.invert_adamw(
            *[memory[k] for memory in memories], 4, n - 1, step, hyper, 4096, 0x1234567890ABCDEF, *bf16
        )
    )
    _, changed, _, uncertain, _, span = result
    assert len(uncertain) > 0 and 1 in span
    assert len(changed) > 0 or lr == 0


@pytest.mark.parametrize("hyper", [(1e-3, 0.0, 0.0), (1e-2, 0.1, 0.9), (-0.1, -1.0, -0.5), (0.0, 0.0, 0.9)])
@pytest.mark.parametrize("with_y", [False, True])
def test_invert_sgd(rng: np.random.Generator, hyper: tuple[float, float, float], with_y: bool) -> None:
    n = 20000
    theta = trial_weights(rng, n)
    states = [(rng.normal(0, 1, n) * np.exp2(rng.integers(-40, 1, n))).astype(np.float32) for _ in range(2)]
    for i, state in enumerate(states):
        state[:: 97 - i] = 0
        state[:: 71 - i] = np.nan
    memories = [Twin(values.tobytes()) for values in (theta, *states)]
    result = both(
        lambda k: k.invert_sgd(
            memories[0][k],
            memories[1][k],
            memories[2][k] if with_y else None,
            4,
            n - 1,
            hyper,
            4096,
            0x1234567890ABCDEF,
        )
    )
    _, changed, _, uncertain, _, span = result
    assert len(uncertain) > 0 and 1 in span
    assert len(changed) > 0 or hyper[0] == 0


def test_select_small(rng: np.random.Generator) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    data = Twin(halves.tobytes())
    positions, _ = both(lambda k: k.select_small(data[k], 0, 1, 1 << 16))
    small = [x for x in range(1 << 16) if x == 0x8000 or 1 <= (x & 0x7FFF) <= 0x0800]
    assert list(np.frombuffer(positions, np.uint32)) == small
    wide = Twin((halves.astype(np.uint32) << 16).tobytes())
    both(lambda k: k.select_small(wide[k], 0, 4, 1 << 16))


def test_failures_are_kept_and_reported() -> None:
    class Broken(Storage):
        def read(self, *_: Any) -> int:
            raise RuntimeError("the device fell off the bus")

    storage = torch.zeros(64, dtype=torch.uint8).untyped_storage()
    memory = _core.torch_memory(Broken(storage), 64)
    for _ in range(2):
        with pytest.raises(dw.EngineError, match=r"read failed.*fell off the bus"):
            TORCH.read(memory, 0, 0, 1, 8)


def test_addresses_outside_are_errors() -> None:
    data = Twin(bytes(64))
    with pytest.raises(dw.Error, match="outside a memory of 64 bytes"):
        TORCH.read(data.torch, 8, 3, 1, 8)
    with pytest.raises(dw.Error, match="can't reach"):
        TORCH.read(data.host, 0, 3, 1, 8)
    with pytest.raises(dw.Error, match="outside"):
        REF.scatter(data.host, 0, 8, struct.pack("<I", 8), bytes(8))


@pytest.mark.parametrize("detector", ["auto", "snapshot"])
def test_publisher_and_subscriber_on_the_torch_path(url: str, detector: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    host, torch_only = engine_of(model), engine_of(model)
    publisher = dw.Publisher(model, optimizer, url, detector=detector, _backend="torch")
    subscribers = [dw.Subscriber(url, host), dw.Subscriber(url, torch_only, _backend="torch")]
    for turn in range(4):
        for _ in range(turn + 1):
            train_step(model, optimizer)
        model.seen += 1
        version = publisher.publish()
        assert version.notes == ()
        for subscriber, engine in zip(subscribers, (host, torch_only), strict=True):
            assert subscriber.update().digest == version.digest
            assert_exact(model, engine)
            subscriber.verify()
    assert publisher.audit().ok
    subscribers[1].rollback()
    subscribers[1].verify()


def test_strided_tensors_on_the_torch_path(url: str) -> None:
    model = Bag(
        {"t": torch.randn(40, 24).t(), "s": torch.randn(24, 80)[:, ::2]}, {"b": torch.randn(9).expand(5, 9)}
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = Bag(
        {
            "t": torch.zeros(40, 24, dtype=torch.bfloat16).t(),
            "s": torch.zeros(24, 80, dtype=torch.bfloat16)[:, ::2],
        },
        {"b": torch.zeros(9, 5).t()},
    )
    publisher = dw.Publisher(model, optimizer, url, _backend="torch")
    subscriber = dw.Subscriber(url, engine, _backend="torch")
    for _ in range(2):
        random_step(model, optimizer)
        publisher.publish()
        subscriber.update()
        assert_exact(model, engine)
