"""Measures how many blocks the host's collectives need: each collective and size, with each number of blocks, captured in a graph.

    mpirun -n 4 python -m pgas.perftests.tune

Sizes are bytes between two PEs, like those of PGAS_LL_BYTES. A row has the microseconds of a call on the slowest PE by number of blocks,
and the chosen number: the fewest blocks that take at most 3% more time than the best. The last line is the value of PGAS_HOST_BLOCKS with
all choices; the defaults are in pgas/job/blocks.py. If dest is not bitwise identical with every number of blocks, the exit status is 1.
"""

import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.base.arguments import Parser, one_of, output_file, size_flag, within
from pgas.base.config import COLLECTIVES, parse_size
from pgas.base.output import outlive_reader
from pgas.perftests.coll_on_stream import together
from pgas.perftests.harness.collectives import dtype_of
from pgas.perftests.harness.report import commit, now
from pgas.perftests.harness.workload import DATATYPES

#: Maximum time of the chosen number of blocks, relative to the best.
_SLACK = 1.03


def _call(name: str, nbytes: int, dtype: np.dtype) -> tuple[Callable[[Any], None], Any, list[Any]]:
    """Return a call on a stream, its dest, and its arrays. Collective."""
    me, n, team = pgas.my_pe(), pgas.n_pes(), pgas.TEAM_WORLD
    size = nbytes // dtype.itemsize
    in_source, in_dest = size * (n if name in ("alltoall", "reducescatter") else 1), size * (n if name in ("alltoall", "fcollect") else 1)
    few = np.random.default_rng([me, nbytes]).integers(0, 100, min(in_source, 99_991)).astype(dtype)
    source = pgas.array(np.resize(few, in_source))
    dest = pgas.zeros(in_dest, dtype)
    more = {"broadcast": (0,), "reduce": (pgas.SUM,), "reducescatter": (pgas.SUM,)}.get(name, ())
    function = getattr(pgas, name)
    return (lambda stream: function(team, dest, source, *more, stream=stream)), dest, [dest, source]


def _measure(name: str, nbytes: int, dtype: np.dtype, iters: int) -> tuple[float, int]:
    """Return the microseconds of a call on the slowest PE, and a checksum of all PEs' dests. Collective."""
    call, dest, arrays = _call(name, nbytes, dtype)
    stream = cuda.stream()
    call(stream)
    pgas.synchronize(stream)
    checksum = zlib.crc32(dest.copy_to_host().tobytes())
    pgas.barrier_all()
    best = min(together(stream, [call] * iters, graph=True) for _ in range(2)) / iters
    for array in arrays:
        pgas.free(array)
    found = pgas.allgather_object((best, checksum))
    return 1e6 * max(seconds for seconds, _ in found), zlib.crc32(repr([checksum for _, checksum in found]).encode())


def _chosen(times: dict[int, float]) -> int:
    return min(blocks for blocks, us in times.items() if us <= _SLACK * min(times.values()))


def _rows(name: str, choices: dict[int, int]) -> list[str]:
    """Return a collective's part of PGAS_HOST_BLOCKS: a row has the size above which another number of blocks is chosen."""
    rows, above, last = [], "0", 0
    for nbytes, blocks in sorted(choices.items()):
        if blocks != last:
            rows.append(f"{name}={above}:{blocks}")
        above, last = size_flag(nbytes), blocks
    return rows


def _times(options: Any) -> tuple[dict[str, Any], dict[tuple[str, int], dict[int, float]], set[tuple[str, int]]]:
    """Measure everything, in one job for each number of blocks. Return facts about the job, the times, and the calls with other bits."""
    about: dict[str, Any] = {}
    times: dict[tuple[str, int], dict[int, float]] = {}
    bits: dict[tuple[str, int], int] = {}
    wrong = set()
    sizes = [1 << i for i in range(64) if options.min_size <= 1 << i <= options.max_size]
    os.environ.setdefault("PGAS_SYMMETRIC_SIZE", str(max(1 << 30, 32 * options.max_size)))
    for blocks in options.blocks:
        os.environ["PGAS_HOST_BLOCKS"] = str(blocks)
        with pgas.init():
            about = {"pe": pgas.my_pe(), "n_pes": pgas.n_pes(), **pgas.info()}
            for name in options.collectives:
                for nbytes in sizes:
                    iters = options.iters if nbytes < 1 << 20 else max(1, options.iters // 10)
                    us, found = _measure(name, nbytes, dtype_of(options.datatype, exact=True), iters)
                    times.setdefault((name, nbytes), {})[blocks] = us
                    if bits.setdefault((name, nbytes), found) != found:
                        wrong.add((name, nbytes))
    return about, times, wrong


def _print(options: Any, times: dict[tuple[str, int], dict[int, float]]) -> None:
    """Print a table for each collective, and the choices."""
    rows = []
    for name in options.collectives:
        choices = {nbytes: _chosen(by_blocks) for (other, nbytes), by_blocks in times.items() if other == name}
        print(f"# {name}", f"{'size(B)':<12}" + "".join(f"{blocks:>10}" for blocks in options.blocks) + f"{'blocks':>10}", sep="\n")
        for nbytes, blocks in choices.items():
            print(f"{nbytes:<12}" + "".join(f"{us:10.2f}" for us in times[name, nbytes].values()) + f"{blocks:10}")
        rows += _rows(name, choices)
    print(f"PGAS_HOST_BLOCKS={','.join(rows)}", flush=True)


def _numbers(text: str) -> list[int]:
    return sorted({within(1, 999)(part) for part in text.split(",")})


def _names(text: str) -> list[str]:
    return [one_of(COLLECTIVES)(part) for part in text.split(",")]


def main() -> int:
    """Print the tables on PE 0."""
    outlive_reader()
    parser = Parser("python -m pgas.perftests.tune", description=__doc__)
    few = pgas.SIMULATOR
    size = within(8, 1 << 40, parse_size)
    blocks, least, most = ([1, 2], 1 << 10, 4 << 10) if few else ([1, 2, 4, 8, 16, 32, 64], 1 << 10, 64 << 20)
    parser.add_argument("--blocks", type=_numbers, default=blocks, metavar="N,N", help="numbers of blocks [%(default)s]")
    parser.add_argument("--collectives", type=_names, default=list(COLLECTIVES), metavar="NAME,NAME", help="collectives [all]")
    parser.add_argument("-b", "--min_size", type=size, default=least, metavar="SIZE", help="smallest size [%(default)s]")
    parser.add_argument("-e", "--max_size", type=size, default=most, metavar="SIZE", help="largest size [%(default)s]")
    parser.add_argument("-n", "--iters", type=within(1, 100_000), default=2 if few else 200, help="calls in a graph [%(default)s]")
    parser.add_argument("-d", "--datatype", type=one_of(tuple(DATATYPES)), default="int64", metavar="NAME", help="dtype [%(default)s]")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the times as JSON")
    options = parser.parse_args()
    about, times, wrong = _times(options)
    if about["pe"] != 0:
        return bool(wrong)
    where = "the simulator: an interpreter's time" if pgas.SIMULATOR else about["gpu"]
    print(f"# us of a collective called on the host, {options.datatype}, number of PEs {about['n_pes']}, on {where}, {about['transport']}")
    _print(options, times)
    for name, nbytes in sorted(wrong):
        print(f"{name} of {nbytes} bytes: the bits of dest depend on the number of blocks", file=sys.stderr)
    if options.json is not None:
        rows = [{"collective": name, "bytes": nbytes, "us": by_blocks} for (name, nbytes), by_blocks in times.items()]
        found = {"test": "tune", "date": now(), "commit": commit(), "datatype": options.datatype, **about, "rows": rows}
        Path(options.json).write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
