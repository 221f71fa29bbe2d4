"""What may be given where a model or an optimizer is wanted, and what is refused, and how."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltawire as dw
import pytest
import torch
from small_models import Bag, Mlp

OPENERS: dict[str, Callable[..., Any]] = {
    "Publisher": lambda url, model, optimizer=None, **more: dw.Publisher(model, optimizer, url, **more),
    "ChangeDetector": lambda url, model, optimizer=None, **more: dw.ChangeDetector(model, optimizer, **more),
    "explain": lambda url, model, optimizer=None, **more: dw.explain(model, optimizer, **more),
}
MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (lambda: Mlp().parameters(), r"a generator.*give the module itself, not its parameters"),
    "a list": (lambda: list(Mlp().parameters()), r"a list.*give the module itself, not its parameters"),
    "a state_dict": (
        lambda: Mlp().state_dict(),
        r"OrderedDict.*give the module whose state_dict\(\) that is",
    ),
    "None": (lambda: None, "is None.*give the module itself"),
    "a class": (lambda: Mlp, "give an object of that class"),
    "a tensor": (lambda: torch.zeros(2), "is a Tensor, not a torch.nn.Module"),
}


@pytest.mark.parametrize("given", MODELS)
@pytest.mark.parametrize("opener", [*OPENERS, "Subscriber"])
def test_what_is_no_model(url: str, opener: str, given: str) -> None:
    make, said = MODELS[given]
    with pytest.raises(TypeError, match=said) as raised:
        if opener == "Subscriber":
            dw.Subscriber(url, make())
        else:
            OPENERS[opener](url, make())
    assert isinstance(raised.value, dw.RequestError) and raised.value.code == "invalid_argument"
    assert ("target is" if opener == "Subscriber" else "model is") in str(raised.value)
    assert not Path(url).exists()


@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_no_optimizer(url: str, opener: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    for given in (model.parameters(), optimizer.state_dict(), "adamw", torch.optim.AdamW, [optimizer, 3]):
        with pytest.raises(
            TypeError, match=r"optimizer is .*not a torch\.optim\.Optimizer: give the optimizer"
        ):
            OPENERS[opener](url, model, given)
    with pytest.raises(TypeError, match=r"model is a str, .*: give the module that is in memory"):
        OPENERS[opener](url, "/some/checkpoint", optimizer)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("accepted", ["one", "a list", "nested", "none"])
def test_what_is_an_optimizer(url: str, opener: str, accepted: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    given = {"one": optimizer, "a list": [optimizer], "nested": [(optimizer, None)], "none": None}[accepted]
    assert OPENERS[opener](url, model, given) is not None


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(("dtype", "said"), [(torch.int8, "no cast from F32 to I8"), ("F64", "F32 to F64")])
def test_casts_that_do_not_exist(url: str, opener: str, dtype: Any, said: str) -> None:
    with pytest.raises(dw.Error, match=rf"tensor .*: .*{said}") as raised:
        OPENERS[opener](url, Mlp(), dtype=dtype)
    assert raised.value.code == "unsupported"
    assert not Path(url).exists()


@pytest.mark.parametrize("opener", OPENERS)
def test_a_model_without_tensors(url: str, opener: str) -> None:
    with pytest.raises(dw.Error, match="Sequential has no parameters or buffers"):
        OPENERS[opener](url, torch.nn.Sequential())


def test_explain_says_what_a_publisher_does(url: str) -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW([{"params": [model.up.weight]}, {"params": [model.norm.bias], "eps": 0.0}])
    with dw.Publisher(model, optimizer, url) as publisher:
        told = {row.tensor: (row.detector, row.reason) for row in dw.explain(model, optimizer)}
        assert told == publisher.detectors


def test_a_mistyped_url_makes_no_folder(url: str) -> None:
    engine = Mlp().to(torch.bfloat16)
    with dw.Subscriber(url, engine) as subscriber:
        for call in (subscriber.update, subscriber.stage):
            with pytest.raises(dw.RequestError, match=url) as raised:
                call()
            assert raised.value.code == "not_found"
        assert subscriber.version is None and not Path(url).exists()


def test_an_engine_may_start_before_its_trainer(url: str) -> None:
    model = Bag({"w": torch.randn(20, 10)})
    engine = Bag({"w": torch.zeros(20, 10, dtype=torch.bfloat16)})
    subscriber = dw.Subscriber(url, engine)
    with pytest.raises(dw.Error, match="wait for the publisher"):
        subscriber.update()
    with dw.Publisher(model, None, url):
        subscriber.update()
    assert torch.equal(engine.w, model.w.to(torch.bfloat16))


def test_following_a_place_without_a_run_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltawire._follower._WAIT_MS", 20)
    engine = Bag({"w": torch.zeros(20, 10, dtype=torch.bfloat16)})
    told, taken = threading.Event(), threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if f"{url} has no version yet; waiting" in record.getMessage():
                told.set()

    handler = Told()
    logging.getLogger("deltawire").addHandler(handler)
    try:
        subscriber = dw.Subscriber(url, engine)
        with subscriber.follow(poll_seconds=0.01, on_commit=lambda version: taken.set()):
            assert told.wait(30) and not Path(url).exists()
            with dw.Publisher(Bag({"w": torch.randn(20, 10)}), None, url):
                assert taken.wait(30)
    finally:
        logging.getLogger("deltawire").removeHandler(handler)


def test_without_torch(tmp_path: Path) -> None:
    """In an environment where there is none; the message says what to do, and folders work."""
    program = """
import sys
sys.modules["torch"] = None  # what is not there
import deltawire
deltawire.Subscriber, deltawire.diff
for name in ("Publisher", "ChangeDetector", "explain"):
    try:
        getattr(deltawire, name)
    except ImportError as e:
        assert f"deltawire.{name} needs torch" in str(e) and "pip install torch" in str(e), e
    else:
        raise SystemExit(name)
try:
    from deltawire import Publisher
except ImportError as e:
    assert "needs torch" in str(e), e
try:
    deltawire.Subscriber("run", object())
except ImportError as e:
    assert "a Subscriber whose target is in memory needs torch" in str(e), e
    print("told")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr
