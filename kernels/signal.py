"""Signals: 64-bit words that tell of data (OpenSHMEM 1.5, sections 9.9 "Signaling Operations" and 9.10)."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from numba.cuda import types

from pgas.kernels import operands, operation, p2p, rma, state
from pgas.kernels.compiler import KernelTypeError, address_of, address_of_element, u64
from pgas.kernels.scope import Scope
from pgas.kernels.window import remote


class SignalOp(IntEnum):
    """What a signal does to the word."""

    SET = 0
    ADD = 1


_ADD = int(SignalOp.ADD)


def put_signal(scope: Scope, *, nbi: bool) -> Callable[..., Any]:
    """Typing function of put_signal and put_signal_nbi at a scope."""
    name = ("put_signal_nbi" if nbi else "put_signal") + scope.suffix
    code = operation.number("put_signal")
    rank, size, sync = scope.rank, scope.size, scope.sync

    def typing(dest: Any, source: Any, sig: Any, idx: Any, value: Any, op: Any, pe: Any) -> Any:
        operands.same_elements(name, dest, source)
        operands.integer(name, "pe", pe)
        _word(name, sig, idx, value, op)
        length_of = rma.length(dest, source, None, "put_signal")
        copy = p2p.copy(min(operands.unit(dest), operands.unit(source)))
        check = operands.checking()

        def body(dest, source, sig, idx, value, op, pe):
            sync()
            to = address_of(dest)
            word = address_of_element(sig, idx)
            if check:
                if not state.valid(code, pe, word, u64(8)):
                    return
            nbytes = length_of(dest.size, source.size, None, pe, to)
            copy(remote(to, pe), address_of(source), nbytes, u64(rank()), u64(size()), nbi)
            # The barrier makes the stores of all threads happen before the fence of one, which covers them (PTX ISA, causality order).
            sync()
            if rank() == 0:
                p2p.fence()
                p2p.signal(word, u64(value), op == _ADD, pe)

        return body

    return typing


def signal_op(sig: Any, idx: Any, value: Any, op: Any, pe: Any) -> Any:
    """Typing function of signal_op."""
    _word("signal_op", sig, idx, value, op)
    operands.integer("signal_op", "pe", pe)
    check, code = operands.checking(), operation.number("signal_op")

    def body(sig, idx, value, op, pe):
        addr = address_of_element(sig, idx)
        if check:
            if not state.valid(code, pe, addr, u64(8)):
                return
        p2p.signal(addr, u64(value), op == _ADD, pe)

    return body


def _word(name: str, sig: Any, idx: Any, value: Any, op: Any) -> None:
    word(name, sig)
    operands.subscript(name, "sig", sig, idx)
    operands.integer(name, "value", value)
    operands.integer(name, "op", op)


def word(name: str, sig: Any) -> None:
    """Refuse a signal array that does not hold 64-bit unsigned words."""
    if not isinstance(sig, types.Array) or sig.dtype != types.uint64:
        raise KernelTypeError(f"pgas.{name}: sig must be an array of uint64, not {sig}")
