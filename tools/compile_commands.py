"""What compile_commands.json says about our sources."""

import json
import shlex
from pathlib import Path

# Options with a separate argument that say how to write the object file: a syntax check does without them.
DROP_WITH_ARGUMENT = {"-o", "-MF", "-MT", "-MQ"}
DROP = {"-c", "-MD", "-MMD"}


def load(build, root):
    """source path -> compiler options (not launcher, compiler, input, output), for sources under root/src."""
    commands = {}
    for entry in json.loads((Path(build) / "compile_commands.json").read_text()):
        path = Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(Path(root) / "src"):
            commands[path] = flags(shlex.split(entry["command"]), entry["file"])
    return commands


def flags(arguments, source):
    """The options that decide how a source is understood."""
    kept = []
    # The first argument that is an option ends "ccache g++".
    start = next(index for index, argument in enumerate(arguments) if argument.startswith("-"))
    rest = iter(arguments[start:])
    for argument in rest:
        if argument in DROP_WITH_ARGUMENT:
            next(rest)
        elif argument not in DROP and argument != source:
            kept.append(argument)
    return kept


def flags_for_header(header, commands):
    """Those of a source in the header's folder, else in the nearest folder above it that has one."""
    for folder in header.parents:
        for source in sorted(commands):
            if source.parent == folder:
                return commands[source]
        for source in sorted(commands):
            if source.is_relative_to(folder):
                return commands[source]
    return None
