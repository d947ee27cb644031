"""The ``PGAS_*`` environment variables: every one is declared here, with its type, default and meaning.

``python -m pgas info`` prints the table. Values are read when pgas.init() runs; a bad one is a ValueError that names it.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["VARIABLES", "Variable", "parse_size", "read"]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int:
    """Return the number of bytes that e.g. ``64M`` or ``1.5g`` names (binary units, as NVSHMEM's sizes).

    Raises:
        ValueError: text is no non-negative number with an optional unit k, m, g or t.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a size (a number with an optional unit K, M, G or T)")
    return int(float(match[1]) * _UNITS[match[2]])


def _size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError("at least 1 byte")
    return size


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise ValueError("a number more than 0, less than 1e9 seconds")
    return value


def _words(*allowed: str) -> Callable[[str], frozenset[str]]:
    def parse(text: str) -> frozenset[str]:
        words = frozenset(word.strip().lower() for word in text.split(",") if word.strip())
        if unknown := words - set(allowed):
            raise ValueError(f"{', '.join(sorted(unknown))}: not among {', '.join(allowed)}")
        return words

    return parse


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return word

    return parse


def _seed(text: str) -> int | None:
    if text == "":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError("a non-negative integer seed, or empty for off")
    return int(text)


def _integer(low: int, high: int, *, power_of_two: bool = False) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.strip().isdigit() else -1
        if not low <= value <= high or (power_of_two and value & (value - 1)):
            raise ValueError(f"{'a power of two' if power_of_two else 'an integer'} from {low} to {high}")
        return value

    return parse


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    parse: Callable[[str], Any]
    default: str
    meaning: str
    type: str

    def read(self) -> Any:
        """Return the parsed value of the environment, else of the default.

        Raises:
            ValueError: the value does not parse; the text names variable, value and what is allowed.
        """
        text = os.environ.get(self.name, self.default)
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text}: {error}") from None


VARIABLES: dict[str, Variable] = {
    variable.name: variable
    for variable in (
        Variable("PGAS_SYMMETRIC_SIZE", _size, "1G", "bytes of symmetric heap on every PE (units K, M, G, T)", "size"),
        Variable("PGAS_TRANSPORT", _choice("auto", "p2p", "ibgda", "ibrc"), "auto", "path to other PEs", "choice"),
        Variable("PGAS_TIMEOUT", _seconds, "60", "seconds after which a wait in a kernel is an error", "float"),
        Variable("PGAS_DEBUG", _words("info", "check"), "", "info: say what init chose; check: kernels check PEs and addresses", "words"),
        Variable("PGAS_SIM_WEAK", _seed, "", "simulator: delay and reorder remote stores, seeded by this integer", "seed"),
        Variable("PGAS_IBGDA_NUM_RC_PER_PE", _integer(1, 64), "2", "queue pairs from each PE to each PE", "integer"),
        Variable("PGAS_IBGDA_RC_MAP_BY", _choice("cta", "sm", "warp"), "cta", "whose threads share a queue pair by default", "choice"),
        Variable(
            "PGAS_IBGDA_NUM_REQUESTS_IN_BATCH",
            _integer(1, 64, power_of_two=True),
            "32",
            "WQEBBs after which a doorbell is rung although more WQEs are on their way",
            "integer",
        ),
        Variable("PGAS_QP_DEPTH", _integer(128, 32768, power_of_two=True), "1024", "WQEBBs of 64 bytes in a send queue", "integer"),
        Variable("PGAS_IBRC_RING_SIZE", _integer(64, 65536, power_of_two=True), "4096", "requests in the proxy thread's ring", "integer"),
        Variable("PGAS_TRACE", _words("wqe", "cqe", "cmd"), "", "software card: print WQEs, CQEs, commands, as bytes and decoded", "words"),
        Variable("PGAS_SOFTHCA_FAULTS", str, "", "software card: seeded faults, e.g. seed=1,delay=0.1,fail=17:0x13,stop=100", "words"),
    )
}


def read(name: str) -> Any:
    """Return the parsed value of one declared variable."""
    return VARIABLES[name].read()


def unknown_variables() -> list[str]:
    """Return the PGAS_* variables of the environment that nothing reads: most likely misspelt."""
    return sorted(name for name in os.environ if name.startswith("PGAS_") and name not in VARIABLES)
