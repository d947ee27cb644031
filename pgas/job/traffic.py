"""The traffic of a PE: what its kernels counted (kernels/traffic.py), per interval in a CSV file, and as a table at the end.

An interval ends when the host waits for all kernels (pgas.synchronize, a barrier on the host, finalize). With one kernel per interval, the
rows are those of the kernel.
"""

import csv
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pgas.base.config import size_text
from pgas.base.errors import PgasError
from pgas.job.paths.choice import Paths
from pgas.kernels import traffic, window
from pgas.transports.memory.protocol import Memory

COLUMNS = ("interval", "kernels", "pe", "peer", "path", "family", "operations", "bytes")

#: Maximum number of PEs of which the table at the end shows every pair, and number of pairs that it shows otherwise.
_MOST_PES, _MOST_PAIRS = 16, 20

#: Numbers of this process's jobs.
_jobs = itertools.count(1)


class Traffic:
    """The counters of a PE and its file.

    Args:
        base: beginning of the file's name.

    Raises:
        PgasError: if the file cannot be written.
    """

    def __init__(self, base: str, memory: Memory, me: int, paths: Paths) -> None:
        number = next(_jobs)
        path = f"{base}.{me}.csv" if number == 1 else f"{base}-{number}.{me}.csv"
        try:
            self._file = open(path, "w", newline="")  # noqa: SIM115
        except OSError as error:
            raise PgasError(f"PGAS_TRACE=traffic:{base}: cannot write {path}: {error.strerror}") from error
        self._writer = csv.writer(self._file)
        self._writer.writerow(COLUMNS)
        self._file.flush()
        self._memory, self._me, self._paths = memory, me, paths
        self._interval, self._kernels = 0, list[str]()
        self._lock = threading.Lock()
        self._before = self._read()

    def launching(self, kernel: str) -> None:
        """Note the launch of a kernel."""
        with self._lock:
            self._kernels.append(kernel)

    def end_interval(self) -> None:
        """Write what kernels have counted since the last call, if anything."""
        with self._lock:
            now = self._read()
            change, self._before = now - self._before, now
            kernels, self._kernels = self._kernels, []
        if not change.any() or self._file.closed:
            return
        names = " ".join(dict.fromkeys(name.partition("[")[0] for name in kernels))
        for family, peer in np.argwhere(change.any(axis=2)).tolist():
            operations, nbytes = change[family, peer].tolist()
            name = traffic.FAMILIES[family]
            self._writer.writerow((self._interval, names, self._me, peer, self._path(name, peer), name, operations, nbytes))
        self._file.flush()
        self._interval += 1

    def report(self, exchange: Callable[[Any], list[Any]]) -> None:
        """On PE 0, print the traffic of all PEs. Collective."""
        self.end_interval()
        totals = np.array(exchange(self._before.tolist()), np.uint64)  # by PE, family, peer
        if self._me == 0:
            print("\n".join(f"pgas: {line}" for line in table(totals)), file=sys.stderr)

    def close(self) -> None:
        self._file.close()

    def _read(self) -> np.ndarray:
        """Return the counters by family and peer: operations, bytes."""
        data = np.frombuffer(self._memory.read(window.TRAFFIC, traffic.TABLE_BYTES), np.uint64)
        return data.reshape(len(traffic.FAMILIES), window.TRAFFIC_PES, 2)[:, : len(self._paths.pes)]

    def _path(self, family: str, peer: int) -> str:
        """Return the transport of an operation."""
        if family == "collective":
            return ""
        by_nic = family == "atomic" and not window.constants().atomics_by_peers
        far = [pe for pe in range(len(self._paths.pes)) if pe not in self._paths.near_pes(self._me)]
        if family in ("WQE", "doorbell") or (by_nic and self._paths.two):
            return self._paths.between(self._me, far[0]) if far else self._paths.transport.name
        return self._paths.between(self._me, peer)


def table(totals: np.ndarray) -> Iterator[str]:
    """Yield the lines of the report. totals: by PE, family, and peer, the numbers of operations and bytes."""
    n_pes = len(totals)
    yield f"traffic of {n_pes} PE{'s' * (n_pes > 1)}: operations, bytes"
    for family, name in enumerate(traffic.FAMILIES):
        operations, nbytes = (int(totals[:, family, :, which].sum()) for which in (0, 1))
        if operations:
            yield f"  {name:<10} {operations:>12}" + (f" {size_text(nbytes):>12}" if name not in ("WQE", "doorbell") else "")
    moved = totals[:, : len(traffic.MOVING), :, 1].sum(axis=1)
    if not moved.any():
        return
    if n_pes <= _MOST_PES:
        yield "bytes by PE (rows) and peer (columns), without collectives"
        yield "        " + "".join(f"{f'PE {peer}':>12}" for peer in range(n_pes))
        for pe in range(n_pes):
            yield f"  {f'PE {pe}':<6}" + "".join(f"{size_text(int(n)) if n else '-':>12}" for n in moved[pe])
        return
    yield f"the {_MOST_PAIRS} pairs of PEs with most bytes, without collectives"
    for flat in np.argsort(moved, axis=None)[::-1][:_MOST_PAIRS].tolist():
        pe, peer = divmod(flat, n_pes)
        yield f"  PE {pe} to PE {peer}: {size_text(int(moved[pe, peer]))}"
