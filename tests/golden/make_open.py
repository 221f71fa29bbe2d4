"""Writes the golden patches of coding `open`, between checkpoints of make.py's that are already there:

    ./dev exec python tests/golden/make_open.py tests/golden/format-N

Run by hand, once for a format version; files that exist are left alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PATCHES = {  # name -> (base, result): every dtype; NaNs and signs of zero; nothing
    "dtypes-open": ("dtypes-old", "dtypes-new"),
    "open": ("old", "new"),
    "open-empty": ("old", "old"),
}


def open_patches(folder: Path) -> None:
    """In `folder`, which has the checkpoints."""
    for name, pair in PATCHES.items():
        old, new = (folder / f"{part}.safetensors" for part in pair)
        out = folder / f"{name}.patch.safetensors"
        if out.exists():
            sys.exit(f"{out} exists: golden files are made once")
        subprocess.run(["deltawire", "diff", old, new, "-o", out, "--coding", "open"], check=True)


if __name__ == "__main__":
    open_patches(Path(sys.argv[1]) / "patches")
