"""Threads of a program that are inside calls of pgas when the job meets or ends."""

import re
import threading
from types import FunctionType

import jobs
import pytest
from jobs import holds

import pgas
from pgas.job.bootstrap import calls

job = jobs.job

#: A thread waits inside pgas; `ends` after a second.
THREAD = """
@pgas.jit
def loop(word):
    while not pgas.test(word, 0, pgas.GE, 1):  # without a deadline
        pass

def target(word):
    try:
        if {loop}:
            loop[1, 1](word)
        else:
            pgas.wait_until(word, 0, pgas.GE, 1)
        say("wait ended")
    except pgas.PgasError as error:
        say("wait failed:", type(error).__name__)

def begin(ends):
    word = pgas.zeros(1, np.uint64)
    thread = threading.Thread(target=target, args=(word,), name="waiter")
    thread.start()
    time.sleep(0.3)
    if ends:
        later(1, word.__setitem__, 0, 1)
    return thread, word
"""


@pytest.mark.parametrize("loop", [False, True])
def test_barrier_and_finalize_wait_for_threads(job, loop):
    program = """
with pgas.init():
    thread, word = begin(ends=True)
    pgas.barrier_all()
    say("barrier ended with", word[0])
    thread, word = begin(ends=True)
thread.join()
say("end")
"""
    ended = job(THREAD.format(loop=loop) + program, npes=1)
    holds(ended, status=0)
    lines = ended.out.splitlines()
    assert sorted(lines[:2]) == ["barrier ended with 1", "wait ended"], ended
    assert lines[2:] == ["wait ended", "end"], ended


def test_finalize_names_threads_that_stay(job):
    """Their memory stays until they have left, and then another job can start."""
    program = """
pgas.init()
thread, word = begin(ends=False)
attempt(pgas.finalize)
thread.join()
pgas.init()
pgas.finalize()
say("end")
"""
    ended = job(THREAD.format(loop=True) + program, npes=1, PGAS_TIMEOUT="1")
    holds(ended, "wait failed: PgasError", status=0)
    line = r"PgasError: pgas.finalize: thread waiter is in loop\[1, 1\]\(word\) \(program.py:\d+\): all calls must return within 1 s "
    assert re.match(line, ended.only_line(0)), ended
    assert ended.out.endswith("end\n"), ended


@pytest.mark.parametrize("npes", [1, 2])
def test_an_exception_ends_a_job_whose_threads_wait(job, npes):
    program = """
with pgas.init():
    begin(ends=False)
    raise KeyError("of the program")
"""
    ended = job(THREAD.format(loop=True) + program, npes=npes)
    holds(ended, "KeyError: 'of the program'")
    assert ended.status == 1, ended


def test_a_deadlock_names_the_call_that_waits(job):
    """Calls that wait for the PE's kernels, while another thread's kernel waits for this thread."""
    program = """
from pgas.sim import turns
turns._GRACE_S = -99.7  # a wait of the kernel that has lasted 0.3 s is a deadlock
pgas.init()
freed, local, team = pgas.empty(4), np.zeros(4), pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, 1)
pgas.register(local)
thread, word = begin(ends=False)
for name, *args in (
    ("zeros", 4), ("free", freed), ("synchronize",), ("quiet",), ("barrier_all",), ("unregister", local), ("team_destroy", team),
):
    attempt(getattr(pgas, name), *args)
word[0] = 1
thread.join()
os._exit(0)
"""
    ended = job(THREAD.format(loop=False) + program, npes=1, PGAS_TIMEOUT="100")
    lines = re.findall(r"pgas\.(\w+)\(\): thread MainThread waits for its turn, and thread waiter runs wait_until_on_stream,", ended.out)
    assert lines == ["zeros", "free", "synchronize", "quiet", "barrier_all", "unregister", "team_destroy"], ended


REFUSED = "PgasError: pgas.{}: thread first is in pgas.sync_all, but only one thread of a PE at a time may make collective calls"


@pytest.mark.parametrize("by_run", [False, True], ids=["mpirun", "pgas.run"])
def test_a_second_thread_may_not_make_a_collective_call(job, by_run, monkeypatch):
    """Its call raises an error on this PE only. The first thread's call, and all later ones, are not disturbed."""
    program = """
@pgas.jit
def kernel():
    pass

pgas.init()
me = pgas.my_pe()
word, array, team = pgas.zeros(1, np.int32), pgas.zeros(4), pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, 2)
if me == 0:
    first = threading.Thread(target=pgas.sync_all, name="first")
    first.start()
    time.sleep(0.3)
    for name, *args in (
        ("zeros", 4), ("free", array), ("barrier_all",), ("sync_all",), ("allgather_object", 1), ("broadcast_object", 1),
        ("launch", kernel, 1, 1), ("team_split_strided", pgas.TEAM_WORLD, 0, 1, 1), ("team_split_2d", pgas.TEAM_WORLD, 1),
        ("team_create", [0]), ("team_destroy", team), ("reset",),
    ):
        attempt(getattr(pgas, name), *args)
    pgas.atomic_set(word, 0, 1, 1)
    first.join()
else:
    pgas.wait_until(word, 0, pgas.EQ, 1)
    pgas.sync_all()
with pgas.full(4, me) as more:
    say("offset", more.__cuda_array_interface__["data"][0] - array.__cuda_array_interface__["data"][0], pgas.allgather_object(me))
pgas.team_destroy(team)
late = threading.Thread(target=pgas.barrier_all)
time.sleep(0.6 * me)
late.start()
time.sleep(0.3)
pgas.finalize()  # waits for the thread
say("end")
"""
    monkeypatch.setattr(jobs, "BY_RUN", by_run)
    ended = job(program)
    assert ended.status == 0, ended
    names = (
        "zeros", "free", "barrier_all", "sync_all", "allgather_object", "broadcast_object", "launch", "team_split_strided",
        "team_split_2d", "team_create", "team_destroy", "reset",
    )  # fmt: skip
    assert ended.lines(0) == [f"{REFUSED.format(name)}; make them all in one thread" for name in names], ended
    assert ended.out.count("offset 512 [0, 1]\n") == ended.out.count("end\n") == 2, ended


def test_a_call_that_ctrl_c_has_left_behind():
    """Its lock is held by a thread that is in no call of pgas any more. Then another thread may call."""

    def interrupted():
        kept = calls.alone("pgas.sync_all()")  # until the end of this function
        kept.__enter__()
        left.set()
        end.wait()

    left, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=interrupted)
    thread.start()
    left.wait()
    with calls.alone("pgas.init()"):
        end.set()
    thread.join()
    with calls.alone("pgas.init()"):
        pass


def test_init_is_a_collective_call_of_one_thread():
    entered, end = threading.Event(), threading.Event()

    def first():
        with calls.alone("pgas.init()"):
            entered.set()
            end.wait()

    # A frame of pgas, without which the call would be one that Ctrl-C has left behind.
    of_pgas = FunctionType(first.__code__, globals() | {"__name__": "pgas.job.test"}, closure=first.__closure__)
    thread = threading.Thread(target=of_pgas, name="first")
    thread.start()
    entered.wait()
    try:
        with pytest.raises(pgas.PgasError, match=r"^pgas\.init: thread first is in pgas\.init, but only one thread of a PE at a time"):
            pgas.init()
    finally:
        end.set()
        thread.join()
    with calls.alone("pgas.init()"), calls.alone("pgas.zeros(4)"):  # parts of a call
        pass
