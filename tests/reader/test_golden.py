"""Golden files of tests/golden: the reader and the library decode them to the same bits, for ever."""

import contextlib
import dataclasses
import shutil

import catalog
import codings
import deltawire
import digest
import inventory
import manifest
import numpy as np
import pytest
import safetensors_file
import update
from apply import apply, apply_block
from codings import DENSE, Corrupt
from wire import Unsupported

PATCHES = {
    "class": "new",
    "step": "new",
    "absolute": "new",
    "later": "later",
    "fold": "later",
    "all": "other",
    "all-absolute": "other",
    "empty": "old",
    "dtypes-class": "dtypes-new",
    "dtypes-step": "dtypes-new",
    "dtypes-absolute": "dtypes-new",
}
RUNS = {"run": 4, "run-on-base": 2}


def expected_state(golden, run, number, known):
    checkpoint = safetensors_file.read_checkpoint(golden / f"{run}.states" / f"{number:08d}.safetensors")
    return inventory.canonical(known, checkpoint)


def open_run(golden, run):
    return catalog.Run(golden / run, golden / "base")


def base_of(patch: str) -> str:
    if patch == "later":
        return "new.safetensors"
    return "dtypes-old.safetensors" if patch.startswith("dtypes") else "old.safetensors"


@pytest.mark.parametrize(("patch", "result"), PATCHES.items())
def test_reader_applies_patches(golden, same, patch, result):
    folder = golden / "patches"
    parsed = update.parse((folder / f"{patch}.patch.safetensors").read_bytes())
    old = inventory.canonical(parsed.inventory, safetensors_file.read_checkpoint(folder / base_of(patch)))
    new = safetensors_file.read_checkpoint(folder / f"{result}.safetensors")
    same(apply([parsed], parsed.inventory, old), inventory.canonical(parsed.inventory, new))


@pytest.mark.parametrize(("patch", "result"), PATCHES.items())
def test_package_applies_patches(golden, tmp_path, patch, result):
    folder = golden / "patches"
    deltawire.apply(
        folder / base_of(patch), folder / f"{patch}.patch.safetensors", tmp_path / "out.safetensors"
    )
    assert (tmp_path / "out.safetensors").read_bytes() == (folder / f"{result}.safetensors").read_bytes()


@pytest.mark.parametrize(("patch", "result"), PATCHES.items())
def test_command_applies_patches(golden, tmp_path, command, patch, result):
    folder = golden / "patches"
    file = folder / f"{patch}.patch.safetensors"
    command("verify", file)
    command("inspect", file)
    command("apply", folder / base_of(patch), file, "-o", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == (folder / f"{result}.safetensors").read_bytes()


def test_the_fold_starts_from_old_and_from_new(golden, tmp_path, same, command):
    folder = golden / "patches"
    file = folder / "fold.patch.safetensors"
    parsed = update.parse(file.read_bytes())
    later = safetensors_file.read_checkpoint(folder / "later.safetensors")
    for start in ("old", "new"):
        state = safetensors_file.read_checkpoint(folder / f"{start}.safetensors")
        assert digest.text(digest.of_state({name: tensor.bits for name, tensor in state.items()})) in (
            parsed.base_digest,
            *parsed.more_bases,
        )
        state = inventory.canonical(parsed.inventory, state)
        same(apply([parsed], parsed.inventory, state), inventory.canonical(parsed.inventory, later))
        out = tmp_path / f"{start}.safetensors"
        command("apply", folder / f"{start}.safetensors", file, "-o", out)
        assert out.read_bytes() == (folder / "later.safetensors").read_bytes()
    assert len(parsed.more_bases) == 1
    command("apply", folder / "other.safetensors", file, "-o", tmp_path / "no", code=3)


# The coding that `deltawire diff` was asked for, where the patch's name does not say it.
CODINGS = {"later": "class", "all": "step", "all-absolute": "absolute", "empty": "step"}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("patch", "result"), PATCHES.items())
def test_this_build_writes_the_same_bytes(golden, tmp_path, command, patch, result, threads):
    """The encoder depends on nothing but its inputs, and has not changed by accident.

    A better encoder may write other bytes: then this test gets other expectations, and the golden files stay.
    The inventory is compared inflated: zlib's bytes depend on its version.
    """
    folder = golden / "patches"
    out = tmp_path / "again"
    base, target = folder / base_of(patch), folder / f"{result}.safetensors"
    options = ("-o", out, "--threads", threads)
    if patch == "fold":
        command(
            "fold", base, *(folder / f"{step}.patch.safetensors" for step in ("class", "later")), *options
        )
    else:
        coding = CODINGS.get(patch) or patch.removeprefix("dtypes-")
        command("diff", base, target, *options, "--coding", coding)
    written = out.read_bytes()
    stored = (folder / f"{patch}.patch.safetensors").read_bytes()
    found, expected = update.parse(written), update.parse(stored)
    assert dataclasses.replace(found, table_offset=0) == dataclasses.replace(expected, table_offset=0)
    if deflated(written) == deflated(stored):
        assert written == stored


def deflated(file: bytes) -> bytes:
    return safetensors_file.parse(file).bytes_of("deltawire.inventory")


@pytest.mark.parametrize(("run", "versions"), RUNS.items())
def test_reader_replays_runs(golden, same, run, versions):
    opened = open_run(golden, run)
    assert opened.numbers == list(range(versions))
    opened.replay()
    for number in opened.numbers:
        same(opened.state(number), expected_state(golden, run, number, opened.inventory))


@pytest.mark.parametrize(("run", "versions"), RUNS.items())
@pytest.mark.parametrize("coding", ["class", "step", "absolute"])
def test_package_follows_runs(golden, same, tmp_path, run, versions, coding):
    known = open_run(golden, run).inventory
    shutil.copytree(golden / run, tmp_path / "run")
    engine = tmp_path / "engine"
    engine.mkdir()
    shutil.copy(golden / f"{run}.states" / "00000000.safetensors", engine / "model.safetensors")
    codings = None if run == "run-on-base" else [coding]
    with deltawire.Subscriber(tmp_path / "run", engine, codings=codings) as subscriber:
        for number in range(versions):
            subscriber.update(number)
            found = inventory.canonical(known, safetensors_file.read_checkpoint(engine))
            same(found, expected_state(golden, run, number, known))


def test_command_verifies_runs_and_inspects_every_object(golden, command):
    for run in RUNS:
        command("verify", golden / run)
        for path in (golden / run).rglob("*"):
            if path.is_file() and path.name != "LATEST":
                command("inspect", path, *(["--url", golden / run] if "part" in path.name else []))


def test_the_runs_have_what_the_readme_says(golden):
    run = open_run(golden, "run")
    first = run.manifests[1]
    assert {part.coding for part in first.parts} == {"class", "step", "absolute"}
    assert first.counts["uncertain"] > 0
    assert run.manifests[0].base.kind == "none" and run.anchor(0) is not None
    assert run.manifests[3].alias_of == 2
    assert run.inventory.tensors[0].aliases == ("head.weight",)
    tables = [update.parse_table(part, run.inventory) for part in run.parts(2)["step"]]
    blocks = [block for table in tables for group in table.groups for block in group.blocks]
    assert DENSE in {block.coding for block in blocks}
    for coding in ("class", "step", "absolute"):
        (part,) = run.parts(1)[coding]
        groups = update.parse_table(part, run.inventory).groups
        assert max(len(block.members) for group in groups for block in group.blocks) > 1
    assert open_run(golden, "run-on-base").manifests[0].base.kind == "checkpoint"


@pytest.mark.parametrize("coding", ["class", "step", "absolute"])
def test_the_patches_of_dtypes_have_every_dtype_and_width_in_joint_blocks(golden, coding):
    parsed = update.parse((golden / f"patches/dtypes-{coding}.patch.safetensors").read_bytes())
    assert {item.dtype for item in parsed.inventory.tensors} == set(safetensors_file.FILE_ORDER)
    blocks = [b for group in update.parse_table(parsed, parsed.inventory).groups for b in group.blocks]
    joint = [[parsed.inventory.tensors[m.tensor] for m in b.members] for b in blocks if len(b.members) > 1]
    assert {items[0].width for items in joint} == {1, 2, 4, 8}
    assert {item.dtype for items in joint for item in items} == set(safetensors_file.FILE_ORDER)


def test_any_flipped_bit_of_a_patch_is_an_error(golden):
    """Or the same result: the JSON's white space is not covered by the content hash."""
    folder = golden / "patches"
    data = bytearray((folder / "step.patch.safetensors").read_bytes())
    intact = update.parse(bytes(data))
    header = 8 + int.from_bytes(data[:8], "little")
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        with contextlib.suppress(Corrupt, Unsupported):
            assert update.parse(bytes(data)) == intact and at < header
        data[at] ^= 1 << at % 8


def test_any_flipped_bit_of_a_manifest_is_an_error(golden):
    data = bytearray((golden / "run/manifests/00000001.json").read_bytes())
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        with pytest.raises((Corrupt, Unsupported)):
            manifest.parse(bytes(data))
        data[at] ^= 1 << at % 8


def test_a_step_on_a_damaged_base_is_seen_by_the_values_check(golden):
    """The digest is linear: it can't tell. The check of the values does not depend on it."""
    folder = golden / "patches"
    parsed = update.parse((folder / "step.patch.safetensors").read_bytes())
    table = update.parse_table(parsed, parsed.inventory)
    base = safetensors_file.read_checkpoint(folder / "old.safetensors")
    tables = codings.open_tables(parsed.entropy)
    for group in table.groups:
        item = parsed.inventory.tensors[group.tensor]
        for block in group.blocks:
            if block.coding == DENSE:
                continue
            data = parsed.blocks[block.offset : block.offset + block.bytes]
            names = [parsed.inventory.tensors[member.tensor].name for member in block.members]
            box = np.concatenate(
                [
                    base[name].bits[member.slices].ravel()
                    for name, member in zip(names, block.members, strict=True)
                ]
            )
            apply_block(tables, block, data, item, box)
            with pytest.raises(Corrupt, match="check"):
                apply_block(tables, block, data, item, box ^ np.array(4, box.dtype))
