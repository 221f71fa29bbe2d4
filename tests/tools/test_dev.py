"""./dev on machines that lack things, played by programs of the same names on the PATH."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev(tmp_path, monkeypatch):
    """The script as a module, with an empty PATH."""
    loader = importlib.machinery.SourceFileLoader("dev", str(ROOT / "dev"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("dev", loader))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.fixture
def program(tmp_path):
    """Puts a program on the PATH that notes its arguments; returns the file of notes."""

    def write(name, body=""):
        path = tmp_path / "bin" / name
        notes = tmp_path / f"{name}.notes"
        path.write_text(f'#!/bin/sh\necho "$*" >> {notes}\n{body}\n')
        path.chmod(0o755)
        return notes

    return write


PACKAGES = {"here": "is here", "gone": "was removed", "never": "was never installed"}
# What dpkg-query says: a removed package with its configuration left, and an unknown one on stderr.
QUERY = 'echo "here installed"; echo "gone config-files"; echo "no packages found matching never" >&2; exit 1'


def test_only_missing_packages_are_installed_and_the_reason_is_said(dev, program, monkeypatch, capfd):
    program("dpkg-query", QUERY)
    notes = program("apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    dev.install_apt(PACKAGES)
    update, install = notes.read_text().splitlines()
    assert update.endswith("update")
    assert install.endswith("install -y --no-install-recommends gone never")
    said = capfd.readouterr().err
    assert "installing never (apt): was never installed" in said
    assert "installing here" not in said


def test_nothing_missing_runs_no_apt(dev, program):
    program("dpkg-query", 'echo "here installed"')
    notes = program("apt-get")
    dev.install_apt({"here": "is here"})
    assert not notes.exists()


def test_without_root_the_command_to_run_is_said(dev, program, monkeypatch):
    program("dpkg-query", QUERY)
    notes = program("apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(dev.Problem, match="as root: apt-get install gone never"):
        dev.install_apt(PACKAGES)
    assert not notes.exists()


def test_a_system_without_apt_is_refused(dev):
    with pytest.raises(dev.Problem, match=r"Debian 12.*CONTRIBUTING\.md"):
        dev.install_apt(PACKAGES)


def test_a_failing_step_names_the_command(dev, program, monkeypatch):
    program("dpkg-query", QUERY)
    program("apt-get", "exit 100")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(dev.Problem, match=r"apt-get update failed \(exit 100\): apt-get -q"):
        dev.install_apt(PACKAGES)


@pytest.fixture
def venv(dev, tmp_path, monkeypatch):
    """A .venv whose python notes its arguments, and a requirement file."""
    (tmp_path / "requirements.txt").write_text("# why\ntorch==1.0\nnumpy==2.0\n")
    (tmp_path / "requirements-lock.txt").write_text("numpy==2.0\n")
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/pip.notes\n')
    python.chmod(0o755)
    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    return tmp_path / "pip.notes"


def test_torch_comes_first_and_by_its_exact_version(dev, venv):
    dev.install_pip("base")
    first, second = venv.read_text().splitlines()
    assert first.endswith("install -q torch==1.0")
    assert second.endswith("-c requirements-lock.txt torch==1.0 numpy==2.0")


def test_requirements_are_installed_again_only_when_their_text_changes(dev, venv, tmp_path):
    dev.install_pip("base")
    dev.install_pip("base")
    assert len(venv.read_text().splitlines()) == 2
    (tmp_path / "requirements.txt").write_text("# another comment\ntorch==1.0\nnumpy==2.0\n")
    dev.install_pip("base")
    assert len(venv.read_text().splitlines()) == 2
    (tmp_path / "requirements-lock.txt").write_text("numpy==2.0\nsix==1.0\n")
    dev.install_pip("base")
    assert len(venv.read_text().splitlines()) == 4


def test_an_interrupted_installation_is_repeated(dev, venv):
    (venv.parent / ".venv/bin/python").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(dev.Problem, match=r"pip install torch==1\.0 failed"):
        dev.install_pip("base")
    assert not (venv.parent / ".venv/.deltawire-base").exists()


@pytest.mark.parametrize(
    ("available_kb", "cores", "expected"), [(100 << 20, 4, 4), (4 << 20, 16, 2), (100 << 10, 4, 1)]
)
def test_compile_jobs_are_capped_by_memory(dev, tmp_path, monkeypatch, available_kb, cores, expected):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 999 kB\nMemAvailable:   {available_kb} kB\n")
    monkeypatch.setattr(dev, "MEMINFO", meminfo)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert dev.jobs() == expected


def test_arguments_after_exec_belong_to_the_command(dev):
    assert dev.parse(["exec", "pytest", "--help", "-k", "x"]).command == ["pytest", "--help", "-k", "x"]
    assert dev.parse(["demo", "--steps", "3"]).arguments == ["--steps", "3"]


def test_every_requirement_is_pinned_and_locked():
    lock = {
        line.split("==")[0].lower(): line
        for line in (ROOT / "requirements-lock.txt").read_text().splitlines()
    }
    for path in ROOT.glob("requirements*.txt"):
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                name = line.split("==")[0].lower().replace("-", "_")
                locked = lock.get(name) or lock.get(name.replace("_", "-"))
                assert locked is not None, f"{path.name}: {line} is not in the lock file"
                assert locked.split("==")[1] == line.split("==")[1]


def test_help_runs_without_setting_anything_up():
    done = subprocess.run(
        [sys.executable, ROOT / "dev", "--help"], capture_output=True, text=True, check=True
    )
    assert "./dev test" in done.stdout
