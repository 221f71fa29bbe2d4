"""The bytes of src/codec/golden_test.cc, read from docs/formats/codings.md alone."""

import codings
import numpy as np
import pytest

STEPS = (
    "036908223c78a1c18577574084082f34e000efd18108946082087c6000",
    "02fbf40d004c42846ad5eddf262b444468806286130019f86302",
)
VARINTS = ("00", "01c0c407bebb78028b010b04030201")
ABSENT = ("00", "00040c00254a6fb9de03284d7297bce1062b509abf")
PLANE = (
    "042420086c6478a1fde717813ebc",
    "02030022d03600f59b3ff1bb6bdd68b815dc7c095599ec7d61f97665130078000208122032486280a2c8f2205288"
    "c20a4c92dc2a7cd23694f65cc63eb026a028aa30ba52e47a1ebc5e0eb86622d8925a1ce2b68460361af8dacab4ac"
    "9e9e98a0a2b2bcd4e6062a48749ace063878b2fa468ce0388aea4eac1888f26ae666e068f48418ffffffffffffff"
    "ff03",
)


def read(golden, coding, elements, width, changed, uncertain):
    tables = codings.open_tables(bytes.fromhex(golden[0]))
    return codings.decode(tables, coding, elements, width, changed, uncertain, bytes.fromhex(golden[1]))


def test_steps_with_tables():
    positions, steps, unsure, residues, bits = read(STEPS, codings.STEP, 400, 2, 90, 3)
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
    positions, steps, unsure, residues, bits = read(VARINTS, codings.STEP, 1 << 21, 4, 2, 1)
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


def test_empty():
    assert all(len(part) == 0 for part in codings.decode([], codings.STEP, 9, 2, 0, 0, b""))


@pytest.mark.parametrize(
    ("golden", "shape"),
    [
        (STEPS, (codings.STEP, 400, 2, 90, 3)),
        (VARINTS, (codings.STEP, 1 << 21, 4, 2, 1)),
        (ABSENT, (codings.ABSOLUTE, 20, 1, 18, 0)),
        (PLANE, (codings.ABSOLUTE, 600, 2, 100, 0)),
    ],
)
def test_truncated_and_trailing_bytes(golden, shape):
    tables = codings.open_tables(bytes.fromhex(golden[0]))
    stream = bytes.fromhex(golden[1])
    for other in [stream[:n] for n in range(len(stream))] + [stream + b"\0"]:
        with pytest.raises(codings.Corrupt):
            codings.decode(tables, *shape, other)
