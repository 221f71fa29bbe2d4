"""How many served weights change between two published versions, and what they cost to send.

Trains real workloads by policy gradient or on-policy distillation, with publishers at several intervals on
each run, and counts what changed independently of them. Writes DIR/density.jsonl (one line a finished run:
what is there is not run again), DIR/density.csv and, where matplotlib is installed, DIR/density.svg, and
prints the tables of docs/benchmarks.md. The whole takes hours of one core; --quick takes seconds, draws
nothing and says nothing about real models.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


def _list_of(kind: type) -> object:
    return lambda text: [kind(part) for part in text.split(",")]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench density", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: build/density, or -quick beside it")
    parser.add_argument("--quick", action="store_true", help="tiny random models, few steps")
    parser.add_argument("--workloads", type=_list_of(str), metavar="A,B", help="by name; default: the five")
    parser.add_argument("--rates", type=_list_of(float), default=[1e-6, 1e-5, 3e-6, 2e-7], metavar="LR,LR")
    parser.add_argument("--every", type=_list_of(int), metavar="K,K", help="default 1,2,4,8,32, quick 1,2,4")
    parser.add_argument("--steps", type=int, metavar="N", help="default 64, quick 8")
    parser.add_argument("--warmup", type=int, metavar="N", help="unobserved steps first; default 8, quick 2")
    parser.add_argument("--seed", type=int, default=1, help="of tasks, samples, random weights (default 1)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of torch and of each publisher")
    parser.add_argument("--cache", type=Path, default=_REPOSITORY / ".cache", metavar="DIR")
    parser.add_argument(
        "--stores",
        type=Path,
        default=Path("/dev/shm"),
        metavar="DIR",
        help="for the stores of the run in progress, up to 2 GB (default /dev/shm)",
    )
    options = parser.parse_args(arguments)
    options.steps = options.steps or (8 if options.quick else 64)
    options.every = options.every or ([1, 2, 4] if options.quick else [1, 2, 4, 8, 32])
    if options.warmup is None:
        options.warmup = 2 if options.quick else 8
    if options.out is None:
        options.out = _REPOSITORY / "build" / ("density-quick" if options.quick else "density")
    if not 1 <= len(options.every) <= 8 or min(options.every) < 1:
        parser.error("--every takes one to eight intervals of at least 1")
    if max(options.every) > options.steps:
        parser.error(f"--every {max(options.every)} gives no version in {options.steps} steps")
    return options


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs what is missing. Returns the exit status: 1 if a replayed receiver differs from its trainer."""
    options = _parse(arguments)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    # Imported late: --help answers at once, and the environment is set first.
    import transformers
    from summary import as_markdown, draw, write_csv
    from training import Settings, train
    from workloads import DEFAULT_WORKLOADS, WORKLOADS

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    names = options.workloads or list(DEFAULT_WORKLOADS)
    unknown = sorted(set(names) - WORKLOADS.keys())
    if unknown:
        _say(f"no workload is named {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
        return 2
    settings = Settings(
        every=options.every,
        steps=options.steps,
        warmup=options.warmup,
        seed=options.seed,
        quick=options.quick,
        threads=options.threads,
        cache=options.cache / "density",
        demo_cache=options.cache / "demo",
        stores=options.stores,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    journal = options.out / "density.jsonl"
    _say(f"seed {settings.seed}, {settings.warmup} + {settings.steps} steps, intervals {settings.every}")
    for rate in options.rates:
        for name in names:
            if any(_is_run(record, name, rate, settings) for record in _read(journal)):
                _say(f"{name} at lr {rate:g} is in {journal} already")
                continue
            record = train(WORKLOADS[name], rate, settings, _say)
            with open(journal, "a") as out:
                out.write(json.dumps(record) + "\n")
            _say(f"{name} at lr {rate:g}: {record['seconds']:.0f} s")
    records = _read(journal)
    write_csv(records, options.out / "density.csv")
    if not options.quick and not draw(records, options.out / "density.svg"):
        _say("no plot: matplotlib is not installed (pip install -r requirements-docs.txt)")
    print(as_markdown(records))
    wrong = [
        f"{record['workload']} at lr {record['learning_rate']:g}, interval {interval['every']}"
        for record in records
        for interval in record["intervals"]
        if interval["replay_differences"]
    ]
    if wrong:
        _say(f"a receiver that took every version differs from its trainer: {'; '.join(wrong)}")
    return 1 if wrong else 0


def _read(journal: Path) -> list[dict]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def _is_run(record: dict, name: str, rate: float, settings: object) -> bool:
    asked = {"workload": name, "learning_rate": rate}
    asked |= {key: getattr(settings, key) for key in ("seed", "steps", "warmup", "quick")}
    made = [interval["every"] for interval in record["intervals"]]
    return made == settings.every and all(record[key] == value for key, value in asked.items())
