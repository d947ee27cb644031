"""Ping-pong of signals, like NVSHMEM's shmem_signal_ping_pong_latency. The figure is the whole round trip.

mpirun -n 2 shmem_signal_ping_pong_latency -n 500 -w 50
"""

import sys

from pgas.perftests import ping_pong

TEST = ping_pong.flag_test("shmem_signal_ping_pong_latency", "signal_op", ping_pong.signal, ping_pong.SIGNAL_WQES)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
