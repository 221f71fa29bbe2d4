"""Against slime's own code: the receiver that it patches into SGLang, and the sender's encoding. Opt-in.

DELTAWIRE_SLIME names a checkout of github.com/THUDM/slime. Needs zstandard (and blake3 for that checksum).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import foreign
import numpy as np
import pytest
from cli_driver import deltawire, read_checkpoint, write_sharded

SLIME = os.environ.get("DELTAWIRE_SLIME")
pytestmark = pytest.mark.skipif(not SLIME, reason="DELTAWIRE_SLIME names no checkout of slime")

_PATCH = "docker/patch/latest/sglang-pull_weights.patch"
_RECEIVER = "python/sglang/srt/weight_sync/local_checkpoint.py"


def load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    """The module that slime's patch adds to SGLang: the added lines of a new file."""
    pytest.importorskip("zstandard")
    patch = (Path(SLIME) / _PATCH).read_text()
    (part,) = [part for part in patch.split("diff --git ") if part.startswith(f"a/{_RECEIVER} ")]
    body = part[part.index("\n@@") :].splitlines()[2:]
    path = tmp_path_factory.mktemp("slime") / "slime_receiver.py"
    path.write_text("\n".join(line[1:] for line in body if line.startswith("+")) + "\n")
    return load("slime_receiver", path)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", ["xxh3-128", "blake3", "adler32"])
def test_slimes_receiver_applies_what_we_write(tmp_path, pair, receiver, encoding, checksum):
    if checksum == "blake3":
        pytest.importorskip("blake3")
    base = write_sharded(tmp_path / "base", pair.old)
    newer = write_sharded(tmp_path / "newer", pair.new)
    stream = tmp_path / "stream"
    stream.mkdir()
    options = ("--encoding", encoding, "--checksum", checksum)
    deltawire("convert", newer, "--base", base, "--to", "slime", "-o", stream / "weight_v000001", *options)
    deltawire("convert", base, "--base", newer, "--to", "slime", "-o", stream / "weight_v000002", *options)
    local = tmp_path / "local"
    receiver.pull(str(local), str(base), str(stream), 1)
    assert read_checkpoint(local) == pair.new
    receiver.pull(str(local), str(base), str(stream), 2)
    assert read_checkpoint(local) == pair.old


def test_our_state_lets_slimes_receiver_go_on(tmp_path, pair, receiver):
    base = write_sharded(tmp_path / "base", pair.old)
    newer = write_sharded(tmp_path / "newer", pair.new)
    stream = tmp_path / "stream"
    stream.mkdir()
    deltawire("convert", newer, "--base", base, "--to", "slime", "-o", stream / "weight_v000001")
    deltawire("convert", base, "--base", newer, "--to", "slime", "-o", stream / "weight_v000002")
    local = tmp_path / "local"
    deltawire("convert", stream / "weight_v000001", "--base", base, "--to", "checkpoint", "-o", local)
    receiver.pull(str(local), str(base), str(stream), 2)
    assert read_checkpoint(local) == pair.old


def test_slimes_encoding_is_the_one_we_read(tmp_path, pair):
    sender = load("slime_disk_delta", Path(SLIME) / "slime/utils/disk_delta.py")
    for name, old in pair.old.items():
        a, b = (np.frombuffer(x.array.tobytes(), np.uint8) for x in (old, pair.new[name]))
        ours = foreign.difference("overwrite", a.tobytes(), b.tobytes())
        assert sender.overwrite_encode(b, a != b).tobytes() == ours
        for checksum, compute in foreign.CHECKSUMS.items():
            assert sender.checksum(checksum, b.tobytes()) == compute(b.tobytes())
