"""What goes wrong: every program here ends within seconds, with one message that says what, and leaves nothing behind.

The programs run in the simulator, in processes of their own, under mpirun where there is more than one PE.
"""

import os
import re
import signal
import sys
from types import SimpleNamespace

import jobs
import pytest
from jobs import INIT, PRELUDE, also, holds

from pgas import __main__ as commands
from pgas.base import waits
from pgas.base.config import size_text
from pgas.doctor import info

job, real_job = jobs.job, jobs.real_job

of_mpirun = pytest.mark.skipif(jobs.BY_RUN, reason="of mpirun, and of what a user puts between it and a PE")

NO_INIT = "pgas.init() has not been called, or pgas.finalize() has already been called"

#: Number of lines of a program before its own part, and the array that their last line allocates.
LINES = len((PRELUDE + INIT).splitlines())
WORD = f"uint64 array of shape (1,) allocated at program.py:{LINES}"


def unfoldered(lines):
    """Return lines without the folders of files."""
    return [re.sub(r"/\S*/", "", line) for line in lines]


# ---------------------------------------------------------------------------------------------------- a PE that fails


@pytest.mark.parametrize("how", ["kernel", pytest.param("barrier", marks=pytest.mark.slow)])
def test_exception_in_one_pe(real_job, how):
    ended = real_job(INIT + f"if me == 1:\n    time.sleep(0.2)\n    raise RuntimeError('boom')\nwait({how!r}, word)\n")
    holds(ended, "RuntimeError: boom", "pgas: PE 1 failed (RuntimeError), ending the job", status=1)
    assert (ended.err.count("Traceback"), ended.err.count("pgas: "), ended.err.count("bort")) == (1, 1, 0), ended
    assert ended.seconds < jobs.SOON


#: A hook of the program. It lets MPI_Abort return, as MPICH's does, and the launcher end the job a second later.
HOOK = """
from types import SimpleNamespace
from pgas.job import runtime
def hook(kind, error, tb):
    print("hook:", error, file=sys.stderr)
    if mpi := sys.modules.get("mpi4py.MPI"):
        late = threading.Thread(target=lambda: (time.sleep(1), mpi.COMM_WORLD.Abort(1)), daemon=True)
        world = SimpleNamespace(Abort=lambda status: late.start())
        runtime.current().bootstrap._mpi = SimpleNamespace(**vars(mpi) | {"COMM_WORLD": world})
"""


@pytest.mark.parametrize("living", [False, also(True)])
def test_exception_that_a_hook_of_the_program_prints(real_job, living):
    """The program replaces sys.excepthook after init. A thread that lives on does not delay the end of the job."""
    thread = "threading.Thread(target=time.sleep, args=(60,)).start()" if living else "pass"
    text = f"sys.excepthook = hook\nif me == 1:\n    {thread}\n    raise RuntimeError('boom')\npgas.barrier_all()\n"
    ended = real_job(INIT + HOOK + text)
    holds(ended, "hook: boom\npgas: PE 1 failed (RuntimeError), ending the job\n", status=1)
    assert "disagree" not in ended.err, ended  # The hook of PE 0 may print the end of PE 1.
    assert ended.seconds < jobs.SOON


def test_exception_that_a_test_tool_has_stored(job):
    """pytest and shells store exceptions that they catch where Python stores the one that ends a program."""
    text = """
def test():
    try:
        1 / 0
    except ZeroDivisionError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()

test()
"""
    ended = job(INIT + text)
    assert (ended.status, ended.err) == (0, ""), ended


def test_exception_in_all_pes_is_told_once(job):
    ended = job(INIT + "if me == 1:\n    time.sleep(0.1)\nraise RuntimeError('boom')\n")
    holds(ended, "RuntimeError: boom", "failed (RuntimeError), ending the job", status=1)
    assert (ended.err.count("Traceback"), ended.err.count("pgas: ")) == (1, 1), ended


def test_error_of_one_pe_is_told_by_itself(job):
    """Not by the others, whose collective call failed with it, and who may be faster."""
    ended = job(INIT + "try:\n    pgas.free(word if me == 0 else 3)\nfinally:\n    time.sleep(0.5 * me)\n")
    holds(
        ended,
        "ValueError: pgas.free: array must be on the symmetric heap, not int",
        "pgas: PE 1 failed (ValueError), ending the job",
        status=1,
    )
    assert (ended.err.count("Traceback"), ended.err.count("pgas: ")) == (1, 1), ended


@pytest.mark.parametrize("how", ["kernel", pytest.param("barrier", marks=pytest.mark.slow)])
def test_exit_status_of_one_pe_ends_the_job(real_job, how):
    """PE 1 waits in its finalize, not for long; PE 0 notices in a barrier at once. PE 1 says so; its status is the job's."""
    ended = real_job(INIT + f"if me == 1:\n    time.sleep(0.2)\n    sys.exit(3)\nwait({how!r}, word)\n")
    disagree = "PEs disagree in a collective call: PE 0 called pgas.barrier_all(), PE 1 called pgas.finalize() because its program"
    words = {
        "kernel": "the program ended with exit status 3, and the job did not within 3 s",
        "barrier": f"{disagree} ended with exit status 3",
    }
    assert (ended.status, ended.err) == (3, f"pgas: PE 1: {words[how]}, ending the job\n"), ended
    assert ended.seconds < jobs.SOON


def test_exit_status_of_a_pe_whose_thread_lives_on(real_job):
    """Python waits for the thread, and the other PE would wait with it."""
    text = "ending.GRACE_S = 0.5\nif me == 1:\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    sys.exit(3)\n"
    ended = real_job("import threading\nfrom pgas.job.health import ending\n" + INIT + text + "pgas.barrier_all()\n")
    disagree = "PEs disagree in a collective call: PE 0 called pgas.barrier_all(), PE 1 called pgas.finalize() because its program"
    assert (ended.status, ended.err) == (3, f"pgas: PE 1: {disagree} ended with exit status 3, ending the job\n"), ended
    assert ended.seconds < jobs.SOON


def test_exit_inside_the_with_block(job):
    """With status 0, however it is made, it finalizes."""
    text = "for leave in (sys.exit, exit, lambda: sys.exit(0), lambda: sys.exit(None)):\n    try:\n        with pgas.init():\n"
    text += (
        "            pgas.init()\n            pgas.finalize()\n            leave()\n    except SystemExit:\n        attempt(pgas.my_pe)\n"
    )
    text += "with pgas.init():\n    raise SystemExit({})\n"
    ended = job(text.format(0), npes=1)
    assert (ended.status, ended.err, ended.lines(0)) == (0, "", [f"PgasError: {NO_INIT}"] * 4), ended
    ended = job(text.format("5 * pgas.my_pe()"))
    said = re.sub(r"process \d+", "process N", ended.err)
    assert (ended.status, said) == (5, "pgas: PE 1 (process N) ended with status 5, ending the job\n" if jobs.BY_RUN else ""), ended


@pytest.mark.slow
def test_exit_that_the_program_catches(real_job):
    """It is no end: the other PE gets all the time it needs."""
    text = "try:\n    sys.exit(3 * me)\nexcept SystemExit:\n    pass\npgas.free(word)\ntime.sleep(4 * (1 - me))\n"
    ended = real_job(INIT + text)
    assert (ended.status, ended.err) == (0, ""), ended


def test_orderly_exit_of_one_pe_while_another_waits(job):
    ended = job(INIT + "if me == 1:\n    sys.exit(0)\nattempt(pgas.barrier_all)\nsys.exit(5)\n")
    assert ended.only_line(0).endswith("PE 0 called pgas.barrier_all(), PE 1 called pgas.finalize() because its program ended"), ended


#: What is said of the end of a process, whose parent may have waited for it already.
FATES = {
    "os.kill(os.getpid(), 9)": r"(was killed by signal 9|ended without pgas.finalize\(\)): the job cannot continue",
    "os._exit(0)": r"ended (with status 0 )?without pgas.finalize\(\): the job cannot continue",
}


def says_once(ended, *deaths):
    """The one line of pgas is about the death of a process: one of these patterns."""
    lines = [line for line in ended.err.splitlines() if line.startswith("pgas: ")]
    assert len(lines) == 1, ended
    assert any(re.fullmatch(f"pgas: {death}", lines[0]) for death in deaths), ended
    assert "Traceback" not in ended.err, ended


@pytest.mark.parametrize(
    ("how", "death"), [("kernel", "os.kill(os.getpid(), 9)"), pytest.param("barrier", "os._exit(0)", marks=pytest.mark.slow)]
)
def test_dead_pe(real_job, how, death):
    """mpirun notices, and kills the others at once."""
    ended = real_job(INIT + f"say('process', me, os.getpid())\nif me == 1:\n    time.sleep(0.2)\n    {death}\nwait({how!r}, word)\n")
    pid = re.search(r"process 1 (\d+)", ended.out)
    says_once(ended, rf"PE 1 \(process {pid[1]}\) {FATES[death]}")
    assert ended.seconds < jobs.SOON


@of_mpirun
def test_the_pe_that_began_to_end_first_is_named(real_job):
    """PE 1 has closed its pipe, as a process does that is killed, when PE 0 is killed; Hydra then kills PE 1."""
    text = "if me == 1:\n    os.close(pgas.job.runtime.current().health.detector._pipe)\npgas.barrier_all()\n"
    ended = real_job("import pgas.job.runtime\n" + INIT + text + "if me == 0:\n    os.kill(os.getpid(), 9)\ntime.sleep(60)\n")
    says_once(ended, r"PE 1 \(process \d+\) " + FATES["os.kill(os.getpid(), 9)"])


@pytest.mark.slow  # on a busy machine Hydra may hear nobody any more when the watcher speaks
def test_dead_pe_in_init(real_job):
    """Before there is a heap, but after the process has come that says who died."""
    text = """
from pathlib import Path
from pgas.job import growth

def watched():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"liveness" in (process / "cmdline").read_bytes() and os.environ["TEST_JOB"].encode() in (process / "environ").read_bytes():
                if sum(os.readlink(fd) == "anon_inode:[pidfd]" for fd in (process / "fd").iterdir()) > 2:
                    return True
        except OSError:
            pass

def die(requested):
    while not watched():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)

if launched_rank() == 1:
    growth.Bounds.of = die
pgas.init()
"""
    ended = real_job(text)
    says_once(ended, rf"PE 1 \(process \d+\) {FATES['os.kill(os.getpid(), 9)']}")


@pytest.mark.parametrize(
    ("how", "death"),
    [
        ("kernel", "os.kill(os.getpid(), 9)"),
        pytest.param("barrier", "os._exit(0)", marks=pytest.mark.slow),
        pytest.param("sleep", "os.kill(os.getpid(), 9)", marks=pytest.mark.slow),
    ],
)
@of_mpirun
def test_dead_pe_that_mpirun_does_not_notice(real_job, how, death):
    """A shell around each PE keeps mpirun in the dark: the other PE notices, says who died and ends the job."""
    ended = real_job(
        INIT + f"say('process', me, os.getpid())\nif me == 1:\n    time.sleep(0.2)\n    {death}\nwait({how!r}, word)\n",
        wrapper=("/bin/sh", "-c", '"$0" "$@"; sleep 60'),
    )
    pid = re.search(r"process 1 (\d+)", ended.out)
    assert pid, ended
    says_once(ended, rf"PE 1 \(process {pid[1]}\) {FATES[death]}")
    assert ended.seconds < jobs.SOON


@pytest.mark.slow
def test_error_of_cuda_that_a_death_makes(real_job):
    """Under MPS it comes with the death, and from any library."""
    text = "say('process', me, os.getpid())\nif me == 1:\n    time.sleep(0.5)\n    os._exit(0)\nraise RuntimeError('CUDA error: 700')\n"
    ended = real_job(INIT + text, wrapper=("/bin/sh", "-c", '"$0" "$@"; sleep 60'))
    pid = re.search(r"process 1 (\d+)", ended.out)
    says_once(ended, rf"PE 1 \(process {pid[1]}\) {FATES['os._exit(0)']}")


@of_mpirun
@pytest.mark.slow
def test_death_of_the_process_that_started_a_pe(real_job):
    """As that of mpirun, if it is Open MPI's."""
    text = "if me == 1:\n    os.kill(os.getppid(), 9)\nwait('kernel', word)\n"
    inner = '/bin/sh -c \'"$0" "$@"; exit\' "$0" "$@"'
    ended = real_job(INIT + text, wrapper=("/bin/sh", "-c", f"{inner}; sleep 60"))
    says_once(ended, rf"the process that started PE 1 \(process \d+\) {FATES['os.kill(os.getpid(), 9)']}")
    assert ended.seconds < jobs.SOON


@pytest.mark.slow
def test_dead_pe_of_three(real_job):
    text = "say('process', me, os.getpid())\nif me == 2:\n    time.sleep(0.2)\n    os._exit(0)\nwait(['kernel', 'barrier'][me], word)\n"
    ended = real_job(INIT + text, npes=3, wrapper=("/bin/sh", "-c", '"$0" "$@"; sleep 60'))
    pid = re.search(r"process 2 (\d+)", ended.out)
    assert pid, ended
    says_once(ended, rf"PE 2 \(process {pid[1]}\) {FATES['os._exit(0)']}")


@pytest.mark.parametrize("how", ["kernel", pytest.param("barrier", marks=pytest.mark.slow)])
def test_interrupt_of_one_pe(real_job, how):
    text = f"if me == 1:\n    later(0.3, os.kill, os.getpid(), signal.SIGINT)\nwait({how!r} if me == 1 else 'sleep', word)\n"
    ended = real_job(INIT + text)
    holds(ended, "KeyboardInterrupt", "pgas: PE 1 failed (KeyboardInterrupt), ending the job")
    assert ended.seconds < jobs.SOON


@pytest.mark.slow
def test_interrupt_that_the_program_catches(real_job):
    """In a kernel: the job is broken, on all PEs, and says so."""
    text = "try:\n    waits[1, 1](word)\nexcept KeyboardInterrupt:\n    pass\n"
    text = f"if me == 1:\n    later(0.3, os.kill, os.getpid(), signal.SIGINT)\n    {text.replace(chr(10), chr(10) + '    ')}\n"
    ended = real_job(INIT + text + "attempt(pgas.barrier_all)\nattempt(pgas.reset)\nattempt(pgas.barrier_all)\n")
    given_up = "DeviceError: the job was given up earlier (KeyboardInterrupt): pgas.reset() makes it usable again"
    assert ended.lines(1) == [given_up, "no error", "no error"], ended
    assert ended.lines(0) == [f"BootstrapError: PE 1 failed in pgas.barrier_all(): {given_up}", "no error", "no error"], ended
    assert ended.status == 0, ended


def test_ctrl_c(real_job):
    """At the terminal: mpirun gets the signal. One PE says where it was, without what is inside pgas."""
    running = real_job.start(INIT + "wait('kernel', word)\n")
    running.wait()
    running.process.send_signal(signal.SIGINT)
    ended = running.end()
    assert ended.status != 0, ended
    assert len(ended.err.splitlines()) < 12, ended
    assert ended.err.count("Traceback") <= 1, ended
    assert "pgas/" not in ended.err, ended
    assert ended.seconds < jobs.SOON


@pytest.mark.slow
def test_interrupt_of_a_job_of_one(real_job):
    ended = real_job(INIT + "later(0.3, os.kill, os.getpid(), signal.SIGINT)\nwait('kernel', word)\n", npes=1)
    holds(ended, "KeyboardInterrupt")
    assert ended.seconds < jobs.SOON


def test_exception_in_a_kernel_of_one_pe(job):
    ended = job(
        INIT + "@pgas.jit\ndef fails(a):\n    if cuda.threadIdx.x == 5:\n        raise ZeroDivisionError\n"
        "if me == 1:\n    fails[1, 32](word)\nwait('kernel', word)\n"
    )
    holds(ended, "ZeroDivisionError: tid=[5, 0, 0] ctaid=[0, 0, 0]", "pgas: PE 1 failed (ZeroDivisionError), ending the job")


def test_exception_inside_the_with_block(job):
    ended = job("with pgas.init():\n    pgas.zeros(4)\n    raise KeyError('lost')\n", npes=1)
    holds(ended, "KeyError: 'lost'", status=1)
    assert "never freed" not in ended.err


def test_exit_status_of_a_job_of_one(job):
    assert job(INIT + "sys.exit(3)\n", npes=1).status == 3


def test_a_line_is_one_write(monkeypatch):
    """mpirun mixes what PEs write, also between a line and its end."""
    written = []
    monkeypatch.setattr(waits.sys, "stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    waits.say("PE 1 failed")
    assert written == ["pgas: PE 1 failed\n"]


# ------------------------------------------------------------------------------------------------------ waits, deadlock


@pytest.mark.slow
def test_wait_that_times_out(job):
    text = """
grid = pgas.zeros((2, 3), np.int64)
@pgas.jit
def late(grid):
    if cuda.threadIdx.x == 3:
        pgas.wait_until(grid, (1, 2), pgas.GT, -7)
grid[1, 2] = -9
attempt(late[1, 8], grid)
attempt(pgas.barrier_all)
attempt(pgas.synchronize)
pgas.finalize()
"""
    ended = job(INIT + text, PGAS_TIMEOUT="2")
    for pe in (0, 1):
        said = ended.lines(pe)
        assert len(said) == 3, ended
        expected = (
            f"PE {pe}, block 0, thread 3: wait_until waited 2 s (PGAS_TIMEOUT) for element [1, 2] of the int64 array of shape (2, 3) "
            "allocated at "
        )
        assert said[0].startswith("DeviceError: " + expected), ended
        assert re.search(r"program\.py:\d+ > -7, last saw -9$", said[0]), ended
        assert said[1].startswith("DeviceError: " + expected), ended
        assert said[2] == said[1]
    holds(ended, "ending the job")
    assert 2 < ended.seconds < jobs.SOON


@pytest.mark.slow
def test_lock_that_is_not_cleared(job):
    """PE 0 holds it, PE 1 waits for it."""
    text = """
lock = pgas.zeros(2, np.int64)
@pgas.jit
def ask(lock):
    pgas.set_lock(lock, 1)
if me == 0:
    ask[1, 1](lock)
pgas.barrier_all()
if me == 1:
    attempt(ask[1, 1], lock)
    os._exit(0)
pgas.barrier_all()
"""
    ended = job(INIT + text, PGAS_TIMEOUT="1")
    who = "DeviceError: PE 1, block 0, thread 0: set_lock waited 1 s (PGAS_TIMEOUT) for the lock, element [1]"
    said = ended.lines(1)[0]
    assert said.startswith(who), ended
    assert re.search(r"program\.py:\d+ on PE [01]; threads that asked for it earlier and have not cleared it: 1$", said), ended
    assert "set_lock waits for" not in ended.err or "the thread that holds it clears it" in ended.err, ended


@pytest.mark.slow
def test_error_that_one_pe_catches_and_ends_with(job):
    """PE 0 ends without finalizing what it broke; PE 1, which ends in good order, must not wait for it."""
    ended = job(INIT + "if me == 0:\n    attempt(waits[1, 1], word)\nsay('end of program')\n", PGAS_TIMEOUT="1")
    assert "waited 1 s (PGAS_TIMEOUT)" in ended.lines(0)[0], ended
    assert ended.seconds < jobs.SOON


def test_signal_that_never_comes_to_one_pe(job):
    """PE 0 gives up; PE 1, in a barrier meanwhile, is ended with it."""
    ended = job(INIT + "wait('kernel' if me == 0 else 'barrier', word)\n", PGAS_TIMEOUT="1")
    holds(
        ended,
        "DeviceError: PE 0, block 0, thread 0: signal_wait_until waited 1 s (PGAS_TIMEOUT) for "
        "element [0] of the uint64 array of shape (1,)",
        ">= 1, last saw 0",
        "pgas: PE 0 failed (DeviceError), ending the job",
    )


@pytest.mark.slow
def test_barrier_in_a_kernel_that_a_pe_does_not_reach(job):
    text = "@pgas.jit\ndef meets():\n    pgas.sync_all()\nif me == 0:\n    attempt(meets[1, 1])\npgas.barrier_all()\n"
    ended = job(INIT + text, PGAS_TIMEOUT="1")
    waited = "PE 0, block 0, thread 0: sync_all waited 1 s (PGAS_TIMEOUT) for the flag of PE 1 in the barrier of all PEs >= 1, last saw 0"
    assert ended.lines(0)[0].endswith(waited + ": PE 1 writes it when it comes there"), ended
    holds(ended, "ending the job")


def test_deadlock_names_threads_and_what_they_wait_for(job):
    text = """
@pgas.jit
def stuck(a):
    if cuda.threadIdx.x < 5:
        cuda.syncwarp(0xff)
    else:
        cuda.syncthreads()
attempt(stuck[2, 8], word)
pgas.finalize()
"""
    ended = job(INIT + text, npes=1)
    assert ended.lines(0) == [
        "DeadlockError: deadlock in stuck, no thread can run: 2 blocks (0-1), each: "
        "5 of 8 threads wait in syncwarp mask 0xff (threads 0-4); 3 of 8 threads wait in syncthreads (threads 5-7)"
    ], ended
    assert ended.status == 0


def test_deadlock_in_one_pe_ends_the_job(job):
    text = "@pgas.jit\ndef stuck():\n    if cuda.threadIdx.x:\n        cuda.syncthreads()\n    else:\n        cuda.syncwarp(3)\n"
    ended = job(INIT + text + "if me == 1:\n    stuck[1, 2]()\nwait('kernel', word)\n")
    holds(ended, "DeadlockError: deadlock in stuck, no thread can run", "pgas: PE 1 failed (DeadlockError), ending the job")


@pytest.mark.parametrize("poll", ["pgas.g(word, 0, 0)", "pgas.atomic_fetch_add(word, 0, 0, 0)"])
def test_spin_of_the_user_lets_others_run(job, poll):
    text = f"""
@pgas.jit
def spins(word):
    if cuda.threadIdx.x == 0:
        while {poll} == 0:
            pass
    else:
        pgas.p(word, 0, 1, 0)
attempt(spins[1, 2], word)
"""
    ended = job(INIT + text, npes=1)
    assert ended.lines(0) == ["no error"], ended


def test_wait_returns_what_satisfied_it(job):
    """Also where the word changes between the poll and the load that acquires."""
    text = """
from pgas.kernels.compiler import cpu
cpu.load_acquire_element = lambda addr, dtype: 0
@pgas.jit
def kernel(word, out):
    word[0] = 7
    out[0] = pgas.signal_wait_until(word, 0, pgas.EQ, 7)
out = pgas.zeros(1, np.uint64)
kernel[1, 1](word, out)
say(out.copy_to_host()[0])
"""
    ended = job(INIT + text, npes=1)
    assert ended.out == "7\n", ended


@pytest.mark.parametrize(
    ("call", "left", "group"),
    [
        ("pgas.put_block(a, b, 0)", "4 of the 40", "block"),
        ("pgas.get_warp(a, b, 0)", "4 of the 32", "warp"),
        ("pgas.put_signal_nbi_block(a, b, word, 0, 1, 0, 0)", "4 of the 40", "block"),
        ("pgas.barrier_all_block()", "4 of the 40", "block"),
        ("pgas.sync_all_warp()", "4 of the 32", "warp"),
    ],
)
def test_operation_of_a_group_some_of_which_have_returned(job, call, left, group):
    text = f"""
a, b = pgas.zeros(64), pgas.zeros(64)
@pgas.jit
def kernel(a, b, word):
    if cuda.threadIdx.x >= 4:
        {call}
attempt(kernel[1, 40], a, b, word)
"""
    ended = job(INIT + text, npes=1)
    (said,) = ended.lines(0)
    assert said.startswith("PgasError: tid=["), ended
    name = call[: call.index("(")]
    assert said.endswith(f"{name}: {left} threads of the {group} have returned; it must be called by all of them"), ended


OTHER_BARRIER = "the 40 threads of the block are waiting at a different barrier; all of them must make this call"


@pytest.mark.parametrize(
    ("call", "below", "text"),
    [
        ("pgas.put_block(a, b, 0)", 1, f"pgas.put_block: 39 of {OTHER_BARRIER}"),
        ("pgas.barrier_all_block()", 32, f"pgas.barrier_all_block: 8 of {OTHER_BARRIER}"),
        (
            "pgas.get_warp(a, b, 0)",
            1,
            "1 of 40 threads waits in pgas.get_warp mask 0xffffffff (thread 0); 39 of 40 threads wait in syncthreads",
        ),
    ],
)
def test_operation_of_a_group_others_of_which_wait_elsewhere(job, call, below, text):
    """Hardware, which counts who comes to a barrier, would copy the shares of some threads."""
    text_ = f"""
a, b = pgas.zeros(64), pgas.zeros(64)
@pgas.jit
def kernel(a, b):
    if cuda.threadIdx.x < {below}:
        {call}
    cuda.syncthreads()
attempt(kernel[1, 40], a, b)
"""
    ended = job(INIT + text_, npes=1)
    (said,) = ended.lines(0)
    assert text in said, ended


ARRAY = r"the float64 array of shape \({},\) at 0x[0-9a-f]+"


@pytest.mark.parametrize(
    ("call", "name", "values"),
    [
        ("pgas.put_block(a, b, t % 2)", "pe", ("1", "0")),
        ("pgas.put_signal_nbi_block(a, b, word, 0, 1000 + t, 0, 0)", "value", ("1001", "1000")),
        ("pgas.reduce_block(team, a, b, pgas.SUM, t % 2)", "channel", ("1", "0")),
        ("pgas.put_warp(a[t:], b[:8], 0)", "dest", (ARRAY.format(33), ARRAY.format(64))),
        ("pgas.broadcast_warp(team, a, b if t else a, 0)", "source", (ARRAY.format(64), ARRAY.format(64))),
    ],
)
def test_operation_of_a_group_whose_threads_pass_different_arguments(job, call, name, values):
    """Each thread would do its part of another call. Equal slices, which are other objects, and equal numbers are the same arguments."""
    text = f"""
a, b, team = pgas.zeros(64), pgas.zeros(64), pgas.TEAM_WORLD
@pgas.jit
def same(a, b, n):
    pgas.put_block(a[:n], b[64 - n:], 0, n * 1000 // 1000)
same[1, 40](a, b, 8)
@pgas.jit
def kernel(a, b, word, team):
    t = cuda.threadIdx.x
    {call}
attempt(kernel[1, 32], a, b, word, team)
"""
    ended = job(INIT + text, npes=1)
    (said,) = ended.lines(0)
    function, (mine, theirs) = call[: call.index("(")], values
    text = rf"{function}: thread (1|31) of the block passes {mine} as {name}, but thread 0 passes {theirs}; all threads of the (warp|block)"
    assert re.fullmatch(rf"PgasError: tid=.*: {text} must pass the same arguments", said), ended


@pytest.mark.parametrize(
    ("name", "configuration"), [("barrier_all", "1, 40"), ("sync_all", "3, 1"), ("barrier_all_block", "3, 40"), ("sync_all_warp", "1, 64")]
)
def test_barrier_of_one_thread_by_several(job, name, configuration):
    """On a GPU their numbers of the barrier would mix. The other PE stays away, so that the first of them is still there."""
    text = f"@pgas.jit\ndef kernel():\n    pgas.{name}()\nif me == 0:\n    kernel[{configuration}]()\n"
    words = (
        "is already in a collective on this team and channel; call it from one thread, call the _block form from all threads of one block"
    )
    holds(job(INIT + text), f"pgas.{name}: block [", words, "failed (PgasError), ending the job")


HOST_ONLY = {
    "init": "", "finalize": "", "reset": "", "synchronize": "", "empty": "3", "zeros": "3", "full": "3, value=1", "array": "a", "free": "a",
    "info": "", "allgather_object": "1", "broadcast_object": "1", "launch": "1, 1, 1", "register": "a", "unregister": "a",
    "empty_like": "a", "zeros_like": "a", "full_like": "a, value=1",
}  # fmt: skip


def test_functions_of_the_host_in_a_kernel(job):
    kernels = "".join(f"@pgas.jit\ndef kernel(a):\n    pgas.{n}({a})\nattempt(kernel[1, 1], word)\n" for n, a in HOST_ONLY.items())
    ended = job(INIT + kernels + "pgas.zeros(3)\n", npes=1)
    words = "TypeError: tid=[0, 0, 0] ctaid=[0, 0, 0]: pgas.{}: this is a host function; call it outside the kernel"
    assert ended.lines(0) == [words.format(name) for name in HOST_ONLY], ended
    assert ended.status == 0, ended


def test_job_that_its_host_gave_up(job):
    """What Ctrl-C leaves on a GPU: an error at every later call, not results of kernels that were cut short."""
    text = """
from pgas.job import runtime
from pgas.job.health import device_state
runtime.current().health.given_up = "KeyboardInterrupt"
device_state.poison(runtime.current().memory)
attempt(pgas.synchronize)
attempt(pgas.barrier_all)
say(runtime.current().health.broken)
os._exit(0)
"""
    ended = job(INIT + text, npes=1)
    given_up = "PE 0: DeviceError: the job was given up earlier (KeyboardInterrupt): pgas.reset() makes it usable again\n"
    assert ended.out == given_up * 2 + "True\n", ended


def test_synchronizing_a_stream_keeps_frees_deferred(job):
    text = """
import contextlib
from pgas.job import runtime
closed = []
stack = runtime.current()._deferred = contextlib.ExitStack()
stack.callback(closed.append, 1)
pgas.synchronize(cuda.stream())
say(closed)
pgas.synchronize()
say(closed)
"""
    ended = job(INIT + text, npes=1)
    assert ended.out == "[]\n[1]\n", ended


# ------------------------------------------------------------------------------------------------------- init, finalize


def test_exit_without_finalize(job):
    text = INIT + "@pgas.jit\ndef writes(a, pe):\n    pgas.p(a, 0, 7, pe)\nwrites[1, 1](word, (me + 1) % n)\nsay('done')\n"
    ended = job(text)
    assert (ended.status, ended.out, ended.err) == (0, "done\ndone\n", ""), ended


@pytest.mark.parametrize("npes", [1, 2])
def test_init_not_called(job, npes):
    text = """
@pgas.jit
def kernel(a):
    pgas.p(a, 0, 1, 0)
@cuda.jit
def plain(a):
    pgas.p(a, 0, 1, 0)
a = cuda.device_array(4)
for call in (pgas.barrier_all, pgas.sync_all, pgas.my_pe, pgas.n_pes, pgas.synchronize, pgas.info, pgas.finalize):
    attempt(call)
attempt(pgas.zeros, 4)
attempt(pgas.free, a)
attempt(pgas.ptr, a, 0)
attempt(pgas.allgather_object, 4)
attempt(kernel[1, 1], a)
attempt(kernel[1, 1].bind, a)
attempt(pgas.launch, kernel, 1, 1, (a,))
attempt(plain[1, 1], a)
"""
    ended = job(text, npes=npes)
    assert ended.status == 0, ended
    said = ended.lines(0)
    assert len(said) == 15 * npes, ended
    last = (
        "PgasError: tid=[0, 0, 0] ctaid=[0, 0, 0]: pgas.init() must run before a kernel that calls pgas functions is compiled or launched"
    )
    assert sorted(set(said)) == sorted({f"PgasError: {NO_INIT}", last}), ended
    assert said.count(last) == npes


@pytest.mark.slow
def test_finalized_twice_and_again(job):
    text = """
pgas.init()
me = pgas.my_pe()
pgas.finalize()
attempt(pgas.finalize)
with pgas.init():
    pgas.init()
    pgas.finalize()
    attempt(pgas.barrier_all)
attempt(pgas.barrier_all)
attempt(pgas.finalize)
"""
    ended = job(text)
    assert (ended.status, ended.err) == (0, ""), ended
    refused = f"PgasError: {NO_INIT}"
    assert ended.lines(0) == ended.lines(1) == [refused, "no error", refused, refused], ended


def test_another_configuration_in_one_process(job):
    text = "pgas.init()\npgas.finalize()\nos.environ['PGAS_DEBUG'] = 'check'\nattempt(pgas.init)\nattempt(pgas.my_pe)\n"
    ended = job(text, npes=1)
    assert ended.status == 0, ended
    said = ended.lines(0)
    assert said[0].startswith("PgasError: pgas was already initialized in this process with a different configuration"), ended
    assert "check was False, now True" in said[0]
    assert said[1] == f"PgasError: {NO_INIT}"


def test_leaks_are_reported_once_with_their_lines(job):
    """By finalize(); and, under PGAS_DEBUG=check, by the end of a with block."""
    text = "more = pgas.empty((2, 3), np.float32)\npgas.finalize()\nwith pgas.init():\n    pgas.empty(1)\n"
    ended = job(INIT + text, PGAS_DEBUG="check")
    assert ended.status == 0, ended
    program = PRELUDE + INIT
    lines = len(program.splitlines()), len(program.splitlines()) + 1
    holds(
        ended,
        "PgasWarning: 2 symmetric arrays never freed:\n",
        f"program.py:{lines[0]}: uint64 array of shape (1,), 8 bytes\n",
        f"program.py:{lines[1]}: float32 array of shape (2, 3), 24 bytes\n",
        "PgasWarning: 1 symmetric array never freed:\n",
        f"program.py:{lines[1] + 3}: float64 array of shape (1,), 8 bytes\n",
        status=0,
    )
    assert ended.err.count("never freed") == 2
    assert re.search(r"program\.py:\d+: PgasWarning", ended.err), f"the warning points into pgas\n{ended}"


# --------------------------------------------------------------------------------------------------------------- memory


def test_freed_array(job):
    text = """
view = word[0:]
bound = waits[1, 1]
pgas.free(word)
for array in (word, view):
    attempt(array.copy_to_host)
    attempt(lambda: array[0:1])
    attempt(lambda: array.__cuda_array_interface__)
    attempt(bound, array)
    attempt(pgas.ptr, array, 0)
    attempt(pgas.free, array)
    attempt(cuda.to_device(np.zeros(1, np.uint64)).copy_to_device, array)
pgas.finalize()
"""
    ended = job(INIT + text)
    assert (ended.status, ended.err) == (0, ""), ended
    for pe in (0, 1):
        said = ended.lines(pe)
        assert len(said) == 14
        for line in said:
            kind = r"((pgas\.ptr: dest: )?use after free|pgas\.free: already freed)"
            assert re.fullmatch(rf"HeapError: {kind}: uint64 array of shape \(1,\) allocated at .*program\.py:\d+", line), ended


def test_array_of_a_job_that_is_over(job):
    """Its memory is gone: an error, not a crash."""
    text = "pgas.free(word)\nagain = pgas.zeros(4)\npgas.finalize()\nattempt(again.copy_to_host)\nattempt(word.copy_to_host)\n"
    ended = job(INIT + text, npes=1)
    holds(ended, status=0)
    assert [line.split(":")[0] for line in ended.lines(0)] == ["HeapError", "HeapError"], ended


def test_heap_exhausted(job):
    text = """
attempt(pgas.empty, 16 << 20, np.uint8)
attempt(pgas.zeros, 1 << 50, np.float64)
large = pgas.zeros((16 << 20) - 512, np.uint8)
attempt(pgas.empty, 0)
pgas.free(large)
attempt(pgas.zeros, 4)
pgas.barrier_all()
"""
    ended = job(INIT + text, PGAS_MAX_MEMORY_PER_GPU="16M")
    assert (ended.status, ended.err) == (0, ""), ended
    word, large = f"{WORD}: 8 bytes", f"uint8 array of shape (16776704,) allocated at program.py:{LINES + 4}: 15.99 MiB"
    for pe in (0, 1):
        assert unfoldered(ended.lines(pe)) == [
            *(
                f"HeapError: pgas.{function}: symmetric heap exhausted: {wanted} requested, {free} of 16 MiB are free, and the largest "
                f"free range has {free} (the heap starts at PGAS_SYMMETRIC_SIZE and can grow to PGAS_MAX_MEMORY_PER_GPU, 16 MiB); the "
                f"largest arrays: {arrays}"
                for function, wanted, free, arrays in (
                    ("empty", "16 MiB", "15.99 MiB", word),
                    ("zeros", "8 PiB", "15.99 MiB", word),
                    ("empty", "0 bytes", "0 bytes", f"{large}, {word}"),
                )
            ),
            "no error",
        ], ended


@pytest.mark.parametrize("npes", [1, 2])
def test_heap_larger_than_memory(job, npes):
    ended = job("attempt(pgas.init)\nattempt(pgas.my_pe)\n", npes=npes, PGAS_SYMMETRIC_SIZE="100T")
    heaps = "heaps of PEs 0, 1 take" if npes == 2 else "heap of PE 0 takes"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    refusal = f"PGAS_SYMMETRIC_SIZE=100 TiB: the {heaps} {npes * 100} TiB, and the node has {size_text(memory)}; "
    assert ended.status == 0, ended
    assert sorted(ended.lines(0)) == sorted([
        *[f"HeapError: {refusal}it may be at most {size_text(memory // npes)}"] * npes,
        *["PgasError: pgas.init() has not been called, or pgas.finalize() has already been called"] * npes,
    ]), ended  # fmt: skip


def test_init_refuses(job):
    """A communicator of others, too few files; and warns of a NIC that is not there although none is used."""
    text = """
import resource, warnings
from mpi4py import MPI
import pgas.sim.memory
attempt(pgas.init, MPI.COMM_NULL)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
attempt(pgas.init.__kwdefaults__["start"])  # not the test's, which opens files of its own
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pgas.init()
say(*(warning.message for warning in caught))
"""
    ended = job(text, npes=1, PGAS_HCA="rubbish")
    null, few, warned = ended.out.splitlines()
    assert null.endswith("ValueError: pgas.init: comm is COMM_NULL; only the processes of a communicator may call pgas.init"), ended
    assert "BootstrapError: the open-file limit of a PE is too low (3 here): [Errno 24] Too many open files" in few, ended
    assert "; ulimit -n 4096 in the shell that starts the job" in few, ended
    assert warned.startswith("PGAS_HCA=rubbish: this machine has ")
    assert warned.endswith("; transport p2p uses none")


def test_bad_arguments_on_the_host(job):
    text = """
attempt(pgas.empty, -1)
attempt(pgas.empty, 1.5)
attempt(pgas.empty, (2, "3"))
attempt(pgas.empty, 3, "S4")
attempt(pgas.empty, 3, object)
attempt(pgas.empty, 3, alignment=3)
attempt(pgas.broadcast_object, 1, n)
attempt(pgas.broadcast_object, 1, -1)
attempt(pgas.ptr, word, n)
attempt(pgas.put, 1, word, word)
attempt(pgas.ptr, np.zeros(3), 0)
attempt(pgas.free, word[0:0])
attempt(pgas.free, 3)
attempt(pgas.put_block, word, word, 0)
attempt(waits, word)
attempt(lambda: waits[1, 2000](word))
attempt(pgas.zeros, True)
attempt(pgas.empty, 3, alignment=512.0)
attempt(pgas.launch, 5, 1, 1)
attempt(pgas.launch, waits, 1, 1, word)
attempt(pgas.launch, waits, 1, 1, [word])
for bad in "void(int64[:])", ["void(int64)"], 3, waits, cuda.jit(lambda: None), cuda.jit(device=True)(attempt):
    attempt(pgas.jit, bad)
attempt(pgas.free, word.reshape((1, 1)))
attempt(pgas.free, word.view(np.int64))
class Bad:
    @property
    def ptr(self):
        raise ArithmeticError
attempt(pgas.launch, waits, 1, 1, (word,), Bad())
attempt(pgas.launch, waits, 1, True, (word,))
attempt(pgas.launch, waits, 1, 1, (word,), 0, True)
pgas.barrier_all()
"""
    ended = job(INIT + text)
    assert (ended.status, ended.err) == (0, ""), ended
    view = f"ValueError: pgas.free: array is a view of the {WORD}; free the array that was originally allocated"
    assert unfoldered(ended.lines(0)) == unfoldered(ended.lines(1)) == [
        "ValueError: pgas.empty: shape must be non-negative integers, not -1",
        "ValueError: pgas.empty: shape must be non-negative integers, not 1.5",
        "ValueError: pgas.empty: shape must be non-negative integers, not (2, '3')",
        "TypeError: pgas.empty: arrays of |S4 cannot be allocated on the symmetric heap; only numeric dtypes and records of them can",
        "TypeError: pgas.empty: arrays of object cannot be allocated on the symmetric heap; only numeric dtypes and records of them can",
        "ValueError: pgas.empty: alignment must be a power of two, not 3",
        "ValueError: pgas.broadcast_object: root must be an integer from 0 to 1, not 2",
        "ValueError: pgas.broadcast_object: root must be an integer from 0 to 1, not -1",
        "ValueError: pgas.ptr: pe must be an integer from 0 to 1, not 2",
        "ValueError: pgas.put: pe must be an integer from 0 to 1, not SymmetricArray",
        "ValueError: pgas.ptr: not an array on the symmetric heap",
        view,
        "ValueError: pgas.free: array must be on the symmetric heap, not int",
        "TypeError: pgas.put_block is a device function: call it inside a kernel",
        "ValueError: kernel waits needs a launch configuration: waits[blocks, threads_per_block](...)",
        "ValueError: waits: a block of (2000, 1, 1) has 2000 threads, but must have 1 to 1024",
        "ValueError: pgas.zeros: shape must be non-negative integers, not True",
        "ValueError: pgas.empty: alignment must be a power of two, not 512.0",
        "TypeError: pgas.launch: kernel must be made by @pgas.jit or @cuda.jit, not 5",
        "TypeError: pgas.launch: args must be a tuple of the kernel's arguments, not SymmetricArray: (array,) if it takes one",
        "TypeError: pgas.launch: args must be a tuple of the kernel's arguments, not list: (array,) if it takes one",
        *[
            f"TypeError: pgas.jit: function must be a Python function, not {bad}; write @pgas.jit without a signature, because a launch "
            "compiles the kernel for its arguments"
            for bad in ("'void(int64[:])'", "['void(int64)']", "3")
        ],
        *[
            f"TypeError: pgas.jit: {name} already has a jit decorator; replace that decorator with @pgas.jit"
            for name in ("waits", "<lambda>", "attempt")
        ],
        *[view] * 2,
        "ArithmeticError: ",
        "TypeError: pgas.launch: block must be an integer or up to three of them, not True",
        "TypeError: pgas.launch: shared must be an integer, not True",
    ], ended  # fmt: skip


# ------------------------------------------------------------------------------------------------- operands in a kernel

CALLS = {
    "put": "pgas.put(a, a, pe)",
    "put_nbi": "pgas.put_nbi(a, a, pe, 2)",
    "get": "pgas.get(a, a, pe)",
    "get_nbi": "pgas.get_nbi(a, a, pe)",
    "iput": "pgas.iput(a, a, 2, 1, pe)",
    "iget": "pgas.iget(a, a, 1, 2, pe)",
    "p": "pgas.p(a, 0, 1, pe)",
    "g": "pgas.g(a, 0, pe)",
    "put_signal": "pgas.put_signal(a, a, a, 0, 1, pgas.SIGNAL_SET, pe)",
    "signal_op": "pgas.signal_op(a, 0, 1, pgas.SIGNAL_ADD, pe)",
    "atomic_add": "pgas.atomic_add(a, 0, 1, pe)",
    "atomic_fetch_add": "pgas.atomic_fetch_add(a, 0, 1, pe)",
    "atomic_inc": "pgas.atomic_inc(a, 0, pe)",
    "atomic_compare_swap": "pgas.atomic_compare_swap(a, 0, 1, 2, pe)",
    "ptr": "pgas.ptr(a, pe)",
}

#: What the symmetric operand is called, where it is not dest.
SYMMETRIC = {"get": "source", "get_nbi": "source", "iget": "source", "g": "source", "signal_op": "sig", "put_signal": "sig"}


def elsewhere(name: str, operand: str = "dest") -> str:
    """What an array that is not on the heap gets: function, argument and no element."""
    preposition = "to" if "put" in name or name == "p" else "from" if "get" in name or name == "g" else "on"
    where = r"\d+ bytes at address 0x[0-9a-f]+, is not on the symmetric heap; allocate it with pgas.empty or a similar function"
    return f"{name} {preposition} PE 0: {operand}, {where}"


#: (call, pe, on the heap, pattern of the error)
OPERANDS = [
    *((call, 1, True, rf"{name}: PE 1 does not exist; pe must be 0 to 0") for name, call in CALLS.items()),
    ("pgas.p(a, 0, 1, pe)", -1, True, "p: PE -1 does not exist; pe must be 0 to 0"),
    ("pgas.put(a, a, pe)", -1, True, "put: PE -1 does not exist; pe must be 0 to 0"),
    ("pgas.p(a, 0, 1, pe)", 1 << 40, True, f"p: PE {1 << 40} does not exist; pe must be 0 to 0"),
    *((call, 0, False, elsewhere(name, SYMMETRIC.get(name, "dest"))) for name, call in CALLS.items()),
    ("pgas.put_block(a, a, pe)", 0, False, elsewhere("put_block")),
    ("pgas.get_nbi_warp(a, a, pe)", 0, False, elsewhere("get_nbi_warp", "source")),
    ("pgas.iput_warp(a, a, 1, 1, pe)", 0, False, elsewhere("iput_warp")),
    ("pgas.signal_wait_until(a, 0, pgas.EQ, 0)", 0, False, elsewhere("signal_wait_until", "sig")),
    ("pgas.signal_fetch(a, 0)", 0, False, elsewhere("signal_fetch", "sig")),
    ("pgas.test(a, 0, pgas.EQ, 0)", 0, False, elsewhere("test", "ivar")),
    ("pgas.wait_until_all(a, None, pgas.EQ, 0)", 0, False, elsewhere("wait_until_all", "ivars")),
    ("pgas.wait_until_any(a, a[:3], pgas.EQ, 0)", 0, True, r"wait_until_any on PE 0: 4 elements wanted, but status has 3 \(.*"),
    ("pgas.test_some_vector(a, a, None, pgas.EQ, a[:2])", 0, True, r"test_some_vector on .*: 4 elements wanted, but values has 2 \(.*"),
    ("pgas.test_some(a, a[1:], None, pgas.EQ, 0)", 0, True, r"test_some on .*: 4 elements wanted, but indices has 3 \(element \[1\].*"),
    ("pgas.wait_until_some(a, a, None, pgas.EQ, 0, 5)", 0, True, r"wait_until_some on .*: 5 elements wanted, but ivars has 4 \(.*"),
    ("pgas.test_any(a, None, 6, 0)", 0, True, r"test_any: cmp must be one of pgas.EQ \(0\), .*, pgas.GE \(5\), not 6"),
    ("pgas.put(a[:2], a, pe)", 0, True, r"put to PE 0: 4 elements wanted, but dest has 2 \(element \[0\] of the uint64 .*"),
    ("pgas.put_nbi_block(a[:2], a, pe)", 0, True, r"put_nbi_block to PE 0: 4 elements wanted, but dest has 2 \(.*"),
    ("pgas.put(a, a, pe, 5)", 0, True, r"put to PE 0: 5 elements wanted, but dest has 4 \(.*"),
    ("pgas.put(a, a[3:], pe, 2)", 0, True, r"put to PE 0: 2 elements wanted, but source has 1 \(element \[3\] of .*"),
    ("pgas.put(a, a, pe, -1)", 0, True, r"put to PE 0: -1 elements wanted, but dest has 4 \(.*"),
    ("pgas.get(a, a[1:], pe, 4)", 0, True, r"get from PE 0: 4 elements wanted, but source has 3 \(element \[1\] of .*"),
    ("pgas.get_block(a[2:], a, pe)", 0, True, r"get_block from PE 0: 4 elements wanted, but dest has 2 \(element \[2\] of .*"),
    ("pgas.iput(a, a, 2, 1, pe, 3)", 0, True, r"iput to PE 0: 3 elements wanted, but dest has 2 \(.*"),
    ("pgas.iput(a, a, 1, 2, pe, 3)", 0, True, r"iput to PE 0: 3 elements wanted, but source has 2 \(.*"),
    ("pgas.iget(a, a, 1, 9, pe, -1)", 0, True, r"iget from PE 0: -1 elements wanted, but source has 1 \(.*"),
    ("pgas.iget_block(a, a, 3, 1, pe, 4)", 0, True, r"iget_block from PE 0: 4 elements wanted, but dest has 2 \(.*"),
    ("pgas.iput(a, a, 0, 1, pe)", 0, True, "iput to PE 0: dst_stride and src_stride must be 1 or more, not 0"),
    ("pgas.iget(a, a, 2, -3, pe, 1)", 0, True, "iget from PE 0: dst_stride and src_stride must be 1 or more, not -3"),
    ("pgas.set_lock(a, 0)", 0, False, elsewhere("set_lock", "lock")),
    ("pgas.test_lock(a, 4)", 0, True, "test_lock on PE 0: idx is 4 on axis 0 of lock, which has 4 there"),
    ("pgas.clear_lock(a, 1)", 0, True, r"clear_lock: the lock, element \[1\] of the uint64 .*, is not set; call set_lock first"),
    ("pgas.quiet_pe(pe)", 1, True, "quiet_pe: PE 1 does not exist; pe must be 0 to 0"),
    ("pgas.quiet_pe(pe)", -1, True, "quiet_pe: PE -1 does not exist; pe must be 0 to 0"),
    ("pgas.put_signal_nbi(a[:1], a, a, 0, 1, 0, pe)", 0, True, r"put_signal_nbi to PE 0: 4 elements wanted, but dest has 1 \(.*"),
    *(
        (call, 0, True, rf"{call[5 : call.index('(')]} {went} PE 0: idx is {idx} on axis 0 of {operand}, which has 4 there")
        for call, idx, went, operand in (
            ("pgas.p(a, 16 << 20, 1, pe)", 16 << 20, "to", "dest"),
            ("pgas.p(a, -1, 1, pe)", -1, "to", "dest"),
            ("pgas.g(a, 4, pe)", 4, "from", "source"),
            ("pgas.atomic_add(a, 4, 1, pe)", 4, "on", "dest"),
            ("pgas.atomic_fetch_add(a, 5, 1, pe)", 5, "on", "dest"),
            ("pgas.signal_op(a, 4, 1, pgas.SIGNAL_SET, pe)", 4, "on", "sig"),
            ("pgas.put_signal(a, a, a, 4, 1, pgas.SIGNAL_SET, pe)", 4, "to", "sig"),
            ("pgas.wait_until(a, 4, pgas.EQ, 0)", 4, "on", "ivar"),
            ("pgas.test(a, 4, pgas.EQ, 0)", 4, "on", "ivar"),
            ("pgas.signal_wait_until(a, -1, pgas.EQ, 0)", -1, "on", "sig"),
        )
    ),
    ("pgas.p(a.reshape(2, 2), (1, 2), 1, pe)", 0, True, "p to PE 0: idx is 2 on axis 1 of dest, which has 2 there"),
    ("pgas.signal_op(a, 0, 1, 2, pe)", 0, True, re.escape("signal_op: op must be one of pgas.SIGNAL_SET (0), pgas.SIGNAL_ADD (1), not 2")),
    (
        "pgas.put_signal(a, a, a, 0, 1, -1, pe)",
        0,
        True,
        re.escape("put_signal: op must be one of pgas.SIGNAL_SET (0), pgas.SIGNAL_ADD (1), not -1"),
    ),
    ("pgas.wait_until(a, 0, 6, 0)", 0, True, r"wait_until: cmp must be one of pgas.EQ \(0\), .*, pgas.GE \(5\), not 6"),
    ("pgas.signal_wait_until(a, 0, -1, 0)", 0, True, r"signal_wait_until: cmp must be one of pgas.EQ \(0\), .*, pgas.GE \(5\), not -1"),
]

#: One process for each case: the first error of a job is the one that is kept.
FORKS = """
import pgas.sim.memory  # compiled once
for number, (call, pe, on_heap, _) in enumerate({cases!r}):
    if not (child := os.fork()):
        pgas.init()
        a = pgas.zeros(4, np.uint64) if on_heap else cuda.to_device(np.zeros(4, np.uint64))
        scope = {{"pgas": pgas}}
        exec(f"def kernel(a, pe):\\n    {{call}}", scope)
        me = number
        attempt(pgas.jit(scope["kernel"])[1, 1], a, pe)
        attempt(pgas.barrier_all)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_operands_of_kernel_functions(job):
    """A PE that does not exist, memory that is not on the heap, operands that are too short: the kernel ends and barrier_all raises."""
    ended = job(FORKS.format(cases=OPERANDS), npes=1, seconds=jobs.LIMIT)
    assert (ended.status, ended.err) == (0, ""), ended
    for number, (call, pe, _, pattern) in enumerate(OPERANDS):
        said = ended.lines(number)
        assert len(said) == 2, f"{call} on PE {pe}: {said}"
        pattern = "PE 0, block 0, thread 0: " + pattern
        assert re.fullmatch("DeviceError: " + pattern, said[0]), f"{call} on PE {pe}: {said}"
        assert re.fullmatch("DeviceError: " + pattern, said[1]), f"{call} on PE {pe}: {said}"


def test_refused_data_is_not_signalled(job):
    """As on a GPU, where a kernel goes on after an error."""
    text = """
from pgas.kernels.compiler import cpu
cpu.on_failure = lambda: None
@pgas.jit
def kernel(short, long, word, pe):
    pgas.put_signal_block(short, long, word, 0, 1, pgas.SIGNAL_SET, pe)
kernel[1, 4](pgas.zeros(2), pgas.zeros(4), word, me)
say("word", word.copy_to_host()[0])
attempt(pgas.barrier_all)
os._exit(0)
"""
    ended = job(INIT + text, npes=1)
    assert ended.out.startswith("word 0\nPE 0: DeviceError: PE 0, block 0, thread "), ended
    assert ": put_signal_block to PE 0: 4 elements wanted, but dest has 2 (element [0] of the " in ended.out, ended


# ------------------------------------------------------------------------------------------------------- disagreements


def test_mismatched_collective_calls(job):
    text = """
attempt(pgas.empty if me == 0 else pgas.zeros, 4)
attempt(pgas.empty, 4 if me == 0 else 5)
attempt(pgas.empty, 4, np.int32 if me == 0 else np.float32)
attempt(pgas.barrier_all if me == 0 else (lambda: pgas.free(word)))
other = pgas.jit(lambda word: None)
attempt(pgas.launch, waits if me == 0 else other, 1, 1, (word,))
attempt(pgas.launch, other, 1 + me, (1, 1), (word,))
attempt(pgas.launch, other, 1, 1, (word if me else word.view(np.int64),))
attempt(pgas.launch, other, (1,), 1, (word,)[:1])
attempt(pgas.barrier_all)
attempt(pgas.free, word)
"""
    ended = job(INIT + text)
    start, four = "PEs disagree in a collective call: PE 0 called", "shape=(4,), dtype=float64, alignment=512"
    expected = [
        f"HeapError: {start} pgas.empty({four}), PE 1 called pgas.zeros({four})",
        f"HeapError: {start} pgas.empty({four}), PE 1 called pgas.empty({four.replace('(4,)', '(5,)')})",
        f"HeapError: {start} pgas.empty({four.replace('float64', 'int32')}), PE 1 called pgas.empty({four.replace('float64', 'float32')})",
        f"Error: {start} pgas.barrier_all(), PE 1 called pgas.free({WORD}, array at heap offset 0)",
        f"BootstrapError: {start} pgas.launch(waits), PE 1 called pgas.launch(<lambda>)",
        f"BootstrapError: {start} pgas.launch(<lambda>) with grid (1, 1, 1), block (1, 1, 1), shared 0, uint64 as argument 0; PE 1 called "
        "pgas.launch(<lambda>) with grid (2, 1, 1), block (1, 1, 1), shared 0, uint64 as argument 0",
        f"BootstrapError: {start} pgas.launch(<lambda>) with grid (1, 1, 1), block (1, 1, 1), shared 0, int64 as argument 0; PE 1 called "
        "pgas.launch(<lambda>) with grid (1, 1, 1), block (1, 1, 1), shared 0, uint64 as argument 0",
        "no error",
        "no error",
        "no error",
    ]
    for pe in (0, 1):
        said = unfoldered(ended.lines(pe))
        assert len(said) == len(expected), ended
        for line, end in zip(said, expected, strict=True):
            assert line.endswith(end), ended
    assert (ended.status, ended.err) == (0, ""), ended


def test_exchanges_of_objects_that_do_not_match(job):
    text = """
attempt(pgas.allgather_object if me == 0 else pgas.broadcast_object, 1)
attempt(pgas.broadcast_object, 1, me)
attempt(pgas.allgather_object, (lambda: 0) if me == 1 else 0)
attempt(pgas.barrier_all if me == 0 else (lambda: pgas.allgather_object(1)))
attempt(pgas.barrier_all)
"""
    ended = job(INIT + text)
    said, start = ended.lines(0), "BootstrapError: PEs disagree in a collective call: PE 0 called"
    assert ended.lines(1)[:2] == said[:2], ended
    assert said[:2] == [
        f"{start} pgas.allgather_object(), PE 1 called pgas.broadcast_object(root=0)",
        f"{start} pgas.broadcast_object(root=0), PE 1 called pgas.broadcast_object(root=1)",
    ], ended
    assert said[2].startswith("BootstrapError: PE 1 failed in pgas.allgather_object(): "), ended
    assert "pickle" in ended.lines(1)[2], ended
    assert said[3:] == [f"{start} pgas.barrier_all(), PE 1 called pgas.allgather_object()", "no error"], ended
    assert (ended.status, ended.err) == (0, ""), ended


@pytest.mark.parametrize("call", ["barrier_all", "finalize"])
def test_error_of_one_pe_reaches_the_others_in_a_collective_call(job, call):
    """PE 0 catches what its kernel found: PE 1, which finds nothing wrong, must not wait for it."""
    text = f"if me == 0:\n    attempt(waits[1, 1], word)\nattempt(pgas.{call})\n"
    ended = job(INIT + text, PGAS_TIMEOUT="1")
    assert ended.lines(0)[1].startswith("DeviceError: PE 0, block 0, thread 0: signal_wait_until waited 1 s"), ended
    assert ended.lines(1)[0].startswith(f"BootstrapError: PE 0 failed in pgas.{call}(): DeviceError: PE 0, block 0"), ended


def test_finalize_that_disagrees(job):
    """It ends the job of the PE that called it; the other one hears that at its own."""
    ended = job(INIT + "attempt(pgas.finalize if me == 0 else pgas.barrier_all)\nif me == 1:\n    attempt(pgas.finalize)\n")
    differ = "BootstrapError: PEs disagree in a collective call: PE 0 called pgas.finalize(), PE 1 called pgas.barrier_all()"
    assert ended.lines(0) == [differ], ended
    left = f"BootstrapError: PE 0 left pgas.finalize() by {differ.replace(': ', ' (', 1)}): "
    assert ended.lines(1)[0] == differ, ended
    assert ended.lines(1)[1].startswith(left), ended
    assert (ended.status, ended.err) == (0, ""), ended
    assert ended.seconds < jobs.SOON


def test_error_of_one_pe_in_free(job):
    ended = job(INIT + "attempt(pgas.free, 3 if me == 1 else word)\nattempt(pgas.free, word)\n")
    refused = "ValueError: pgas.free: array must be on the symmetric heap, not int"
    assert ended.lines(1) == [refused, "no error"], ended
    assert ended.lines(0) == [f"HeapError: PE 1 failed in pgas.free(): {refused}", "no error"], ended


@pytest.mark.parametrize(
    ("text", "said"),
    [("pgas.empty(-1)", "ValueError: pgas.empty: shape must"), ("pgas.empty(4, object)", "TypeError: pgas.empty: arrays of")],
)
def test_refusal_on_one_pe_only(job, text, said):
    """One PE's own mistake: the others, in the same call, get an error as soon as it makes its next call, or ends."""
    ended = job(INIT + f"attempt(lambda: {text} if me == 1 else pgas.empty(4))\nif me == 1:\n    attempt(pgas.barrier_all)\n")
    assert ended.lines(1)[0].startswith(said), ended
    assert ended.lines(0)[0].startswith("HeapError: PEs disagree in a collective call: PE 0 called pgas.empty(shape=(4,)"), ended
    assert "PE 1 called pgas.barrier_all()" in ended.lines(0)[0]


def test_different_seeds_of_weak_mode_are_different_jobs(job):
    ended = job("pgas.init()\n", per_pe=[{"PGAS_SIM_WEAK": "1"}, {}])
    holds(ended, "PEs differ in PGAS_SIM_WEAK: PE 0 has 1, PE 1 has nothing")


@pytest.mark.parametrize("npes", [1, 2])
def test_transport_that_is_not_there(job, npes):
    ended = job("pgas.init()\n", npes=npes, PGAS_TRANSPORT="tcp")
    holds(ended, "ValueError: PGAS_TRANSPORT=tcp: must be one of auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc")
    assert ended.seconds < jobs.SOON


def test_bad_value_on_one_pe_only(job):
    """The others must not wait for a PE that never joins."""
    ended = job("pgas.init()\n", per_pe=[{}, {"PGAS_TIMEOUT": "never"}])
    holds(ended, "PGAS_TIMEOUT=never")
    assert ended.seconds < jobs.SOON


def test_bad_value_on_one_pe_that_catches_it(job):
    ended = job("me = launched_rank()\nattempt(pgas.init)\n", per_pe=[{}, {"PGAS_TIMEOUT": "-3"}])
    assert ended.status == 0, ended
    text = "ValueError: PGAS_TIMEOUT=-3: must be a number of seconds greater than 0 and less than 1e9"
    assert ended.lines(1) == [text], ended
    assert ended.lines(0) == [f"BootstrapError: PE 1 failed in pgas.init(): {text}"], ended


def test_init_that_fails_on_one_pe_gives_everything_back(job):
    text = """
me = launched_rank()
from pgas.base.config import size_text
from pgas.job.health import detector
watch = detector.Watch
def fails(*args):
    raise OSError("no file descriptor left")
detector.Watch = fails if me == 1 else watch
attempt(pgas.init)
detector.Watch = watch
attempt(pgas.init)
attempt(pgas.barrier_all)
"""
    ended = job(text)
    assert ended.status == 0, ended
    assert ended.lines(1) == ["OSError: no file descriptor left", "no error", "no error"], ended
    assert ended.lines(0)[0] == "BootstrapError: PE 1 failed in pgas.init(): OSError: no file descriptor left", ended
    assert ended.lines(0)[1:] == ["no error", "no error"], ended


def test_failed_init_can_be_tried_again(job):
    text = "attempt(pgas.init)\nos.environ['PGAS_SYMMETRIC_SIZE'] = '16M'\nattempt(pgas.init)\nattempt(pgas.barrier_all)\n"
    ended = job(text, PGAS_SYMMETRIC_SIZE="64T")
    assert ended.status == 0, ended
    said = ended.lines(0)
    assert sum("PGAS_SYMMETRIC_SIZE=64 TiB: the heaps of PEs 0, 1 take" in line for line in said) == 2, ended
    assert said.count("no error") == 4, ended


def test_the_end_of_a_program_is_that_of_its_last_job(job):
    """A job of one PE came first. PE 0 breaks the second job, and leaves it without finalize."""
    text = """
from mpi4py import MPI
from pgas.job import runtime
pgas.init(MPI.COMM_SELF)
pgas.finalize()
pgas.init()
if me == 0:
    runtime.current().health.broken = True
    sys.exit(0)
time.sleep(60)
"""
    ended = job("from mpi4py import MPI\nme = MPI.COMM_WORLD.rank\n" + text, npes=2)
    assert ended.status not in (0, None), ended
    holds(ended, "pgas: PE 0: the program is ending after an error, without having called pgas.finalize(), ending the job")


def test_a_command_that_fails_breaks_its_job(monkeypatch, capsys):
    """Otherwise its end would be a collective call, which the other PEs do not make."""
    health = SimpleNamespace(broken=False)
    active = SimpleNamespace(active=lambda: True, current=lambda: SimpleNamespace(health=health))
    monkeypatch.setitem(sys.modules, "pgas.job.runtime", active)
    monkeypatch.setattr(sys, "argv", ["pgas", "info"])
    monkeypatch.setattr(info, "run", lambda arguments: (_ for _ in ()).throw(ValueError("no such thing")))
    assert commands.main() == 1
    assert capsys.readouterr().err == "pgas: no such thing\n"
    assert health.broken
