"""`deltawire convert` against files written from the formats' descriptions, and against each other."""

from __future__ import annotations

import json
import shutil

import foreign
import numpy as np
import pytest
from cli_driver import deltawire, read_checkpoint, write_file, write_sharded

# The documented vector: BF16 words and the content of their frames.
OLD_WORDS = np.array([0x3F80, 0x3F81, 0x0000, 0x8000], np.uint16)
NEW_WORDS = np.array([0x3F80, 0x3F82, 0x8000, 0x8000], np.uint16)
CONTENT = {"xor": "0000030000800000", "overwrite": "0200000002000000050000008280"}
DIGESTS = {"xxh3-128": "f140f702380ea3e4b901980456b017d7", "adler32": "0c080281"}


def bits_of(tensors):
    return {name: tensor.array.tobytes() for name, tensor in tensors.items()}


def convert(source, base, to, out, *options, expect=0):
    return deltawire(
        "convert", source, "--base", base, "--to", to, "-o", out, *options, "--json", expect=expect
    )


def refused(code, source, base, to, out, *options):
    done = convert(source, base, to, out, *options, expect=3)
    assert done.json["error"]["code"] == code, done
    assert not out.exists() and not list(out.parent.glob(".*deltawire-*"))
    return done.json["error"]["message"]


@pytest.fixture
def vector(tmp_path):
    from cli_driver import Tensor

    old, new = ({"w": Tensor("bfloat16", words)} for words in (OLD_WORDS, NEW_WORDS))
    return write_file(tmp_path / "a.safetensors", old), write_file(tmp_path / "b.safetensors", new)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", ["xxh3-128", "adler32"])
def test_the_documented_bytes_are_written(tmp_path, vector, encoding, checksum):
    out = tmp_path / "weight_v000007"
    convert(vector[1], vector[0], "slime", out, "--encoding", encoding, "--checksum", checksum)
    names = sorted(path.name for path in out.iterdir())
    assert names == ["model-00000-of-00001.safetensors", "model.safetensors.index.json"]
    tensors, metadata = foreign.read_container((out / names[0]).read_bytes())
    assert foreign.decompress(tensors["w"][2]).hex() == CONTENT[encoding]
    assert metadata == {"w": DIGESTS[checksum]}
    index = json.loads((out / names[1]).read_text())
    assert index["weight_map"] == {"w": names[0]}
    assert index["metadata"] == {
        "version": "000007",
        "base_version": "000006",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", ["xxh3-128", "adler32"])
@pytest.mark.parametrize("to", ["patch", "open", "checkpoint"])
def test_slime_is_read(tmp_path, pair, encoding, checksum, to):
    options = {"encoding": encoding, "checksum": checksum, "files": 2}
    delta = foreign.write_slime(tmp_path / "weight_v000007", bits_of(pair.old), bits_of(pair.new), **options)
    out = tmp_path / "out.safetensors"
    report = convert(delta, pair.old_path, to, out).json
    assert report["from"] == "slime"
    assert any("unverified base" in note for note in report["notes"])
    assert any("weak checksum" in note for note in report["notes"]) == (checksum == "adler32")
    if to != "checkpoint":
        assert deltawire("verify", out, "--json").json["digest"] == report["digest"]
        applied = tmp_path / "applied.safetensors"
        deltawire("apply", pair.old_path, out, "-o", applied)
        out = applied
    assert read_checkpoint(out) == pair.new


@pytest.mark.parametrize("coding", ["class", "step", "absolute", "open"])
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_patches_become_slime_deltas_and_patches_again(tmp_path, pair, coding, encoding):
    patch, delta, again = (tmp_path / name for name in ("p.safetensors", "weight_v000012", "q.safetensors"))
    deltawire("diff", pair.old_path, pair.new_path, "-o", patch, "--coding", coding)
    convert(patch, pair.old_path, "slime", delta, "--encoding", encoding, "--checksum", "blake3")
    assert foreign.apply_slime(delta, bits_of(pair.old)) == bits_of(pair.new)
    convert(delta, pair.old_path, "patch", again, "--coding", coding)
    out = tmp_path / "out.safetensors"
    deltawire("apply", pair.old_path, again, "-o", out)
    assert read_checkpoint(out) == pair.new


def test_a_chain_of_slime_deltas_keeps_the_receivers_state(tmp_path, pair):
    base = write_sharded(tmp_path / "v6", pair.old)
    (base / ".weight_sync").mkdir()
    (base / ".weight_sync" / "state.json").write_text('{"version": "000006"}')
    old, new = bits_of(pair.old), bits_of(pair.new)
    first = foreign.write_slime(tmp_path / "weight_v000007", old, new)
    second = foreign.write_slime(tmp_path / "weight_v000008", new, old, version=8, base_version=7)
    message = refused("wrong_base", second, base, "checkpoint", tmp_path / "no")
    assert "version 6" in message and "in order" in message
    convert(first, base, "checkpoint", tmp_path / "v7")
    assert json.loads((tmp_path / "v7" / ".weight_sync" / "state.json").read_text()) == {"version": "000007"}
    assert read_checkpoint(tmp_path / "v7") == pair.new
    assert (tmp_path / "v7" / "config.json").exists()
    convert(second, tmp_path / "v7", "checkpoint", tmp_path / "v8")
    assert read_checkpoint(tmp_path / "v8") == pair.old
    # What holds another version now must not say that it holds the old one.
    patch = tmp_path / "p.safetensors"
    convert(first, base, "patch", patch)
    deltawire("apply", base, patch, "-o", tmp_path / "applied")
    assert not (tmp_path / "applied" / ".weight_sync").exists()


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_delta_on_another_base_is_refused(tmp_path, pair, encoding):
    delta = foreign.write_slime(
        tmp_path / "weight_v000007", bits_of(pair.old), bits_of(pair.new), encoding=encoding
    )
    other = {name: tensor.copy() for name, tensor in pair.old.items()}
    other["bf16"].array.reshape(-1)[5] ^= 1
    base = write_file(tmp_path / "other.safetensors", other)
    for to in ("checkpoint", "patch", "slime"):
        message = refused("wrong_base", delta, base, to, tmp_path / "weight_v000009")
        assert '"bf16"' in message and "xxh3-128" in message


def damage(path, at):
    file = bytearray(path.read_bytes())
    file[at] ^= 0x10
    path.write_bytes(file)


def test_damaged_and_incomplete_slime_deltas_are_errors(tmp_path, pair):
    old, new = bits_of(pair.old), bits_of(pair.new)
    good = foreign.write_slime(tmp_path / "good", old, new, files=2)
    out = tmp_path / "out.safetensors"
    data, index_name = "model-00001-of-00002.safetensors", "model.safetensors.index.json"

    def broken(change):
        bad = tmp_path / "bad"
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        change(bad)
        return bad

    def edit(**fields):
        def change(folder):
            index = json.loads((folder / index_name).read_text())
            index["metadata"] |= fields
            (folder / index_name).write_text(json.dumps(index))

        return change

    size = (good / data).stat().st_size
    for at in (size - 1, size - 40):
        code = convert(
            broken(lambda bad, at=at: damage(bad / data, at)), pair.old_path, "patch", out, expect=3
        )
        assert code.json["error"]["code"] in ("corrupt", "wrong_base")
    cut = broken(lambda bad: (bad / data).write_bytes((good / data).read_bytes()[:-1]))
    refused("corrupt", cut, pair.old_path, "patch", out)
    missing = convert(broken(lambda bad: (bad / data).unlink()), pair.old_path, "patch", out, expect=None)
    assert missing.code in (3, 4) and data in missing.stderr and not out.exists()
    refused("unsupported", broken(edit(delta_encoding="additive")), pair.old_path, "patch", out)
    refused("unsupported", broken(edit(compression_format="lz4")), pair.old_path, "patch", out)
    refused("unsupported", broken(edit(checksum_format="crc32")), pair.old_path, "patch", out)
    refused("corrupt", broken(edit(base_version="000007")), pair.old_path, "patch", out)

    def forget(folder):
        index = json.loads((folder / index_name).read_text())
        index["weight_map"].pop("bf16")
        (folder / index_name).write_text(json.dumps(index))

    refused("corrupt", broken(forget), pair.old_path, "patch", out)

    def unknown(folder):
        index = json.loads((folder / index_name).read_text())
        file = index["weight_map"]["bf16"]
        tensors, metadata = foreign.read_container((folder / file).read_bytes())
        tensors["nobody"], metadata["nobody"] = tensors.pop("bf16"), metadata.pop("bf16")
        (folder / file).write_bytes(foreign.container(tensors, metadata))
        index["weight_map"]["nobody"] = index["weight_map"].pop("bf16")
        (folder / index_name).write_text(json.dumps(index))

    assert '"nobody"' in refused("mismatch", broken(unknown), pair.old_path, "patch", out)
    assert convert(good, pair.old_path, "patch", out).code == 0


def test_a_bomb_in_a_slime_delta_is_refused_before_memory_is_taken(tmp_path, vector):
    delta = tmp_path / "weight_v000001"
    delta.mkdir()
    # A header that declares a terabyte, and one run-length block of 100 bytes.
    frame = bytes.fromhex("28b52ffde0") + (1 << 40).to_bytes(8, "little") + bytes.fromhex("23030000")
    file = foreign.container({"w": ("U8", [len(frame)], frame)}, {"w": DIGESTS["xxh3-128"]})
    (delta / "model-00000-of-00001.safetensors").write_bytes(file)
    metadata = {"version": "000001", "base_version": "000000", "delta_encoding": "xor"}
    metadata |= {"compression_format": "zstd", "checksum_format": "xxh3-128"}
    index = {"metadata": metadata, "weight_map": {"w": "model-00000-of-00001.safetensors"}}
    (delta / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refused("corrupt", delta, vector[0], "patch", tmp_path / "out")
    assert "1099511627776" in message and '"w"' in message


def positions_of(pair, names):
    changes = {}
    for name in names:
        old, new = (tensors[name].array.reshape(-1) for tensors in (pair.old, pair.new))
        where = np.flatnonzero(old != new)
        changes[name] = ("BF16", where, new[where])
    return changes


@pytest.mark.parametrize("encoding", ["gap_delta", "raw"])
@pytest.mark.parametrize("to", ["patch", "checkpoint", "open"])
def test_trl_patches_are_read(tmp_path, pair, encoding, to):
    changes = positions_of(pair, ["bf16", "blocks"]) | {
        "same": ("BF16", np.zeros(0, int), np.zeros(0, "<u2"))
    }
    # The last element, and a gap above 65,535.
    far = np.array([3, 2_199_999])
    changes["blocks"] = ("BF16", far, np.array([0x3F80, 0x7FC1], "<u2"))
    source = foreign.write_trl(tmp_path / "step_000007.safetensors", changes, encoding=encoding)
    expected = {name: tensor.copy() for name, tensor in pair.old.items()}
    for name, (_, where, values) in changes.items():
        expected[name].array.reshape(-1)[where] = values
    out = tmp_path / "out.safetensors"
    report = convert(source, pair.old_path, to, out).json
    assert report["from"] == "trl" and "unverified base" in report["notes"][0]
    if to != "checkpoint":
        applied = tmp_path / "applied.safetensors"
        deltawire("apply", pair.old_path, out, "-o", applied)
        out = applied
    assert read_checkpoint(out) == expected


def test_trl_patches_that_do_not_fit_are_errors(tmp_path, pair):
    out = tmp_path / "out.safetensors"
    one = np.array([0x3F80], "<u2")

    def patch(name="p", changes=None, **options):
        changes = changes or {"bf16": ("BF16", np.array([1]), one)}
        return foreign.write_trl(tmp_path / f"{name}.safetensors", changes, **options)

    outside = patch(changes={"bf16": ("BF16", np.array([70 * 33]), one)})
    assert '"bf16"' in refused("corrupt", outside, pair.old_path, "patch", out)
    twice = {"bf16": ("BF16", np.array([4, 4]), np.array([1, 2], "<u2"))}
    refused("corrupt", patch(changes=twice, encoding="raw"), pair.old_path, "patch", out)
    refused("mismatch", patch(changes={"none": ("BF16", np.array([1]), one)}), pair.old_path, "patch", out)
    wide = {"f32": ("BF16", np.array([1]), one)}
    refused("mismatch", patch(changes=wide), pair.old_path, "patch", out)
    for metadata in ({"encoding": "nvcomp_cascaded"}, {"version": "2"}, {"sparse": "False"}):
        refused("unsupported", patch(metadata=metadata), pair.old_path, "patch", out)
    # Not a patch that `apply` may take: nothing says which base it is for.
    done = deltawire("apply", pair.old_path, patch(), "-o", out, expect=3)
    assert "convert --base" in done.stderr and not out.exists()


def test_an_open_patch_is_read_as_trl_reads_it(tmp_path, pair):
    source = tmp_path / "open.safetensors"
    convert(pair.new_path, pair.old_path, "open", source)
    assert convert(source, pair.old_path, "patch", tmp_path / "p.safetensors").json["from"] == "patch"
    message = refused("invalid_argument", source, pair.old_path, "patch", tmp_path / "q", "--from", "trl")
    assert "names its base" in message


def test_outputs_are_never_replaced_and_slime_folders_need_a_number(tmp_path, pair):
    out = tmp_path / "exists"
    out.write_text("mine")
    done = convert(pair.new_path, pair.old_path, "patch", out, expect=3)
    assert done.json["error"]["code"] == "exists" and out.read_text() == "mine"
    assert "weight_v000007" in refused(
        "invalid_argument", pair.new_path, pair.old_path, "slime", tmp_path / "delta"
    )
    for options in (("--version", 8), ("--base-version", 7)):
        refused(
            "invalid_argument", pair.new_path, pair.old_path, "slime", tmp_path / "weight_v000007", *options
        )
    convert(pair.new_path, pair.old_path, "slime", tmp_path / "delta", "--version", 9, "--base-version", 3)
    index = json.loads((tmp_path / "delta" / "model.safetensors.index.json").read_text())
    assert (index["metadata"]["version"], index["metadata"]["base_version"]) == ("000009", "000003")


def test_nothing_changed(tmp_path, pair):
    out = tmp_path / "weight_v000001"
    convert(pair.old_path, pair.old_path, "slime", out)
    assert [path.name for path in out.iterdir()] == ["model.safetensors.index.json"]
    again = tmp_path / "again.safetensors"
    assert convert(out, pair.old_path, "checkpoint", again).json["changed"] == 0
    assert read_checkpoint(again) == pair.old
