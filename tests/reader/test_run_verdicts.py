"""Altered manifests whose content hash was mended: the reader and `deltawire verify` accept the same ones."""

from __future__ import annotations

import json
import shutil

import catalog
import deltawire
import pytest
import xxhash
from codings import Corrupt
from wire import Unsupported, compact


def mended(members: dict) -> bytes:
    text = compact(members | {"content": "0" * 32})
    content = xxhash.xxh3_128_hexdigest(text.encode())
    return text.replace(f'"content":"{"0" * 32}"', f'"content":"{content}"').encode()


def put(*path_and_value):
    """Sets a member, given its path."""
    *path, last, value = path_and_value

    def change(members):
        for key in path:
            members = members[key]
        members[last] = value

    return change


CHANGES = {
    "nothing": (lambda m: None, True),
    "unknown field": (put("later", {"x": [1.5, None]}), True),
    "unknown field of a part": (put("parts", 0, "later", 1), True),
    "part of an unknown coding": (put("parts", 1, "coding", "later"), True),
    "format version": (put("format_version", 2), False),
    "format version before the freeze": (put("format_version", 0), False),
    "run": (put("run", "other"), False),
    "number": (put("number", 2), False),
    "number as text": (put("number", "1"), False),
    "inventory": (put("inventory", "0" * 64), False),
    "digest": (put("digest", "0" * 32), False),
    "digest in capitals": (put("digest", "A" * 32), False),
    "base is itself": (put("base", "number", 1), False),
    "no base, though the part has one": (put("base", {"kind": "none"}), False),
    "manifest of the base": (put("base", "manifest", "0" * 64), False),
    "digest of the base": (put("base", "digest", "0" * 32), False),
    "kind of the base": (put("base", "kind", "later"), False),
    "writer": (put("writer", "a b"), False),
    "size of a part": (put("parts", 0, "bytes", 1), False),
    "hash of a part": (put("parts", 0, "sha256", "0" * 64), False),
    "size of a table": (put("parts", 0, "table", "bytes", 1), False),
    "hash of a table": (put("parts", 0, "table", "sha256", "0" * 64), False),
    "table outside its part": (put("parts", 0, "table", "offset", 1 << 63), False),
    "hidden object": (put("parts", 0, "name", "updates/.hidden"), False),
    "object outside the run": (put("parts", 0, "name", "../x"), False),
    "missing object": (put("parts", 0, "name", "updates/00000001/x"), False),
    "counts": (put("counts", "changed", 1 << 40), False),
    "negative": (put("steps", -1), False),
    "fraction": (put("steps", 1.0), False),
    "alias with parts": (put("alias_of", 0), False),
}


# What an audit sees and a subscriber need not look at: it stands at the base, proved by digest, and reads
# whole parts.
ONLY_AN_AUDIT = {"manifest of the base", "size of a table", "hash of a table"}


@pytest.fixture
def run(golden, tmp_path):
    """Versions 0 and 1 of the golden run."""
    shutil.copytree(golden / "run", tmp_path / "run")
    for number in (2, 3):
        (tmp_path / f"run/manifests/{number:08d}.json").unlink()
    (tmp_path / "run/LATEST").write_text("1\n")
    return tmp_path / "run"


@pytest.mark.parametrize("change", CHANGES)
def test_altered_manifests(golden, run, tmp_path, command, change):
    alter, accepted = CHANGES[change]
    path = run / "manifests/00000001.json"
    members = json.loads(path.read_text())
    alter(members)
    path.write_bytes(mended(members))
    try:
        catalog.Run(run).replay()
        reader = "accepted"
    except (Corrupt, Unsupported, FileNotFoundError) as error:
        reader = str(error)
    assert (reader == "accepted") == accepted, reader
    # Exit 1: the run is wrong; 3: it can't be read.
    command("verify", run, code=0 if accepted else (1, 3))
    engine = tmp_path / "engine"
    engine.mkdir()
    shutil.copy(golden / "run.states/00000000.safetensors", engine / "model.safetensors")
    with deltawire.Subscriber(run, engine, codings=["step"]) as subscriber:
        try:
            subscriber.update(1)
            library = "accepted"
        except deltawire.Error as error:
            library = str(error)
    assert (library == "accepted") == (accepted or change in ONLY_AN_AUDIT), library
    expected = golden / "run.states" / f"{int(library == 'accepted'):08d}.safetensors"
    assert (engine / "model.safetensors").read_bytes() == expected.read_bytes()
