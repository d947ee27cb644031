"""Doorbells that a CPU rings for kernels: each new word goes from a mailbox to its register once, and the thread ends on request."""

import time

import jobs
import numpy as np
import pytest

from pgas.transports.ibgda import doorbells, forwarding
from pgas.transports.memory.protocol import GRANULARITY

job = jobs.job


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1e-4)


def test_words_are_forwarded_to_their_register():
    count = 5
    mailboxes, registers = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    base, to = mailboxes.ctypes.data, registers.ctypes.data
    forwarder = forwarding.Forwarder([(base + 8 * i, to + 8 * i) for i in range(count)])
    try:
        mailboxes[3] = 0x1234_5678_9ABC_DEF0
        until(lambda: registers[3] == 0x1234_5678_9ABC_DEF0)
        assert list(registers) == [0, 0, 0, 0x1234_5678_9ABC_DEF0, 0]
        registers[3] = 0
        mailboxes[0] = 1 << 63 | 1  # a QPN with its upper bits
        until(lambda: registers[0] == 1 << 63 | 1)
        assert registers[3] == 0  # an old word is not rung again
        for word in range(1, 200):
            mailboxes[4] = word
            until(lambda word=word: registers[4] == word)
    finally:
        forwarder.stop()
    mailboxes[1] = 7
    time.sleep(0.01)
    assert registers[1] == 0
    forwarder.stop()


def test_places_do_not_share_lines():
    places = [(doorbells.dbr_offset(i), doorbells.mailbox_offset(i)) for i in range(100)]
    lines = [offset // 64 for pair in places for offset in pair]
    assert len(set(lines)) == 200
    assert all(offset % 8 == 0 for pair in places for offset in pair)
    assert doorbells.segment_bytes(1) == GRANULARITY
    assert max(max(pair) for pair in places) + 8 <= doorbells.segment_bytes(100)


@pytest.mark.slow
def test_kernels_store_to_host_memory_only(job):
    """Kernels get addresses in the segment of doorbells for DBRs and registers; the thread rings the card."""
    text = """
from pgas.kernels import layout
from pgas.kernels import window
from pgas.transports.ibgda import doorbells
job = pgas.init()
me, nic = pgas.my_pe(), job.nic
bells = range(window.slot(me) + window.DOORBELL_OFFSET, window.slot(me) + window.DOORBELL_OFFSET + doorbells.segment_bytes(len(nic.qps)))
records = [layout.RECORDS + number * layout.RECORD_SIZE for number in range(len(nic.qps))]
said = [nic._load(record + field) for record in records for field in (layout.DBR, layout.UAR)]
say(f"PE {me}: {len(set(said))} places, in host memory {sum(place in bells for place in said)}, by CPU {nic.adapter.rung_by_cpu}")

@pgas.jit
def p_and_quiet(dest, pe):
    for i in range(300):
        pgas.p(dest, cuda.threadIdx.x, i, pe)
        pgas.quiet()

dest = pgas.zeros(32, np.int32)
p_and_quiet[1, 32](dest, 1 - me)
pgas.barrier_all()
say(f"PE {me}: {set(dest.copy_to_host())} {nic.counts()['doorbells'] >= 300}")
pgas.free(dest)
pgas.finalize()
"""
    ended = job(text, PGAS_TRANSPORT="ibgda", PGAS_IBGDA_NIC_HANDLER="cpu")
    assert ended.status == 0, ended
    for pe in (0, 1):
        assert ended.lines(pe) == ["8 places, in host memory 8, by CPU True", "{np.int32(299)} True"], ended
