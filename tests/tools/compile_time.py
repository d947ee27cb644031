"""How long the first launch of a kernel takes: ``python tests/tools/compile_time.py [--json FILE]``, one PE, on a GPU.

Each kernel is launched in two processes. In the first, the disk cache is empty. In the second, it is as if the kernels' files had changed:
Numba compiles the kernels, but finds the pgas functions that they call in the cache.
"""

import json
import os
import subprocess
import sys
import tempfile
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
def no_pgas(dest, source, sig, team):
    dest[0] = source[0]


@pgas.jit(cache=False)
def p_and_atomic(dest, source, sig, team):
    pgas.p(dest, cuda.threadIdx.x, source[0], 0)
    pgas.atomic_add(dest, 0, 1, 0)


@pgas.jit(cache=False)
def put_signal_wait_barrier(dest, source, sig, team):
    pgas.put_signal_block(dest, source, sig, 0, 1, pgas.SIGNAL_SET, 0)
    if cuda.threadIdx.x == 0:
        pgas.signal_wait_until(sig, 0, pgas.GE, 1)
    pgas.barrier_all_block()


@pgas.jit(cache=False)
def broadcast(dest, source, sig, team):
    pgas.broadcast_block(team, dest, source, 0)


@pgas.jit(cache=False)
def alltoall(dest, source, sig, team):
    pgas.alltoall_block(team, dest, source)


@pgas.jit(cache=False)
def reduce(dest, source, sig, team):
    pgas.reduce_block(team, dest, source, pgas.SUM)


def measure() -> dict[str, float]:
    rows: dict[str, float] = {}
    with pgas.init():
        arrays = pgas.zeros(64, np.float32), pgas.zeros(64, np.float32), pgas.zeros(1, np.uint64)
        dest, source, _ = arrays
        team, stream = pgas.TEAM_WORLD, cuda.stream()

        def timed(name: str, work: Callable[[], Any]) -> None:
            started = time.perf_counter()
            work()
            pgas.synchronize()
            rows[name] = time.perf_counter() - started

        for kernel in (no_pgas, p_and_atomic, put_signal_wait_barrier, broadcast, alltoall, reduce):

            def launch(kernel: Any = kernel) -> None:
                kernel[1, 32](*arrays, team)

            timed(kernel.__name__, launch)
        timed("pgas.barrier on a stream", lambda: pgas.barrier(team, stream=stream))
        timed("pgas.broadcast on a stream", lambda: pgas.broadcast(team, dest, source, 0, stream=stream))
        timed("pgas.reduce on a stream", lambda: pgas.reduce(team, dest, source, pgas.SUM, stream=stream))
        for array in arrays:
            pgas.free(array)
    return rows


def main() -> int:
    outlive_reader()
    parser = Parser("compile_time", description=__doc__)
    parser.add_argument("--json", type=output_file, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        code = "import compile_time, json; print(json.dumps(compile_time.measure()))"
        command = [sys.executable, "-c", code]
        paths = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPATH": paths}
        runs = [json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout) for _ in range(2)]
    print(f"{'first launch or call, s':32} {'empty cache':>12} {'file changed':>13}")
    for name, value in runs[0].items():
        print(f"{name:32} {value:12.2f} {runs[1][name]:13.2f}")
    if options.json:
        with pgas.init():
            about = pgas.info()
        rows = {name: {"empty_cache_s": value, "file_changed_s": runs[1][name]} for name, value in runs[0].items()}
        Path(options.json).write_text(json.dumps({"test": "compile_time", **about, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
