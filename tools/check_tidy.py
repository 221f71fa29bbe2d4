"""clang-tidy on every source of ours that has changed, or reaches a header that has, since it last passed.

Unit tests are left out: they would double the time, most of it spent inside GoogleTest's macros.
"""

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

import checked_before
import compile_commands

ROOT = Path(__file__).resolve().parent.parent
CLANG_TIDY = "clang-tidy-19"


def check(root, build, jobs):
    """(problems, sources in all, sources checked now)."""
    root = Path(root).resolve()
    commands = compile_commands.load(build, root)
    sources = sorted(
        source
        for source in commands
        if source.exists() and not source.name.endswith(("_test.cc", "_fuzz.cc"))
    )
    contents = checked_before.Contents([root / "src", root / "include"])
    configuration = (root / ".clang-tidy").read_text()

    def key(source):
        text = "\n".join(
            [configuration, str(source.relative_to(root)), *commands[source], contents.hash(source)]
        )
        return hashlib.sha256(text.replace(str(root), "").encode()).hexdigest()

    def tidy(source):
        command = [CLANG_TIDY, "--quiet", "-p", str(build), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
        return done.stdout.rstrip() if done.returncode != 0 else ""

    problems, checked = checked_before.check_all(
        "tidy", sources, [key(source) for source in sources], tidy, jobs
    )
    return problems, len(sources), checked


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=ROOT / "build/release", help="folder with compile_commands.json")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    args = parser.parse_args()
    problems, total, checked = check(ROOT, args.build, args.jobs)
    print("\n".join([*problems, f"{total} sources, {checked} checked now"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
