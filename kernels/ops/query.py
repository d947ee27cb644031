"""my_pe, n_pes and ptr (OpenSHMEM 1.5, sections 9.1 and 9.2)."""

from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.compiler import address_of, element_size, i64, u64
from pgas.kernels.ops import operands
from pgas.kernels.paths import transport
from pgas.kernels.refusals import refuse
from pgas.kernels.window import remote


def my_pe() -> Any:
    """Typing function of my_pe."""
    window.constants()

    def body():
        return i64(state.my_pe())

    return body


def n_pes() -> Any:
    """Typing function of n_pes."""
    window.constants()

    def body():
        return i64(state.n_pes())

    return body


def ptr(dest: Any, pe: Any) -> Any:
    """Typing function of ptr; the body returns an address."""
    operands.array("ptr", "dest", dest)
    operands.integer("ptr", "pe", pe)
    if not transport.maps_peers():
        refuse("unmapped", function="ptr", transport=window.constants().transport)
    check, op, itemsize = operands.checking(), operation.number("ptr"), element_size(dest.dtype)

    def body(dest, pe):
        addr = address_of(dest)
        if check:
            if not state.valid(op, pe, addr, u64(dest.size) * u64(itemsize)):
                return addr
        return remote(addr, pe)

    return body
