import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command):
    subprocess.run([str(part) for part in command], check=True)


def test_find_package_links_the_installed_library(tmp_path):
    run("cmake", "--install", ROOT / "build/release", "--prefix", tmp_path / "prefix", "--component", "devel")
    consumer = Path(__file__).parent / "consumer"
    run(
        *("cmake", "-G", "Ninja", "-S", consumer, "-B", tmp_path / "build"),
        f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}",
    )
    run("cmake", "--build", tmp_path / "build")
    run(tmp_path / "build/consumer")
    installed = [path.read_text() for path in (tmp_path / "prefix").rglob("*.cmake")]
    assert not [text for text in installed if str(ROOT) in text], "the package points into the source tree"
