"""The encoding of what processes of a job send each other: plain values, which are data and never code.

The encoding of a value is a tag of one byte, followed by what the table gives for this tag. Numbers are little-endian, and a length or
count has 4 bytes.

=====  ==================================  =====  ====================================
``N``  None                                ``S``  text: length, UTF-8
``T``  True                                ``B``  bytes: length, bytes
``F``  False                               ``L``  list: count, values
``I``  int: length, two's complement       ``U``  tuple: count, values
``D``  float: IEEE 754, 8 bytes
=====  ==================================  =====  ====================================
"""

import struct
from typing import Any

#: Maximum nesting of lists and tuples. Decoding recurses, so a sender must not choose the depth.
DEPTH_MAX = 16

_LENGTH, _FLOAT = struct.Struct("<I"), struct.Struct("<d")

_CONSTANTS = {b"N": None, b"T": True, b"F": False}


def dumps(value: Any) -> bytes:
    """Return the encoding of a value. A subclass (a named tuple, an enumeration) is encoded like its base.

    Raises:
        TypeError: if the value, or one in it, is not plain.
        ValueError: if the value is nested deeper than DEPTH_MAX.
    """
    out = bytearray()
    _write(out, value, 0)
    return bytes(out)


def _write(out: bytearray, value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueError(f"plain value: nested deeper than {DEPTH_MAX}")
    if value is None or isinstance(value, bool):
        out += b"N" if value is None else b"T" if value else b"F"
    elif isinstance(value, int):
        _write_bytes(out, b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    elif isinstance(value, float):
        out += b"D" + _FLOAT.pack(value)
    elif isinstance(value, str):
        _write_bytes(out, b"S", value.encode(errors="surrogatepass"))  # File names may contain surrogates.
    elif isinstance(value, bytes):
        _write_bytes(out, b"B", value)
    elif isinstance(value, (list, tuple)):
        out += (b"L" if isinstance(value, list) else b"U") + _LENGTH.pack(len(value))
        for each in value:
            _write(out, each, depth + 1)
    else:
        raise TypeError(f"plain value: a {type(value).__name__} must be sent as None, bool, int, float, str, bytes, list or tuple")


def _write_bytes(out: bytearray, tag: bytes, data: bytes) -> None:
    out += tag + _LENGTH.pack(len(data))
    out += data


def loads(data: bytes) -> Any:
    """Return the value of an encoding. Raises ValueError if data is not the encoding of one value."""
    value, end = _read(data, 0, 0)
    if end != len(data):
        raise ValueError(f"plain value: {len(data) - end} bytes follow it")
    return value


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value at an offset, and the offset after it."""
    if depth > DEPTH_MAX:
        raise ValueError(f"plain value: nested deeper than {DEPTH_MAX}")
    tag, at = data[at : at + 1], at + 1
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag == b"D":
        return _FLOAT.unpack(_piece(data, at, _FLOAT.size))[0], at + _FLOAT.size
    if tag not in (b"I", b"S", b"B", b"L", b"U"):
        raise ValueError(f"plain value: unknown tag {tag!r}")
    (length,), at = _LENGTH.unpack(_piece(data, at, _LENGTH.size)), at + _LENGTH.size
    if tag in (b"L", b"U"):
        values = []
        for _ in range(length):  # Each value takes at least one byte, so data limits the count.
            value, at = _read(data, at, depth + 1)
            values.append(value)
        return values if tag == b"L" else tuple(values), at
    piece = _piece(data, at, length)
    if tag == b"B":
        return piece, at + length
    return piece.decode(errors="surrogatepass") if tag == b"S" else int.from_bytes(piece, "little", signed=True), at + length


def _piece(data: bytes, at: int, length: int) -> bytes:
    if len(data) - at < length:
        raise ValueError(f"plain value: cut short, {len(data) - at} of {length} bytes at offset {at}")
    return data[at : at + length]
