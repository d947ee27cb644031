"""Big-endian structures as tables of field name, bit offset, and width.

Offsets are those of mlx5_ifc.h: bit 0 is the most significant bit of byte 0. A field may have any width and begin at any bit. A field
that is itself a structure has that structure's table. Bits without a field are reserved: zero in a new structure, unchanged when fields are
set in memory.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias


class Explained(IntEnum):
    """Numbers with explanations: a member is defined by its number and its text."""

    text: str

    def __new__(cls, value: int, text: str = "") -> "Explained":
        member = int.__new__(cls, value)
        member._value_, member.text = value, text
        return member


def explanation(kind: type[Explained], value: int) -> str:
    """Return the text of a number, "" if no member has it."""
    return kind(value).text if value in kind.__members__.values() else ""


#: Type of bytes to read from, or to write to if they are writable. Wrap other buffers in memoryview().
Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Field:
    """A field of a structure: bits [bit, bit + width)."""

    name: str
    bit: int
    width: int
    words: type[IntEnum] | None = None  # names of its values
    table: "Table | None" = None  # table of a nested structure

    @property
    def end(self) -> int:
        return self.bit + self.width


class Table:
    """A structure of size bytes.

    Raises:
        ValueError: two fields have the same name or overlap, or a field ends beyond the structure.
    """

    def __init__(self, name: str, size: int, *fields: Field) -> None:
        self.name, self.size = name, size
        self.fields = {field.name: field for field in fields}
        if len(self.fields) != len(fields):
            raise ValueError(f"{name}: a field name occurs twice")
        end = 0
        for field in sorted(fields, key=lambda field: field.bit):
            if field.width < 1 or field.bit < end or field.end > 8 * size:
                raise ValueError(f"{name}.{field.name}: bits {field.bit:#x} to {field.end:#x} overlap another field or the structure's end")
            if field.table is not None and (field.bit % 8 or field.width != 8 * field.table.size):
                raise ValueError(f"{name}.{field.name}: {field.table.name} has {field.table.size} whole bytes")
            end = field.end

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self.size:#x})"

    def __getitem__(self, name: str) -> Field:
        if name not in self.fields:
            raise ValueError(f"{self.name} has no field {name!r}; it has {', '.join(self.fields)}")
        return self.fields[name]

    def byte(self, name: str) -> int:
        """Return the offset of the byte in which a field begins."""
        return self[name].bit // 8


def fill(table: Table, values: Mapping[str, Any], buffer: Buffer | None = None, offset: int = 0) -> bytes:
    """Set fields of a new zeroed structure, or of the structure at offset in a buffer. Other bits of the buffer do not change.

    Args:
        table: table of the structure.
        values: an int for each field to set, or a mapping of such values for a nested structure.
        buffer: writable bytes that hold the structure; they do not change if a value is rejected.
        offset: where the structure begins in the buffer.

    Returns:
        The bytes of the whole structure.

    Raises:
        ValueError: there is no such field, a value does not fit its field, or the buffer is too short for the structure.
        TypeError: a value is not an integer, or not a mapping where the field is a structure.
    """
    if buffer is None:
        data = bytearray(table.size)
        _fill(table, values, data, 0, table.name)
        return bytes(data)
    view = memoryview(buffer).cast("B")
    data = bytearray(_at(table, view, offset))
    _fill(table, values, data, 0, table.name)
    view[offset : offset + table.size] = data
    return bytes(data)


def _fill(table: Table, values: Mapping[str, Any], data: bytearray, base: int, path: str) -> None:
    for name, value in values.items():
        field = table[name]
        if field.table is not None:
            if not isinstance(value, Mapping):
                raise TypeError(f"{path}.{name}: a mapping of fields of {field.table.name}, not {value!r}")
            _fill(field.table, value, data, base + field.bit // 8, f"{path}.{name}")
            continue
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{path}.{name}: an integer of {field.width} bits, not {value!r}") from None
        if not 0 <= number < 1 << field.width:
            raise ValueError(f"{path}.{name}: {number:#x} does not fit in {field.width} bits")
        first, last, shift = _span(field)
        window = slice(base + first, base + last)
        mask = ((1 << field.width) - 1) << shift
        old = int.from_bytes(data[window], "big")
        data[window] = (old & ~mask | number << shift).to_bytes(last - first, "big")


def decode(table: Table, data: Buffer, offset: int = 0) -> dict[str, Any]:
    """Return every field of the structure at offset in data: ints, and dicts for nested structures.

    Raises:
        ValueError: data is too short for the structure.
    """
    return _decode(table, bytes(_at(table, memoryview(data).cast("B"), offset)), 0)


def _decode(table: Table, data: bytes, base: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in table.fields.items():
        first, last, shift = _span(field)
        if field.table is not None:
            values[name] = _decode(field.table, data, base + first)
        else:
            values[name] = int.from_bytes(data[base + first : base + last], "big") >> shift & (1 << field.width) - 1
    return values


def _span(field: Field) -> tuple[int, int, int]:
    """Return the first byte of a field, the byte after its last, and the shift of its lowest bit in these bytes."""
    last = -(-field.end // 8)
    return field.bit // 8, last, 8 * last - field.end


def _at(table: Table, view: memoryview, offset: int) -> memoryview:
    if offset < 0 or offset + table.size > len(view):
        raise ValueError(f"{table.name}: {table.size} bytes at offset {offset} of a buffer of {len(view)} bytes")
    return view[offset : offset + table.size]


def named(words: type[IntEnum] | None, value: int) -> str:
    """Return a value in hex, with its name if it has one."""
    if words is not None and value in words.__members__.values():
        return f"{value:#x} {words(value).name}"
    return f"{value:#x}"


def hexdump(data: Buffer) -> str:
    """Return data in the format of the mlx5 kernel driver: per line, an offset of three digits and four big-endian words."""
    raw = bytes(data)
    lines = []
    for at in range(0, len(raw), 16):
        words = [raw[i : i + 4].hex() for i in range(at, min(at + 16, len(raw)), 4)]
        lines.append(f"{at:03x}: {' '.join(words)}")
    return "\n".join(lines)


def pretty(table: Table, data: Buffer) -> str:
    """Return a structure as a hexdump and one line per field that is not zero: bit offset, name, value."""
    raw = bytes(_at(table, memoryview(data).cast("B"), 0))
    return "\n".join([hexdump(raw), *_lines(table, _decode(table, raw, 0), 0, table.name)])


def _lines(table: Table, values: Mapping[str, Any], base: int, path: str) -> list[str]:
    lines = []
    for name, field in table.fields.items():
        if field.table is not None:
            lines += _lines(field.table, values[name], base + field.bit, f"{path}.{name}")
        elif values[name]:
            lines.append(f"  {base + field.bit:03x} {path}.{name} = {named(field.words, values[name])}")
    return lines
