"""Processes that end at any moment (rows STO-05 and I3, I4, I23 of docs/failures.md)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from children import Child, bits_of
from craft import RunFolder
from oracle import engine_of, served
from processes import (
    follow,
    mapped_engine,
    model,
    train_and_publish,
    update_folder,
    update_mapped_engine,
)
from safetensors.torch import load_file, save_file
from small_models import random_step

KILLS = 20


class History:
    """What trainers said: bits by version as acknowledged, and the one that was under way."""

    def __init__(self) -> None:
        self.done: dict[int, dict[str, bytes]] = {}
        self.trying: dict[str, bytes] | None = None

    def hear(self, message: tuple[str, Any]) -> None:
        if message[0] == "try":
            self.trying = message[1]
        else:
            assert self.trying is not None and message[1] not in self.done
            self.done[message[1]] = self.trying
            self.trying = None

    def listen(self, child: Child) -> None:
        """To all that it says until its end."""
        while True:
            try:
                self.hear(child.receive())
            except (EOFError, ConnectionResetError):
                return

    def settle(self, url: str) -> None:
        """After a kill: the store holds what was acknowledged, and perhaps what was under way."""
        numbers = [int(path.stem) for path in Path(url).glob("manifests/*.json")]
        last = max(self.done, default=-1)
        assert set(self.done) <= set(numbers) and max(numbers, default=-1) <= last + 1
        if last + 1 in numbers:
            assert self.trying is not None
            self.done[last + 1] = self.trying
        self.trying = None


def engine_at(url: str, number: int | None = None) -> dict[str, bytes]:
    """The bits of a receiver that has just joined, without the product's word for them."""
    engine = engine_of(model())
    with dw.Subscriber(url, engine) as subscriber:
        subscriber.update(number)
    return bits_of(dict(engine.state_dict()))


def test_STO_05_killed_publishers_leave_nothing_that_counts(tmp_path: Path, place: Path) -> None:
    # On a disk: most of a publish is waiting for it, so kills fall on every stage.
    url = str(tmp_path / "run")
    seed = 5
    print("seed", seed)
    rng = random.Random(seed)
    history = History()
    state = str(place / "state")
    for kill in range(KILLS):
        options: dict[str, Any] = {"resume": bool(history.done)}
        if kill % 3 == 0 and Path(state).exists():
            Path(state).unlink()  # a trainer that lost its checkpoint: other weights, a full version
        if kill % 4 == 1:
            options["anchor_every"] = 2
        child = Child(train_and_publish, url, state, 2, options, (rng.randint(0, 2), rng.uniform(0, 1.1)))
        history.listen(child)
        child.wait()
        history.settle(url)
        if history.done:
            newest = max(history.done)
            assert engine_at(url) == history.done[newest]
    # The next trainer goes on where the last one was, and every version is there as it was told.
    child = Child(train_and_publish, url, state, 2, {"resume": bool(history.done)})
    history.listen(child)
    child.join()
    assert len(history.done) >= 3
    for number, bits in history.done.items():
        assert engine_at(url, number) == bits, number
    # Leftovers are there, and no reader minds them.
    listed = {part["name"] for number in history.done for part in RunFolder(url).manifest(number)["parts"]}
    written = {str(path.relative_to(url)) for path in Path(url).glob("updates/*/*.safetensors")}
    print(f"{len(history.done)} versions, {len(written - listed)} leftover parts")
    assert listed <= written


def versions_of(url: str, count: int, elements: int) -> list[dict[str, bytes]]:
    """Publishes ``count`` versions after version 0, of which each changes everything."""
    trainee = model(elements)
    optimizer = torch.optim.AdamW(trainee.parameters(), lr=0.05)
    publisher = dw.Publisher(trainee, optimizer, url, anchor_every=8)
    history = [bits_of(served(trainee))]
    for _ in range(count):
        random_step(trainee, optimizer)
        trainee.seen += 1
        publisher.publish()
        history.append(bits_of(served(trainee)))
    publisher.close()
    return history


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_killed_folder_subscriber_leaves_an_old_or_a_new_version(url: str, tmp_path: Path, kind: str) -> None:
    seed = 15
    print("seed", seed)
    rng = random.Random(seed)
    elements = 200_000
    history = versions_of(url, 3, elements)
    run = RunFolder(url)
    held = {number: run.manifest_path(number).read_bytes() for number in (1, 2, 3)}
    for number in held:
        run.manifest_path(number).unlink()
    (run.path / "LATEST").unlink()
    target = tmp_path / "checkpoint"  # on a disk: writing back takes long enough to be hit
    file = target / "model.safetensors" if kind == "folder" else target / "weights.safetensors"
    target.mkdir()
    engine = engine_of(model(elements))
    with dw.Subscriber(url, engine) as subscriber:
        subscriber.update(0)
    start = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
    path = str(target if kind == "folder" else file)
    seconds: dict[int, float] = {}
    seen = {"old": 0, "new": 0, "finished": 0}
    for number in held:
        run.manifest_path(number).write_bytes(held[number])
    for kill in range(3 + KILLS // 2):
        save_file(start, file)
        at = kill % 3 + 1
        for number in held:
            if number <= at:
                run.manifest_path(number).write_bytes(held[number])
            else:
                run.manifest_path(number).unlink(missing_ok=True)
        if at in seconds:
            Child(update_folder, url, path, rng.uniform(0.3, 1.2) * seconds[at]).wait()
        else:  # how long it takes
            child = Child(update_folder, url, path)
            number, seconds[at] = child.receive()
            assert number == at
            child.join()
        with dw.Subscriber(url, path) as subscriber:
            found = bits_of(load_file(file))
            assert found in (history[0], history[at])
            seen["old" if found == history[0] else "new"] += 1
            seen["finished"] += subscriber._core.recovered
            assert subscriber.update().number == at
            assert bits_of(load_file(file)) == history[at]
            subscriber.verify()
    print(seen)


def test_killed_module_subscriber_is_no_reason_to_stay_behind(url: str, place: Path) -> None:
    """Weights in memory that outlives the process: what a kill in mid-commit leaves there is no version."""
    seed = 25
    print("seed", seed)
    rng = random.Random(seed)
    history = versions_of(url, 4, 4000)
    memory = place / "weights"
    memory.write_bytes(bytes(1 << 20))
    for kill in range(KILLS // 2):
        Child(update_mapped_engine, url, str(memory), rng.uniform(0, 0.002)).wait()
        if kill % 2:
            # Between two versions, as a kill inside the scatter leaves it.
            engine = mapped_engine(str(memory))
            with dw.Subscriber(url, engine) as subscriber:
                subscriber.update(3)
            raw = torch.frombuffer(bytearray(history[4]["a"]), dtype=torch.bfloat16)
            engine.a.data.view(-1)[: rng.randrange(1, 3000)] = raw[: rng.randrange(1, 3000)][:1]
        engine = mapped_engine(str(memory))
        with dw.Subscriber(url, engine) as subscriber:
            assert subscriber.update().number == 4
            subscriber.verify()
        assert bits_of(dict(engine.state_dict())) == history[4]
        memory.write_bytes(bytes(1 << 20))


def test_following_process_rejoins_after_a_kill(url: str, place: Path) -> None:
    state = str(place / "state")
    first = Child(follow, url, 1)
    assert first.receive() == "ready"  # an engine may start before its trainer
    trainer = Child(train_and_publish, url, state, 6, {})
    second = Child(follow, url, 2)
    assert second.receive() == "ready"
    history = History()
    for _ in range(6):
        history.hear(trainer.receive())
    first.kill()
    history.listen(trainer)
    trainer.join()
    again = Child(follow, url, 3)
    assert again.receive() == "ready"
    for child in (second, again):
        child.pipe.send("stop")
        number, digest, bits = child.receive()
        assert number == 6 and bits == history.done[6]
        assert digest == RunFolder(url).manifest(6)["digest"]
        child.join()
