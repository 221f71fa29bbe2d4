"""Remembers what a check has already passed, by content, so that only what changed is checked again.

The memory is a folder of empty files outside the tree (as ccache's is): a fresh clone profits from it. Only
passes are remembered.
"""

import concurrent.futures
import hashlib
import os
import re
from pathlib import Path

INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def memory_folder():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "deltawire" / "lint"


class Contents:
    """Hashes of source files together with all our headers that they reach."""

    def __init__(self, include_folders):
        self.include_folders = include_folders
        self.direct = {}

    def _read(self, path):
        if path not in self.direct:
            data = path.read_bytes()
            targets = [
                folder / target.decode()
                for target in INCLUDE.findall(data)
                for folder in self.include_folders
                if (folder / target.decode()).is_file()
            ]
            self.direct[path] = (hashlib.sha256(data).digest(), targets)
        return self.direct[path]

    def hash(self, path):
        reached, waiting = set(), [path]
        while waiting:
            current = waiting.pop()
            if current not in reached:
                reached.add(current)
                waiting += self._read(current)[1]
        digest = hashlib.sha256()
        for one in sorted(reached):
            digest.update(one.name.encode() + self._read(one)[0])
        return digest.hexdigest()


def check_all(name, items, keys, check, jobs):
    """check(item) -> '' or what is wrong, in parallel, for the items whose key has not passed before.

    Returns (problems, number that was checked now).
    """
    folder = memory_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [
        (item, folder / key) for item, key in zip(items, keys, strict=True) if not (folder / key).exists()
    ]
    problems = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for (_, stamp), problem in zip(waiting, pool.map(lambda pair: check(pair[0]), waiting), strict=True):
            if problem:
                problems.append(problem)
            else:
                stamp.touch()
    return problems, len(waiting)
