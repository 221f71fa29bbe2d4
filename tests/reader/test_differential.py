"""Random checkpoints and a random run: what the library writes, the reader reads, and the bits are equal."""

import catalog
import codings
import deltawire
import inventory
import numpy as np
import pytest
import safetensors
import safetensors_file
import torch
import update
from apply import apply
from safetensors_file import FILE_ORDER, Tensor, serialize, unsigned


def random_bits(random, dtype, shape):
    return random.integers(0, 1 << 8 * unsigned(dtype).itemsize, shape, dtype=unsigned(dtype))


def change(random, tensor: Tensor, share: float) -> Tensor:
    """Most by one step, some by anything."""
    bits = tensor.bits.copy()
    flat = bits.reshape(-1)
    count = int(random.binomial(flat.size, share))
    places = random.choice(flat.size, count, replace=False) if flat.size else np.zeros(0, int)
    one = flat.dtype.type(1)
    steps = np.where(random.random(count) < 0.5, flat[places] + one, flat[places] - one)
    jumps = random_bits(random, tensor.dtype, count)
    flat[places] = np.where(random.random(count) < 0.9, steps, jumps)
    return Tensor(tensor.dtype, bits)


def random_checkpoint(random) -> dict[str, Tensor]:
    out = {}
    for i in range(int(random.integers(1, 9))):
        dtype = FILE_ORDER[random.integers(len(FILE_ORDER))]
        shape = tuple(
            int(n) for n in random.integers(0 if random.random() < 0.1 else 1, 40, random.integers(0, 4))
        )
        while np.prod(shape) > 3000:
            shape = shape[1:]
        out[f"layer.{i}.ü{dtype}"] = Tensor(dtype, random_bits(random, dtype, shape))
    return out


def check_patch(patch, old, new, same):
    parsed = update.parse(patch.read_bytes())
    known = parsed.inventory
    start = inventory.canonical(known, old)
    before = {name: bits.copy() for name, bits in start.items()}
    same(apply([parsed], known, start), inventory.canonical(known, new))
    same(start, before)
    return parsed


@pytest.mark.parametrize("coding", ["class", "step", "absolute"])
@pytest.mark.parametrize("seed", range(12))
def test_patches_of_random_checkpoints(tmp_path, same, seed, coding):
    random = np.random.default_rng([seed, 7])
    old = random_checkpoint(random)
    share = [0, 0.002, 0.03, 0.3, 0.8, 1][seed % 6]
    new = {name: change(random, tensor, share) for name, tensor in old.items()}
    (tmp_path / "old").write_bytes(serialize(old))
    (tmp_path / "new").write_bytes(serialize(new))
    deltawire.diff(tmp_path / "old", tmp_path / "new", tmp_path / "patch", coding=coding)
    check_patch(tmp_path / "patch", old, new, same)
    deltawire.apply(tmp_path / "old", tmp_path / "patch", tmp_path / "out")
    # The library's writer and the reader's, both from docs/formats/safetensors.md.
    assert (tmp_path / "out").read_bytes() == (tmp_path / "new").read_bytes()


@pytest.mark.parametrize("shape", [(3, 1 << 20), ((1 << 21) + 5,), (2, 3, (1 << 19) + 1)])
def test_tensors_of_several_blocks(tmp_path, same, shape):
    random = np.random.default_rng(3)
    old = {"w": Tensor("U8", random_bits(random, "U8", shape))}
    new = {"w": change(random, old["w"], 0.0005)}
    (tmp_path / "old").write_bytes(serialize(old))
    (tmp_path / "new").write_bytes(serialize(new))
    deltawire.diff(tmp_path / "old", tmp_path / "new", tmp_path / "patch")
    parsed = check_patch(tmp_path / "patch", old, new, same)
    (group,) = update.parse_table(parsed, parsed.inventory).groups
    boxes = [(block.members[0].start, block.members[0].size) for block in group.blocks]
    assert boxes == inventory.grid_boxes(parsed.inventory.tensors[0])
    assert len(boxes) > 1


def weights_of(random, dtype, shape):
    """Magnitudes as weights have them: few small ones."""
    values = random.normal(0, 0.02, shape).astype("<f4")
    if dtype == "F32":
        return values.view("<u4").copy()
    if dtype == "BF16":
        return (values.view("<u4") >> 16).astype("<u2")
    if dtype == "F16":
        return values.astype("<f2").view("<u2")
    return (values.astype("<f2").view("<u2") >> 8).astype("u1")  # E5M2, truncated


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F16", "F8_E5M2"])
def test_class_patches_where_small_weights_change(tmp_path, same, dtype):
    random = np.random.default_rng([5, len(dtype)])
    old = {
        "w": Tensor(dtype, weights_of(random, dtype, (150, 200))),
        "v": Tensor(dtype, weights_of(random, dtype, 9000)),
    }
    new = {}
    for name, tensor in old.items():
        flat = tensor.bits.reshape(-1).copy()
        width = 8 * flat.dtype.itemsize
        keys = (flat.astype("<u8") << 1 >> (width - 8)) & 0xFF
        chance = np.minimum(
            1, 0.02 * np.exp2((np.median(keys) - keys.astype(float)) / (8 if dtype == "F16" else 1))
        )
        places = np.flatnonzero(random.random(flat.size) < chance)
        flat[places] += np.where(random.random(places.size) < 0.5, 1, (1 << width) - 1).astype(flat.dtype)
        new[name] = Tensor(dtype, flat.reshape(tensor.bits.shape))
    (tmp_path / "old").write_bytes(serialize(old))
    (tmp_path / "new").write_bytes(serialize(new))
    deltawire.diff(tmp_path / "old", tmp_path / "new", tmp_path / "patch", coding="class")
    parsed = check_patch(tmp_path / "patch", old, new, same)
    assert any(profile.cuts for profile in codings.open_tables(parsed.entropy).profiles)
    deltawire.apply(tmp_path / "old", tmp_path / "patch", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "new").read_bytes()


def test_patches_of_the_command(tmp_path, same, command):
    random = np.random.default_rng(5)
    old = random_checkpoint(random)
    new = {name: change(random, tensor, 0.1) for name, tensor in old.items()}
    (tmp_path / "old.safetensors").write_bytes(serialize(old))
    (tmp_path / "new.safetensors").write_bytes(serialize(new))
    for coding in ("class", "step", "absolute"):
        patch = tmp_path / f"{coding}.safetensors"
        command(
            "diff",
            tmp_path / "old.safetensors",
            tmp_path / "new.safetensors",
            "-o",
            patch,
            "--coding",
            coding,
        )
        check_patch(patch, old, new, same)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(40, 56)
        self.norm = torch.nn.LayerNorm(56)
        self.down = torch.nn.Linear(56, 24, bias=False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))

    def forward(self, x):
        return self.down(self.norm(torch.tanh(self.up(x))))


def served(model) -> dict[str, np.ndarray]:
    """What engines should have, from the model itself."""
    out = {}
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.dtype == torch.float32:
            out[name] = tensor.to(torch.bfloat16).view(torch.int16).numpy().view("<u2").copy()
        else:
            out[name] = tensor.numpy().view("<u8").copy()
    return out


def train(model, optimizer, random) -> None:
    """A few steps; sometimes none, sometimes an edit beside them."""
    for _ in range(int(random.integers(0, 4))):
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        if random.random() < 0.3:
            model.norm.bias[int(random.integers(56))] = -0.0
        if random.random() < 0.3:
            model.seen += 1


@pytest.mark.parametrize("detector", ["auto", "snapshot"])
@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_random_run(tmp_path, same, detector, from_checkpoint):
    torch.manual_seed(11)
    random = np.random.default_rng(11)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    base = None
    if from_checkpoint:
        base = tmp_path / "base"
        base.mkdir()
        state = {
            name: Tensor("BF16" if bits.dtype.itemsize == 2 else "I64", bits)
            for name, bits in served(model).items()
        }
        (base / "model.safetensors").write_bytes(serialize(state))
        with torch.no_grad():
            model.up.bias[:3] += 1
    options = {"codings": ["class", "step", "absolute"], "anchor_every": 3, "detector": detector}
    states = [served(model)]
    with deltawire.Publisher(model, optimizer, tmp_path / "run", base=base, **options) as publisher:
        for _ in range(7):
            train(model, optimizer, random)
            publisher.publish()
            states.append(served(model))
    with deltawire.Publisher(
        model, optimizer, tmp_path / "run", base=base, resume=True, **options
    ) as publisher:
        states.append(served(model))
        train(model, optimizer, random)
        publisher.publish()
        states.append(served(model))
    run = catalog.Run(tmp_path / "run", base)
    assert run.numbers == list(range(len(states)))
    run.replay()
    for number, state in enumerate(states):
        same(run.state(number), state)
    if detector == "auto":
        assert any(found.counts["uncertain"] for found in run.manifests.values())


def test_the_safetensors_package_reads_the_same(tmp_path):
    """The reader's container against the reference implementation."""
    random = np.random.default_rng(2)
    tensors = {
        "a": ("bfloat16", "BF16", random_bits(random, "BF16", (3, 5))),
        "b": ("float32", "F32", random_bits(random, "F32", ())),
        "c": ("uint8", "U8", random_bits(random, "U8", (0, 2))),
    }
    ours = serialize({name: Tensor(dtype, bits) for name, (_, dtype, bits) in tensors.items()})
    theirs = {name: (info["dtype"], bytes(info["data"])) for name, info in safetensors.deserialize(ours)}
    assert theirs == {name: (dtype, bits.tobytes()) for name, (_, dtype, bits) in tensors.items()}
    safetensors.serialize_file(
        {
            name: safetensors.TensorSpec(
                dtype=spelled, shape=list(bits.shape), data_ptr=bits.ctypes.data, data_len=bits.nbytes
            )
            for name, (spelled, _, bits) in tensors.items()
        },
        str(tmp_path / "theirs"),
        {"format": "pt"},
    )
    assert (tmp_path / "theirs").read_bytes() == ours
    back = safetensors_file.read_checkpoint(tmp_path / "theirs")
    assert all(np.array_equal(back[name].bits, bits) for name, (_, _, bits) in tensors.items())
