"""Random updates of a table that is distributed over all PEs (HPCC RandomAccess): ``mpirun -n 4 python gups.py --updates 1000``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def gups(table, numbers):
    """Xor each number into the table element that the number itself selects. The table has n_pes() parts of table.size elements."""
    for i in range(cuda.grid(1), numbers.size, cuda.gridsize(1)):
        at = numbers[i] % (pgas.n_pes() * table.size)
        pgas.atomic_xor(table, at % table.size, numbers[i], at // table.size)  # sent without waiting


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"table": 256, "updates": 64, "blocks": 2, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # table: elements per PE; updates: per PE
args = options.parse_args()

with pgas.init():
    me, n = pgas.my_pe(), pgas.n_pes()
    numbers = [np.random.default_rng(pe).integers(0, 1 << 62, args.updates) for pe in range(n)]  # those of all PEs, for the check
    table, mine = pgas.zeros(args.table, np.int64), cuda.to_device(numbers[me])
    for _ in range(2):  # the first run includes compilation
        table.copy_to_device(np.arange(args.table))
        pgas.barrier_all()
        began = time.perf_counter()
        gups[args.blocks, args.threads](table, mine)
        pgas.barrier_all()  # all updates have arrived
        seconds = time.perf_counter() - began
    expected = np.tile(np.arange(args.table), n)
    np.bitwise_xor.at(expected, np.concatenate(numbers) % expected.size, np.concatenate(numbers))
    right = all(pgas.allgather_object(bool((table.copy_to_host() == expected[me * args.table : (me + 1) * args.table]).all())))
    if me == 0:
        told = f"{args.updates * n} updates of {expected.size} elements: {'right' if right else 'WRONG'}"
        print(f"gups: {n} PEs, {told}, {args.updates * n / seconds / 1e9:.6f} GUPS")
raise SystemExit(not right)
