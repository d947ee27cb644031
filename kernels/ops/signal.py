"""Signals: 64-bit words that announce data (OpenSHMEM 1.5, "Signaling Operations")."""

from collections.abc import Callable
from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.codes import SignalOp
from pgas.kernels.compiler import address_of, address_of_element, constant, types, u64
from pgas.kernels.ops import operands, rma
from pgas.kernels.paths import transport
from pgas.kernels.refusals import refuse
from pgas.kernels.scope import Scope

_ADD, _OPS = int(SignalOp.ADD), len(SignalOp)
_0 = constant(0)


def put_signal(scope: Scope, *, nbi: bool) -> Callable[..., Any]:
    """Typing function of put_signal and put_signal_nbi at a scope."""
    name = ("put_signal_nbi" if nbi else "put_signal") + scope.suffix
    code = operation.number(name)
    sync = scope.entry(name)

    def typing(dest: Any, source: Any, sig: Any, idx: Any, value: Any, op: Any, pe: Any) -> Any:
        contiguous = operands.same_elements(name, dest, source)
        operands.integer(name, "pe", pe)
        _word(name, sig, idx, value, op)
        length_of = rma.length(dest, source, None, name)
        move = transport.current().put_signal(name, scope, min(operands.unit(dest), operands.unit(source)), nbi=nbi)
        check = operands.checking()

        def body(dest, source, sig, idx, value, op, pe):
            sync()
            if contiguous is not None:
                if not contiguous(dest, source):
                    return
            to = address_of(dest)
            word = address_of_element(sig, idx)
            if check:
                if not state.valid_element(code, pe, sig, idx, word, u64(8)):
                    return
                if not state.valid_code(code, pe, word, op, _OPS):
                    return
            origin = address_of(source)
            nbytes = length_of(dest.size, source.size, None, pe, to, origin, 0)
            if check:
                if nbytes == _0 and source.size != 0:  # rejected, so there must be no signal without its data
                    return
            move(to, origin, nbytes, word, u64(value), op == _ADD, pe)

        return body

    return typing


def signal_op(sig: Any, idx: Any, value: Any, op: Any, pe: Any) -> Any:
    """Typing function of signal_op."""
    _word("signal_op", sig, idx, value, op)
    operands.integer("signal_op", "pe", pe)
    check, code, send = operands.checking(), operation.number("signal_op"), transport.current().signal

    def body(sig, idx, value, op, pe):
        addr = address_of_element(sig, idx)
        if check:
            if not state.valid_element(code, pe, sig, idx, addr, u64(8)):
                return
            if not state.valid_code(code, pe, addr, op, _OPS):
                return
        send(addr, u64(value), op == _ADD, pe)

    return body


def _word(name: str, sig: Any, idx: Any, value: Any, op: Any) -> None:
    word(name, sig)
    operands.subscript(name, "sig", sig, idx)
    operands.integer(name, "value", value)
    operands.code(name, "op", op, SignalOp)


def word(name: str, sig: Any) -> None:
    """Reject a signal array that does not hold 64-bit unsigned words."""
    if not isinstance(sig, types.Array) or sig.dtype != types.uint64:
        refuse("signal word", function=name, found=operands.described(sig))
