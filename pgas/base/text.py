"""Parsing of words and numbers that users write, and printing of text from other sources."""

import ipaddress
import re
import socket
from collections.abc import Sequence

#: Maximum number of ranges in the text of ranges().
_MAX_RANGES = 6


def printable(text: str, most: int = 80) -> str:
    """Return a text on one line, with control characters and undecodable bytes escaped, cut after ``most`` characters."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}..."


def integer(text: str) -> int:
    """Return an integer in decimal ASCII digits. int() also takes other digits, and underscores between them.

    Raises:
        ValueError: if text is not such a number of at most 30 digits.
    """
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", text):
        raise ValueError(f"'{printable(text)}' is not an integer")
    return int(text)


def real(text: str) -> float:
    """Return a number in ASCII digits, possibly with a point and an exponent. Raises ValueError if text is not such a number."""
    if not re.fullmatch(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*", text, re.ASCII | re.IGNORECASE):
        raise ValueError(f"'{printable(text)}' is not a number")
    return float(text)


def host(text: str) -> str:
    """Return a host's name or IP address.

    Raises:
        ValueError: if text is neither. Python's resolver would raise a UnicodeError for some such names.
    """
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        if len(text) > 253 or not all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", label) for label in labels):
            raise ValueError(
                f"'{printable(text)}' is not a host: an IP address, or a name whose labels have 1 to 63 letters, digits, - or _"
            ) from None
    return text


def one_host(text: str) -> str:
    """Return a host that other nodes can connect to. Raises ValueError, like host(), or if text stands for all or many addresses."""
    try:
        address = ipaddress.ip_address(host(text))
    except ValueError:
        host(text)
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(text))  # Resolvers take 0 and 0x0 for 0.0.0.0.
        except OSError:
            return text
    if (getattr(address, "ipv4_mapped", None) or address).is_unspecified or address.is_multicast:
        raise ValueError(
            f"'{text}' stands for {'all' if not address.is_multicast else 'many'} addresses; it must be one address or name of a node"
        )
    return text


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, such as "0-3, 7, 9-12", with at most _MAX_RANGES ranges."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:_MAX_RANGES])
    return text + (", ..." if len(runs) > _MAX_RANGES else "")
