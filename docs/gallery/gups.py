"""Random updates of a table that is spread over all PEs (HPCC RandomAccess): ``mpirun -n 4 python gups.py --updates 1000``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def gups(table, numbers):
    """Each number is xored into the element of the table that it names itself. The table is one: n_pes() parts of table.size."""
    for i in range(cuda.grid(1), numbers.size, cuda.gridsize(1)):
        at = numbers[i] % (pgas.n_pes() * table.size)
        pgas.atomic_xor(table, at % table.size, numbers[i], at // table.size)  # sent; nobody waits for it


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"table": 256, "updates": 64, "blocks": 2, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # elements of a PE's part, updates by a PE
args = options.parse_args()

with pgas.init():
    me, n = pgas.my_pe(), pgas.n_pes()
    numbers = [np.random.default_rng(pe).integers(0, 1 << 62, args.updates) for pe in range(n)]  # of all PEs, for the check
    table, mine = pgas.zeros(args.table, np.int64), cuda.to_device(numbers[me])
    for _ in range(2):  # the first time, the kernel is compiled
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
