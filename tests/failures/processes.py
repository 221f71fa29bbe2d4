"""What the children of the tests do: train, publish, receive. Each function gets its end of a pipe first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import deltawire as dw
import torch
from children import bits_of, kill_this_process_in
from oracle import engine_of, served
from small_models import Bag, random_step
from torch.optim import AdamW


def model(elements: int = 4000, seed: int | None = None) -> Bag:
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    return Bag(
        {
            "a": torch.randn(elements // 8, 8, generator=generator),
            "b": torch.randn(97, generator=generator),
        },
        {"seen": torch.zeros(3, dtype=torch.int64)},
    )


def train_and_publish(
    pipe: Connection,
    url: str,
    state: str,
    versions: int,
    options: dict[str, Any],
    kill_at: tuple[int, float] | None = None,
) -> None:
    """Resumes from ``state`` if it is there, and tells of every version: what is tried, then what is done.

    kill_at: in which publish (0: opening) SIGKILL comes, and when, as a share of how long the last one took.
    """
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    trainee = model()
    if Path(state).exists():
        trainee.load_state_dict(torch.load(state))
    optimizer = AdamW(trainee.parameters(), lr=1e-3)
    seconds = 0.003

    def publish(turn: int, call: Callable[[], Any]) -> Any:
        nonlocal seconds
        pipe.send(("try", bits_of(served(trainee))))
        if kill_at is not None and kill_at[0] == turn:
            kill_this_process_in(kill_at[1] * seconds)
        started = time.perf_counter()
        made = call()
        seconds = time.perf_counter() - started
        version = made.version if isinstance(made, dw.Publisher) else made
        pipe.send(("done", version.number))
        return made

    publisher = publish(0, lambda: dw.Publisher(trainee, optimizer, url, **options))
    for turn in range(1, versions + 1):
        random_step(trainee, optimizer)
        trainee.seen += 1
        torch.save(trainee.state_dict(), state + ".new")
        os.replace(state + ".new", state)
        publish(turn, publisher.publish)
    publisher.close()


def update_folder(pipe: Connection, url: str, folder: str, kill_in: float | None = None) -> None:
    subscriber = dw.Subscriber(url, folder)
    if kill_in is not None:
        kill_this_process_in(kill_in)
    started = time.perf_counter()
    number = subscriber.update().number
    pipe.send((number, time.perf_counter() - started))


def mapped_engine(path: str) -> Bag:
    """An engine whose weights outlive its process, in a file that all its processes map."""
    engine = engine_of(model())
    at = 0
    for kind in (engine._parameters, engine._buffers):
        for name, tensor in kind.items():
            size = tensor.numel()
            stored = torch.from_file(path, shared=True, size=1 << 20, dtype=torch.uint8)
            piece = stored[at : at + size * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
            kind[name] = (
                torch.nn.Parameter(piece, requires_grad=False) if kind is engine._parameters else piece
            )
            at += -(-size * tensor.element_size() // 64) * 64
    return engine


def update_mapped_engine(pipe: Connection, url: str, path: str, kill_in: float) -> None:
    subscriber = dw.Subscriber(url, mapped_engine(path))
    kill_this_process_in(kill_in)
    subscriber.update()


def follow(pipe: Connection, url: str, seed: int) -> None:
    """Follows a run with an engine of its own until told to stop; then says its version and bits."""
    engine = engine_of(model(seed=seed))
    subscriber = dw.Subscriber(url, engine)
    with subscriber.follow(poll_seconds=0.01):
        pipe.send("ready")
        pipe.recv()
    version = subscriber.update()
    pipe.send((version.number, version.digest, bits_of(dict(engine.state_dict()))))


def calling(pipe: Connection, function: Callable[..., Any], *args: Any) -> None:
    pipe.send(function(*args))


def error_of(call: Callable[[], Any]) -> dw.Error:
    try:
        call()
    except dw.Error as error:
        return error
    raise AssertionError("it should have failed")
