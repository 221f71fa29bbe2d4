"""Memory of publishers and receivers (rows MEM of docs/failures.md), in processes of their own."""

from __future__ import annotations

import gc
import os
from multiprocessing.connection import Connection
from pathlib import Path

import deltawire as dw
import torch
from children import Child
from small_models import Bag, random_step

ELEMENTS = 24 << 20
FIXED = 64 << 20  # bytes, and
EACH = 16  # for a changed element


def status(field: str) -> int:
    """Bytes of a field of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


class Peak:
    """How far the resident memory rose inside the block above what it was at its begin."""

    def __enter__(self) -> Peak:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        self._start = status("VmRSS")
        self.bytes = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = max(0, status("VmHWM") - self._start)


def weights() -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(ELEMENTS // 4096, 4096, generator=generator) * 0.02


def _publish(pipe: Connection, url: str) -> None:
    model = Bag({"w": weights()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)  # without temporaries of its own
    noise = torch.randn(ELEMENTS // 4096, 4096) * 1e-3
    model.w.grad = noise
    optimizer.step()
    figures = []
    with Peak() as peak:
        publisher = dw.Publisher(model, optimizer, url)
    figures.append(("open", peak.bytes, 0))
    for steps in (1, 1, 3):
        with Peak() as peak:
            for _ in range(steps):
                optimizer.step()
            version = publisher.publish()
        figures.append((f"publish after {steps}", peak.bytes, version.changed + version.uncertain))
    publisher.close()
    pipe.send(figures)


def _update(pipe: Connection, url: str) -> None:
    model = Bag({"w": weights().to(torch.bfloat16)})
    subscriber = dw.Subscriber(url, model)
    subscriber.update(0)
    figures = []
    for number in (1, 2, 3):
        with Peak() as peak:
            version = subscriber.update(number)
        figures.append((f"update to {number}", peak.bytes, version.sent))
    with Peak() as peak:
        subscriber.verify()
    figures.append(("verify", peak.bytes, 0))
    pipe.send(figures)


def test_MEM_04_peak_of_publish_and_update(url: str) -> None:
    """Beyond model and optimizer at most 64 MiB and 16 bytes a changed element; each side in its process."""
    for side in (_publish, _update):
        child = Child(side, url)
        figures = child.receive()
        child.join()
        for what, peak, changed in figures:
            print(f"{what}: {peak / 2**20:.1f} MiB, {changed} changed")
            assert peak <= FIXED + EACH * changed, what
        assert any(changed > 10_000 for _, _, changed in figures)


def _sync_often(pipe: Connection, url: str, syncs: int) -> None:
    model = Bag({"w": torch.randn(40, 50), "b": torch.randn(50)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    engine = Bag({name: tensor.detach().to(torch.bfloat16) for name, tensor in model.named_parameters()})
    publisher = dw.Publisher(model, optimizer, url, anchor_every=100)
    subscriber = dw.Subscriber(url, engine)

    def held() -> tuple[int, int, int]:
        gc.collect()
        segments = sum("/dev/shm" in line for line in Path("/proc/self/maps").read_text().splitlines())
        return status("VmRSS"), len(os.listdir("/proc/self/fd")), segments

    for sync in range(syncs):
        random_step(model, optimizer)
        publisher.publish(wait=sync % 2 == 0)
        publisher.flush()
        subscriber.update()
        if sync == syncs // 5:
            pipe.send(held())
    pipe.send(held())


def test_MEM_05_five_hundred_syncs(url: str) -> None:
    child = Child(_sync_often, url, 500)
    early, late = child.receive(), child.receive()
    child.join()
    print(f"resident {early[0] >> 10} KiB after 100, {late[0] >> 10} KiB after 500 syncs")
    assert late[1:] == early[1:], "descriptors, shared segments"
    # 400 syncs later: less than the noise of an allocator.
    assert late[0] - early[0] <= 4 << 20
