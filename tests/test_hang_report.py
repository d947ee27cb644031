"""Hang reports: what every PE prints when a wait lasts PGAS_TIMEOUT, and on SIGUSR1, after which a job goes on."""

import json
import os
import re
import signal

import jobs
import pytest
from jobs import INIT, ON_GPUS, holds

from pgas.kernels import queue, state, window

#: A signal that nobody sends, waited for by some threads of some blocks; and what ends it.
WAITS = """
@pgas.jit
def kernel(word, grid):
    if cuda.threadIdx.x == 0:
        pgas.signal_wait_until(word, 0, pgas.GE, 3)
    elif cuda.threadIdx.x < 4:
        pgas.wait_until(grid, (1, 2), pgas.EQ, -7)

@pgas.jit
def meets():
    pgas.sync_all()

grid = pgas.zeros((2, 3), np.int64)
pgas.barrier_all()
"""

END = """
for array in (grid, word):
    pgas.free(array)
pgas.finalize()
say("handler", signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
"""

#: Where PEs wait for each other on the host.
IN_BARRIER = r"  host: program\.py:\d+ <module> > .* > bootstrap\.py:\d+ _wait"

WORD, GRID = (
    r"uint64 array of shape \(1,\) allocated at \S+program\.py:\d+",
    r"int64 array of shape \(2, 3\) allocated at \S+program\.py:\d+",
)


@pytest.fixture
def job(tmp_path):
    return jobs.Jobs(tmp_path, ON_GPUS)


def reports(ended):
    """The lines of each PE's report."""
    lines = [m.groups() for m in re.finditer(r"^(?:\[\d+\] )?pgas: PE (\d+): (.*)$", ended.err, re.MULTILINE)]
    found = {}
    for pe, line in lines:
        if line.startswith("hang report: "):
            assert int(pe) not in found, f"PE {pe} reports twice\n{ended}"
            found[int(pe)] = []
        if int(pe) in found and (line.startswith(("hang report: ", "  "))):
            found[int(pe)].append(line)
    return found


def has(lines, pattern, ended):
    """One of the lines fits."""
    assert any(re.fullmatch(pattern, line) for line in lines), f"{pattern}\n{ended}"


def test_signal_that_nobody_sends(job):
    """PE 0 waits in a kernel, PE 1 in a barrier of the host: each says so, and the job ends as without the report."""
    ended = job(INIT + WAITS + "if me == 0:\n    kernel[2, 6](word, grid)\npgas.barrier_all()\n", PGAS_TIMEOUT="2")
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    waited = r"PE 0, block (\d), thread (\d): (signal_wait_until|wait_until) waited 2 s \(PGAS_TIMEOUT\) for element .*"
    for lines in found.values():
        has(lines, "hang report: " + waited, ended)
        has(lines, r"  process \d+ on \S+, transport p2p", ended)
    has(found[0], "  first error: " + waited, ended)
    has(found[0], r"  kernels not known to have ended: kernel\[2, 6\]", ended)
    first = next(re.fullmatch("  first error: " + waited, line) for line in found[0] if line.startswith("  first error"))
    others = {"0": "1", "1": "0"}
    rest = f"block {others[first[1]]}, thread 0" if first[3] == "signal_wait_until" else "blocks 0-1, thread 0"
    has(
        found[0],
        rf"  {rest}: signal_wait_until waits for element \[0\] of the {WORD} >= 3, last saw 0, for 2\.\d s; any PE may write it",
        ended,
    )
    has(
        found[0],
        rf"  block.*threads 1-3: wait_until waits for element \[1, 2\] of the {GRID} == -7, last saw 0, for 2\.\d s; any .*",
        ended,
    )
    has(found[1], IN_BARRIER, ended)
    has(found[1], "  kernels not known to have ended: none", ended)
    has(found[1], "  no thread waits in a function of pgas", ended)
    holds(ended, "pgas: PE 0 failed (DeviceError), ending the job")
    assert ended.seconds < jobs.SOON


@pytest.mark.parametrize(("absent", "round_"), [(1, 0), (2, 1)])
def test_barrier_that_one_pe_does_not_enter(job, absent, round_):
    """Who is missing is who was expected to write the flag of a dissemination barrier's round."""
    text = f"if me != {absent}:\n    attempt(meets[1, 1])\n    sys.exit(1)\npgas.barrier_all()\n"
    ended = job(INIT + WAITS + text, npes=3, PGAS_TIMEOUT="3")
    found = reports(ended)
    assert found.keys() == {0, 1, 2}, ended
    waiting = (absent + (1 << round_)) % 3
    waited = r"sync_all waited 3 s \(PGAS_TIMEOUT\) for"
    missing = rf"  first error: PE {waiting}, block 0, thread 0: {waited} flag {round_} of the barrier >= \d+, last saw \d+"
    has(found[waiting], missing, ended)
    has(found[absent], IN_BARRIER, ended)


def test_who_writes_a_flag_of_the_barrier(job):
    """Asked before anybody gives up."""
    text = "if me == 0:\n    later(1, os.kill, os.getpid(), signal.SIGUSR1)\nif me == 1:\n    time.sleep(3)\n"
    text += "meets[1, 1]()\npgas.barrier_all()\n"
    ended = job(INIT + WAITS + text + END)
    assert (ended.status, ended.out) == (0, "handler True\n" * 2), ended
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    line = r"  block 0, thread 0: sync_all waits for flag 0 of the barrier >= 1, last saw 0, for [01]\.\d s"
    line += "; PE 1 writes it when it comes there"
    has(found[0], line, ended)
    has(found[1], r"  host: program\.py:\d+ <module>", ended)


IN_A_KERNEL = """
later(3, lambda: (word.copy_to_device(np.full(1, 3, np.uint64)), grid.copy_to_device(np.full((2, 3), -7))))
here()
kernel[2, 6](word, grid)
"""

IN_C = """
import ctypes
here()
end = time.monotonic() + 3
while time.monotonic() < end:  # a signal ends sleep(3)
    ctypes.CDLL(None).sleep(3)
"""


@pytest.mark.parametrize("victim", ["kernel", "C"])
def test_sigusr1_in_the_middle(job, victim):
    """Of a kernel, or while the main thread is in a C function that does not come back to Python; the job then ends well."""
    stand = {"kernel": IN_A_KERNEL, "C": IN_C}[victim]
    running = job.start(INIT + WAITS + stand + "pgas.synchronize()\npgas.barrier_all()\n" + END)
    pes, _ = running.wait()
    os.kill(pes[1], signal.SIGUSR1)
    ended = running.end()
    assert (ended.status, ended.out.count("handler True")) == (0, 2), ended
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    for lines in found.values():
        assert lines[0] == "hang report: SIGUSR1 to PE 1", ended
        assert not any("first error" in line for line in lines), ended
        if victim == "C":
            has(lines, r"  host: program\.py:\d+ <module>", ended)
        elif not ON_GPUS:
            has(lines, r"  threads: 2 blocks \(0-1\), each: .*3 of 6 threads wait for wait_until \(threads 1-3\).*", ended)
    if victim == "kernel":
        has(found[1], rf"  blocks 0-1, thread 0: signal_wait_until waits for element \[0\] of the {WORD} >= 3, .*", ended)


def test_job_of_one_and_json(job):
    ended = job(
        INIT + WAITS + "attempt(kernel[1, 2], word, grid)\nattempt(pgas.synchronize)\n", npes=1, PGAS_TIMEOUT="1", PGAS_HANG_REPORT="json"
    )
    report = json.loads(next(line for line in ended.err.splitlines() if line.startswith('{"hang_report"')))["hang_report"]
    assert report["pe"] == 0, ended
    assert report["n_pes"] == 1
    assert report["kernels"] == ["kernel[1, 2]"]
    assert len(report["waiters"]) == 1
    assert ended.err.count("hang_report") == 1


def test_reports_can_be_turned_off(job):
    ended = job(INIT + WAITS + "attempt(kernel[1, 2], word, grid)\n", npes=1, PGAS_TIMEOUT="1", PGAS_HANG_REPORT="off")
    assert "hang" not in ended.err, ended
    assert "waited 1 s (PGAS_TIMEOUT)" in ended.lines(0)[0], ended


def test_own_handler_of_the_program(job):
    """It is called, too, and is in place again when pgas is not."""
    text = "def own(number, frame):\n    say('own')\nsignal.signal(signal.SIGUSR1, own)\n" + INIT
    text += "os.kill(os.getpid(), signal.SIGUSR1)\ntime.sleep(1)\npgas.free(word)\npgas.finalize()\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    ended = job(text, npes=1)
    assert (ended.status, ended.out) == (0, "own\nown\n"), ended
    assert reports(ended).keys() == {0}, ended


# ----------------------------------------------------------------------------------------------------------------- through a NIC

THROUGH_A_NIC = """
@pgas.jit
def works(dest, source, word, pe):
    if cuda.blockIdx.x == 0:
        pgas.put_nbi_block(dest, source, pe)
        pgas.quiet()
    else:
        pgas.atomic_fetch_add(word, 0, 5, pe)

right = (me + 1) % n
dest, source = pgas.zeros(64, np.int32), pgas.zeros(64, np.int32)
pgas.barrier_all()
"""

QUEUE = r"queue pair {} to PE {} \(QP 0x[0-9a-f]+\)"
INT32 = r"int32 array of shape \(64,\) allocated at \S+program\.py:\d+"


@pytest.mark.parametrize("transport", ["ibgda", "ibrc"])
def test_completions_that_are_withheld(job, transport):
    """The engine stands still after some WQEs: the report has what is outstanding, and the card's view of it."""
    text = "source = cuda.to_device(np.zeros(64, np.int32))\npgas.register(source)\n"  # of which requests to the proxy carry the number
    text += "for _ in range(50):\n    works[2, 2](dest, source, word, right)\n    pgas.synchronize()\n"
    options = {"PGAS_TRANSPORT": transport, "PGAS_TIMEOUT": "3", "PGAS_SOFTHCA_FAULTS": "stop=20"}
    ended = job(INIT + THROUGH_A_NIC + text, **options)
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    everything = [line for lines in found.values() for line in lines]
    for pe, lines in found.items():
        has(lines, r"  the software card \(process \d+, engine \w+\S*.*\) .*, \d+ WQEs executed", ended)
        has(lines, rf"  process \d+ on \S+, transport {transport}", ended)
        cursors = r"resv_head \d+, ready_head \d+, rung_idx \d+" if transport == "ibgda" else r"prod_idx \d+, rung_idx \d+"
        view = r"; doorbell record \d+; the card: RTS, doorbell seen \d+, executed \d+"
        has(lines, rf"  {QUEUE.format(r'[12]', 1 - pe)}: [1-9]\d* outstanding; {cursors}, cons_idx \d+{view}", ended)
    has(
        everything,
        rf"    WQE \d+: (RDMA_WRITE, 256 bytes to element \[0\] of the {INT32}|ATOMIC_FA, 8 bytes to element \[0\] of the {WORD})"
        r" on PE \d \(raddr 0x[0-9a-f]+\)",
        ended,
    )
    has(everything, r"    last CQE: 0x0 REQ wqe_counter 0x[0-9a-f]{4} qpn 0x[0-9a-f]+ of 0x\w+ \w+.*", ended)
    if transport == "ibrc":
        has(everything, r"  the proxy thread runs \(\w+\); its ring: head \d+, completed \d+", ended)
        has(
            everything,
            r"    request \d+: (WRITE, 256 bytes|ADD, 8 bytes) to element \[0\] of the .* on PE \d(, value 5)?, on queue pair .*",
            ended,
        )
    assert ended.status != 0


def test_card_that_stands_still(job):
    """Its process is stopped: reports come without its view, in time."""
    text = "if me == 0:\n    os.kill(runtime.current().nic.card_pid, signal.SIGSTOP)\npgas.allgather_object(0)\n"
    text += "works[2, 2](dest, source, word, right)\npgas.synchronize()\n"
    ended = job(INIT + "from pgas import runtime\n" + THROUGH_A_NIC + text, PGAS_TRANSPORT="ibgda", PGAS_TIMEOUT="2")
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    for pe, lines in found.items():
        has(lines, r"  the software card \(process \d+\) does not answer: no answer within 2 s", ended)
        has(lines, rf"  {QUEUE.format(1, 1 - pe)}: 1 outstanding; .*", ended)
    assert ended.seconds < jobs.SOON


def test_the_table_of_those_who_wait_is_behind_everything_else():
    assert queue.RECORDS + queue.MAX_QUEUES * queue.RECORD_SIZE <= state.WAITERS
    assert state.WAITERS + (state.N_WAITERS << state.WAITER_SHIFT) <= window.BASE
