"""Peak memory of this process."""

from __future__ import annotations

from pathlib import Path


def peak_rss_bytes() -> int:
    """The most resident memory since the program started.

    Read from /proc, because ``getrusage`` of a process forked from a large one starts at that one's peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("found no VmHWM line in /proc/self/status, which every Linux kernel writes")
