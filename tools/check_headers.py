"""Each header compiles alone: it includes what it uses.

`*-inl.h` are left out: Highway compiles them once for each target, inside the source that names them, and not
on the baseline that a lone compilation sees.
"""

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

import checked_before
import compile_commands

ROOT = Path(__file__).resolve().parent.parent


def check(root, build, jobs, compiler="g++"):
    """(problems, headers in all, headers compiled now)."""
    root = Path(root).resolve()
    commands = compile_commands.load(build, root)
    headers = sorted([*(root / "src").rglob("*.h"), *(root / "include").rglob("*.h")])
    headers = [header for header in headers if not header.name.endswith("-inl.h")]
    contents = checked_before.Contents([root / "src", root / "include"])
    options = {header: compile_commands.flags_for_header(header, commands) for header in headers}
    unknown = [
        f"{header.relative_to(root)}: no source is compiled near it"
        for header in headers
        if options[header] is None
    ]
    headers = [header for header in headers if options[header] is not None]

    def key(header):
        text = "\n".join([compiler, str(header.relative_to(root)), *options[header], contents.hash(header)])
        return hashlib.sha256(text.replace(str(root), "").encode()).hexdigest()

    def compile_alone(header):
        command = [compiler, *options[header], "-fsyntax-only", "-x", "c++", "-"]
        # Through an including file, as it is used: `#pragma once` in a main file is a warning.
        text = f'#include "{header}"\n'
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=build, check=False)
        if done.returncode == 0:
            return ""
        return f"{header.relative_to(root)} does not compile alone:\n{done.stderr.rstrip()}"

    problems, compiled = checked_before.check_all(
        "headers", headers, [key(header) for header in headers], compile_alone, jobs
    )
    return unknown + problems, len(headers), compiled


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=ROOT / "build/release", help="folder with compile_commands.json")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    args = parser.parse_args()
    problems, total, compiled = check(ROOT, args.build, args.jobs)
    print("\n".join([*problems, f"{total} headers, {compiled} compiled now"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
