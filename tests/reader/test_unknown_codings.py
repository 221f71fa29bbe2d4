"""Codings that only a later release knows: passed over where there is another way, else refused by name."""

import json
import shutil

import deltawire
import pytest
import update
from test_run_verdicts import mended
from test_verdicts import Patch, varint
from wire import Unsupported


def of_unknown_block(data: bytes, coding: int) -> bytes:
    """The patch with another coding in the table for its first coded block; every hash fits."""
    altered = Patch(data)
    table = altered.sections["deltawire.table"]
    groups = update.parse_table(altered.parsed, altered.parsed.inventory).groups
    block = next(block for group in groups for block in group.blocks if block.coding)
    after = varint(block.bytes) + varint(block.changed) + varint(block.uncertain)
    after += block.hash.to_bytes(8, "little")
    assert table.count(bytes([block.coding]) + after) == 1
    altered.sections["deltawire.table"] = table.replace(
        bytes([block.coding]) + after, bytes([coding]) + after
    )
    return altered.file()


@pytest.mark.parametrize("name", ["absolute", "step", "class", "fold"])
@pytest.mark.parametrize("coding", [4, 9, 255])
def test_a_block_of_unknown_coding_is_refused_by_name(golden, tmp_path, command, name, coding):
    folder = golden / "patches"
    data = of_unknown_block((folder / f"{name}.patch.safetensors").read_bytes(), coding)
    file, out, base = tmp_path / "p.safetensors", tmp_path / "out.safetensors", folder / "old.safetensors"
    file.write_bytes(data)
    parsed = update.parse(data)
    with pytest.raises(Unsupported, match=f"coding {coding}$"):
        update.parse_table(parsed, parsed.inventory)
    with pytest.raises(deltawire.Error) as caught:
        deltawire.apply(base, file, out)
    assert caught.value.code == "unsupported"
    assert f"coding {coding} is unknown to this build" in str(caught.value)
    for arguments in (("apply", base, file, "-o", out), ("verify", file), ("fold", base, file, "-o", out)):
        refusal = command(*arguments, code=3, stderr=True)
        assert "unsupported" in refusal and f"coding {coding} is unknown to this build" in refusal
    assert not out.exists()
    # The table's grammar needs no codec, so what is there can be looked at.
    assert f"coding {coding}" in command("inspect", file)


@pytest.fixture
def run(golden, tmp_path):
    """Versions 0 and 1 of the golden run."""
    shutil.copytree(golden / "run", tmp_path / "run")
    for number in (2, 3):
        (tmp_path / f"run/manifests/{number:08d}.json").unlink()
    (tmp_path / "run/LATEST").write_text("1\n")
    return tmp_path / "run"


def rename(run, *codings: str) -> None:
    """Gives the parts of version 1 in these codings a coding that nobody knows."""
    path = run / "manifests/00000001.json"
    members = json.loads(path.read_text())
    for part in members["parts"]:
        if part["coding"] in codings:
            part["coding"] = f"later-{part['coding']}"
    path.write_bytes(mended(members))


def engine_at_zero(golden, tmp_path):
    engine = tmp_path / "engine"
    engine.mkdir()
    shutil.copy(golden / "run.states/00000000.safetensors", engine / "model.safetensors")
    return engine


def test_a_version_in_unknown_codings_only_is_refused_by_name(golden, run, tmp_path, command):
    rename(run, "class", "step", "absolute")
    engine = engine_at_zero(golden, tmp_path)
    with deltawire.Subscriber(run, engine) as subscriber, pytest.raises(deltawire.Error) as caught:
        subscriber.update(1)
    assert caught.value.code == "unsupported"
    assert "later-absolute, later-class, later-step" in str(caught.value)
    assert "upgrade deltawire" in str(caught.value)
    state = golden / "run.states/00000000.safetensors"
    assert (engine / "model.safetensors").read_bytes() == state.read_bytes()
    report = json.loads(command("verify", run, "--json", code=1))
    assert {fault["code"] for fault in report["faults"]} == {"unsupported"}
    assert len(report["faults"]) == 3 and (report["parts"], report["unread_parts"]) == (0, 0)
    assert all('coding "later-' in fault["message"] for fault in report["faults"])
    assert "later-step" in command("inspect", run / "manifests/00000001.json")


def test_an_unknown_coding_beside_a_known_one_is_passed_over(golden, run, tmp_path, command):
    rename(run, "class", "absolute")
    engine = engine_at_zero(golden, tmp_path)
    with deltawire.Subscriber(run, engine) as subscriber:
        assert subscriber.update(1).number == 1
    state = golden / "run.states/00000001.safetensors"
    assert (engine / "model.safetensors").read_bytes() == state.read_bytes()
    report = json.loads(command("verify", run, "--json"))
    assert (report["parts"], report["unread_parts"]) == (1, 2)
    # Passed over, and yet pinned: a damaged one is seen.
    members = json.loads((run / "manifests/00000001.json").read_text())
    (name,) = [part["name"] for part in members["parts"] if part["coding"] == "later-class"]
    data = bytearray((run / name).read_bytes())
    data[-1] ^= 1
    (run / name).write_bytes(data)
    report = json.loads(command("verify", run, "--json", code=1))
    assert [fault["object"] for fault in report["faults"]] == [name]
