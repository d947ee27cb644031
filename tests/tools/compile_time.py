"""How long the compiler takes: ``python tests/tools/compile_time.py [--json FILE]``, one PE, on a GPU.

Measures the first launch of kernels without a disk cache, in one process: the very first, which includes the start of the compiler; then
kernels that call functions for the first time; then kernels that call them again. Also the host's time for a launch, by
``kernel[grid, block](...)`` and bound.
"""

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pgas
from pgas.base.output import outlive_reader

# isort: split
from numba import cuda

from pgas.base.arguments import Parser, output_file

__all__ = ["main"]


@pgas.jit(cache=False)
def first_put_block(dest, source, sig, pe):
    pgas.put_block(dest, source, pe)
    pgas.quiet()


@pgas.jit(cache=False)
def new_put(dest, source, sig, pe):
    pgas.put(dest, source, pe)


@pgas.jit(cache=False)
def new_p_and_atomic(dest, source, sig, pe):
    pgas.p(dest, cuda.threadIdx.x, source[0], pe)
    pgas.atomic_add(dest, 0, 1, pe)


@pgas.jit(cache=False)
def new_put_signal_and_barrier(dest, source, sig, pe):
    pgas.put_signal_block(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, pe)
    if cuda.threadIdx.x == 0:
        pgas.barrier_all()


@pgas.jit(cache=False)
def again_put_block(dest, source, sig, pe):
    pgas.put_block(dest, source, pe)
    pgas.p(dest, 0, 1, pe)


@pgas.jit(cache=False)
def again_put_signal(dest, source, sig, pe):
    pgas.put_signal_block(dest, source, sig, 0, 2, pgas.SIGNAL_SET, pe)
    pgas.quiet()


@pgas.jit(cache=False)
def again_barrier(dest, source, sig, pe):
    pgas.atomic_add(dest, 1, 1, pe)
    if cuda.threadIdx.x == 0:
        pgas.barrier_all()


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def main() -> int:
    outlive_reader()
    parser = Parser("compile_time", description=__doc__)
    parser.add_argument("--json", type=output_file, metavar="FILE")
    options = parser.parse_args()
    rows: dict[str, float] = {}
    with pgas.init() as job:
        if job.n_pes != 1:
            parser.error("run it without mpirun: one PE")
        args = dest, source, sig = pgas.zeros(64, np.float32), pgas.zeros(64, np.float32), pgas.zeros(1, np.uint64)
        for kernel in (
            first_put_block, new_put, new_p_and_atomic, new_put_signal_and_barrier, again_put_block, again_put_signal, again_barrier,
        ):  # fmt: skip

            def launch(kernel: Any = kernel) -> None:
                kernel[1, 32](*args, 0)
                pgas.synchronize()

            rows[f"{kernel.__name__}_ms"] = _seconds(launch) * 1e3
        bound = again_put_block[1, 32].bind(*args, 0)
        for name, call in (("launch_us", lambda: again_put_block[1, 32](*args, 0)), ("bound_launch_us", bound)):
            rows[name] = _seconds(functools.partial(_repeat, call, 1000)) * 1e3
            pgas.synchronize()
        for name, value in rows.items():
            print(f"{name:32} {value:10.1f}")
        if options.json:
            Path(options.json).write_text(json.dumps({"test": "compile_time", **pgas.info(), "rows": rows}, indent=1) + "\n")
        for array in (dest, source, sig):
            pgas.free(array)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
