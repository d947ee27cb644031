"""Hang reports: every PE prints one when a wait has lasted PGAS_TIMEOUT, and on SIGUSR1, after which the job goes on."""

import json
import os
import re
import signal
import socket
import threading
import time

import jobs
import pytest
from jobs import INIT, ON_GPUS, holds
from strangers import NOBODY, stranger

from pgas.base import plain
from pgas.job.health import hang
from pgas.job.health.inquiry import Inquiry

#: Some threads of some blocks wait for a signal that nobody sends; and a call that ends the wait.
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

@pgas.jit
def release(word, grid, pe):
    pgas.p(grid, (1, 2), -7, pe)
    pgas.signal_op(word, 0, 3, pgas.SIGNAL_SET, pe)

def launch(kernel, *args):
    kernel(*args)
    pgas.synchronize()

grid = pgas.zeros((2, 3), np.int64)
pgas.barrier_all()
"""

END = """
for array in (grid, word):
    pgas.free(array)
pgas.finalize()
from pgas.job.health import inquiry
say("handler", signal.getsignal(signal.SIGUSR1) is inquiry._without_job)
"""

#: A line about a wait for other PEs on the host.
IN_BARRIER = r"  host: program\.py:\d+ <module>: pgas\.barrier_all\(\)"

#: Seconds of a wait with a limit of 2. The report of another thread's error may come later, on a busy machine.
OVER_2 = r"(?:[2-9]|\d\d+)\.\d s"

#: A PE goes on after its report, when it is told to.
REPORTED = """
from pgas.job import runtime

def reported():
    end = time.monotonic() + 50
    while runtime.current().hang._inquiry._last < 0 and time.monotonic() < end:
        time.sleep(0.05)
"""

WORD, GRID = (
    r"uint64 array of shape \(1,\) allocated at \S+program\.py:\d+",
    r"int64 array of shape \(2, 3\) allocated at \S+program\.py:\d+",
)


mps_server = jobs.mps_server


@pytest.fixture
def job(tmp_path):
    return jobs.Jobs(tmp_path, ON_GPUS)


def reports(ended):
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
    assert any(re.fullmatch(pattern, line) for line in lines), f"{pattern}\n{ended}"


def test_signal_that_nobody_sends(job):
    """PE 0 waits in a kernel, PE 1 in a barrier of the host. Each reports that, and the job ends as without reports."""
    ended = job(INIT + WAITS + "if me == 0:\n    kernel[2, 6](word, grid)\npgas.barrier_all()\n", PGAS_TIMEOUT="2")
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    waited = r"PE 0, block (\d), thread (\d): (signal_wait_until|wait_until) waited 2 s \(PGAS_TIMEOUT\) for element .*"
    for lines in found.values():
        has(lines, "hang report: " + waited, ended)
        has(lines, r"  process \d+ on \S+, transport p2p", ended)
    has(found[0], "  first error: " + waited, ended)
    has(found[0], r"  kernels that may still be running: kernel\[2, 6\]", ended)
    first = next(re.fullmatch("  first error: " + waited, line) for line in found[0] if line.startswith("  first error"))
    others = {"0": "1", "1": "0"}
    rest = f"block {others[first[1]]}, thread 0" if first[3] == "signal_wait_until" else "blocks 0-1, thread 0"
    has(
        found[0],
        rf"  {rest}: signal_wait_until waits for element \[0\] of the {WORD} >= 3, last saw 0, for {OVER_2}; any PE may write it",
        ended,
    )
    has(
        found[0],
        rf"  block.*threads 1-3(; .*)?: wait_until waits for element \[1, 2\] of the {GRID} == -7, last saw 0, for {OVER_2}; any .*",
        ended,
    )
    has(found[1], IN_BARRIER, ended)
    has(found[1], "  kernels that may still be running: none", ended)
    has(found[1], "  no thread is waiting in a pgas function", ended)
    holds(ended, "pgas: PE 0 failed (DeviceError), ending the job")
    assert ended.seconds < jobs.SOON


@pytest.mark.parametrize("absent", [jobs.also(1), 2])
def test_barrier_that_one_pe_does_not_enter(job, absent):
    """The others wait for its flag."""
    text = f"if me != {absent}:\n    attempt(launch, meets[1, 1])\n    sys.exit(1)\npgas.barrier_all()\n"
    ended = job(INIT + WAITS + text, npes=3, PGAS_TIMEOUT="3")
    found = reports(ended)
    assert found.keys() == {0, 1, 2}, ended
    flag = rf"the flag of PE {absent} in the barrier of all PEs >= \d+, last saw \d+"
    writer = f"PE {absent} writes it when it comes there"
    waits = rf"block 0, thread 0: sync_all waits for {flag}, for .* s; {writer}"  # if another thread times out first
    for pe in {0, 1, 2} - {absent}:
        failed = rf"first error: PE {pe}, block 0, thread 0: sync_all waited 3 s \(PGAS_TIMEOUT\) for {flag}: {writer}"
        has(found[pe], f"  (?:{failed}|{waits})", ended)
    has(found[absent], IN_BARRIER, ended)


@pytest.mark.slow
def test_the_writer_of_a_barrier_flag_is_named(job):
    """Before any wait times out; the kernel is compiled before. PE 1 is late, and the others wait for it."""
    text = """
launch(meets[1, 1])
if me == 0:
    later(2, os.kill, os.getpid(), signal.SIGUSR1)
if me == 1:
    reported()
    time.sleep(1)
meets[1, 1]()
pgas.barrier_all()
"""
    ended = job(INIT + WAITS + REPORTED + text + END, npes=3)
    assert (ended.status, ended.out) == (0, "handler True\n" * 3), ended
    found = reports(ended)
    assert found.keys() == {0, 1, 2}, ended
    flag = r"the flag of PE 1 in the barrier of all PEs >= (\d+), last saw \d+"
    for pe in (0, 2):
        has(found[pe], rf"  block 0, thread 0: sync_all waits for {flag}, for [12]?\d\.\d s; PE 1 writes it when it comes there", ended)
    has(found[1], r"  host: program\.py:\d+ reported: .*", ended)


#: Each block calls another collective of a team, on its channel. The first time all members do.
COLLECTIVES = """
@pgas.jit
def calls(team, dest, source, root):
    b = cuda.blockIdx.x
    if b == 0:
        pgas.team_sync_block(team, b)
    elif b == 1:
        pgas.reduce_block(team, dest[b, :4], source[:4], pgas.SUM, b)
    elif b == 2:
        pgas.broadcast_block(team, dest[b], source, root, b)
    else:
        pgas.alltoall_block(team, dest[b], source, b)

team = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
source, dest = pgas.zeros(n * 50_000, np.int64), pgas.zeros((4, n * 50_000), np.int64)
pgas.barrier_all()
calls[4, 32](team, dest, source, 0)
pgas.barrier_all()
"""

#: What the collectives wait for, by transport.
AWAITED = {
    "p2p": {"team_sync": "arrival", "reduce": "data", "broadcast": "arrival", "alltoall": "completion"},
    "ibgda": {"team_sync": "arrival", "reduce": "data", "broadcast": "chunk", "alltoall": "completion"},
}


@pytest.mark.parametrize("transport", ["p2p", jobs.also("ibgda")])
def test_a_member_that_does_not_come_to_a_collective(job, transport):
    """Every collective names the team, its channel, the epoch, and who is missing: PE 2, which is member 0."""
    text = "if me != 2:\n    attempt(launch, calls[4, 32], team, dest, source, 0)\n    sys.exit(1)\npgas.barrier_all()\n"
    ended = job(INIT + WAITS + COLLECTIVES + text, npes=3, PGAS_TIMEOUT="4", PGAS_TRANSPORT=transport, PGAS_SYMMETRIC_SIZE="64M")
    found = reports(ended)
    assert found.keys() == {0, 1, 2}, ended
    for channel, (name, what) in enumerate(AWAITED[transport].items()):
        call = rf"this PE calls pgas\.{name}.*, which PE 2 has not called \(its last call there: pgas\.{name}.*\)"
        epoch, last = (r"3 \(chunk 1\)", r"\d+ \(chunk \d+\)") if what == "chunk" else ("3", r"\d+")
        flag = rf"the {what} of PE 2 \(member 0\) on channel {channel} of team 4, epoch [>=]= {epoch}, last saw {last}"
        waits = rf"block {channel}, threads? [\d-]+: {name}_block waits for {flag}, for .* s; PE 2 writes it when it comes there; {call}"
        for pe in (0, 1):
            if not (name == "broadcast" and transport == "ibgda" and pe == 0):  # it waits for PE 1, which comes before it in the chain
                failed = rf"first error: PE {pe}, block {channel}, thread \d+: {name}_block waited 4 s \(PGAS_TIMEOUT\) for {flag}: .*"
                has(found[pe], f"  (?:{waits}|{failed})", ended)
    has(found[2], IN_BARRIER, ended)


#: PE 1 waits for a signal that PE 0 sends after its report was requested; kernels are compiled before.
IN_A_KERNEL = """
launch(release[1, 1], word, grid, me)
launch(kernel[2, 6], word, grid)
for array in (word, grid):
    array.copy_to_device(np.zeros(array.shape, array.dtype))
pgas.barrier_all()
here()
if me == 0:
    reported()
    time.sleep(1)
    release[1, 1](word, grid, 1)
else:
    kernel[2, 6](word, grid)
"""

IN_C = """
import ctypes
here()
end = time.monotonic() + 50
while runtime.current().hang._inquiry._last < 0 and time.monotonic() < end:
    ctypes.CDLL(None).sleep(2)  # the signal ends it
"""


@pytest.mark.parametrize("victim", ["kernel", jobs.also("C")])
def test_sigusr1_in_the_middle(job, victim):
    """During a kernel, or while the main thread is in a C function that does not return to Python. The job then ends normally."""
    stand = {"kernel": IN_A_KERNEL, "C": IN_C}[victim]
    running = job.start(INIT + WAITS + REPORTED + stand + "pgas.synchronize()\npgas.barrier_all()\n" + END)
    pes, _ = running.wait()
    time.sleep(1)  # until the kernel has begun to wait
    os.kill(pes[1], signal.SIGUSR1)
    ended = running.end()
    assert (ended.status, ended.out.count("handler True")) == (0, 2), ended
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    for lines in found.values():
        assert lines[0] == "hang report: SIGUSR1 to PE 1", ended
        assert not any("first error" in line for line in lines), ended
        if victim == "C":
            has(lines, r"  host: program\.py:\d+ <module>: .*", ended)
    if victim == "kernel":
        if not ON_GPUS:
            has(found[1], r"  threads: 2 blocks \(0-1\), each: .*3 of 6 threads wait for wait_until \(threads 1-3\).*", ended)
        has(found[1], rf"  blocks 0-1, thread 0: signal_wait_until waits for element \[0\] of the {WORD} >= 3, .*", ended)


@pytest.mark.slow
def test_a_report_after_an_earlier_request(job):
    """PEs that have answered an earlier request are asked again after an error."""
    text = "launch(release[1, 1], word, grid, 0)\nlaunch(kernel[2, 6], word, grid)\n"
    text += "for array in (word, grid):\n    array.copy_to_device(np.zeros_like(array.copy_to_host()))\n"
    text += "later(1, os.kill, os.getpid(), signal.SIGUSR1)\nattempt(launch, kernel[2, 6], word, grid)\n"
    ended = job(INIT + WAITS + text, npes=1, PGAS_TIMEOUT="6", PGAS_HANG_REPORT="json")
    asked, failed = (json.loads(line)["hang_report"] for line in ended.err.splitlines() if line.startswith('{"hang_report"'))
    assert asked["reason"] == "SIGUSR1 to PE 0", ended
    assert [len(report["waiters"]) for report in (asked, failed)] == [2, 2], ended
    assert max(waiter["waited_s"] for waiter in asked["waiters"]) < 6, ended
    assert min(waiter["waited_s"] for waiter in failed["waiters"]) >= 6, ended


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
    ended = job(INIT + WAITS + "attempt(launch, kernel[1, 2], word, grid)\n", npes=1, PGAS_TIMEOUT="1", PGAS_HANG_REPORT="off")
    assert "hang" not in ended.err, ended
    assert "waited 1 s (PGAS_TIMEOUT)" in ended.lines(0)[0], ended


def test_own_handler_of_the_program(job):
    """It is also called, and is restored after finalize."""
    text = "def own(number, frame):\n    say('own')\nsignal.signal(signal.SIGUSR1, own)\n" + INIT + REPORTED
    text += "os.kill(os.getpid(), signal.SIGUSR1)\nreported()\npgas.free(word)\npgas.finalize()\n"
    text += "say(signal.getsignal(signal.SIGUSR1) is own, signal.set_wakeup_fd(-1))\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    ended = job(text, npes=1)
    assert (ended.status, ended.out) == (0, "own\nTrue -1\nown\n"), ended
    assert reports(ended).keys() == {0}, ended


def test_a_child_that_is_forked_ends_without_the_job(job):
    """However it ends, its parent goes on and still answers."""
    text = "for how in (lambda: sys.exit(3), lambda: 1 / 0, lambda: None):\n"
    text += "    child = os.fork()\n    if child == 0:\n        how()\n        sys.exit()\n    say(os.waitpid(child, 0)[1] >> 8)\n"
    text += "os.kill(os.getpid(), signal.SIGUSR1)\nreported()\npgas.free(word)\n"
    ended = job(INIT + REPORTED + text, npes=1)
    assert (ended.status, ended.out) == (0, "3\n1\n0\n"), ended
    assert reports(ended).keys() == {0}, ended


#: PE 1 is stopped, or late, until PE 0 has reported its wait.
LATE = """
import re
from pgas.base import liveness, waits
from pgas.base.launcher import launched
from pgas.job.bootstrap.processes import siblings

if launched().launcher == "mpirun":
    from mpi4py import MPI  # MPI_Init is another wait

def say(text, say=waits.say):
    say(text)
    os.kill(int(re.search(r"process (\\d+)", text)[1]), signal.SIGCONT)

waits.say = say
continued = threading.Event()
signal.signal(signal.SIGCONT, lambda *_: continued.set())
late = launched_rank() == 1

def stop():
    if late:
        os.kill(os.getpid(), signal.SIGSTOP)
    while not late and liveness.state(siblings(os.getppid()).get(1, 0)) != "stopped":
        time.sleep(0.01)

stop()
pgas.init()
stop()
pgas.barrier_all()
continued.clear()
if late:
    continued.wait()
word = pgas.zeros(1)
pgas.free(word)
stop()
"""


def test_waits_of_the_host_say_who_is_waited_for(tmp_path):
    """For a stopped process in init, a barrier and finalize, and for a late one. The waits go on after the message."""
    ended = jobs.Jobs(tmp_path, ON_GPUS, real=True)(LATE, PGAS_TIMEOUT="0.5")
    assert (ended.status, ended.out) == (0, ""), ended
    for call in ("init", "barrier_all", "zeros", "finalize"):
        stopped = "" if call == "zeros" else ", which is stopped"
        where = r", at the store at \S+" if jobs.BY_RUN and call == "init" else ""
        who = rf"PE 1 \(process \d+{stopped}\) in pgas\.{call}\(.*\){where}"
        line = rf"^pgas: PE 0 has waited 0.5 s \(PGAS_TIMEOUT\) for {who} and is still waiting$"
        assert len(re.findall(line, ended.err, re.MULTILINE)) == 1, f"{call}\n{ended}"


@pytest.mark.slow
@pytest.mark.skipif(jobs.BY_RUN, reason="pgas.run's PEs do not wait for each other at their ends")
def test_the_wait_at_the_end_says_who_is_waited_for(tmp_path):
    """In MPI_Finalize, where no Python thread runs."""
    text = """
import subprocess

pgas.finalize()
os.environ["PGAS_TIMEOUT"] = "0.5"
if me == 1:
    subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    ended = jobs.Jobs(tmp_path, real=True)(INIT + "pgas.free(word)\n" + text, npes=3)
    said = re.sub(r"\d{2,}", "N", ended.err)
    wait = "pgas: PE 0 has waited 0.5 s (PGAS_TIMEOUT) for PE 1 (process N, which is stopped) in MPI_Finalize and is still waiting\n"
    assert (ended.status, said) == (0, wait), ended


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


@pytest.mark.parametrize("transport", ["ibgda", jobs.also("ibrc")])
def test_withheld_completions(job, transport):
    """The engine stops after some WQEs: the report has the outstanding requests, and the card's view of them."""
    text = "source = cuda.to_device(np.zeros(64, np.int32))\npgas.register(source)\n"  # of which requests to the proxy carry the number
    text += "works[2, 2](dest, source, word, right)\npgas.barrier_all()\n"  # compiled on both, before the one stands still for the other
    text += "for _ in range(50):\n    works[2, 2](dest, source, word, right)\n    pgas.synchronize()\n"
    options = {"PGAS_TRANSPORT": transport, "PGAS_TIMEOUT": "3", "PGAS_SOFTHCA_FAULTS": "stop=20"}
    ended = job(INIT + THROUGH_A_NIC + text, **options)
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    everything = [line for lines in found.values() for line in lines]
    for pe, lines in found.items():
        has(lines, r"  the software NIC \(process \d+, engine \w+\S*.*\) .*, \d+ WQEs executed", ended)
        has(lines, rf"  process \d+ on \S+, transport {transport}", ended)
        cursors = r"resv_head \d+, ready_head \d+, rung_idx \d+" if transport == "ibgda" else r"prod_idx \d+, rung_idx \d+"
        view = r"; doorbell record \d+; the NIC: RTS, doorbell seen \d+, executed \d+"
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


@pytest.mark.slow
def test_stopped_card(tmp_path):
    """The card's process is stopped, after its engine, which would go on on a GPU. Reports come in time, without the card's view."""
    text = """
from pathlib import Path
if me == 0:
    card = runtime.current().nic.process
    runtime.current().nic.adapter.pause()
    os.kill(card, signal.SIGSTOP)
    while any("State:\\tT" not in (task / "status").read_text() for task in Path(f"/proc/{card}/task").iterdir()):
        pass
pgas.allgather_object(0)
works[2, 2](dest, source, word, right)
pgas.synchronize()
"""
    job = jobs.Jobs(tmp_path, ON_GPUS, real=True)  # Linux continues stopped processes when their session ends
    ended = job(INIT + "from pgas.job import runtime\n" + THROUGH_A_NIC + text, PGAS_TRANSPORT="ibgda", PGAS_TIMEOUT="2")
    found = reports(ended)
    assert found.keys() == {0, 1}, ended
    for pe, lines in found.items():
        has(lines, r"  the software NIC \(process \d+\) is stopped", ended)
        has(lines, r"  the software NIC \(process \d+\) does not answer: no answer within 2 s", ended)
        has(lines, rf"  {QUEUE.format(1, 1 - pe)}: 1 outstanding; .*", ended)
    assert ended.seconds < jobs.SOON


def test_a_pe_that_is_stopped_is_named(tmp_path):
    """While another PE waits for it in a kernel: by the report and by the error."""
    text = """
if me == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    waits[1, 1](word)
    pgas.synchronize()
except pgas.DeviceError as error:
    say(str(error).partition(" for ")[0], "--", *error.__notes__)
    raise
"""
    ended = jobs.Jobs(tmp_path, ON_GPUS, real=True)(INIT + text, PGAS_TIMEOUT="2")
    found = reports(ended)
    assert found.keys() == {0}, ended
    has(found[0], r"  PE 1 \(process \d+\) is stopped", ended)
    assert re.search(r"signal_wait_until waited 2 s \(PGAS_TIMEOUT\) -- PE 1 \(process \d+\) is stopped\n", ended.out), ended
    assert ended.seconds < jobs.SOON


@pytest.mark.parametrize(
    "sent", [b"5", plain.dumps(5), plain.dumps(([], "why")), plain.dumps((7, "why")), b"L\1\0\0\0" * 10_000, b"[" * 60_000]
)
def test_malformed_messages_are_ignored(sent):
    """Those of a peer, and all of a stranger: any process on the machine can send to the sockets. The PEs go on listening."""
    said = []
    pes = [Inquiry(pe, said.append) for pe in range(2)]
    try:
        for pe, inquiry in enumerate(pes):
            inquiry.start({1 - pe: pes[1 - pe].address})
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            for sender, data in ((stranger, sent), (stranger, plain.dumps((1, "a stranger"))), (pes[1]._inbox, sent)):
                sender.sendto(data, f"\0{pes[0].address}")
        pes[1].ask("a peer", wait=True)
    finally:
        for inquiry in reversed(pes):
            inquiry.stop()
    assert said == ["a peer", "a peer"]


def test_a_stranger_with_the_name_of_an_ended_peer_is_ignored():
    said = []
    pes = [Inquiry(pe, said.append) for pe in range(3)]
    address = f"\0{pes[1].address}"
    for pe, inquiry in enumerate(pes):
        inquiry.start({other: pes[other].address for other in range(3) if other != pe})
    pes[1].stop()

    def ask():
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        taken.bind(address)
        taken.sendto(plain.dumps((1, "a stranger")), f"\0{pes[0].address}")

    with stranger(ask, NOBODY):
        pes[2].ask("a peer", wait=True)
    for inquiry in pes:
        inquiry.stop()
    assert said == ["a peer", "a peer"]


@pytest.mark.parametrize("own", [False, True])
def test_a_signal_without_a_job(job, own):
    """Before init, while init waits for a PE that comes late, and after finalize: no PE ends, and each says where it is."""
    text = "signal.signal(signal.SIGUSR1, lambda *_: say('own'))\n" if own else ""
    text += "me = launched_rank()\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    text += """
from pathlib import Path

first = Path(sys.argv[0]).with_name("first")
if me == 0:
    note("first", os.getpid())
else:  # a thread of PE 0 could not send it, because MPI_Init may hold the GIL
    while not first.exists():
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(int(first.read_text()), signal.SIGUSR1)
pgas.init()
pgas.finalize()
os.kill(os.getpid(), signal.SIGUSR1)
"""
    ended = job(text)
    assert ended.status == 0, ended
    said = re.findall(r"pgas: process \d+ has no job, because pgas.init\(\) has not ended, or pgas.finalize\(\) has: it is at", ended.err)
    assert (len(said), ended.out.count("own")) == ((0, 5) if own else (5, 0)), ended


@pytest.mark.parametrize("in_thread", [("init", "finalize"), ("init",), ("finalize",)])
def test_a_signal_to_a_job_of_another_thread(job, in_thread):
    """Another thread than the main one begins the job, ends it, or both. SIGUSR1 makes a report, and says later that there is no job."""
    text = f"""
import threading
{REPORTED}
def call(name):
    if name not in {in_thread}:
        return getattr(pgas, name)()
    thread = threading.Thread(target=getattr(pgas, name))
    thread.start()
    thread.join()

for job in range(2):
    call("init")
    os.kill(os.getpid(), signal.SIGUSR1)
    reported()
    pgas.barrier_all()
    call("finalize")
os.kill(os.getpid(), signal.SIGUSR1)
say("goes on")
"""
    ended = job(text, npes=1)
    assert (ended.status, ended.out.count("goes on")) == (0, 1), ended
    assert len(re.findall("hang report: SIGUSR1 to PE 0", ended.err)) == 2, ended
    assert len(re.findall("has no job, because", ended.err)) == 1, ended


def test_a_compilation_stands_for_the_calls_of_the_compiler(monkeypatch):
    def compiles():  # as a launch, whose module is of pgas
        return hang._host_stack()

    scope = {"__name__": "pgas.api.jit", "compiles": compiles}
    exec("def launch():\n    return compiles()", scope)
    monkeypatch.setattr(hang.backend, "compiling", lambda thread: "stencil" if thread == threading.main_thread().ident else "")
    for words, between in ("", []), ("traceback", ["launch"]):
        monkeypatch.setenv("PGAS_DEBUG", words)
        calls = [re.sub(r".*?:\d+ (\w+)(: .*)?", r"\1", call) for call in scope["launch"]()]
        assert calls == ["test_a_compilation_stands_for_the_calls_of_the_compiler", *between, "is compiling kernel stencil"]
