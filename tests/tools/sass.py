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
from pgas.base.model import COMPUTE_CAPABILITY
from pgas.base.output import outlive_reader
from pgas.kernels.compiler import types
from pgas.sass import CONSTANTS, Kernels, build_all, configure

__all__ = ["KERNELS", "LENT"]

_F32, _U64, _I32, _PE = types.float32[::1], types.uint64[::1], types.int32[::1], types.int32

_VALUE, _COND, _MASK = 0x0102_0304_0506_0708, 0x1010_1010_1010_1010, 0x0F0F_00FF


def _call(line: str, **arguments: Any) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Return a kernel of one line and the types of its arguments."""
    built: dict[str, Any] = {
        "pgas": pgas,
        "cuda": cuda,
        "types": types,
        "VALUE": _VALUE,
        "COND": _COND,
        "MASK": _MASK,
        "__name__": __name__,
    }
    exec(f"def kernel({', '.join(arguments)}):\n    {line}", built)
    return built["kernel"], tuple(arguments.values())


_RMA = {"dest": _F32, "source": _F32, "pe": _PE}
_STRIDED = {"dest": _F32, "source": _F32, "dst_stride": types.int32, "src_stride": types.int32, "pe": _PE}
_PUT_SIGNAL = {"dest": _F32, "source": _F32, "sig": _U64, "pe": _PE}

#: Kernels with one call each. Elements have 4 bytes, atomics 8, unless the name says otherwise; the signal of put_signal_block is
#: added, the others are set.
KERNELS: Kernels = {
    "p": _call("pgas.p(dest, cuda.threadIdx.x, value, pe)", dest=_F32, value=types.float32, pe=_PE),
    "p_int8": _call("pgas.p(dest, cuda.threadIdx.x, value, pe)", dest=types.int8[::1], value=types.int8, pe=_PE),
    "p_int16": _call("pgas.p(dest, cuda.threadIdx.x, value, pe)", dest=types.int16[::1], value=types.int16, pe=_PE),
    "p_float64": _call("pgas.p(dest, cuda.threadIdx.x, value, pe)", dest=types.float64[::1], value=types.float64, pe=_PE),
    "p_complex128": _call("pgas.p(dest, cuda.threadIdx.x, value, pe)", dest=types.complex128[::1], value=types.complex128, pe=_PE),
    "g": _call("source[0] = pgas.g(dest, cuda.threadIdx.x, pe)", **_RMA),
    "put": _call("pgas.put(dest, source, pe)", **_RMA),
    "put_warp": _call("pgas.put_warp(dest, source, pe)", **_RMA),
    "put_block": _call("pgas.put_block(dest, source, pe)", **_RMA),
    "put_nbi_block": _call("pgas.put_nbi_block(dest, source, pe)", **_RMA),
    "get": _call("pgas.get(dest, source, pe)", **_RMA),
    "get_warp": _call("pgas.get_warp(dest, source, pe)", **_RMA),
    "get_block": _call("pgas.get_block(dest, source, pe)", **_RMA),
    "get_nbi_block": _call("pgas.get_nbi_block(dest, source, pe)", **_RMA),
    "iput": _call("pgas.iput(dest, source, dst_stride, src_stride, pe)", **_STRIDED),
    "iput_block": _call("pgas.iput_block(dest, source, dst_stride, src_stride, pe)", **_STRIDED),
    "iget_warp": _call("pgas.iget_warp(dest, source, dst_stride, src_stride, pe, 1000)", **_STRIDED),
    "put_signal": _call("pgas.put_signal(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)", **_PUT_SIGNAL),
    "put_signal_warp": _call("pgas.put_signal_warp(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)", **_PUT_SIGNAL),
    "put_signal_block": _call("pgas.put_signal_block(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, pe)", **_PUT_SIGNAL),
    "signal_op": _call("pgas.signal_op(sig, 0, 1, pgas.SIGNAL_SET, pe)", sig=_U64, pe=_PE),
    "signal_wait_until": _call("pgas.signal_wait_until(sig, 0, pgas.GE, value)", sig=_U64, value=types.uint64),
    "atomic_add": _call("pgas.atomic_add(dest, 0, 1, pe)", dest=_U64, pe=_PE),
    "atomic_add_int32": _call("pgas.atomic_add(dest, 0, 1, pe)", dest=_I32, pe=_PE),
    "atomic_add_float32": _call("pgas.atomic_add(dest, 0, 1, pe)", dest=_F32, pe=_PE),
    "atomic_add_float64": _call("pgas.atomic_add(dest, 0, 1, pe)", dest=types.float64[::1], pe=_PE),
    "atomic_fetch_add": _call("dest[1] = pgas.atomic_fetch_add(dest, 0, 1, pe)", dest=_U64, pe=_PE),
    "atomic_fetch_add_int32": _call("dest[1] = pgas.atomic_fetch_add(dest, 0, 1, pe)", dest=_I32, pe=_PE),
    "atomic_set": _call("pgas.atomic_set(dest, 0, VALUE, pe)", dest=_U64, pe=_PE),
    "atomic_compare_swap": _call("dest[1] = pgas.atomic_compare_swap(dest, 0, VALUE + COND, VALUE, pe)", dest=_U64, pe=_PE),
    "atomic_and_int32": _call("pgas.atomic_and(dest, 0, MASK, pe)", dest=_I32, pe=_PE),
    "atomic_xor_int32": _call("pgas.atomic_xor(dest, 0, MASK, pe)", dest=_I32, pe=_PE),
    "atomic_fetch_or": _call("dest[1] = pgas.atomic_fetch_or(dest, 0, VALUE, pe)", dest=_U64, pe=_PE),
    "atomic_fetch_xor": _call("dest[1] = pgas.atomic_fetch_xor(dest, 0, VALUE, pe)", dest=_U64, pe=_PE),
    "atomic_fetch_float32": _call("dest[1] = pgas.atomic_fetch(dest, 0, pe)", dest=_F32, pe=_PE),
    "test": _call("if pgas.test(ivar, 0, pgas.GE, value): ivar[1] = 0", ivar=_U64, value=types.uint64),
    "wait_until_all": _call("pgas.wait_until_all(ivars, status, pgas.GE, value)", ivars=_I32, status=_I32, value=types.int32),
    "wait_until_any": _call("status[pgas.wait_until_any(ivars, status, pgas.GE, value)] = 1", ivars=_I32, status=_I32, value=types.int32),
    "wait_until_some_vector": _call(
        "indices[0] = pgas.wait_until_some_vector(ivars, indices, None, pgas.EQ, values)", ivars=_U64, indices=_I32, values=_U64
    ),
    "quiet": _call("pgas.quiet()"),
    "quiet_pe": _call("pgas.quiet_pe(pe)", pe=_PE),
    "flush": _call("pgas.flush()"),
    "fence": _call("pgas.fence()"),
    "barrier_all": _call("pgas.barrier_all()"),
    "sync_all": _call("pgas.sync_all()"),
}

#: A put through lent shared memory, which differs from put() over p2p only.
LENT = _call("smem = cuda.shared.array(32768, types.uint8); pgas.give_smem(smem); pgas.put(dest, source, pe, smem=smem)", **_RMA)


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = one_of(("8.0", "8.6", "8.9", "9.0", "10.0", "12.0"))(text).partition(".")
    return int(major), int(minor)


def main() -> int:
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
