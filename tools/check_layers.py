"""The include law of ARCHITECTURE.md, checked against the include lines and CMake DEPS that exist.

A file under src/FOLDER may include its own folder and folders of a lower rank; a folder missing from the
table is an error. Public headers (include/deltawire) include each other and the standard library only, use no
#if, and are at most MAX_PUBLIC_HEADERS.
"""

import re
import sys
from pathlib import Path

SUFFIXES = {".h", ".cc", ".cu", ".inc"}
MAX_PUBLIC_HEADERS = 12
PUBLIC_RANK = 4  # folders from here on may include include/deltawire

TABLE_ROW = re.compile(r"^\|\s*(\d+)\s*\|\s*`([a-z_]+)`\s*\|", re.MULTILINE)
QUOTED = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
ANGLED = re.compile(r"^\s*#\s*include\s*<([^>]+)>")
CONDITIONAL = re.compile(r"^\s*#\s*if")
DEPENDENCY = re.compile(r"\bdeltawire_([a-z_]+)\b")
NOT_FOLDERS = {"library", "fuzz"}  # our CMake functions


def read_ranks(architecture):
    """folder -> rank, from the module table."""
    rows = TABLE_ROW.findall(architecture)
    folders = [folder for _, folder in rows]
    twice = sorted({folder for folder in folders if folders.count(folder) > 1})
    if not rows or twice:
        raise ValueError(f"ARCHITECTURE.md: no module table, or folders named twice: {twice}")
    return {folder: int(rank) for rank, folder in rows}


def allowed(ranks, folder, other):
    return other == folder or ranks[other] < ranks[folder]


def check_source(root, path, ranks):
    relative = path.relative_to(root)
    folder = relative.parts[1]
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = QUOTED.match(line)
        if not found:
            continue
        target = found[1]
        where = f'{relative}:{number}: #include "{target}"'
        top = target.split("/")[0]
        if "/" not in target or ".." in target:
            yield f'{where}: includes are written from src/, as in "{folder}/{target.split("/")[-1]}"'
        elif top == "deltawire":
            if ranks[folder] < PUBLIC_RANK:
                yield f"{where}: public headers are for rank {PUBLIC_RANK} up, {folder} has {ranks[folder]}"
        elif top not in ranks:
            yield f"{where}: {top} is not in the module table of ARCHITECTURE.md"
        elif not allowed(ranks, folder, top):
            yield f"{where}: {folder} (rank {ranks[folder]}) may not include {top} (rank {ranks[top]})"


def check_cmake(root, path, ranks):
    folder = path.relative_to(root).parts[1]
    text = re.sub(r"#.*", "", path.read_text())
    for other in sorted(set(DEPENDENCY.findall(text)) - NOT_FOLDERS):
        if other in ranks and not allowed(ranks, folder, other):
            yield (
                f"{path.relative_to(root)}: deltawire_{other} (rank {ranks[other]}): "
                f"{folder} (rank {ranks[folder]}) may use lower ranks only"
            )


def check_public(root, headers):
    if len(headers) > MAX_PUBLIC_HEADERS:
        yield f"include/deltawire: {len(headers)} headers; at most {MAX_PUBLIC_HEADERS} are public"
    for path in headers:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(root)}:{number}"
            quoted, angled = QUOTED.match(line), ANGLED.match(line)
            if quoted and not quoted[1].startswith("deltawire/"):
                yield f'{where}: "{quoted[1]}": a public header includes other public headers only'
            if angled and not re.fullmatch(r"[a-z0-9_]+", angled[1]):
                yield f"{where}: <{angled[1]}>: a public header shows no vendor's type"
            if CONDITIONAL.match(line):
                yield f"{where}: a public header is the same in every build: no #if"


def check(root):
    """Every violation, one line each."""
    root = Path(root)
    ranks = read_ranks((root / "ARCHITECTURE.md").read_text())
    problems = []
    for folder in sorted((root / "src").iterdir()):
        if not folder.is_dir():
            continue
        if folder.name not in ranks:
            problems.append(f"src/{folder.name}: not in the module table of ARCHITECTURE.md")
            continue
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES:
                problems += check_source(root, path, ranks)
            elif path.name == "CMakeLists.txt":
                problems += check_cmake(root, path, ranks)
    for name in ranks:
        if not (root / "src" / name).is_dir():
            problems.append(f"ARCHITECTURE.md: the module table names src/{name}, which does not exist")
    return problems + list(check_public(root, sorted((root / "include").rglob("*.h"))))


def main():
    problems = check(Path(__file__).resolve().parent.parent)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
