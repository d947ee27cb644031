"""Tables of the mlx5 data sheet: the place of every field, writing into 0xa5 and reading back; bad values; round trips; dumps."""

from collections import Counter
from enum import IntEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgas.transports.mlx5 import capabilities, commands, contexts, cqe, doorbell, fields, wqe
from pgas.transports.mlx5.fields import Field, Table, decode, fill, hexdump, pretty

LAYOUT = Path(__file__).parents[1] / "golden" / "mlx5_layout.txt"


def tables():
    modules = (wqe, cqe, doorbell, contexts, capabilities, commands)
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Table)]
    found += [table for layout in commands.LAYOUTS.values() for table in (layout.input, layout.output)]
    return {table.name: table for table in found}


TABLES = tables()


def golden():
    """Return (structure, field, first byte, mask) of every line of the golden file."""
    for line in LAYOUT.read_text().splitlines():
        if line and not line.startswith("#"):
            structure, name, byte, mask = line.split()
            byte_hex, _, count = mask.partition("*")
            yield structure, name, int(byte), bytes.fromhex(byte_hex * int(count or 1))


GOLDEN = [case for case in golden() if TABLES[case[0]][case[1]].table is None]


def lowest_bit(mask):
    number = int.from_bytes(mask, "big")
    return number & -number


def test_golden_file_holds_every_field_once():
    ours = Counter((table.name, name) for table in TABLES.values() for name in table.fields)
    assert Counter((structure, name) for structure, name, _, _ in golden()) == ours


def test_structure_in_a_structure():
    for structure, name, byte, mask in [case for case in golden() if case not in GOLDEN]:
        field = TABLES[structure][name]
        assert (field.bit, field.width) == (8 * byte, 8 * len(mask)), (structure, name)
        assert field.table.size == len(mask), (structure, name)


class TestGolden:
    def test_field_to_bytes(self):
        for structure, name, byte, mask in GOLDEN:
            table = TABLES[structure]
            ones = int.from_bytes(mask, "big") // lowest_bit(mask)
            assert fill(table, {name: ones}) == bytes(byte) + mask + bytes(table.size - byte - len(mask)), (structure, name)

    def test_bytes_to_field(self):
        for structure, name, byte, mask in GOLDEN:
            table = TABLES[structure]
            values = decode(table, bytes(byte) + mask + bytes(table.size - byte - len(mask)))
            assert values.pop(name) == int.from_bytes(mask, "big") // lowest_bit(mask), (structure, name)
            assert decode(table, bytes(table.size)) == values | {name: 0}, (structure, name)

    def test_impossible_value(self):
        for structure, name, _, mask in GOLDEN:
            table, width = TABLES[structure], mask_width(mask)
            buffer = bytearray(b"\xa5" * table.size)
            with pytest.raises(ValueError, match=rf"^{structure}\.{name}: {1 << width:#x} does not fit in {width} bits$"):
                fill(table, {name: 1 << width}, buffer)
            with pytest.raises(ValueError, match=rf"^{structure}\.{name}: -0x1 does not fit in {width} bits$"):
                fill(table, {name: -1}, buffer)
            assert buffer == b"\xa5" * table.size, (structure, name)


def mask_width(mask):
    return (int.from_bytes(mask, "big") // lowest_bit(mask)).bit_length()


class Color(IntEnum):
    RED = 1


INNER = Table("inner", 2, Field("a", 0, 3), Field("b", 3, 13))
OUTER = Table("outer", 8, Field("kind", 4, 12, Color), Field("inner", 16, 16, table=INNER), Field("tail", 56, 8))


def test_nested():
    data = fill(OUTER, {"kind": 1, "inner": {"a": 5, "b": 0x0ABC}, "tail": 0xFF})
    assert data.hex() == "0001aabc000000ff"
    assert decode(OUTER, data) == {"kind": 1, "inner": {"a": 5, "b": 0x0ABC}, "tail": 0xFF}
    with pytest.raises(ValueError, match=r"outer\.inner\.a: 0x8 does not fit in 3 bits"):
        fill(OUTER, {"inner": {"a": 8}})


def test_unknown_name_and_wrong_type():
    with pytest.raises(ValueError, match="outer has no field 'knid'; it has kind, inner, tail"):
        fill(OUTER, {"knid": 1})
    with pytest.raises(ValueError, match="inner has no field 'c'"):
        fill(OUTER, {"inner": {"c": 1}})
    with pytest.raises(TypeError, match=r"outer\.kind: an integer of 12 bits, not 1\.5"):
        fill(OUTER, {"kind": 1.5})
    with pytest.raises(TypeError, match=r"outer\.inner: a mapping of fields of inner, not 3"):
        fill(OUTER, {"inner": 3})


@pytest.mark.parametrize(("length", "offset"), [(0, 0), (7, 0), (8, 1), (8, -1)])
def test_short_buffer(length, offset):
    message = f"outer: 8 bytes at offset {offset} of a buffer of {length} bytes"
    with pytest.raises(ValueError, match=message):
        fill(OUTER, {"kind": 1}, bytearray(length), offset)
    with pytest.raises(ValueError, match=message):
        decode(OUTER, bytes(length), offset)


def test_a_refused_value_leaves_the_buffer():
    buffer = bytearray(b"\xa5" * 8)
    with pytest.raises(ValueError, match="tail"):
        fill(OUTER, {"kind": 1, "tail": 256}, buffer)
    assert buffer == b"\xa5" * 8


@pytest.mark.parametrize(
    "wrong",
    [
        [Field("a", 0, 8), Field("a", 8, 8)],
        [Field("a", 0, 9), Field("b", 8, 8)],
        [Field("a", 9, 8)],
        [Field("a", 0, 0)],
        [Field("a", 4, 16, table=INNER)],
        [Field("a", 0, 8, table=INNER)],
    ],
)
def test_impossible_tables(wrong):
    with pytest.raises(ValueError, match="wrong"):
        Table("wrong", 2, *wrong)


@st.composite
def layouts(draw):
    """A strategy for a table of fields with gaps, and values that fit."""
    parts = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 70)), min_size=1, max_size=8))
    bit, made, values = 0, [], {}
    for i, (gap, width) in enumerate(parts):
        made.append(Field(f"f{i}", bit + gap, width))
        values[f"f{i}"] = draw(st.integers(0, (1 << width) - 1))
        bit += gap + width
    return Table("random", -(-bit // 8) + draw(st.integers(0, 2)), *made), values


@given(layouts(), st.integers(0, 255), st.integers(0, 5))
def test_round_trip(layout, background, offset):
    table, values = layout
    buffer = bytearray([background] * (table.size + 8))
    named = 0
    for field in table.fields.values():
        named |= ((1 << field.width) - 1) << 8 * table.size - field.end
    written = fill(table, values, memoryview(buffer), offset)
    assert decode(table, buffer, offset) == values
    assert written == buffer[offset : offset + table.size]
    assert buffer[:offset] == bytes([background] * offset)
    assert buffer[offset + table.size :] == bytes([background] * (8 - offset))
    rest = int.from_bytes(bytes([background] * table.size), "big") & ~named
    assert int.from_bytes(written, "big") & ~named == rest
    assert fill(table, values) == (int.from_bytes(written, "big") & named).to_bytes(table.size, "big")


def test_hexdump_as_the_kernel_driver():
    assert hexdump(bytes(range(22))) == "000: 00010203 04050607 08090a0b 0c0d0e0f\n010: 10111213 1415"
    assert hexdump(b"") == ""


def test_pretty():
    data = fill(OUTER, {"kind": 1, "inner": {"b": 2}})
    assert pretty(OUTER, data).splitlines() == ["000: 00010002 00000000", "  004 outer.kind = 0x1 RED", "  013 outer.inner.b = 0x2"]


def test_named_and_byte():
    assert fields.named(Color, 1) == "0x1 RED"
    assert fields.named(Color, 7) == "0x7"
    assert fields.named(None, 0x20) == "0x20"
    assert (OUTER.byte("kind"), OUTER.byte("tail")) == (0, 7)
    assert repr(OUTER) == "Table('outer', 0x8)"
