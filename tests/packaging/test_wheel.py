"""`pip install .` gives one cp310-abi3 wheel, complete and without torch."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], check=False, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built with the compiler and flags of build/release, so that ccache has every object already."""
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    flags = next(preset for preset in presets if preset["name"] == "base")["cacheVariables"][
        "CMAKE_CXX_FLAGS"
    ]
    cache = (ROOT / "build/release/CMakeCache.txt").read_text()
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)[1]
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-w", folder),
        *("-C", "build-dir=build/wheel-test", "-C", f"cmake.define.CMAKE_CXX_FLAGS={flags}"),
        *("-C", f"cmake.define.CMAKE_CXX_COMPILER={compiler}"),
    )
    (built,) = folder.iterdir()
    return built


def clean_environment():
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def test_the_tag_is_cp310_abi3(wheel):
    name, _, python, abi, platform = wheel.stem.split("-")
    assert (name, python, abi) == ("deltawire", "cp310", "abi3")
    assert platform.startswith("linux_")


def test_only_the_stable_abi_of_3_10_is_used(wheel):
    out = run(
        sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", "--report", wheel
    )
    (extension,) = json.loads(out)["specs"][str(wheel)]["wheel"]
    assert extension["result"]["is_abi3"]
    assert extension["result"]["non_abi3_symbols"] == []


def test_the_wheel_has_the_package_its_types_and_the_command(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        "deltawire/__init__.py",
        "deltawire/_core.abi3.so",
        "deltawire/_core.pyi",
        "deltawire/py.typed",
    }
    assert expected <= names
    if (ROOT / "build/release/src/cli/deltawire").exists():
        assert any(name.endswith(".data/scripts/deltawire") for name in names)
    sources = {path.name for path in (ROOT / "python/deltawire").glob("*.py*")}
    assert {f"deltawire/{name}" for name in sources} <= names
    assert not [name for name in names if name.endswith((".h", ".a", ".cmake"))]


def test_it_imports_in_an_environment_of_its_own(wheel, tmp_path):
    """The dependencies are this environment's, by path, so that no network is needed; deltawire is not."""
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    (site,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import sys, deltawire; print(deltawire.__file__, deltawire.__version__, 'torch' in sys.modules)"
    path, version, torch = run(python, "-c", code, cwd=tmp_path, env=clean_environment()).split()
    assert Path(path).is_relative_to(site)
    assert version in wheel.name
    assert torch == "False"


def interpreter(version):
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", "import venv, ensurepip"], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_same_wheel_loads_on_every_supported_python(wheel, tmp_path, version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    run(python, "-m", "venv", tmp_path, env=clean_environment())
    run(tmp_path / "bin/pip", "install", "-q", wheel, env=clean_environment())
    found = run(tmp_path / "bin/python", "-c", "import deltawire; print(deltawire.__version__)", cwd=tmp_path)
    assert found.strip() in wheel.name
