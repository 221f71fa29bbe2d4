"""Every option does something, and none turns the sync into nothing (rows OBS of docs/failures.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from craft import RunFolder
from oracle import assert_exact, bits, engine_of, served
from processes import error_of, model
from safetensors.torch import save_file
from small_models import random_step

# Those that change no bits and no bytes of a run in a folder: a store that can't tell is needed to see the
# first, a clock the second.
UNSEEN = {"single_writer", "threads"}


class OwnAdamW(torch.optim.AdamW):
    """Of Adam's form, and unknown until it is declared."""


def publisher_options(place: Path, trainee: torch.nn.Module) -> dict[str, Any]:
    save_file(served(trainee), place / "base.safetensors")
    return {
        "base": place / "base.safetensors",
        "detector": "snapshot",
        "adam_family": dw.AdamFamily(OwnAdamW),
        "dtype": torch.bfloat16,
        "codings": ["absolute"],
        "run": "run-of-the-test",
        "resume": True,
        "anchor_every": 1,
        "single_writer": True,
        "threads": 1,
    }


SUBSCRIBER_OPTIONS: dict[str, Any] = {"run": "run-of-the-test", "codings": ["absolute", "step"], "threads": 1}


def options_of(kind: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(kind).parameters.values()
    return {
        each.name for each in parameters if each.kind is each.KEYWORD_ONLY and not each.name.startswith("_")
    }


def test_OBS_01_no_option_is_missing_here(place: Path) -> None:
    assert options_of(dw.Publisher) == set(publisher_options(place, model()))
    assert options_of(dw.Subscriber) == set(SUBSCRIBER_OPTIONS)


@pytest.mark.parametrize("name", [None, *sorted(options_of(dw.Publisher))])
@pytest.mark.parametrize("wait", [True, False])
def test_OBS_01_each_publisher_option_alone(url: str, place: Path, name: str | None, wait: bool) -> None:
    trainee = model()
    optimizer = torch.optim.AdamW(trainee.parameters(), lr=1e-3)
    options = {name: publisher_options(place, trainee)[name]} if name else {}
    if name == "resume":
        dw.Publisher(trainee, optimizer, url).close()
    publisher = dw.Publisher(trainee, optimizer, url, **options)
    engine = engine_of(trainee)
    if name == "base":
        engine.load_state_dict(served(trainee))
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    for _ in range(2):
        before = bits(engine.a).clone()
        random_step(trainee, optimizer)
        published = publisher.publish(wait=wait)
        publisher.flush()
        updated = subscriber.update()
        assert (updated.number, updated.digest) == (published.number, published.digest)
        assert published.sent > 0 and not torch.equal(bits(engine.a), before)
        assert_exact(trainee, engine)


@pytest.mark.parametrize("name", [None, *sorted(options_of(dw.Subscriber))])
def test_OBS_01_each_subscriber_option_alone(url: str, name: str | None) -> None:
    trainee = model()
    optimizer = torch.optim.AdamW(trainee.parameters(), lr=1e-3)
    publisher = dw.Publisher(trainee, optimizer, url, run="run-of-the-test")
    engine = engine_of(trainee)
    subscriber = dw.Subscriber(url, engine, **({name: SUBSCRIBER_OPTIONS[name]} if name else {}))
    for _ in range(3):
        random_step(trainee, optimizer)
        publisher.publish()
        before = bits(engine.a).clone()
        assert subscriber.update().digest == publisher.digest
        assert not torch.equal(bits(engine.a), before)
        assert_exact(trainee, engine)


@pytest.mark.parametrize("name", sorted(options_of(dw.Publisher) - UNSEEN))
def test_OBS_05_each_publisher_option_has_an_effect(url: str, place: Path, name: str) -> None:
    trainee = model()
    optimizer = torch.optim.AdamW(trainee.parameters(), lr=1e-3)
    option = publisher_options(place, trainee)[name]
    run = RunFolder(url)
    if name == "adam_family":
        optimizer = OwnAdamW(trainee.parameters(), lr=1e-3)
    if name == "resume":
        dw.Publisher(trainee, optimizer, url).close()
        assert error_of(lambda: dw.Publisher(trainee, optimizer, url)).code == "exists"
    if name == "dtype":
        option = torch.float32
    publisher = dw.Publisher(trainee, optimizer, url, **{name: option})
    random_step(trainee, optimizer)
    number = publisher.publish().number
    if name == "adam_family":
        assert publisher.detectors["a"][0] == "inversion"
    elif name == "base":
        assert not run.anchor_path(0).exists() and run.manifest(0)["base"]["kind"] == "checkpoint"
    elif name == "detector":
        assert publisher.detectors["a"] == ("snapshot", "asked for")
    elif name == "dtype":
        engine = engine_of(trainee, {"a": None, "b": None})
        dw.Subscriber(url, engine).update()
        assert_exact(trainee, engine, {"a": None, "b": None})
    elif name == "codings":
        assert [part["coding"] for part in run.manifest(1)["parts"]] == ["absolute"]
    elif name == "run":
        assert run.manifest(1)["run"] == option == publisher.run
    elif name == "resume":
        assert number == 2
    else:
        assert name == "anchor_every" and run.anchor_path(1).exists()


def test_OBS_05_each_subscriber_option_has_an_effect(url: str) -> None:
    trainee = model()
    publisher = dw.Publisher(trainee, None, url, codings=["step"])
    engine = engine_of(trainee)
    dw.Subscriber(url, engine).update()
    trainee.b.data += 1
    publisher.publish()
    (RunFolder(url).anchor_path(0) / "manifest.json").unlink()
    error = error_of(dw.Subscriber(url, engine, codings=["absolute"]).update)
    assert "has the codings step" in str(error)
    assert error_of(dw.Subscriber(url, engine, run="other").update).code == "wrong_run"
    assert dw.Subscriber(url, engine, codings=["step"], run=publisher.run).update().number == 1


def test_OBS_05_verification_verifies(url: str) -> None:
    """verify(), audit() and resume=state: with data that are wrong each is an error, with right ones none."""
    trainee = model()
    publisher = dw.Publisher(trainee, None, url)
    engine = engine_of(trainee)
    subscriber = dw.Subscriber(url, engine)
    subscriber.update()
    trainee.b.data += 1
    publisher.publish()
    subscriber.update()
    subscriber.verify()
    assert publisher.audit().ok
    state = publisher.state_dict()
    part = RunFolder(url).part_path(1)
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    try:
        assert not publisher.audit().ok
    except dw.Error as error:
        assert error.code == "corrupt"
    engine.seen[2] ^= 1
    error = error_of(subscriber.verify)
    assert error.code == "unusable" and "seen" in str(error)
    publisher.close()
    wrong = {**state, "digest": "0" * 32}
    assert error_of(lambda: dw.Publisher(trainee, None, url, resume=wrong)).code == "mismatch"


@pytest.mark.parametrize(
    "options",
    [
        {"detector": "inverson"},
        {"dtype": "bf61"},
        {"dtype": {"a.": torch.float32}},
        {"codings": ["steps"]},
        {"codings": []},
        {"codings": ["dense"]},
        {"codings": ["step", "step"]},
        {"anchor_every": -1},
        {"run": "a\nb"},
        {"base": "/nowhere/at/all"},
        {"resume": {"run": "x"}},
        {"frobnicate": True},
    ],
)
def test_OBS_05_a_bad_setting_fails_at_the_start(url: str, options: dict[str, Any]) -> None:
    with pytest.raises((dw.Error, TypeError)):
        dw.Publisher(model(), None, url, **options)
    assert not list(Path(url).glob("manifests/*"))


@pytest.mark.parametrize(
    "options", [{"codings": ["steps"]}, {"codings": []}, {"run": 7}, {"frobnicate": True}]
)
def test_OBS_05_a_bad_setting_of_a_subscriber(url: str, options: dict[str, Any]) -> None:
    trainee = model()
    dw.Publisher(trainee, None, url).close()
    with pytest.raises((dw.Error, TypeError)):
        dw.Subscriber(url, engine_of(trainee), **options)


def test_OBS_02_almost_all_names_are_wrong(url: str) -> None:
    """What a typo in a table of names does: nothing is skipped with a warning."""
    trainee = model()
    dw.Publisher(trainee, None, url).close()
    engine = torch.nn.Module()
    engine.modle = engine_of(trainee)
    error = error_of(dw.Subscriber(url, engine).update)
    assert error.code == "mismatch"
    assert not bool(engine.modle.a.any())
    # And one name of three.
    engine = engine_of(trainee)
    engine.register_buffer("seen_", engine._buffers.pop("seen"))
    error = error_of(dw.Subscriber(url, engine).update)
    assert error.code == "mismatch" and "seen" in str(error) and not bool(engine.a.any())
