"""Stores that lose, refuse or fill up (rows STO of docs/failures.md)."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from children import Child, bits_of
from craft import RunFolder
from oracle import assert_exact, engine_of, served
from processes import error_of, model
from safetensors.torch import load_file, save_file
from small_models import random_step


class Loop:
    """A trainer of a small model with its publisher."""

    def __init__(self, url: str, elements: int = 4000, **options: Any) -> None:
        self.model = model(elements)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.publisher = dw.Publisher(self.model, self.optimizer, url, **options)

    def publish(self) -> dw.Version:
        random_step(self.model, self.optimizer)
        self.model.seen += 1
        return self.publisher.publish()


# Lost objects -------------------------------------------------------------------------------------


def _lost(run: RunFolder, what: str) -> Path:
    return {
        "manifest": run.manifest_path(1),
        "newest manifest": run.manifest_path(2),
        "part": run.part_path(1),
        "newest part": run.part_path(2),
        "inventory": run.inventory_path(),
        "pointer": run.path / "LATEST",
        "anchor's manifest": run.anchor_path(0) / "manifest.json",
        "anchor's tensors": run.anchor_path(0) / "model.safetensors",
        "anchor's digests": run.anchor_path(0) / "digests.bin",
        "digests": next(run.path.glob("updates/00000000/*-digests.bin")),
    }[what]


@pytest.mark.parametrize(
    "what",
    [
        "manifest",
        "newest manifest",
        "part",
        "newest part",
        "inventory",
        "pointer",
        "anchor's manifest",
        "anchor's tensors",
        "anchor's digests",
        "digests",
    ],
)
def test_STO_04_a_missing_object_is_an_error_or_not_needed(url: str, what: str) -> None:
    """Each object in turn, for a receiver at version 0 and for one that joins."""
    loop = Loop(url)
    follower = engine_of(loop.model)
    subscriber = dw.Subscriber(url, follower)
    subscriber.update()
    states = [bits_of(served(loop.model))]
    for _ in range(2):
        loop.publish()
        states.append(bits_of(served(loop.model)))
    run = RunFolder(url)
    path = _lost(run, what)
    content = path.read_bytes()
    path.unlink()
    # What the follower needs beyond its own version 0, and what a joiner needs.
    chain = {"manifest", "part", "newest part", "inventory"}
    start = {"anchor's manifest", "anchor's tensors", "anchor's digests"}
    joiner = engine_of(loop.model)
    zero = bits_of(dict(joiner.state_dict()))
    reached = 1 if what == "newest manifest" else 2
    for who, engine, held, needs in (
        (subscriber, follower, states[0], chain - {"inventory"}),  # it knows the inventory already
        (dw.Subscriber(url, joiner), joiner, zero, chain | start),
    ):
        # LATEST still names the newest version: that it is gone may be noticed, or not.
        try:
            version = who.update()
        except dw.Error as error:
            assert what in needs or what == "newest manifest", error
            assert error.code in ("not_found", "corrupt")
            assert path.name in str(error) or "anchor" in str(error), error
            assert bits_of(dict(engine.state_dict())) == held
        else:
            assert what not in needs
            assert version.number == reached
            assert bits_of(dict(engine.state_dict())) == states[reached]
    # Put back, everything goes on.
    path.write_bytes(content)
    for who, engine in ((subscriber, follower), (dw.Subscriber(url, joiner), joiner)):
        assert who.update().number == 2
        assert_exact(loop.model, engine)


@pytest.mark.parametrize(
    "what",
    ["manifest", "newest manifest", "part", "newest part", "inventory", "pointer", "anchor's manifest",
     "anchor's tensors", "digests"],
)  # fmt: skip
def test_publisher_goes_on_in_a_store_that_lost_an_object(url: str, what: str) -> None:
    """An open publisher, and one that resumes: their versions are there for all, or they say why not."""
    loop = Loop(url)
    for _ in range(2):
        loop.publish()
    _lost(RunFolder(url), what).unlink()
    loop.publish()
    loop.publisher.anchor()
    if what != "inventory":  # which a joiner asks for by name
        engine = engine_of(loop.model)
        dw.Subscriber(url, engine).update()
        assert_exact(loop.model, engine)
    loop.publisher.close()
    with dw.Publisher(loop.model, loop.optimizer, url, resume=True) as resumed:
        random_step(loop.model, loop.optimizer)
        resumed.publish()
    engine = engine_of(loop.model)
    dw.Subscriber(url, engine).update()
    assert_exact(loop.model, engine)


def test_emptied_store(url: str) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    loop.publish()
    held = bits_of(dict(engine.state_dict()))
    for child in Path(url).iterdir():
        shutil.rmtree(child) if child.is_dir() else child.unlink()
    assert error_of(subscriber.update).code == "not_found"
    assert bits_of(dict(engine.state_dict())) == held
    with pytest.raises(dw.Error):
        dw.Publisher(loop.model, loop.optimizer, url, resume=True)


# Full and read-only -------------------------------------------------------------------------------


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("wait", [True, False])
def test_STO_06_short_writes_of_a_publisher(url: str, wait: bool) -> None:
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    for size in (0, 1, 700, 1000):
        random_step(loop.model, loop.optimizer)
        with file_size_limit(size), pytest.raises(dw.Error) as caught:
            loop.publisher.publish(wait=wait)
            loop.publisher.flush()
        assert caught.value.code == "no_space", caught.value
        # Nothing half-made is visible, and nothing is lost.
        before = subscriber.version
        assert before is not None and subscriber.update().number == before.number
        version = loop.publisher.publish()
        assert version.steps == 1
        assert subscriber.update().number == version.number
        assert_exact(loop.model, engine)
    assert not list(Path(url).rglob(".tmp-*"))


def test_STO_06_manifest_that_does_not_fit(url: str) -> None:
    """A part that is written and a manifest that is not: the version does not exist."""
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    loop.model.b.data[3] += 1  # a small part
    with file_size_limit(950), pytest.raises(dw.Error) as caught:
        loop.publisher.publish()
    assert caught.value.code == "no_space"
    assert [path.name for path in Path(url).glob("manifests/*")] == ["00000000.json"]
    assert loop.publisher.publish().number == 1
    subscriber.update()
    assert_exact(loop.model, engine)


def _publish_and_die(pipe: Connection, url: str, size: int) -> None:
    """The default action of SIGXFSZ ends the process in the middle of a write."""
    loop = Loop(url, resume=Path(url).exists())
    pipe.send(bits_of(served(loop.model)))
    loop.model.b.data[3] += 1
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with file_size_limit(size):
        loop.publisher.publish()


def test_STO_05_killed_in_the_middle_of_a_write(url: str) -> None:
    for size in (0, 1, 100, 600, 800, 950, 1000):
        child = Child(_publish_and_die, url, size)
        opened = child.receive()
        with pytest.raises((EOFError, ConnectionResetError)):
            child.receive()
        child.wait()
        engine = engine_of(model())
        version = dw.Subscriber(url, engine).update()
        assert bits_of(dict(engine.state_dict())) == opened, (size, version)
    loop = Loop(url, resume=True)
    loop.publish()
    engine = engine_of(loop.model)
    dw.Subscriber(url, engine).update()
    assert_exact(loop.model, engine)


def test_STO_06_short_writes_of_a_folder_subscriber(url: str, place: Path) -> None:
    loop = Loop(url)
    file = place / "weights.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in served(loop.model).items()}, file)
    subscriber = dw.Subscriber(url, file)
    subscriber.update()
    held = bits_of(load_file(file))
    assert held == bits_of(served(loop.model))
    loop.publish()
    for size in (0, 1, 100, 4000):
        with file_size_limit(size):
            error = error_of(subscriber.update)
        assert error.code == "no_space" and "journal" in str(error)
        assert bits_of(load_file(file)) == held
    assert subscriber.update().number == 1
    assert bits_of(load_file(file)) == bits_of(served(loop.model))
    subscriber.verify()


_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_REMOUNT, _MNT_DETACH = 1, 32, 2


class Disk:
    """A small file system in memory, which only root can make."""

    def __init__(self, path: Path, size: int) -> None:
        path.mkdir()
        self.path = path
        self._options = f"size={size}".encode()
        if _LIBC.mount(b"deltawire-test", os.fsencode(path), b"tmpfs", 0, self._options) != 0:
            pytest.skip(f"can't mount a tmpfs here: {os.strerror(ctypes.get_errno())}")

    def remount(self, read_only: bool) -> None:
        flags = _MS_REMOUNT | (_MS_RDONLY if read_only else 0)
        assert _LIBC.mount(b"deltawire-test", os.fsencode(self.path), b"tmpfs", flags, self._options) == 0

    def fill(self) -> None:
        with open(self.path / "filler", "ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    pass

    def make_room(self) -> None:
        (self.path / "filler").unlink()

    def unmount(self) -> None:
        _LIBC.umount2(os.fsencode(self.path), _MNT_DETACH)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", 2 << 20)
    yield made
    made.unmount()


def test_STO_06_full_disk_under_the_store(disk: Disk) -> None:
    url = str(disk.path / "run")
    loop = Loop(url)
    engine = engine_of(loop.model)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    for turn in range(3):
        disk.fill()
        random_step(loop.model, loop.optimizer)
        for _ in range(2):
            error = error_of(loop.publisher.publish)
            assert error.code == "no_space" and "space" in str(error)
        assert subscriber.update().number == turn
        disk.make_room()
        version = loop.publisher.publish()
        assert (version.number, version.steps) == (turn + 1, 1)
        subscriber.update()
        assert_exact(loop.model, engine)
    assert not list(Path(url).rglob(".tmp-*"))


def test_STO_06_full_disk_at_the_start(disk: Disk) -> None:
    disk.fill()
    url = str(disk.path / "run")
    trainee = model()
    assert error_of(lambda: dw.Publisher(trainee, None, url)).code == "no_space"
    disk.make_room()
    dw.Publisher(trainee, None, url).close()
    engine = engine_of(trainee)
    dw.Subscriber(url, engine).update()
    assert_exact(trainee, engine)


def test_STO_06_full_disk_under_a_folder_subscriber(url: str, disk: Disk) -> None:
    loop = Loop(url)
    folder = disk.path / "checkpoint"
    folder.mkdir()
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in served(loop.model).items()},
        folder / "model.safetensors",
    )
    subscriber = dw.Subscriber(url, folder)
    subscriber.update()
    for _ in range(3):
        held = bits_of(load_file(folder / "model.safetensors"))
        loop.publish()
        disk.fill()
        error = error_of(subscriber.update)
        assert error.code == "no_space"
        assert bits_of(load_file(folder / "model.safetensors")) == held
        disk.make_room()
        subscriber.update()
        assert bits_of(load_file(folder / "model.safetensors")) == bits_of(served(loop.model))


def _update_with_little_room(pipe: Connection, url: str, disk: str, file: str) -> None:
    def update() -> None:
        with dw.Subscriber(url, file) as subscriber:
            subscriber.stage()
            # Room for the journal (a copy of all bits and some), not for the holes as well.
            room = os.statvfs(disk)
            Path(disk, "filler").write_bytes(b"x" * (room.f_bfree * room.f_frsize - (600 << 10)))
            subscriber.commit()

    try:
        update()
    except dw.Error as error:
        pipe.send(error.code)
    else:
        pipe.send("updated")


def test_STO_06_holes_in_the_checkpoint_of_a_full_disk(url: str, tmp_path: Path) -> None:
    """A sparse copy of a checkpoint: a write into a hole through a mapping would need room (else SIGBUS)."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        if shutil.which(command[0]) is None or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip(f"can't {command[0]} here")
    try:
        loop = Loop(url, elements=200_000)
        file = folder / "weights.safetensors"
        save_file({name: torch.zeros_like(tensor) for name, tensor in served(loop.model).items()}, file)
        content = file.read_bytes()
        file.unlink()
        with open(file, "wb") as sparse:
            sparse.write(content[: content.index(bytes(64))])
            sparse.truncate(len(content))
        assert file.stat().st_blocks * 512 < len(content) // 2
        child = Child(_update_with_little_room, url, str(folder), str(file))
        outcome = child.receive()
        child.join()
        assert outcome == "updated" or (outcome == "no_space" and file.read_bytes() == content)
        (folder / "filler").unlink(missing_ok=True)
        dw.Subscriber(url, file).update()
        assert bits_of(load_file(file)) == bits_of(served(loop.model))
    finally:
        _LIBC.umount2(os.fsencode(folder), _MNT_DETACH)


def test_read_only_store_and_checkpoint(disk: Disk) -> None:
    url = str(disk.path / "run")
    loop = Loop(url)
    engine = engine_of(loop.model)
    file = disk.path / "weights.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in served(loop.model).items()}, file)
    on_disk = dw.Subscriber(url, file)
    on_disk.update()
    on_disk.close()
    random_step(loop.model, loop.optimizer)
    disk.remount(read_only=True)
    error = error_of(loop.publisher.publish)
    assert error.code == "io" and "ead-only" in str(error)
    # Reading credentials are all that a subscriber needs.
    dw.Subscriber(url, engine).update()
    error = error_of(lambda: dw.Subscriber(url, file).update())
    assert error.code == "io" and "ead-only" in str(error)
    disk.remount(read_only=False)
    loop.publisher.publish()
    dw.Subscriber(url, engine).update()
    dw.Subscriber(url, file).update()
    assert_exact(loop.model, engine)
    assert bits_of(load_file(file)) == bits_of(served(loop.model))


# Publishers that meet ----------------------------------------------------------------------------


def _race(pipe: Connection, url: str, turns: int) -> None:
    """Publishes until fenced, and resumes then; says every version that it was promised."""
    torch.manual_seed(os.getpid())
    made: dict[int, dict[str, bytes]] = {}
    loop: Loop | None = None
    while len(made) < turns:
        try:
            if loop is None:
                loop = Loop(url, resume=True)
                made[loop.publisher.version.number] = bits_of(served(loop.model))
            else:
                number = loop.publish().number
                made[number] = bits_of(served(loop.model))
        except dw.PeerError:
            loop = None
    pipe.send(made)


def test_VER_17_two_publishers_race_on_one_run(url: str) -> None:
    """Whatever the order: each version is one publisher's, as it was promised to it."""
    Loop(url).publisher.close()
    racers = [Child(_race, url, 8) for _ in range(2)]
    made = [racer.receive() for racer in racers]
    for racer in racers:
        racer.join()
    assert not set(made[0]) & set(made[1])
    everything = made[0] | made[1]
    numbers = sorted(int(path.stem) for path in Path(url).glob("manifests/*.json"))
    assert set(everything) == set(numbers) - {0}
    engine = engine_of(model())
    for number in numbers[1:]:
        dw.Subscriber(url, engine).update(number)
        assert bits_of(dict(engine.state_dict())) == everything[number], number
