"""deltawire diff, apply and verify on checkpoints: bits in, the same bits out, or an error and nothing."""

import os
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from cli_driver import (
    SHARED_DATA,
    Tensor,
    changed,
    deltawire,
    program,
    random_tensor,
    read_checkpoint,
    write_file,
    write_sharded,
)


def tree(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def round_trip(tmp_path, old, new, expected, *options):
    patch = tmp_path / "p.safetensors"
    out = tmp_path / f"out{old.suffix}"
    report = deltawire("diff", old, new, "-o", patch, "--json", *options).json
    applied = deltawire("apply", old, patch, "-o", out, "--json").json
    assert applied["digest"] == report["digest"]
    assert read_checkpoint(out) == expected
    assert deltawire("verify", patch, "--json").json["digest"] == report["digest"]
    assert deltawire("verify", out, "--digest", report["digest"]).code == 0
    return report


@pytest.mark.parametrize("coding", ["step", "absolute"])
@pytest.mark.parametrize("share", [0, 0.01, 1])
def test_round_trip_of_a_file_with_all_dtypes(tmp_path, rng, small, share, coding):
    new = changed(rng, small, share)
    old_file = write_file(tmp_path / "old.safetensors", small)
    new_file = write_file(tmp_path / "new.safetensors", new)
    report = round_trip(tmp_path, old_file, new_file, new, "--coding", coding)
    differing = sum(int((small[name].array != new[name].array).sum()) for name in small)
    assert report["changed"] == differing
    assert report["total"] == sum(tensor.array.size for tensor in small.values())
    assert report["bytes"] == (tmp_path / "p.safetensors").stat().st_size


def test_round_trip_of_a_sharded_folder_keeps_its_other_files(tmp_path, rng, small):
    new = changed(rng, small, 0.02)
    old = write_sharded(tmp_path / "old", small)
    (old / "deep" / "er").mkdir(parents=True)
    (old / "deep" / "er" / "notes.txt").write_text("kept")
    round_trip(tmp_path, old, write_sharded(tmp_path / "new", new, shards=2), new)
    assert set(tree(tmp_path / "out")) == set(tree(old))
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    assert (tmp_path / "out" / "deep" / "er" / "notes.txt").read_text() == "kept"


def test_a_cache_of_links_to_read_only_files_becomes_a_folder_of_files(tmp_path, rng, small):
    blobs = write_sharded(tmp_path / "blobs", small)
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        blob.chmod(0o444)
        (snapshot / blob.name).symlink_to(os.path.relpath(blob, snapshot))
    before = tree(blobs)
    new = changed(rng, small, 0.01)
    round_trip(tmp_path, snapshot, write_file(tmp_path / "new.safetensors", new), new)
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    assert tree(blobs) == before


def test_negative_zero_and_nan_payloads_are_changes(tmp_path, small):
    new = {name: tensor.copy() for name, tensor in small.items()}
    new["special"].array[:] = np.array(
        [0x8000, 0x0000, 0x7FC1, 0x7FC0, 0x7FC0, 0xFF80, 0x8001, 0x0001], np.uint16
    )
    old_file = write_file(tmp_path / "old.safetensors", small)
    report = round_trip(tmp_path, old_file, write_file(tmp_path / "new.safetensors", new), new)
    assert report["changed"] == 8


@pytest.fixture
def made(tmp_path, rng, small):
    """old, new and the patch between them."""
    new = changed(rng, small, 0.01)
    old_file = write_file(tmp_path / "old.safetensors", small)
    new_file = write_file(tmp_path / "new.safetensors", new)
    patch = tmp_path / "p.safetensors"
    deltawire("diff", old_file, new_file, "-o", patch)
    return old_file, new_file, patch


def refused(code, name, *arguments, out):
    done = deltawire(*arguments, expect=code)
    assert done.stderr.startswith(f"deltawire: {name}: "), done
    assert done.stderr.count("\n") == 1
    assert not out.exists()
    assert not [path.name for path in out.parent.iterdir() if path.name.startswith(".")]
    return done


def test_wrong_base_is_refused(tmp_path, rng, small, made):
    other = write_file(tmp_path / "other.safetensors", changed(rng, small, 0.001))
    out = tmp_path / "out.safetensors"
    refused(3, "wrong_base", "apply", other, made[2], "-o", out, out=out)
    refused(3, "wrong_base", "apply", made[1], made[2], "-o", out, out=out)


@pytest.mark.parametrize("difference", ["missing", "extra", "renamed", "shape", "dtype"])
def test_other_tensors_are_refused_by_name(tmp_path, rng, small, made, difference):
    other = dict(small)
    if difference in ("missing", "renamed"):
        taken = other.pop("matrix")
    if difference == "renamed":
        other["matrix2"] = taken
    if difference == "extra":
        other["more"] = random_tensor(rng, "bfloat16", (3,))
    if difference == "shape":
        other["matrix"] = Tensor("bfloat16", small["matrix"].array.reshape(70, 300))
    if difference == "dtype":
        other["matrix"] = Tensor("float16", small["matrix"].array)
    named = "more" if difference == "extra" else "matrix"
    file = write_file(tmp_path / "other.safetensors", other)
    out = tmp_path / "out.safetensors"
    assert named in refused(3, "mismatch", "apply", file, made[2], "-o", out, out=out).stderr
    assert named in refused(3, "mismatch", "diff", made[0], file, "-o", out, out=out).stderr


def test_truncated_patches_are_refused(tmp_path, made):
    whole = made[2].read_bytes()
    cut = tmp_path / "cut.safetensors"
    out = tmp_path / "out.safetensors"
    for size in sorted({0, 1, 7, 8, 9, len(whole) - 1, *range(0, len(whole), max(1, len(whole) // 30))}):
        cut.write_bytes(whole[:size])
        refused(3, "corrupt", "apply", made[0], cut, "-o", out, out=out)
    done = deltawire("verify", cut, expect=1)
    assert done.stderr.startswith("deltawire: corrupt: ")


def test_a_flipped_byte_is_an_error_or_changes_nothing(tmp_path, rng, made):
    whole = made[2].read_bytes()
    bad = tmp_path / "bad.safetensors"
    out = tmp_path / "out.safetensors"
    expected = read_checkpoint(made[1])
    positions = {*rng.choice(len(whole), 60, replace=False), 0, 8, len(whole) - 1}
    for position in sorted(int(position) for position in positions):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << int(rng.integers(8))
        bad.write_bytes(flipped)
        done = deltawire("apply", made[0], bad, "-o", out, expect=None)
        if done.code == 0:
            assert read_checkpoint(out) == expected, position
            out.unlink()
        else:
            assert done.code == 3 and not out.exists(), (position, done)


def test_an_existing_output_is_kept(tmp_path, made):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"mine")
    for arguments in (("apply", made[0], made[2]), ("diff", made[0], made[1])):
        done = deltawire(*arguments, "-o", out, expect=3)
        assert done.stderr.startswith("deltawire: exists: ") and out.read_bytes() == b"mine"
    deltawire("diff", made[0], made[1], "-o", out, "--force")
    assert out.read_bytes() == made[2].read_bytes()


def test_the_system_s_refusals_leave_nothing_behind(tmp_path, made):
    """A folder that is not there, and one that can't be written."""
    nowhere = tmp_path / "no" / "out.safetensors"
    for arguments in (("apply", made[0], made[2]), ("diff", made[0], made[1])):
        done = deltawire(*arguments, "-o", nowhere, expect=4)
        assert done.stderr.startswith("deltawire: io: "), done
    out = "/proc/deltawire.safetensors"  # root may write everywhere else
    assert deltawire("apply", made[0], made[2], "-o", out, expect=4).stderr.startswith("deltawire: io: ")


def test_full_disk_leaves_nothing_behind(tmp_path, rng):
    old = {"w": random_tensor(rng, "bfloat16", (400, 500))}
    old_file = write_file(tmp_path / "old.safetensors", old)
    new_file = write_file(tmp_path / "new.safetensors", changed(rng, old, 1))
    patch = tmp_path / "p.safetensors"
    deltawire("diff", old_file, new_file, "-o", patch)
    before = tree(tmp_path)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    for arguments in (("apply", old_file, patch), ("diff", old_file, new_file)):
        done = deltawire(*arguments, "-o", tmp_path / "out.safetensors", expect=4, preexec_fn=limit)
        assert done.stderr.startswith("deltawire: no_space: "), done
        assert tree(tmp_path) == before


def test_apply_killed_at_random_moments_leaves_nothing_or_all(tmp_path, rng):
    old = {"w": random_tensor(rng, "bfloat16", (3000, 1000))}
    new = changed(rng, old, 0.01)
    old_file = write_file(tmp_path / "old.safetensors", old)
    patch = tmp_path / "p.safetensors"
    deltawire("diff", old_file, write_file(tmp_path / "new.safetensors", new), "-o", patch)
    out = tmp_path / "out.safetensors"
    started = time.monotonic()
    deltawire("apply", old_file, patch, "-o", out)
    whole_run = time.monotonic() - started
    for _ in range(12):
        out.unlink(missing_ok=True)
        command = [program("deltawire"), "apply", str(old_file), str(patch), "-o", str(out)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            time.sleep(float(rng.uniform(0, whole_run)))
            process.kill()
        assert not out.exists() or read_checkpoint(out) == new


HUNDREDS = 320 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Two BF16 checkpoints of 320 MB that differ in one element of 10,000."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(5)
    chunk = rng.integers(0, 1 << 16, size=(1024, 1024), dtype=np.uint16)
    count = HUNDREDS // chunk.nbytes
    tensors = {f"layer.{i}": Tensor("bfloat16", chunk) for i in range(count)}
    old = write_file(folder / "old.safetensors", tensors)
    new = folder / "new.safetensors"
    shutil.copyfile(old, new)
    data = np.memmap(new, np.uint16, mode="r+", offset=new.stat().st_size - HUNDREDS)
    data[rng.choice(data.size, data.size // 10_000, replace=False)] ^= 1
    data.flush()
    yield old, new
    shutil.rmtree(folder)


def peak_anonymous_bytes(*arguments):
    """Peak of RssAnon: pages of mapped files don't count as heap."""
    peak = 0
    with subprocess.Popen([program("deltawire"), *map(str, arguments)], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                with open(f"/proc/{process.pid}/status") as status:
                    for line in status:
                        if line.startswith("RssAnon:"):
                            peak = max(peak, int(line.split()[1]) * 1024)
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.002)
        assert process.wait() == 0
    assert peak > 0
    return peak


def test_mem_04_heap_follows_changes_not_the_checkpoint(tmp_path, large):
    old, new = large
    patch = tmp_path / "p.safetensors"
    out = tmp_path / "out.safetensors"
    bound = (64 << 20) + 16 * (HUNDREDS // 2 // 10_000)
    assert peak_anonymous_bytes("diff", old, new, "-o", patch) <= bound
    assert peak_anonymous_bytes("apply", old, patch, "-o", out) <= bound
    with open(out, "rb") as made, open(new, "rb") as expected:
        while block := made.read(1 << 24):
            assert block == expected.read(1 << 24)
    assert peak_anonymous_bytes("verify", out) <= bound
    out.unlink()


def test_bytes_on_real_versions(tmp_path):
    steady = SHARED_DATA / "steady"
    if not steady.exists():
        pytest.skip(f"no real data at {steady}")
    old, new = steady / "v0011.safetensors", steady / "v0012.safetensors"
    report = round_trip(tmp_path, old, new, read_checkpoint(new))
    print(
        f"{report['bytes']} bytes, {report['changed']} changed, {report['bytes_per_changed']:.3f} B a change"
    )
    assert report["bytes_per_changed"] <= 1.70


def test_a_checkpoint_that_shrinks_while_it_is_read_is_an_error(tmp_path, large):
    """Not a crash: SIGBUS is answered with a message and an exit code."""
    shrinking = tmp_path / "shrinking.safetensors"
    shutil.copyfile(large[0], shrinking)
    command = [program("deltawire"), "verify", str(shrinking)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.truncate(shrinking, 4096)
        os.kill(process.pid, signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (1, 3, 4), (process.returncode, errors)
    assert errors.startswith("deltawire: ") and errors.count("\n") == 1
