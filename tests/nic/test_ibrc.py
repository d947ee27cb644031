"""The proxy thread: its WQEs, compared with the data sheet; full rings and queues, a stopped card, errors, its end.

Jobs run in the simulator, in separate processes, as a process has one configuration; one PE sends to itself through the card.
"""

import os
import re
import subprocess

import forks
import numpy as np
import pytest
import wqes as wqe

from pgas.base.backend import SIMULATOR
from pgas.kernels import codes, layout
from pgas.transports.hostloop import memory_ops as ops_cpu
from pgas.transports.ibrc import loop, tables, thread, wqes
from pgas.transports.mlx5 import cqe, doorbell, send_queue
from pgas.transports.mlx5.wqe import Ce, Opcode

pytestmark = pytest.mark.skipif(not SIMULATOR, reason="capability missing: the simulator")

# ------------------------------------------------------------------------------------------------------------------ WQEs, by hand

DEPTH = 128
QPN, HEAP_KEY, LKEY, CELL_LKEY, SINK = 0xABCDEF, 0x1100, 0x3300, 0x4400, 0x6000_1000_0000
LOCAL, REMOTE, WORD = 0x6000_0012_3458, 0x6040_0076_5430, 0x6040_0000_1008
MAX = wqe.MESSAGE_MAX


def big_endian(value):
    return int.from_bytes(value.to_bytes(4, "big"), "little")


class Rig:
    """A proxy's tables with one queue pair and one request, and the memory that they refer to."""

    def __init__(self, index=0):
        self.request, self.wq = np.zeros(8, np.uint64), np.zeros(DEPTH * 64, np.uint8)
        self.words = np.zeros(8, np.uint64)  # DBR, UAR, tail of the CQE, list of queue pairs to ring
        self.own, self.row = np.zeros(tables.END // 8, np.int64), np.zeros(tables.ROW // 8, np.int64)
        at = self.words.ctypes.data
        for array, values in (
            (self.own, {tables.DEPTH: DEPTH, tables.LKEY: big_endian(LKEY), tables.CELL_LKEY: big_endian(CELL_LKEY), tables.SINK: SINK,
                        tables.UNRUNG: at + 24}),
            (self.row, {wqes.WQ: self.wq.ctypes.data, wqes.DBR: at + 4, wqes.UAR: at + 8, wqes.CQE: at + 16,
                        wqes.QPN: big_endian(QPN << 8), wqes.HEAP_KEY: big_endian(HEAP_KEY),
                        tables.PROD_IDX: index, tables.CONS_IDX: index}),
        ):  # fmt: skip
            for offset, value in values.items():
                array[offset // 8] = value

    def step(self, what, nbytes, local=0, remote=0, value=0, second=0, done=0):
        self.request[:6] = what, nbytes, local, remote, value & (1 << 64) - 1, second & (1 << 64) - 1
        return wqes.step(self.own.ctypes.data, self.request.ctypes.data, self.row.ctypes.data, done)

    @property
    def prod_idx(self):
        return int(self.row[tables.PROD_IDX // 8])

    def holds(self, first, *wanted):
        """Check that the WQEs from index first on are these, byte for byte, and no others."""
        index = first
        for data in wanted:
            assert send_queue.decode(send_queue.fetch(self.wq, index)) == send_queue.decode(data)
            assert send_queue.fetch(self.wq, index) == data
            index += wqe.wqebbs(len(data) // 16)
        assert self.prod_idx == index


INDICES = pytest.mark.parametrize("index", [0, 5, DEPTH - 1, 0xFFFE, 0x1_2345_6780 - 1])
ALWAYS = {"fm_ce_se": Ce.ALWAYS}


@INDICES
def test_write_and_read(index):
    rig = Rig(index)
    assert rig.step(codes.Request.WRITE, 4711, LOCAL, REMOTE) == -1
    rig.holds(index, wqe.write(index, QPN, REMOTE, HEAP_KEY, LOCAL, LKEY, 4711, **ALWAYS))
    rig.step(codes.Request.READ, 12, LOCAL, REMOTE)
    rig.step(codes.Request.READ | layout.LANDING, 16, LOCAL, REMOTE)
    rig.holds(
        index + 1,
        wqe.read(index + 1, QPN, REMOTE, HEAP_KEY, LOCAL, LKEY, 12, **ALWAYS),
        wqe.read(index + 2, QPN, REMOTE, HEAP_KEY, LOCAL, CELL_LKEY, 16, **ALWAYS),
    )


def test_more_bytes_than_a_wqe_moves():
    """One WQE for each step; only the last one is signalled."""
    rig, nbytes = Rig(), 2 * MAX + 100
    done = [0]
    while done[-1] != -1:
        done.append(rig.step(codes.Request.WRITE, nbytes, LOCAL, REMOTE, done=done[-1]))
    assert done == [0, MAX, 2 * MAX, -1]
    sizes = [MAX, MAX, 100]
    rig.holds(
        0,
        *(
            wqe.write(i, QPN, REMOTE + i * MAX, HEAP_KEY, LOCAL + i * MAX, LKEY, size, fm_ce_se=Ce.ALWAYS if i == 2 else 0)
            for i, size in enumerate(sizes)
        ),
    )


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_store(nbytes):
    rig = Rig(DEPTH - 1)
    payload = bytes(range(0xF0, 0x100))
    low, high = (int.from_bytes(payload[i : i + 8], "little") for i in (0, 8))
    index = rig.prod_idx
    assert rig.step(codes.Request.STORE, nbytes, 0, REMOTE, low, high) == -1
    found = send_queue.decode(send_queue.fetch(rig.wq, index))
    assert found == send_queue.decode(wqe.write_inline(index, QPN, REMOTE, HEAP_KEY, payload[:nbytes], **ALWAYS))
    assert rig.prod_idx == index + 1


@INDICES
def test_atomics(index):
    rig, value, compare = Rig(index), 0xFEDC_BA98_7654_3210, 0x8000_0000_0000_0001
    half, other = value & 0xFFFF_FFFF, compare & 0xFFFF_FFFF
    for what, nbytes, local in (
        (codes.Request.ADD, 8, 0),
        (codes.Request.ADD, 4, LOCAL),
        (codes.Request.COMPARE_SWAP, 8, LOCAL),
        (codes.Request.COMPARE_SWAP, 4, LOCAL),
    ):
        assert rig.step(what | layout.LANDING, nbytes, local, REMOTE, value, compare) == -1
    where, ones = (QPN, REMOTE, HEAP_KEY), 0xFFFF_FFFF
    rig.holds(
        index,
        wqe.fetch_add(index, *where, SINK, CELL_LKEY, value, **ALWAYS),
        wqe.masked_fetch_add(index + 1, *where, LOCAL, CELL_LKEY, 4, half, **ALWAYS),
        wqe.compare_swap(index + 2, *where, LOCAL, CELL_LKEY, compare, value, **ALWAYS),
        wqe.masked_compare_swap(index + 3, *where, LOCAL, CELL_LKEY, 4, other, half, ones, ones, **ALWAYS),
    )


@INDICES
@pytest.mark.parametrize("nbytes", [4, 8])
def test_atomics_of_bits(index, nbytes):
    """By masks. A masked CS of 8 bytes has two WQEBBs, so a NOP completes it."""
    rig, ones = Rig(index), (1 << 8 * nbytes) - 1
    value = 0xFEDC_BA98_7654_3210 & ones
    for what in (codes.Request.XOR, codes.Request.SWAP, codes.Request.AND, codes.Request.OR):
        begin = rig.prod_idx
        assert rig.step(what | layout.LANDING, nbytes, LOCAL, REMOTE, value) == -1
        assert rig.prod_idx - begin <= tables.STEP_MAX
    where = (QPN, REMOTE, HEAP_KEY, LOCAL, CELL_LKEY, nbytes)
    wanted, at = [wqe.masked_fetch_add(index, *where, value, ones, **ALWAYS)], index + 1
    for mask in (ones, ~value & ones, value):
        wanted.append(wqe.masked_compare_swap(at, *where, 0, value, 0, mask, **(ALWAYS if nbytes == 4 else {})))
        at += 1 if nbytes == 4 else 2
        if nbytes == 8:
            wanted.append(wqe.nop(at, QPN, **ALWAYS))
            at += 1
    rig.holds(index, *wanted)


@INDICES
@pytest.mark.parametrize("nbytes", [0, 40])
def test_signals(index, nbytes):
    """Data, then the signal in the same step; WQEs of several WQEBBs are completed by a NOP."""
    value, ones = (1 << 64) - 2, (1 << 64) - 1
    head = [wqe.write(index, QPN, REMOTE, HEAP_KEY, LOCAL, LKEY, nbytes)] if nbytes else []
    at, where = index + len(head), (QPN, WORD, HEAP_KEY)
    rig = Rig(index)
    assert rig.step(codes.Request.SIGNAL_ADD, nbytes, LOCAL, REMOTE, value, WORD) == -1
    rig.holds(index, *head, wqe.fetch_add(at, *where, SINK, CELL_LKEY, value, **ALWAYS))
    rig = Rig(index)
    assert rig.step(codes.Request.SIGNAL_SET, nbytes, LOCAL, REMOTE, value, WORD) == -1
    replaced = wqe.masked_compare_swap(at, *where, SINK, CELL_LKEY, 8, 0, value, 0, ones)
    rig.holds(index, *head, replaced, wqe.nop(at + 2, QPN, **ALWAYS))
    assert rig.prod_idx - index <= tables.STEP_MAX


@INDICES
def test_doorbell(index):
    rig = Rig(index)
    rig.words[3] = rig.row.ctypes.data
    wqes.ring(rig.own.ctypes.data, 1)
    assert rig.words[:1].tobytes() == bytes(4) + doorbell.dbr(index)
    assert rig.words[1:2].tobytes() == doorbell.next_empty(index, QPN)
    assert rig.row[tables.RUNG_IDX // 8] == index


@pytest.mark.parametrize(("batch", "rung"), [(1, 100), (32, 96), (64, 64)])
def test_doorbells_of_batches(batch, rung):
    """PGAS_IBGDA_NUM_REQUESTS_IN_BATCH: a request of 100 WQEs is rung after each batch; an error then stops the loop."""
    rig = Rig()
    control, undone = np.zeros((layout.RING + layout.REQUEST_SIZE) // 8, np.uint64), np.zeros(tables.UNDONE_SIZE // 8, np.int64)
    control[layout.RING // 8 :] = (codes.Request.WRITE, 100 * MAX, LOCAL, REMOTE, 0, 0, 0, 1)
    error = cqe.error(QPN, Opcode.RDMA_WRITE, 0, cqe.Syndrome.REMOTE_ACCESS_ERR)
    rig.words[2:3].view(np.uint8)[:] = np.frombuffer(error, np.uint8)[cqe.CQE_TAIL :]
    for offset, value in {
        tables.CONTROL: control.ctypes.data, tables.ROWS: rig.row.ctypes.data, tables.UNDONE: undone.ctypes.data, tables.BATCH: batch,
    }.items():  # fmt: skip
        rig.own[offset // 8] = value
    rig.row[tables.RECORD // 8] = 4711
    loop.compiled(wqes)(rig.own.ctypes.data)
    assert (rig.prod_idx, rig.row[tables.RUNG_IDX // 8], control[layout.FAILED_QUEUE // 8]) == (100, rung, 4711)
    assert rig.words[1:2].tobytes() == doorbell.next_empty(rung, QPN)


def test_completions():
    """cqe.extend for all values of the counter; an empty entry completes nothing, and an error is reported."""
    rig = Rig(0x1_FFF0)
    tail, cons = rig.words[2:3].view(np.uint8), rig.row[tables.CONS_IDX // 8 :]

    def advance(entry):
        tail[:] = np.frombuffer(entry, np.uint8)[cqe.CQE_TAIL :]
        return wqes.advance(rig.own.ctypes.data, rig.row.ctypes.data)

    assert not advance(bytes([cqe.EMPTY]) * 64)
    assert cons[0] == 0x1_FFF0
    for counter in (0xFFEF, 0xFFF0, 0xFFFF, 0x0000, 0x0030, 0x0010, 0x9000):
        wanted = cqe.extend(int(cons[0]), counter, DEPTH)
        assert not advance(cqe.completed(QPN, Opcode.RDMA_WRITE, counter))
        assert cons[0] == wanted
    assert advance(cqe.error(QPN, Opcode.RDMA_WRITE, 0x31, cqe.Syndrome.REMOTE_ACCESS_ERR))
    assert cons[0] == 0x2_0031


def test_sleeps_are_bounded():
    for turn, us in ((loop.LAST_SHORT_TURN, 50), (ops_cpu.CROWDED_TURN, 200)):
        assert ops_cpu.SLEEP_MIN_US + (turn - ops_cpu.YIELDS) // 4 == us


# --------------------------------------------------------------------------------------------------------------------------- jobs

PRELUDE = """
import os, sys, threading, time
import numpy as np
from numba import cuda
import pgas
from pgas.job import runtime
from pgas.kernels import layout
from pgas.transports.ibrc import loop, tables, wqes

def job():
    return runtime.current()

def proxies():
    return [t.name for t in threading.enumerate() if "proxy" in t.name]

def counters():
    return job().nic.adapter.counters()["hca"]

def attempt(call, *args):
    try:
        call(*args)
    except pgas.PgasError as error:
        print(type(error).__name__ + ":", error)
        return error
    print("no error")

def later(seconds, call, *args):
    timer = threading.Timer(seconds, call, args)
    timer.start()
    return timer

@pgas.jit
def puts(dest, source, count, pe):
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        pgas.put_nbi(dest[i : i + 1], source[i : i + 1], pe)

@pgas.jit
def completes(done):
    pgas.quiet()
    done[0] += 1

@pgas.jit
def waits(word):
    pgas.wait_until(word, 0, pgas.EQ, 1)

pgas.init()
"""


@pytest.fixture
def run(tmp_path):
    """run(text, **variables) runs a program of one PE to its end and returns the CompletedProcess."""

    def run(text, status=0, **variables):
        path = tmp_path / "program.py"
        path.write_text(PRELUDE + text)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))}
        environment |= {"NUMBA_ENABLE_CUDASIM": "1", "PGAS_SYMMETRIC_SIZE": "16M", "PGAS_TRANSPORT": "ibrc", "PGAS_TIMEOUT": "20"}
        environment |= {"PYTHONFAULTHANDLER": "1", **variables}
        done = subprocess.run([forks.python(), str(path)], env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Fatal Python error" not in done.stderr, done.stderr
        return done

    return run


#: A kernel of one thread always polls itself. As on a GPU, it never does while another thread has not returned from its poll.
LOOKING = pytest.mark.parametrize("looking", [pytest.param(0, marks=pytest.mark.slow), 1])

COUNTS = """
@pgas.jit
def one_of_each(dest, source, small, real, sig):
    pgas.put(dest[:10], source[:10], 0)  # 1 WRITE
    pgas.put_nbi(dest[10:20], source[10:20], 0)  # 1
    pgas.put_signal(dest[20:30], source[20:30], sig, 0, 9, pgas.SIGNAL_SET, 0)  # 1, 1 atomic, 1 NOP
    pgas.put_signal_nbi(dest[30:40], source[30:40], sig, 1, 8, pgas.SIGNAL_ADD, 0)  # 1, 1 atomic
    pgas.signal_op(sig, 2, 7, pgas.SIGNAL_SET, 0)  # 1 atomic, 1 NOP
    pgas.signal_op(sig, 2, 6, pgas.SIGNAL_ADD, 0)  # 1 atomic
    pgas.p(dest, 40, 11, 0)  # 1 WRITE
    pgas.p(small, 0, 12, 0)  # 1
    pgas.atomic_add(dest, 41, 5, 0)  # 1 atomic
    pgas.atomic_add(small, 1, 4, 0)  # 1
    dest[50] = pgas.atomic_fetch_add(dest, 41, 5, 0)  # 1
    dest[51] = pgas.atomic_fetch_add(small, 1, 4, 0)  # 1
    pgas.atomic_add(real, 0, 0.5, 0)  # 1 READ, 1 atomic
    pgas.quiet()
    pgas.get(dest[60:70], source[60:70], 0)  # 1 READ
    dest[52] = pgas.g(dest, 40, 0)  # 1
    pgas.barrier_all()

dest, source, small = pgas.zeros(100, np.int64), pgas.array(np.arange(100)), pgas.zeros(4, np.int32)
real, sig = pgas.zeros(1, np.float32), pgas.zeros(3, np.uint64)
before = counters()
one_of_each[1, 1](dest, source, small, real, sig)
pgas.synchronize()
after = counters()
counted = {name: after[name] - before[name] for name in ("wqes", "writes", "reads", "atomics", "cqes", "errors")}
print(counted)
wanted = np.zeros(100, np.int64)
wanted[:40], wanted[60:70] = np.arange(40), np.arange(60, 70)
wanted[40], wanted[41], wanted[50:53] = 11, 10, (5, 4, 11)
assert (np.asarray(dest) == wanted).all(), dest
assert list(small) == [12, 8, 0, 0] and real[0] == 0.5 and list(sig) == [9, 8, 13]
for a in (dest, source, small, real, sig):
    pgas.free(a)
pgas.finalize()
"""


def test_counts_are_those_of_the_operations(run):
    """Nothing is lost or sent twice. The data of put_signal, and WQEs of several WQEBBs, are unsignalled."""
    found = run(COUNTS)
    assert found.stdout.splitlines()[-1] == str({"wqes": 20, "writes": 6, "reads": 3, "atomics": 9, "cqes": 16, "errors": 0})


FULL = """
n = 10_000
dest, source = pgas.zeros(n, np.int32), pgas.array(np.arange(n, dtype=np.int32))
done = pgas.zeros(1, np.int32)
before = counters()
puts[{grid}, {block}](dest, source, n, 0)
completes[1, 1](done)
assert (np.asarray(dest) == np.arange(n)).all()
after = counters()
print(after["writes"] - before["writes"], after["doorbells"] - before["doorbells"])
assert after["stale_doorbells"] == after["foreign_doorbells"] == 0
dest[:] = 0
# The card stands still: the ring and the queue fill up, nothing is lost.
job().nic.adapter.pause()
timer = later(0.5, job().nic.adapter.resume)
puts[{grid}, {block}](dest, source, 1000, 0)
pgas.barrier_all()
assert (np.asarray(dest)[:1000] == np.arange(1000)).all()
timer.join()
for a in (dest, source, done):
    pgas.free(a)
pgas.finalize()
"""


@pytest.mark.parametrize(
    ("ring", "grid", "block"),
    [("64", 1, 1), pytest.param("64", 3, 64, marks=pytest.mark.slow), pytest.param("4096", 1, 1, marks=pytest.mark.slow), ("4096", 2, 40)],
)
def test_full_rings_and_full_queues(run, ring, grid, block):
    """10,000 puts through send queues of 128 WQEBBs and rings of 64 and 4096 requests."""
    found = run(FULL.format(grid=grid, block=block), PGAS_IBRC_RING_SIZE=ring, PGAS_QP_DEPTH="128")
    writes, doorbells = map(int, found.stdout.split())
    assert writes == 10_000
    assert writes // 128 <= doorbells <= writes


def test_a_paused_card(run):
    """put_nbi returns at once, quiet does not; after the card resumes, the data arrives."""
    run("""
dest, source, done = pgas.zeros(4, np.int32), pgas.array(np.arange(1, 5, dtype=np.int32)), pgas.zeros(1, np.int32)
job().nic.adapter.pause()
puts[1, 1](dest, source, 4, 0)
time.sleep(0.1)
assert not np.asarray(dest).any()
resumed = []
def resume():
    resumed.append(done[0])
    job().nic.adapter.resume()
timer = later(0.5, resume)
completes[1, 1](done)
assert resumed == [0] and done[0] == 1
assert list(dest) == [1, 2, 3, 4]
timer.join()
for a in (dest, source, done):
    pgas.free(a)
pgas.finalize()
""")


@pytest.mark.slow
@LOOKING
def test_a_card_that_stays_paused(run, looking):
    """Waits of kernels and of the host end after PGAS_TIMEOUT, with the proxy's progress in the error."""
    found = run(
        f"""
dest, source, done = pgas.zeros(4, np.int32), pgas.zeros(4, np.int32), pgas.zeros(1, np.int32)
job().nic._store(layout.RING_LOOKING, {looking})
job().nic.adapter.pause()
puts[1, 1](dest, source, 3, 0)
attempt(pgas.barrier_all)
attempt(completes[1, 1], done)
job().nic.adapter.resume()
job().health.broken = True
""",
        PGAS_TIMEOUT="0.5",
    )
    assert "TransportError: the proxy thread completed 0 of 3 requests in 0.5 s (PGAS_TIMEOUT)" in found.stdout
    assert re.search(
        r"DeviceError: .*: quiet waited 0.5 s \(PGAS_TIMEOUT\) for index 3 of the proxy thread's ring, which is at 0", found.stdout
    )


@LOOKING
@pytest.mark.parametrize("ring", ["64", pytest.param("4096", marks=pytest.mark.slow)])
def test_error_that_a_kernel_waits_for(run, ring, looking):
    found = run(
        f"""
dest, source, done = pgas.zeros(200, np.int32), pgas.zeros(200, np.int32), pgas.zeros(1, np.int32)
job().nic._store(layout.RING_LOOKING, {looking})
def both():
    puts[1, 1](dest, source, 200, 0)
    completes[1, 1](done)
    pgas.synchronize()
error = attempt(both)
print(error.pe, hex(error.syndrome), error.wqe_idx < 200, hex(error.qpn) in str(error))
attempt(pgas.barrier_all)
job().health.broken = True
""",
        PGAS_SOFTHCA_FAULTS="fail=3:0x13",
        PGAS_IBRC_RING_SIZE=ring,
    )
    first, attributes, second = found.stdout.splitlines()
    assert first.startswith("CompletionError: ")
    assert "queue pair 1 to PE 0" in first
    assert "an injected fault" in first
    assert attributes.split()[0] == "0"
    assert attributes.split()[2:] == ["True", "True"]
    assert second.startswith("CompletionError: ")


@pytest.mark.parametrize(
    ("where", "program"),
    [
        ("", "attempt(put_for_long[1, 1], dest, source, 0)"),
        (
            "the proxy thread: ",
            "puts[1, 1](dest, source, 5, 0)\nattempt(pgas.barrier_all)\nattempt(waits[1, 1], word)\nattempt(pgas.synchronize)",
        ),
    ],
)
def test_error_ends_a_kernel_that_does_not_wait_for_it(run, where, program):
    """One that would go on for long, as each wait would take 64 polls, and one that waits for something else; the host's calls raise it."""
    found = run(
        f"""
dest, source, word = pgas.zeros(5, np.int32), pgas.zeros(5, np.int32), pgas.zeros(1, np.int32)
@pgas.jit
def put_for_long(dest, source, pe):
    for i in range(1_000_000):
        pgas.put(dest, source, pe)
started = time.monotonic()
{program}
print("took", time.monotonic() - started < 20)
job().health.broken = True
""",
        PGAS_SOFTHCA_FAULTS="fail=3:0x13",
    )
    lines = found.stdout.splitlines()
    assert re.match(rf"CompletionError: .*{where}queue pair 1 to PE 0 .* failed at WQE \d+: ", lines[0])
    assert lines[-2].startswith("CompletionError: ")
    assert lines[-1] == "took True"


ENDED = "PgasError: the proxy thread of PE 0 ended (it was not stopped): requests of kernels are no longer sent"


@pytest.mark.parametrize(
    "waiting",
    [
        pytest.param("completes[1, 1](done)", marks=pytest.mark.slow),
        "waits[1, 1](done)",
        pytest.param("puts[1, 1](dest, source, 200, 0)", marks=pytest.mark.slow),
    ],
)
def test_a_dead_proxy_is_reported(run, waiting):
    """Waits of kernels end, also those for room in the ring; the host raises the reason."""
    found = run(
        f"""
dest, source, done = pgas.zeros(200, np.int32), pgas.zeros(200, np.int32), pgas.zeros(1, np.int32)
job().nic.adapter.pause()
puts[1, 1](dest, source, 3, 0)
def die():
    job().nic._own[tables.STOP // 8] = 1
timer = later(0.3, die)
def step():
    {waiting}
    timer.join()
    time.sleep(0.1)
    pgas.synchronize()
started = time.monotonic()
attempt(step)
attempt(pgas.barrier_all)
print("took", time.monotonic() - started < 20)
print(proxies())
job().health.broken = True
""",
        PGAS_IBRC_RING_SIZE="64",
    )
    assert found.stdout.splitlines() == [ENDED, ENDED, "took True", "[]"]


@pytest.mark.slow
def test_the_thread_ends_with_the_job_and_starts_with_the_next(run):
    found = run("""
for _ in range(2):
    print(proxies())
    dest, source = pgas.zeros(8, np.int32), pgas.array(np.arange(8, dtype=np.int32))
    puts[1, 8](dest, source, 8, 0)
    pgas.barrier_all()
    assert list(dest) == list(range(8))
    pgas.free(dest)
    pgas.free(source)
    pgas.finalize()
    print(proxies())
    pgas.init()
pgas.finalize()
""")
    assert found.stdout.splitlines() == ["['pgas proxy of PE 0']", "[]"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "says"),
    [("", 0, ""), ("raise RuntimeError('boom')", 1, "RuntimeError: boom"), ("sys.exit(3)", 3, ""), ("job().health.broken = True", 0, "")],
)
def test_programs_that_do_not_finalize(run, end, status, says):
    """All requests are sent before the process ends; after an exception it ends at once."""
    found = run(f"dest, source = pgas.zeros(8, np.int32), pgas.zeros(8, np.int32)\nputs[1, 1](dest, source, 8, 0)\n{end}\n", status)
    assert says in found.stderr


@pytest.mark.slow
def test_the_loop_comes_from_the_disk_cache(run):
    run("pgas.finalize()\n")  # the first one after an installation compiles it
    run("""
assert sum(loop.compiled(wqes).stats.cache_hits.values()) == 1, loop.compiled(wqes).stats
pgas.finalize()
""")


@pytest.mark.slow
def test_indices_that_wrap(run):
    """At 2^16, 2^32, and at the end of queue and ring, which have the smallest possible size."""
    found = run(
        """
from pgas.transports.nic.adapter_nic import AdapterNIC

@pgas.jit
def flood(dest, source, rounds):
    for r in range(rounds):
        pgas.put_nbi(dest[:8], source[:8], 0)
        pgas.p(dest, 8, r, 0)
        pgas.atomic_add(dest, 9, 1, 0)
    pgas.quiet()

pgas.finalize()
for first in (2**16 - 3, 2**32 - 3):
    AdapterNIC.first_index = first
    pgas.init()
    dest, source = pgas.zeros(10, np.int32), pgas.array(np.arange(1, 11, dtype=np.int32))
    flood[1, 1](dest, source, 100)
    pgas.barrier_all()
    counted = next(qp for qp in job().nic.adapter.counters()["qps"] if qp["wqes"])
    print(list(map(int, dest)), counted["errors"], counted["consumer"] - first)
    pgas.free(dest)
    pgas.free(source)
    pgas.finalize()
""",
        PGAS_QP_DEPTH="128",
        PGAS_IBRC_RING_SIZE="64",
    )
    assert found.stdout.splitlines() == ["[1, 2, 3, 4, 5, 6, 7, 8, 99, 100] 0 300"] * 2


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3] * 9 + [0] * 10 + [3] * 5 + [2] * 5 + [3] * 40, {"posting": 0.5, "ringing": 0, "completing": 0.25, "waiting": 0.25}),
        ([1] * 20, {"posting": 0, "ringing": 1, "completing": 0, "waiting": 0}),
        ([3] * 40 + [0, 3, 0] + [3] * 40, {}),
        ([3] * 40, {}),
        ([], {}),
    ],
)
def test_samples_of_the_thread(samples, expected):
    """3 means waiting, which does not count before the first request and after the last one."""
    assert thread.shares(samples) == expected
