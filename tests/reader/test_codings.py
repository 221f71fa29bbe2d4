"""The bytes of src/codec/golden_test.cc, read from docs/formats/codings.md alone."""

import codings
import numpy as np
import pytest

STEPS = (
    "03006908223c78a1c18577574084082f34e000efd18108946082087c6000",
    "02fbf40d004c42846ad5eddf262b444468806286130019f86302",
)
VARINTS = ("", "01c0c407bebb78028b010b04030201")
ABSENT = ("", "00040c00254a6fb9de03284d7297bce1062b509abf")
PLANE = (
    "04002420086c6478a1fde717813ebc",
    "02030022d03600f59b3ff1bb6bdd68b815dc7c095599ec7d61f97665130078000208122032486280a2c8f2205288"
    "c20a4c92dc2a7cd23694f65cc63eb026a028aa30ba52e47a1ebc5e0eb86622d8925a1ce2b68460361af8dacab4ac"
    "9e9e98a0a2b2bcd4e6062a48749ace063878b2fa468ce0388aea4eac1888f26ae666e068f48418ffffffffffffff"
    "ff03",
)
CLASSES = (
    "0401027402033f3e22fc77071168c3141420b09040075e68c007afac44e0a321e0a3858f0632b042023ef8",
    "022a6c12950002b71e721baf7556b7e54906f3043282b8749e2db4dea031d8d82111112001e22322224220222222"
    "4002422202421e5b99030000",
)
BITMAP = ("", "fed5550100006e3cdc784ab58153b8f1262e946a02a770e3")


def read(golden, coding, elements, width, changed, uncertain, base=None):
    section = codings.open_tables(bytes.fromhex(golden[0]))
    stream = bytes.fromhex(golden[1])
    return codings.decode(section, coding, elements, width, changed, uncertain, stream, base)


def filler(elements):
    """What the unlisted elements of the golden class block hold: small exponents are rare."""
    out = np.zeros(elements, "<u2")
    for i in range(elements):
        noise = (i + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
        key = 120 - (64 - (noise | 1).bit_length()) % 16
        out[i] = key << 7 | noise & 0x807F
    return out


def test_steps_with_tables():
    positions, steps, unsure, residues, bits, _ = read(STEPS, codings.STEP, 400, 2, 90, 3)
    assert positions.tolist() == list(range(3, 363, 4))
    expected = [1, -1] * 45
    expected[29], expected[59], expected[89] = 5, -300, -32768
    assert steps.view("<i2").tolist() == expected
    assert unsure.tolist() == [1, 42, 397]
    assert residues.tolist() == [2, 0xFF, 0]
    assert bits.tolist() == [0, 0x3F81, 0]
    old = np.full(90, 0x3F80, "<u2")
    for base in ([0x4000, 0, 0x3FFC], [0x4001, 0xFFFF, 0x3FFD]):
        changed, uncertain = codings.resolve(codings.STEP, steps, residues, bits, old, np.array(base, "<u2"))
        assert changed[:2].tolist() == [0x3F81, 0x3F7F] and changed[89] == 0xC07F
        assert uncertain.tolist() == [0x4002, 0x3F81, 0x3FFC]


def test_steps_as_varints():
    positions, steps, unsure, residues, bits, _ = read(VARINTS, codings.STEP, 1 << 21, 4, 2, 1)
    assert positions.tolist() == [123456, 2097151]
    assert steps.view("<i4").tolist() == [1, -70]
    assert (unsure.tolist(), residues.tolist(), bits.tolist()) == ([5], [0xFF], [0x01020304])


def test_absent_positions_and_fixed_values():
    positions, values, *_ = read(ABSENT, codings.ABSOLUTE, 20, 1, 18, 0)
    assert positions.tolist() == [i for i in range(20) if i not in (4, 17)]
    assert values.tolist() == [37 * i % 256 for i in positions.tolist()]


def test_absolute_with_one_coded_plane():
    positions, values, *_ = read(PLANE, codings.ABSOLUTE, 600, 2, 60, 40)
    assert positions.tolist() == [5 * i + i % 3 for i in range(100)]
    assert values.tolist() == [0x3F00 + i * i % 251 for i in range(100)]


def test_classes():
    base = filler(4096)
    listed = np.flatnonzero((base >> 7 & 0xFF) <= 115)
    listed = np.union1d(listed, np.arange(0, 4096, 97))
    for first in (0x3C00, 0x3C01):
        base[10], base[4000] = first, 0xABCD
        positions, steps, unsure, residues, bits, populations = read(
            CLASSES, codings.CLASS, 4096, 2, 169, 2, base
        )
        assert positions.tolist() == listed.tolist()
        expected = [1000 if n % 50 == 0 else -1 if n % 3 == 0 else 1 for n in range(1, 170)]
        assert steps.view("<i2").tolist() == expected
        assert unsure.tolist() == [10, 4000] and residues.tolist() == [1, 0xFF] and bits.tolist() == [0, 1]
        assert populations.tolist() == [128, 3968]


def test_bitmap():
    positions, values, *_ = read(BITMAP, codings.ABSOLUTE, 20, 2, 10, 0)
    assert positions.tolist() == [0, 2, 4, 6, 7, 8, 10, 12, 14, 16]
    assert values.tolist() == [0x9E37 * i & 0xFFFF for i in positions.tolist()]


def test_empty():
    assert all(
        len(part) == 0 for part in codings.decode(codings.open_tables(b""), codings.STEP, 9, 2, 0, 0, b"")
    )


@pytest.mark.parametrize(
    ("golden", "shape"),
    [
        (STEPS, (codings.STEP, 400, 2, 90, 3)),
        (VARINTS, (codings.STEP, 1 << 21, 4, 2, 1)),
        (ABSENT, (codings.ABSOLUTE, 20, 1, 18, 0)),
        (PLANE, (codings.ABSOLUTE, 600, 2, 100, 0)),
        (CLASSES, (codings.CLASS, 4096, 2, 169, 2)),
        (BITMAP, (codings.ABSOLUTE, 20, 2, 10, 0)),
    ],
)
def test_truncated_and_trailing_bytes(golden, shape):
    tables = codings.open_tables(bytes.fromhex(golden[0]))
    stream = bytes.fromhex(golden[1])
    for other in [stream[:n] for n in range(len(stream))] + [stream + b"\0"]:
        with pytest.raises(codings.Corrupt):
            codings.decode(tables, *shape, other, filler(4096))
