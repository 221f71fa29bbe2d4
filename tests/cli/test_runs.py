"""deltawire log, follow, verify, inspect and doctor on a run in a store."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from cli_driver import (
    changed,
    deltawire,
    program,
    publish,
    random_tensor,
    read_checkpoint,
    write_file,
    write_sharded,
)

VERSIONS = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of five versions (0 and 3 with anchors; 2 changes nothing) and the truth of each."""
    import numpy as np

    rng = np.random.default_rng(11)
    folder = tmp_path_factory.mktemp("run")
    truth = [{"a": random_tensor(rng, "bfloat16", (200, 300)), "b": random_tensor(rng, "float32", (77,))}]
    for number in range(1, VERSIONS):
        truth.append(changed(rng, truth[-1], 0 if number == 2 else 0.005))
    files = [write_file(folder / f"v{i}.safetensors", tensors) for i, tensors in enumerate(truth)]
    publish("--anchor-every", 3, "--codings", "step,absolute", folder / "store", *files)
    return folder / "store", truth, files


@pytest.fixture
def run(made, tmp_path):
    """A copy that a test may damage."""
    store, truth, files = made
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store", truth, files


def test_log_lists_versions_newest_last(made):
    rows = deltawire("log", made[0], "--json").json_lines
    assert [row["number"] for row in rows] == list(range(VERSIONS))
    assert [row["anchor"] for row in rows] == [True, False, False, True, False]
    assert [row["base"] for row in rows] == ["-", "0", "1", "2", "3"]
    assert rows[1]["coding"] == "step+absolute" and rows[1]["bytes"] > 0 and rows[2]["changed"] == 0
    assert all(row["age_seconds"] >= 0 and row["writer"] for row in rows)
    text = deltawire("log", made[0].as_uri(), "--last", 2).stdout.splitlines()
    assert text[1].split()[:3] == ["version", "base", "steps"]
    assert [line.split()[0] for line in text[2:]] == ["3", "4"]


def test_log_of_an_empty_folder(tmp_path):
    assert deltawire("log", tmp_path, expect=3).stderr.startswith("deltawire: not_found: ")


def test_verify_names_the_version_of_a_checkpoint(made, tmp_path, rng):
    store, truth, files = made
    assert deltawire("verify", files[4], "--url", store, "--json").json["versions"] == [4]
    assert deltawire("verify", files[1], "--url", store, "--json").json["versions"] == [1, 2]
    folder = write_sharded(tmp_path / "sharded", truth[3], shards=2)
    assert "3 (newest is 4)" in deltawire("verify", folder, "--url", store).stdout

    flipped = {name: tensor.copy() for name, tensor in truth[3].items()}
    flipped["b"].array[5] ^= 1
    stranger = write_file(tmp_path / "flipped.safetensors", flipped)
    done = deltawire("verify", stranger, "--url", store, "--json", expect=1)
    assert done.json["versions"] == [] and done.json["nearest"] == 3 and done.json["differing"] == ["b"]
    other = write_file(tmp_path / "other.safetensors", {"a": truth[0]["a"]})
    assert "b" in deltawire("verify", other, "--url", store, expect=1).stderr
    digest = deltawire("log", store, "--json").json_lines[3]["digest"]
    assert "expected" in deltawire("verify", stranger, "--digest", digest, expect=1).stderr


def test_verify_a_whole_run(made):
    report = deltawire("verify", made[0], "--json").json
    assert report["ok"] and report["faults"] == []
    assert (report["versions"], report["links"], report["parts"]) == (
        VERSIONS,
        VERSIONS - 1,
        2 * (VERSIONS - 1),
    )
    assert report["anchors"] == 2 and report["digest_tables"] >= 2


def objects(store):
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name not in ("LATEST", "lock"))


def test_sto_04_every_missing_or_altered_object_is_named(run):
    store = run[0]
    for path in objects(store):
        whole = path.read_bytes()
        name = str(path.relative_to(store))
        # A version that nothing builds on is indistinguishable from one that was never published.
        if name != f"manifests/{VERSIONS - 1:08}.json":
            path.unlink()
            report = deltawire("verify", store, "--json", expect=None)
            if not name.startswith("anchors/") or not name.endswith("manifest.json"):
                assert report.code == 1, name
                assert report.json["faults"], name
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        path.write_bytes(flipped)
        done = deltawire("verify", store, "--json", expect=1)
        assert any(fault["object"] == name for fault in done.json["faults"]), (name, done)
        assert name in done.stderr
        path.write_bytes(whole)
    assert deltawire("verify", store).code == 0


def tiles(report, size):
    at = 0
    for part in report["ranges"]:
        assert part["begin"] == at and part["end"] >= at and part["meaning"], part
        at = part["end"]
    assert at == size == report["bytes"]


def test_inspect_covers_every_byte_of_every_object(made):
    store = made[0]
    kinds = set()
    for path in objects(store):
        if path.name in ("config.json",):
            continue
        report = deltawire("inspect", path, "--json").json
        tiles(report, path.stat().st_size)
        kinds.add(report["kind"])
        if report["kind"] == "update":
            assert "blocks" not in report
            with_run = deltawire("inspect", path, "--url", store, "--json").json
            inventory = next(store.glob("inventory-*.json"))
            assert deltawire("inspect", path, "--inventory", inventory, "--json").json == with_run
            tiles(with_run, path.stat().st_size)
            assert all(set(block["tensors"]) <= {"a", "b"} for block in with_run["blocks"])
    assert kinds == {"update", "manifest", "anchor manifest", "inventory", "digest table", "safetensors"}


def test_inspect_a_patch_and_plain_checkpoints(tmp_path, rng, small):
    old = write_file(tmp_path / "old.safetensors", small)
    new = write_file(tmp_path / "new.safetensors", changed(rng, small, 0.05))
    patch = tmp_path / "p.safetensors"
    difference = deltawire("diff", old, new, "-o", patch, "--json").json
    report = deltawire("inspect", patch, "--json").json
    tiles(report, patch.stat().st_size)
    assert sum(block["changed"] for block in report["blocks"]) == difference["changed"]
    text = deltawire("inspect", patch).stdout
    assert "weird" in text and "header length" in text and "entropy" in text
    tiles(deltawire("inspect", old, "--json").json, old.stat().st_size)


def test_follow_once_from_nothing_and_from_each_version(made, tmp_path):
    store, truth, files = made
    folder = tmp_path / "new" / "ckpt"
    folder.parent.mkdir()
    lines = deltawire("follow", store, folder, "--once", "--json").json_lines
    assert [line["event"] for line in lines] == ["materialized", "committed"]
    assert (lines[0]["number"], lines[1]["number"]) == (3, 4)
    assert read_checkpoint(folder) == truth[4]
    again = deltawire("follow", store, folder, "--once", "--json").json_lines
    assert [(line["event"], line["number"]) for line in again] == [("current", 4)]
    for number in range(VERSIONS):
        copy = tmp_path / f"copy{number}.safetensors"
        shutil.copyfile(files[number], copy)
        deltawire("follow", store, copy, "--once", "--verify-every", 1)
        assert read_checkpoint(copy) == truth[4]


def test_follow_to_a_version(made, tmp_path):
    store, truth, _ = made
    for number in range(VERSIONS):
        folder = tmp_path / f"at{number}"
        deltawire("follow", store, folder, "--version", number)
        assert read_checkpoint(folder) == truth[number]
    done = deltawire("follow", store, tmp_path / "at1", "--version", 9, expect=3)
    assert done.stderr.splitlines()[-1].startswith("deltawire: not_found: ")
    assert read_checkpoint(tmp_path / "at1") == truth[1]


def test_follow_refuses_what_is_not_this_run_s_model(made, tmp_path, rng):
    stranger = write_file(tmp_path / "x.safetensors", {"a": random_tensor(rng, "bfloat16", (3,))})
    before = stranger.read_bytes()
    assert deltawire("follow", made[0], stranger, "--once", expect=3).stderr.startswith(
        "deltawire: mismatch: "
    )
    assert stranger.read_bytes() == before


def test_ver_08_a_base_with_one_foreign_bit_is_replaced_by_an_anchor(made, tmp_path):
    store, truth, _ = made
    foreign = {name: tensor.copy() for name, tensor in truth[4].items()}
    foreign["a"].array[3, 3] ^= 1
    file = write_file(tmp_path / "foreign.safetensors", foreign)
    deltawire("follow", store, file, "--once")
    assert read_checkpoint(file) == truth[4]


def test_follow_without_an_anchor_says_what_to_do(made, tmp_path):
    _, truth, files = made
    publish("--base", tmp_path / "store", *files[:3])
    done = deltawire("follow", tmp_path / "store", tmp_path / "new", "--once", expect=3)
    assert "copy the checkpoint" in done.stderr and not (tmp_path / "new").exists()
    copy = tmp_path / "copy.safetensors"
    shutil.copyfile(files[0], copy)
    deltawire("follow", tmp_path / "store", copy, "--once")
    assert read_checkpoint(copy) == truth[2]


def test_follow_a_running_publisher_until_asked_to_stop(made, tmp_path):
    _, truth, files = made
    store = tmp_path / "store"
    store.mkdir()
    folder = tmp_path / "ckpt"
    follower = subprocess.Popen(
        [program("deltawire"), "follow", str(store), str(folder), "--poll", "0.02", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    publisher = subprocess.Popen(
        [program("publish_checkpoints"), "--pause", "50", str(store), *map(str, files)]
    )
    events = []
    while not events or events[-1]["number"] < VERSIONS - 1:
        events.append(json.loads(follower.stdout.readline()))
    assert publisher.wait(timeout=60) == 0
    follower.send_signal(signal.SIGTERM)
    rest, errors = follower.communicate(timeout=60)
    assert (follower.returncode, rest, errors) == (0, "", "")
    committed = [event["number"] for event in events if event["event"] == "committed"]
    assert committed == sorted(set(committed))
    assert read_checkpoint(folder) == truth[-1]


def test_follow_ends_after_its_timeout(made, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = deltawire("follow", empty, tmp_path / "x", "--timeout", 0.05, expect=3)
    assert done.stderr.startswith("deltawire: not_found: ")
    deltawire("follow", made[0], tmp_path / "ckpt", "--timeout", 0.05, "--poll", 0.01)


def test_ord_09_two_followers_of_one_folder(made, tmp_path):
    store, _, files = made
    copy = tmp_path / "copy.safetensors"
    shutil.copyfile(files[0], copy)
    command = [program("deltawire"), "follow", str(store), str(copy), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        first.stdout.readline()
        done = deltawire("follow", store, copy, "--once", expect=3)
        assert done.stderr.startswith("deltawire: exists: ")
        first.kill()
    deltawire("follow", store, copy, "--once")


def test_a_damaged_version_is_refused_and_the_next_one_taken(run, tmp_path):
    store, truth, files = run
    for part in (store / "updates" / f"{1:08}").glob("*part*"):
        damaged = bytearray(part.read_bytes())
        damaged[-1] ^= 1
        part.write_bytes(damaged)
    copy = tmp_path / "copy.safetensors"
    shutil.copyfile(files[0], copy)
    done = deltawire("follow", store, copy, "--version", 1, expect=3)
    assert done.stderr.splitlines()[-1].startswith("deltawire: corrupt: ")
    assert read_checkpoint(copy) == truth[0]
    deltawire("follow", store, copy, "--once")  # through the anchor of version 3
    assert read_checkpoint(copy) == truth[4]


def test_ver_15_follow_killed_at_random_moments_leaves_old_or_new(tmp_path, rng):
    base = {"w": random_tensor(rng, "bfloat16", (1500, 1000))}
    truth = [base, changed(rng, base, 0.02)]
    files = [write_file(tmp_path / f"v{i}.safetensors", tensors) for i, tensors in enumerate(truth)]
    store = tmp_path / "store"
    publish("--base", store, *files)
    copy = tmp_path / "copy.safetensors"
    command = [program("deltawire"), "follow", str(store), str(copy), "--once"]
    shutil.copyfile(files[0], copy)
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    whole_run = time.monotonic() - started
    for _ in range(12):
        shutil.rmtree(f"{copy}.deltawire", ignore_errors=True)
        shutil.copyfile(files[0], copy)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            time.sleep(float(rng.uniform(0, whole_run)))
            process.kill()
        # Opening recovers; after that it is one of the two, and following ends at the new one.
        deltawire("follow", store, copy, "--version", 1)
        assert read_checkpoint(copy) == truth[1]


def test_follow_killed_while_it_copies_an_anchor(tmp_path, rng):
    truth = {"w": random_tensor(rng, "bfloat16", (3000, 1000))}
    store = tmp_path / "store"
    publish(store, write_file(tmp_path / "v0.safetensors", truth))
    folder = tmp_path / "ckpt"
    command = [program("deltawire"), "follow", str(store), str(folder), "--once"]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            time.sleep(float(rng.uniform(0, 0.05)))
            process.kill()
        assert not folder.exists() or read_checkpoint(folder) == truth
        shutil.rmtree(folder, ignore_errors=True)
    deltawire("follow", store, folder, "--once")
    assert read_checkpoint(folder) == truth
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_doctor_reports_the_run_and_probes_only_when_asked(run):
    store = run[0]
    before = objects(store)
    report = deltawire("doctor", store, "--json").json["store"]
    assert report["create_if_absent"] and report["newest"] == VERSIONS - 1 and "probe" not in report
    assert report["detectors"][0]["detector"] == "snapshot" and report["detectors"][0]["reason"]
    report = deltawire("doctor", store, "--probe", "--json").json["store"]
    assert all(step["ok"] for step in report["probe"]) and len(report["probe"]) == 5
    assert objects(store) == before
    assert "snapshot" in deltawire("doctor", store).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs")
def test_sto_06_a_full_disk_during_follow_leaves_the_old_version(made, tmp_path):
    store, truth, files = made
    mount = tmp_path / "small"
    mount.mkdir()
    size = files[0].stat().st_size + 16384
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount]).returncode != 0:
        pytest.skip("no permission to mount a tmpfs here")
    try:
        copy = mount / "copy.safetensors"
        shutil.copyfile(files[0], copy)
        filler = mount / "filler"
        with open(filler, "wb") as full:
            try:
                while True:
                    os.write(full.fileno(), bytes(4096))
            except OSError:
                pass
        done = deltawire("follow", store, copy, "--once", expect=4)
        assert done.stderr.splitlines()[-1].startswith("deltawire: no_space: ")
        assert read_checkpoint(copy) == truth[0]
        filler.unlink()
    finally:
        subprocess.run(["umount", mount], check=True)
