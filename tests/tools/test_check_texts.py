import subprocess

import check_texts
import pytest


def problems(name, line):
    return list(check_texts.check_line(name, line))


@pytest.mark.parametrize(
    "line",
    [
        "// TO" + "DO: later",
        "# FIX" + "ME",
        "X" + "XX here",
        "see https:" + "//mirror.corp.lan/simple/",
        "pip install --index" + "-url somewhere",
        "deb" + " http://deb.example.com bookworm main",
        "host = 10.0" + ".3.7",
        "host = 192.168" + ".1.20:8080",
        "open('/ro" + "ot/data')",
        "cd /work/ma" + "in",
    ],
)
def test_forbidden_text_is_found(line):
    assert len(problems("src/a.cc", line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        'mkstemp("/tmp/x' + 'XXXXXX")',
        "see https://github.com/google/highway",
        "http://127.0.0.1:8080/x and http://localhost/ and https://bucket.example.com",
        "s3://bucket/run7",
        "version 1.10.2.3.4",
        "sub.commit(); root = path; /rooted",
    ],
)
def test_ordinary_text_passes(line):
    assert problems("src/a.cc", line) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tests/test_a.py", "    assert elapsed < 5"),
        ("tests/test_a.py", "    assert time.monotonic() - started <= limit"),
        ("src/a/a_test.cc", "  EXPECT_LT(timer.elapsed(), 2.0);"),
        ("src/a/a_test.cc", "  ASSERT_LE(apply_ms, 100);"),
    ],
)
def test_timing_assertions_are_found_in_tests(name, line):
    assert len(problems(name, line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "    assert version.publish_seconds >= 0",
        "    while time.monotonic() < deadline:",
        '    assert time.monotonic() < deadline, "nothing happened in time"',
        "    assert retries < 5",
        '    assert report["pause_seconds"] == [0.5]',
    ],
)
def test_other_assertions_pass(line):
    assert problems("tests/test_a.py", line) == []


def test_untracked_files_count_and_ignored_ones_do_not(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "ignored").write_text("FIX" + "ME")
    (tmp_path / "binary").write_bytes(b"\0FIX" + b"ME")
    (tmp_path / "new.txt").write_text("fine\nFIX" + "ME\n")
    names = check_texts.tracked_files(tmp_path)
    assert names == [".gitignore", "binary", "new.txt"]
    (problem,) = check_texts.check(tmp_path, names)
    assert problem.startswith("new.txt:2: ")
