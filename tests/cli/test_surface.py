"""What scripts and people rely on: help, exit codes, JSON, one-line errors, quiet pipes."""

import json
import os
import pty
import subprocess

import pytest
from cli_driver import changed, deltawire, program, write_file

COMMANDS = ["diff", "apply", "verify", "convert", "inspect", "log", "follow", "doctor", "bench", "stress"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_codes(command):
    text = deltawire(command, "--help").stdout
    assert f"\n  deltawire {command}" in text.split("Examples:")[1]
    assert "3  bad input" in text
    assert deltawire(command, "-h").stdout == text


def test_help_lists_every_command():
    text = deltawire("--help").stdout
    for command in COMMANDS:
        assert f"  {command}" in text
    assert deltawire("--version").stdout.startswith("deltawire ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "subcommand"),
        (("frobnicate",), "frobnicate"),
        (("diff", "a", "b"), "--output"),
        (("diff", "a"), "NEW"),
        (("diff", "a", "b", "-o", "c", "--coding", "zip"), "--coding"),
        (("apply", "a", "b", "-o", "c", "--threads", "x"), "--threads"),
        (("log", "a", "--frob"), "--frob"),
        (("follow", "a", "b", "--once", "--version", "3"), "--once"),
        (("follow", "a", "b", "--poll", "0"), "--poll"),
        (("doctor", "--probe"), "URL"),
    ],
)
def test_bad_usage_names_the_option(arguments, named):
    done = deltawire(*arguments, expect=2)
    assert done.stderr.startswith("deltawire: usage: ") and done.stderr.count("\n") == 1
    assert named in done.stderr
    assert done.stdout == ""
    if arguments:
        error = deltawire(*arguments, "--json", expect=2).json["error"]
        assert error["code"] == "usage" and named in error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("diff", "gone", "gone", "-o", "p"),
        ("apply", "gone", "gone", "-o", "p"),
        ("verify", "gone"),
        ("inspect", "gone"),
        ("log", "gone"),
        ("follow", "gone", "folder", "--once"),
        ("doctor", "gone"),
    ],
)
def test_missing_input_is_one_line_and_json(tmp_path, arguments):
    done = deltawire(*arguments, "--json", expect=3, cwd=tmp_path)
    assert done.stderr.startswith("deltawire: not_found: ") and done.stderr.count("\n") == 1
    assert done.json["error"]["code"] == "not_found"
    assert done.json["error"]["message"] in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_schemes_are_refused(tmp_path):
    done = deltawire("log", "s4://bucket/run", expect=3)
    assert done.stderr.startswith("deltawire: unsupported: ")


@pytest.fixture
def pair(tmp_path, rng, small):
    old = write_file(tmp_path / "old.safetensors", small)
    return old, write_file(tmp_path / "new.safetensors", changed(rng, small, 0.1))


def test_no_progress_and_no_colour_in_a_pipe(tmp_path, pair):
    done = deltawire("diff", *pair, "-o", tmp_path / "p.safetensors")
    assert done.stderr == "" and "\033" not in done.stdout
    assert "\033" not in deltawire("verify", tmp_path / "p.safetensors").stdout


def on_terminal(*arguments, **variables):
    """Runs the command with a pseudo terminal for stdout and stderr; returns what it drew."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [program("deltawire"), *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm", **variables},
    )
    os.close(theirs)
    drawn = b""
    try:
        while block := os.read(ours, 65536):
            drawn += block
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return drawn.decode()


def test_progress_and_colour_on_a_terminal(tmp_path, pair):
    patch = tmp_path / "p.safetensors"
    drawn = on_terminal("diff", *pair, "-o", patch, COLUMNS="70")
    assert "\rcomparing" in drawn.replace("\033[K", "") and "100 %" in drawn
    drawings = drawn.replace("\033[K", "").replace("\r", "\n").split("\n")
    assert all(len(line) <= 70 for line in drawings if line.startswith("comparing"))
    assert "\033[32m" in on_terminal("verify", patch)
    assert "\033[32m" not in on_terminal("verify", patch, NO_COLOR="1")
    assert "comparing" not in on_terminal("diff", *pair, "-o", tmp_path / "q.safetensors", TERM="dumb")


def test_a_reader_that_goes_away_is_not_an_error_storm(pair):
    command = f"'{program('deltawire')}' inspect '{pair[0]}' | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.count("\n") == 1


def test_a_full_output_is_an_error(pair):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [program("deltawire"), "inspect", str(pair[0])],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 4 and done.stderr.startswith("deltawire: io: ")


def test_doctor_says_what_there_is_and_why_not(tmp_path):
    facts = deltawire("doctor", "--json").json
    assert facts["processor"]["kernels"].startswith("cpu/") or facts["processor"]["kernels"] == "ref"
    assert facts["processor"]["threads"] >= 1 and facts["memory"]["total_bytes"] > 0
    for name in ("nvcc", "gpu", "python"):
        assert facts[name]["present"] or facts[name]["reason"]
    bare = deltawire("doctor", "--json", env={"PATH": str(tmp_path)}).json
    assert "python3" in bare["python"]["reason"] and "nvcc" in bare["nvcc"]["reason"]


AUDITED = """
import json, os
assert os.environ["DELTAWIRE_AUDIT_STEPS"] == "7"
report = {report}
if report is not None:
    with open(os.environ["DELTAWIRE_AUDIT_REPORT"], "w") as file:
        json.dump(report, file)
raise SystemExit({code})
"""


def audit(report, code=0, *options, **more):
    program_text = AUDITED.format(report=report, code=code)
    return deltawire("doctor", "--audit", 7, *options, "--", "python3", "-c", program_text, **more)


def findings(**values):
    found = {
        "steps": 7,
        "compared": 100,
        "changed": 5,
        "missed": 0,
        "excess": 1,
        "uncertain": 2,
        "wrong_old": 0,
        "tensors": 3,
        "unaudited": 1,
    }
    return {**found, **values}


def test_audit_passes_on_what_the_publisher_found(tmp_path):
    done = audit(findings(), 0, "--json")
    assert done.json["ok"] and done.json["compared"] == 100
    kept = tmp_path / "report.json"
    kept.write_text("old")
    audit(findings(), 0, "--report", kept)
    assert json.loads(kept.read_text())["changed"] == 5


def test_audit_of_a_loop_without_undone_tensors_has_nothing_to_say_against_it():
    done = audit(findings(compared=0, changed=0, tensors=0, unaudited=4), 0)
    assert done.code == 0
    assert "0 undone" in done.stdout


@pytest.mark.parametrize(
    ("report", "code", "expected"),
    [
        (findings(missed=1), 0, 1),
        (findings(wrong_old=1), 0, 1),
        (findings(missed=1), 3, 1),  # what is wrong is wrong, however the program ended
        (findings(), 3, 4),
        (None, 3, 4),
        (findings(compared=0), 0, 3),
        (findings(steps=0, compared=0, tensors=0), 0, 3),
        (None, 0, 3),
        ({}, 0, 3),
    ],
)
def test_audit_says_by_its_exit_code_what_is_not_as_it_should_be(report, code, expected):
    assert audit(report, code, expect=expected).stderr.startswith("deltawire: ")


def test_doctor_documents_the_audits_exit_codes():
    text = deltawire("doctor", "--help").stdout
    for line in ("0 sound", "1 a change was missed", "3 nothing to judge by", "4 the program failed"):
        assert line in text


def test_doctor_on_a_missing_folder_is_an_error_that_names_it(tmp_path):
    done = deltawire("doctor", tmp_path / "mistyped", expect=3)
    assert str(tmp_path / "mistyped") in done.stderr and "not_found" in done.stderr
    assert "no version yet" not in done.stdout
    assert not (tmp_path / "mistyped").exists()
    (tmp_path / "early").mkdir()
    assert "no version yet" in deltawire("doctor", tmp_path / "early").stdout


def test_audit_without_a_command_is_bad_input():
    assert "--audit" in deltawire("doctor", "--audit", 7, expect=3).stderr
    assert deltawire("doctor", "--audit", 7, "--", "no-such-program-at-all", expect=3)
