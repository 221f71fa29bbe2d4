"""What must not stand in a committed text.

- notes to self: work that is left belongs in an issue;
- a test that asserts how long something took: timings belong in the benchmark, as ratios;
- addresses that only one workplace knows: package mirrors, private networks, folders of a machine.
"""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent

# Spelled in two parts, so that this file passes its own check.
NOTE = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")

URL = re.compile(r"\b(?:https?|s3)://[^\s\"'<>`)\]}]+")
# Hosts that everybody reaches; add one where a text needs it. Below, names that are reserved for examples.
PUBLIC_HOSTS = {"github.com", "www.apache.org", "www.w3.org", "pypi.org", "arxiv.org", "huggingface.co"}
PUBLIC_HOSTS |= {"purl.org", "matplotlib.org", "json.schemastore.org", "creativecommons.org", "localhost"}
EXAMPLE_HOST = re.compile(r"(^|\.)(example(\.(com|org|net))?|test|invalid|localhost)$|^127\.|^\[?::1\]?$")
INDEX_SETTING = re.compile(
    r"--(extra-)?index-url|--trusted-host|--find-links|PIP_(EXTRA_)?INDEX_URL|^deb(-src)? "
)
PRIVATE_ADDRESS = re.compile(
    r"(?<![\d.])(10\.\d+\.\d+\.\d+|192\.168\.\d+\.\d+|172\.(1[6-9]|2\d|3[01])\.\d+\.\d+)(?![\d.])"
)
MACHINE_FOLDER = re.compile(r"(?<![\w.])/(work/(main|shared)|root|home/[a-z])(/|\b)")

ASSERTION = re.compile(r"^\s*(assert\b|(EXPECT|ASSERT)_(LT|LE|GT|GE|NEAR|TRUE)\b)")
COMPARISON = re.compile(r"[<>]|_(LT|LE|GT|GE|NEAR)\b")
DURATION = re.compile(
    r"(elapsed|duration|took\b|perf_counter|monotonic\(|time\.time\(|steady_clock|\w+_(seconds|secs|ms)\b)"
)
# Not a measurement: that something is not negative, and the limit of a loop that waits for an event.
HARMLESS = re.compile(r"\bdeadline\b|>=? ?0(\.0)?\b|_(GE|GT)\(.*, 0(\.0)?\)|0(\.0)? <=?")


def is_test(name):
    return name.startswith("tests/") or name.endswith(("_test.cc", "_test.py"))


def check_line(name, line):
    """What is wrong with a line, one text each."""
    if NOTE.search(line):
        yield "a note to self: open an issue instead"
    for url in URL.findall(line):
        parts = urlsplit(url)
        host = parts.hostname or ""
        if (
            parts.scheme != "s3"
            and host not in PUBLIC_HOSTS
            and not EXAMPLE_HOST.search(host)
            and "{" not in host
        ):
            yield f"{host}: not a public host known to tools/check_texts.py"
    if INDEX_SETTING.search(line):
        yield "names a package index: the machine's own configuration decides that"
    if PRIVATE_ADDRESS.search(line):
        yield "an address of a private network"
    if MACHINE_FOLDER.search(line):
        yield "a folder of one machine"
    timed = is_test(name) and ASSERTION.search(line) and COMPARISON.search(line) and DURATION.search(line)
    if timed and not HARMLESS.search(line):
        yield "a test asserts a timing: make it a ratio in the benchmark"


def check(root, names):
    problems = []
    for name in names:
        path = Path(root) / name
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        if b"\0" in data[:4096] or name == "tools/check_texts.py":
            continue
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            problems += [
                f"{name}:{number}: {problem}: {line.strip()[:100]}" for problem in check_line(name, line)
            ]
    return problems


def tracked_files(root):
    """Files that are committed or about to be."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    return sorted(set(listing.stdout.decode().split("\0")) - {""})


def main():
    problems = check(ROOT, tracked_files(ROOT))
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
