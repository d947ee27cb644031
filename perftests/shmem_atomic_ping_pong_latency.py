"""Ping-pong of atomic increments, like NVSHMEM's shmem_atomic_ping_pong_latency. The figure is the whole round trip.

mpirun -n 2 shmem_atomic_ping_pong_latency -n 500 -w 50
"""

import sys

from pgas.perftests import ping_pong

TEST = ping_pong.flag_test("shmem_atomic_ping_pong_latency", "atomic increment", ping_pong.increase, 1)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
