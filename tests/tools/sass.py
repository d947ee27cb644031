"""Counts the instructions of the device functions: ``python tests/tools/sass.py [--transport ibgda] [function ...]``.

Compiles a kernel with one call each, without a GPU. ``python -m pgas compile`` does the same with the kernels of a program.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pgas
from pgas import cuda
from pgas.base.arguments import Parser, one_of
from pgas.base.output import outlive_reader
from pgas.kernels.compiler import types
from pgas.sass import COMPUTE_CAPABILITY, CONSTANTS, Kernels, build_all, configure

__all__ = ["KERNELS"]

_F32, _U64, _I32, _PE = types.float32[::1], types.uint64[::1], types.int32[::1], types.int32


_VALUE, _COND, _MASK = 0x0102_0304_0506_0708, 0x1010_1010_1010_1010, 0x0F0F_00FF


def _p(dest, value, pe):
    pgas.p(dest, cuda.threadIdx.x, value, pe)


def _g(dest, out, pe):
    out[0] = pgas.g(dest, cuda.threadIdx.x, pe)


def _put(dest, source, pe):
    pgas.put(dest, source, pe)


def _put_warp(dest, source, pe):
    pgas.put_warp(dest, source, pe)


def _put_block(dest, source, pe):
    pgas.put_block(dest, source, pe)


def _put_nbi_block(dest, source, pe):
    pgas.put_nbi_block(dest, source, pe)


def _get_block(dest, source, pe):
    pgas.get_block(dest, source, pe)


def _get(dest, source, pe):
    pgas.get(dest, source, pe)


def _get_warp(dest, source, pe):
    pgas.get_warp(dest, source, pe)


def _get_nbi_block(dest, source, pe):
    pgas.get_nbi_block(dest, source, pe)


def _iput(dest, source, dst_stride, src_stride, pe):
    pgas.iput(dest, source, dst_stride, src_stride, pe)


def _iput_block(dest, source, dst_stride, src_stride, pe):
    pgas.iput_block(dest, source, dst_stride, src_stride, pe)


def _iget_warp(dest, source, dst_stride, src_stride, pe):
    pgas.iget_warp(dest, source, dst_stride, src_stride, pe, 1000)


def _put_signal(dest, source, sig, pe):
    pgas.put_signal(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)


def _put_signal_warp(dest, source, sig, pe):
    pgas.put_signal_warp(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)


def _put_signal_block(dest, source, sig, pe):
    pgas.put_signal_block(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, pe)


def _signal_op(sig, pe):
    pgas.signal_op(sig, 0, 1, pgas.SIGNAL_SET, pe)


def _signal_wait_until(sig, value):
    pgas.signal_wait_until(sig, 0, pgas.GE, value)


def _atomic_add(dest, pe):
    pgas.atomic_add(dest, 0, 1, pe)


def _atomic_fetch_add(dest, pe):
    dest[1] = pgas.atomic_fetch_add(dest, 0, 1, pe)


def _atomic_set(dest, pe):
    pgas.atomic_set(dest, 0, _VALUE, pe)


def _atomic_compare_swap(dest, pe):
    dest[1] = pgas.atomic_compare_swap(dest, 0, _VALUE + _COND, _VALUE, pe)


def _atomic_and(dest, pe):
    pgas.atomic_and(dest, 0, _MASK, pe)


def _atomic_xor(dest, pe):
    pgas.atomic_xor(dest, 0, _MASK, pe)


def _atomic_fetch_or(dest, pe):
    dest[1] = pgas.atomic_fetch_or(dest, 0, _VALUE, pe)


def _atomic_fetch_xor(dest, pe):
    dest[1] = pgas.atomic_fetch_xor(dest, 0, _VALUE, pe)


def _atomic_fetch(dest, pe):
    dest[1] = pgas.atomic_fetch(dest, 0, pe)


def _test(ivar, value):
    if pgas.test(ivar, 0, pgas.GE, value):
        ivar[1] = 0


def _wait_until_all(ivars, status, value):
    pgas.wait_until_all(ivars, status, pgas.GE, value)


def _wait_until_any(ivars, status, value):
    status[pgas.wait_until_any(ivars, status, pgas.GE, value)] = 1


def _wait_until_some_vector(ivars, indices, values):
    indices[0] = pgas.wait_until_some_vector(ivars, indices, None, pgas.EQ, values)


def _quiet():
    pgas.quiet()


def _quiet_pe(pe):
    pgas.quiet_pe(pe)


def _flush():
    pgas.flush()


def _fence():
    pgas.fence()


def _barrier_all():
    pgas.barrier_all()


def _sync_all():
    pgas.sync_all()


def _p_of(dtype: Any) -> tuple[Callable[..., None], tuple[Any, ...]]:
    return _p, (dtype[::1], dtype, _PE)


def _of(function: Callable[..., None], dtype: Any) -> tuple[Callable[..., None], tuple[Any, ...]]:
    return function, (dtype[::1], _PE)


_RMA = (_F32, _F32, _PE)
_STRIDED = (_F32, _F32, types.int32, types.int32, _PE)
_PUT_SIGNAL = (_F32, _F32, _U64, _PE)

#: Kernels with one call each. Elements have 4 bytes, atomics 8, unless the name says otherwise; the signal of put_signal_block is
#: added, the others are set.
KERNELS: Kernels = {
    "p": _p_of(types.float32),
    "p_int8": _p_of(types.int8),
    "p_int16": _p_of(types.int16),
    "p_float64": _p_of(types.float64),
    "p_complex128": _p_of(types.complex128),
    "g": (_g, _RMA),
    "put": (_put, _RMA),
    "put_warp": (_put_warp, _RMA),
    "put_block": (_put_block, _RMA),
    "put_nbi_block": (_put_nbi_block, _RMA),
    "get": (_get, _RMA),
    "get_warp": (_get_warp, _RMA),
    "get_block": (_get_block, _RMA),
    "get_nbi_block": (_get_nbi_block, _RMA),
    "iput": (_iput, _STRIDED),
    "iput_block": (_iput_block, _STRIDED),
    "iget_warp": (_iget_warp, _STRIDED),
    "put_signal": (_put_signal, _PUT_SIGNAL),
    "put_signal_warp": (_put_signal_warp, _PUT_SIGNAL),
    "put_signal_block": (_put_signal_block, _PUT_SIGNAL),
    "signal_op": (_signal_op, (_U64, _PE)),
    "signal_wait_until": (_signal_wait_until, (_U64, types.uint64)),
    "atomic_add": _of(_atomic_add, types.uint64),
    "atomic_add_int32": _of(_atomic_add, types.int32),
    "atomic_add_float32": _of(_atomic_add, types.float32),
    "atomic_add_float64": _of(_atomic_add, types.float64),
    "atomic_fetch_add": _of(_atomic_fetch_add, types.uint64),
    "atomic_fetch_add_int32": _of(_atomic_fetch_add, types.int32),
    "atomic_set": _of(_atomic_set, types.uint64),
    "atomic_compare_swap": _of(_atomic_compare_swap, types.uint64),
    "atomic_and_int32": _of(_atomic_and, types.int32),
    "atomic_xor_int32": _of(_atomic_xor, types.int32),
    "atomic_fetch_or": _of(_atomic_fetch_or, types.uint64),
    "atomic_fetch_xor": _of(_atomic_fetch_xor, types.uint64),
    "atomic_fetch_float32": _of(_atomic_fetch, types.float32),
    "test": (_test, (_U64, types.uint64)),
    "wait_until_all": (_wait_until_all, (_I32, _I32, types.int32)),
    "wait_until_any": (_wait_until_any, (_I32, _I32, types.int32)),
    "wait_until_some_vector": (_wait_until_some_vector, (_U64, _I32, _U64)),
    "quiet": (_quiet, ()),
    "quiet_pe": (_quiet_pe, (_PE,)),
    "flush": (_flush, ()),
    "fence": (_fence, ()),
    "barrier_all": (_barrier_all, ()),
    "sync_all": (_sync_all, ()),
}


def _capability(text: str) -> tuple[int, int]:
    """Convert a compute capability."""
    major, _, minor = one_of(("8.0", "8.6", "8.9", "9.0", "10.0", "12.0"))(text).partition(".")
    return int(major), int(minor)


def main() -> int:
    """Print instructions, registers and spills of every kernel of the table."""
    outlive_reader()
    parser = Parser("python tests/tools/sass.py", description=__doc__)
    parser.add_argument("--transport", choices=CONSTANTS, default="p2p")
    parser.add_argument("--map-by", choices=("cta", "sm", "warp"), default="cta", help="threads that share a queue pair (NIC transports)")
    parser.add_argument("--check", action="store_true", help="as under PGAS_DEBUG=check")
    parser.add_argument("--settles", action="store_true", help="as under PGAS_NIC_ORDERING=none (NIC transports)")
    parser.add_argument("--cc", type=_capability, default=COMPUTE_CAPABILITY, metavar="CC", help="[9.0]; A100: 8.0")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("functions", nargs="*", metavar="function", help="rows of the table [all]")
    options = parser.parse_args()
    if pgas.SIMULATOR:  # compile for a GPU even where there is none: numba.cuda has decided otherwise in this process
        command = [sys.executable, *sys.argv]
        return subprocess.run(command, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}, check=False).returncode
    if unknown := set(options.functions) - KERNELS.keys():
        parser.error(f"no such function: {', '.join(sorted(unknown))}; there are {', '.join(KERNELS)}")
    configure(options.transport, options.map_by, check=options.check, settles=options.settles)
    built = build_all({name: kernel for name, kernel in KERNELS.items() if not options.functions or name in options.functions}, options.cc)
    if options.json:
        print(json.dumps({name: b.summary() for name, b in built.items()}, indent=1))
        return 0
    where = f"{options.transport}, sm_{options.cc[0]}{options.cc[1]}"
    print(f"{'function':22} {'SASS':>5} {'registers':>9} {'spills':>6}   ({where})")
    for name, b in built.items():
        print(f"{name:22} {len(b.instructions):5} {b.registers:9} {b.spills:6}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
