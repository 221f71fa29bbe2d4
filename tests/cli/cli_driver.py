"""The command under test, and checkpoints written and read with the real safetensors package."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors

SHARED_DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"

# safetensors name -> bytes an element; the package's own spelling is the key.
DTYPES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e8m0fnu": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex64": 8,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
}


def program(name):
    found = shutil.which(name)
    if not found:
        pytest.fail(
            f"{name} is not on the PATH; run the tests with ./dev test, or build and add build/*/src/cli"
        )
    return found


class Done:
    """A finished command; `json` is its only line of stdout."""

    def __init__(self, arguments, code, stdout, stderr):
        self.arguments, self.code, self.stdout, self.stderr = arguments, code, stdout, stderr

    @property
    def json(self):
        return json.loads(self.stdout)

    @property
    def json_lines(self):
        return [json.loads(line) for line in self.stdout.splitlines()]

    def __repr__(self):
        return f"deltawire {' '.join(self.arguments)} -> {self.code}\n{self.stdout}{self.stderr}"


def deltawire(*arguments, expect=0, **options):
    arguments = [str(argument) for argument in arguments]
    environment = {**os.environ, **options.pop("env", {})}
    done = subprocess.run(
        [program("deltawire"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        **options,
    )
    result = Done(arguments, done.returncode, done.stdout, done.stderr)
    assert expect is None or done.returncode == expect, result
    return result


def publish(*arguments):
    subprocess.run([program("publish_checkpoints"), *map(str, arguments)], check=True, timeout=60)


class Tensor:
    """Bits of one tensor: an array of unsigned integers as wide as the dtype."""

    def __init__(self, dtype, array):
        self.dtype, self.array = dtype, np.ascontiguousarray(array).reshape(np.shape(array))

    def __eq__(self, other):
        return (
            self.dtype == other.dtype
            and self.array.shape == other.array.shape
            and self.array.tobytes() == other.array.tobytes()
        )

    __hash__ = None

    def copy(self):
        return Tensor(self.dtype, self.array.copy())


def random_tensor(rng, dtype, shape):
    width = DTYPES[dtype]
    bits = rng.integers(0, 256, size=(*shape, width), dtype=np.uint8)
    if dtype == "bool":
        bits &= 1
    return Tensor(dtype, bits.view(f"u{width}").reshape(shape))


def write_file(path, tensors, metadata=None):
    # The package takes addresses: the arrays live until it has written.
    specs = {
        name: safetensors.TensorSpec(
            dtype=tensor.dtype,
            shape=list(tensor.array.shape),
            data_ptr=tensor.array.ctypes.data,
            data_len=tensor.array.nbytes,
        )
        for name, tensor in tensors.items()
    }
    safetensors.serialize_file(specs, str(path), metadata)
    return path


def write_sharded(folder, tensors, shards=3):
    folder.mkdir(parents=True)
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        write_file(folder / file, part, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


PACKAGE_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


def read_file(path):
    tensors = {}
    for name, info in safetensors.deserialize(Path(path).read_bytes()):
        dtype = PACKAGE_NAMES[info["dtype"]]
        bits = np.frombuffer(bytes(info["data"]), dtype=f"u{DTYPES[dtype]}")
        tensors[name] = Tensor(dtype, bits.reshape(info["shape"]))
    return tensors


def read_checkpoint(path):
    path = Path(path)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    tensors = {}
    for file in files:
        tensors |= read_file(file)
    return tensors


def changed(rng, tensors, share):
    """Copies with about `share` of the elements changed by a bit, at least one in each tensor with any."""
    result = {}
    for name, tensor in tensors.items():
        new = tensor.copy()
        flat = new.array.reshape(-1)
        count = min(flat.size, max(1, int(flat.size * share))) if share > 0 else 0
        where = rng.choice(flat.size, size=count, replace=False) if count else []
        for i in where:
            flat[i] ^= flat.dtype.type(1) << flat.dtype.type(rng.integers(1 if tensor.dtype == "bool" else 8))
        result[name] = new
    return result
