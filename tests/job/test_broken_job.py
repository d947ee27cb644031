"""Jobs in an unusual state: after an exception in a collective call, in a forked child, after an error with pgas.reset().

The programs run in the simulator, in separate processes, under mpirun if there are several PEs.
"""

import re

import jobs
import pytest

job = jobs.job

# ------------------------------------------------------------------------------------------------- a collective that was left

#: PE 0 leaves collective calls by KeyboardInterrupt: while it waits, while it computes, in init. PE 1 makes them afterwards if it can.
LEAVING = """
from pathlib import Path
from pgas.job import runtime

me = launched_rank() or 0

class Interrupts:
    def __cuda_stream__(self):
        raise KeyboardInterrupt

def interrupted(job, *call):
    Interrupts().__cuda_stream__()

def leave(step, call, *args, place="_interrupt"):
    if me:
        while call not in (pgas.init, pgas.launch) and not Path(sys.argv[0]).with_name(step).exists():
            time.sleep(0.01)
        attempt(call, *args)
        return
    whole = getattr(runtime.Job, place)
    setattr(runtime.Job, place, interrupted)
    try:
        call(*args)
    except KeyboardInterrupt:
        say("PE 0: interrupted")
    setattr(runtime.Job, place, whole)
    note(step)
"""

LEFT = "BootstrapError: PE 0 left {} by KeyboardInterrupt: the PEs are out of step, so no further collective calls are possible in this job"


def test_collective_that_an_exception_left(job):
    """Each later call raises an error that says so, on every PE. No PE gets another call's data or waits for ever. A new job works."""
    text = """
leave("init", pgas.init, place="_open_memory")
for step, call, args, place in (
    ("waiting", pgas.allgather_object, (b"x" * 200_000,), "_interrupt"),
    ("completing", pgas.barrier_all, (), "complete"),
    ("preparing", pgas.launch, (waits, 1, 1, (), 0 if me else Interrupts()), "_open_memory"),
):
    pgas.init()
    leave(step, call, *args, place=place)
    attempt(pgas.allgather_object, 2)
    attempt(pgas.zeros, 3)
    attempt(pgas.finalize)
with pgas.init():
    say(f"PE {me}:", pgas.allgather_object(me))
"""
    ended = job(LEAVING + text)
    assert ended.status == 0, ended
    told = [[LEFT.format(call)] * 3 for call in ("pgas.allgather_object()", "pgas.barrier_all()", "pgas.launch(waits)")]
    assert ended.lines(0) == ["interrupted", *(line for lines in told for line in ("interrupted", *lines)), "[0, 1]"], ended
    assert ended.lines(1) == [LEFT.format("pgas.init()"), *(line for lines in told for line in (lines[0], *lines)), "[0, 1]"], ended


@pytest.mark.parametrize("by_run", [False, True], ids=["mpirun", "pgas.run"])
def test_errors_name_the_exception_before_the_end_that_followed(job, by_run, monkeypatch):
    """PE 0 leaves a call, and finalizes, which ends the software NIC. The end of the NIC is not the cause of the errors of PE 1."""
    text = """
pgas.init()
array = pgas.zeros(4)
if me == 0:
    leave("waiting", pgas.barrier_all)
    attempt(pgas.finalize)
else:
    while runtime.current().health.lost is None:
        time.sleep(0.01)
    attempt(pgas.put, array, array, 0)
    attempt(pgas.finalize)
"""
    monkeypatch.setattr(jobs, "BY_RUN", by_run)
    ended = job(LEAVING + text, PGAS_TRANSPORT="ibgda")
    left = LEFT.format("pgas.barrier_all()").removeprefix("BootstrapError: ")
    end = r"; the software NIC \(process \d+\) ended with status 0 without pgas.finalize\(\): the job cannot continue"
    assert ended.lines(0) == ["interrupted", f"BootstrapError: {left}"], ended
    put, finalize = ended.lines(1)
    assert re.fullmatch(f"PgasError: {re.escape(left)}{end}", put), ended
    assert re.fullmatch(f"(BootstrapError|PgasError): {re.escape(left)}({end})?", finalize), ended


# --------------------------------------------------------------------------------------------------------- a child that was forked

FORKING = """
import multiprocessing
from pgas.job import runtime

@pgas.jit
def counts(word, pe):
    pgas.atomic_add(word, 0, 1, pe)

@cuda.jit
def plain(word, pe):
    pgas.atomic_add(word, 0, 1, pe)

@cuda.jit
def other(result):
    result[0] = 7

right = (me + 1) % n
counts[1, 1](word, right)
plain[1, 1](word, right)
pgas.barrier_all()
bound = counts[1, 1].bind(word, right)
result = cuda.to_device(np.zeros(1))

def child():
    global me
    me = f"{me} child"
    calls = [(counts[1, 1], word, right), (plain[1, 1], word, right), (bound,), (pgas.barrier_all,), (pgas.put, word, word, right)]
    calls += [(pgas.zeros, 4), (pgas.free, word), (word.copy_to_host,), (word.__setitem__, 0, 9), (pgas.my_pe,), (pgas.init,)]
    calls += [(pgas.synchronize,), (pgas.finalize,), (os.kill, os.getpid(), signal.SIGUSR1)]
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    say(f"PE {me}:", word)
    for call in calls:
        attempt(*call)
    other[1, 1](result)
    say(f"PE {me}: result", result[0])

context = runtime.current()
for how in (lambda: sys.exit(3), lambda: 1 / 0, child):
    if not (pid := os.fork()):
        with context:
            how()
        sys.exit()
    say(f"PE {me}: status", os.waitpid(pid, 0)[1] >> 8)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
pid = os.fork() or time.sleep(100)
counts[1, 1](word, right)
pgas.barrier_all()
say(f"PE {me}: word", word[0], pgas.allgather_object(me))
pgas.free(word)
pgas.finalize()
os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.parametrize(("transport", "npes"), [("p2p", 2), ("ibgda", 1)])
def test_child_that_was_forked(job, transport, npes):
    """It can neither call nor launch anything, and its end does not concern the job. finalize does not wait for a living child.

    The advice holds under every launcher: a process that a PE spawns is not a PE either (test_run.py).
    """
    ended = job(jobs.INIT + FORKING, npes, PGAS_TRANSPORT=transport)
    assert ended.status == 0, ended
    for pe in range(npes):
        refused = (
            f"PgasError: this process was forked from PE {pe} after pgas.init() and is not part of the job, so it must not use pgas "
            "and its arrays; use them in the PE itself, and give such a process copies made by copy_to_host()"
        )
        assert ended.lines(pe) == ["status 3", "status 1", "status 0", f"word 3 {list(range(npes))}"], ended
        said, shown = ended.lines(f"{pe} child"), f"SymmetricArray({refused.removeprefix('PgasError: ')})"
        assert len(said) == 32, ended
        said[2] = said[2].replace("tid=[0, 0, 0] ctaid=[0, 0, 0]: ", "")
        assert said[:16] == [shown, *[refused] * 13, "no error", "result 7.0"], ended
    assert ended.seconds < jobs.SOON
    assert "hang report" not in ended.err


def test_child_that_was_forked_after_a_job(job):
    """It may start its own job, which its end finalizes."""
    text = """
import atexit
from pgas.job import runtime

with pgas.init():
    pass
for end in (lambda: sys.exit(3), lambda: 1 / 0):
    if not (pid := os.fork()):
        atexit.register(lambda: say("PE 0: active", runtime.active()))  # after what init registers
        pgas.init()
        show = sys.excepthook
        sys.excepthook = lambda *error: say("PE 0: broken", show(*error) or runtime.current().health.broken)
        end()
    say("PE 0: status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    ended = job(text, npes=1)
    assert ended.lines(0) == ["active False", "status 3", "broken True", "active True", "status 1"], ended


# -------------------------------------------------------------------------------------------------------------------- pgas.reset()


def test_job_that_was_reset_ends_in_good_order(job):
    """What reset() does to kernels and arrays: tests/mpi/test_reset.py."""
    text = """
attempt(waits[1, 1], word)
pgas.reset()
pgas.free(word)
pgas.barrier_all()
"""
    ended = job(jobs.INIT + text, PGAS_TIMEOUT="0.5")
    assert ended.status == 0, ended
    for pe in (0, 1):
        assert ended.only_line(pe).startswith("DeviceError: "), ended


def test_job_that_cannot_be_reset_says_why(job):
    text = """
pgas.init()
leave("waiting", pgas.barrier_all)
attempt(pgas.reset)
attempt(pgas.finalize)
pgas.init()
def refuses(*args):
    raise RuntimeError("context lost")
if me == 1:
    runtime.Job.wait_for_device = refuses
attempt(pgas.reset)
attempt(pgas.barrier_all)
os._exit(0)
"""
    ended = job(LEAVING + text)
    cannot = "PgasError: pgas.reset: the job cannot be made usable again: "
    assert [line for line in ended.lines(0) if "reset" in line] == [
        cannot + LEFT.removeprefix("BootstrapError: ").format("pgas.barrier_all()"),
        *[cannot + "PE 1: RuntimeError: context lost"] * 2,
    ], ended
    assert ended.lines(1)[-2] == ended.lines(0)[-1], ended
