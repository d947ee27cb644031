"""Threads of a program that are inside calls of pgas when the job meets or ends."""

import re

import jobs
import pytest
from jobs import holds

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
