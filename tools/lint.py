"""Runs the checks of ./dev lint: all, or those that are named. ./dev format runs two of them with --fix."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import check_texts

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
CLANG_FORMAT = "clang-format-19"
CPP = (".h", ".cc", ".cu")


def python_check(script, *, parallel=False):
    def command(args):
        return [[sys.executable, TOOLS / script, *([f"-j{args.jobs}"] if parallel else [])]]

    return command


def clang_format(args):
    names = [
        name
        for name in check_texts.tracked_files(ROOT)
        if name.startswith(("src/", "include/", "cmake/")) and name.endswith(CPP) and (ROOT / name).exists()
    ]
    return [[CLANG_FORMAT, *(["-i"] if args.fix else ["--dry-run", "-Werror", "-ferror-limit=1"]), *names]]


def ruff(args):
    targets = [ROOT, ROOT / "dev"]  # dev has no extension: ruff takes it only by name
    fix = ["--fix"] if args.fix else []
    only_check = [] if args.fix else ["--check"]
    return [["ruff", "check", "-q", *fix, *targets], ["ruff", "format", "-q", *only_check, *targets]]


CHECKS = {
    "layers": (python_check("check_layers.py"), "include law of ARCHITECTURE.md"),
    "texts": (python_check("check_texts.py"), "no notes to self, timing assertions, machine addresses"),
    "format": (clang_format, "clang-format"),
    "ruff": (ruff, "Python: ruff check and format"),
    "headers": (python_check("check_headers.py", parallel=True), "each header compiles alone"),
    "tidy": (python_check("check_tidy.py", parallel=True), "clang-tidy"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("checks", nargs="*")
    args = parser.parse_args()
    unknown = [name for name in args.checks if name not in CHECKS]
    if unknown:
        print("checks:", *(f"  {name:8} {reason}" for name, (_, reason) in CHECKS.items()), sep="\n")
        return 0 if unknown == ["help"] else 2
    failed = []
    for name in args.checks or CHECKS:
        started = time.monotonic()
        codes = [
            subprocess.run(command, cwd=ROOT, check=False).returncode for command in CHECKS[name][0](args)
        ]
        outcome = "FAILED" if any(codes) else "ok"
        print(f"lint {name}: {outcome} ({time.monotonic() - started:.1f} s)", flush=True)
        if any(codes):
            failed.append(name)
            if name in ("format", "ruff"):
                print("./dev format mends what can be mended by itself", flush=True)
    total = len(args.checks or CHECKS)
    print(f"lint: {total - len(failed)} ok, {len(failed)} failed" + "".join(f" {name}" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
