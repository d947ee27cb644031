"""Carry-less multiplication (x86's PCLMULQDQ), for CRCs of compiled loops."""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import config
from numba.core.extending import intrinsic
from numba.core.typing import signature

_I64, _I8 = ir.IntType(64), ir.IntType(8)
_PAIR = ir.VectorType(_I64, 2)

#: Whether the CPU for which Numba compiles has the instruction: this one, unless NUMBA_CPU_FEATURES is set.
AVAILABLE: bool = (
    bool(llvm.get_host_cpu_features().get("pclmul")) if config.CPU_FEATURES is None else "+pclmul" in config.CPU_FEATURES.split(",")
)


def _fold(typingctx: Any, state: Any, low: Any, high: Any, data: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, low_, high_, source = args
        pointers = [builder.inttoptr(address, _PAIR.as_pointer()) for address in (at, source)]
        old, new = (builder.load(pointer, align=1) for pointer in pointers)
        factors = ir.Constant(_PAIR, [0, 0])
        for place, value in enumerate((low_, high_)):
            factors = builder.insert_element(factors, value, ir.IntType(32)(place))
        multiply = builder.module.declare_intrinsic("llvm.x86.pclmulqdq", (), ir.FunctionType(_PAIR, [_PAIR, _PAIR, _I8]))
        products = [builder.call(multiply, [old, factors, _I8(which)]) for which in (0x00, 0x11)]
        builder.store(builder.xor(builder.xor(*products), new), pointers[0], align=1)
        return _I64(0)

    return signature(types.int64, state, low, high, data), codegen


#: Function fold(state, low, high, data): replace the 16 bytes at state with low half * low ^ high half * high ^ the 16 bytes at data.
fold: Any = intrinsic(_fold)
