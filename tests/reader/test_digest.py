"""State digests: the vectors of docs/formats/digest.md, and that digests of parts add up."""

import digest
import numpy as np
import pytest

NORM = np.arange(1, 12, dtype=np.uint8)
VECTORS = [
    ("model.norm.weight", NORM, "04b63a2e5c743da2819b7c8077840008"),
    ("w", np.array([0] * 2048 + [0x3F80, 0x3F81], dtype="<u2"), "134cb635a3e9f8802d17b62300000000"),
]


@pytest.mark.parametrize(("name", "bits", "expected"), VECTORS)
def test_vectors(name, bits, expected):
    assert digest.text(digest.of_tensor(name, bits)) == expected
    assert digest.text(digest.of_elements(name, np.arange(bits.size), bits)) == expected


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_digests_of_any_partition_add_up(width):
    random = np.random.default_rng(width)
    bits = random.integers(0, 1 << 8 * width, 10_007, dtype=f"<u{width}")
    owner = random.integers(0, 3, bits.size)
    total = digest.ZERO
    for part in range(3):
        places = np.flatnonzero(owner == part)
        total = digest.add(total, digest.of_elements("t", places, bits[places]))
    assert total == digest.of_tensor("t", bits)


def test_zeros_add_nothing_and_names_and_bits_count():
    assert digest.of_tensor("t", np.zeros(99, "<u2")) == digest.ZERO
    assert digest.of_tensor("t", np.zeros((0, 3), "<u2")) == digest.ZERO
    assert digest.of_tensor("t", NORM) != digest.of_tensor("u", NORM)
    negative_zero = np.array([0x8000], "<u2")
    assert digest.of_tensor("t", negative_zero) != digest.ZERO
