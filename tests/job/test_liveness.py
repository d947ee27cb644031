"""Deaths of processes: which one died, how, and which process reports it. The tests start the processes."""

import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from pgas.base import liveness
from pgas.base.liveness import LastWord, Watch
from pgas.job.bootstrap import processes
from pgas.job.health import detector, ending
from pgas.job.health.detector import Watcher
from pgas.job.health.health import Health

UNKNOWN = "ended without pgas.finalize()"

#: Linux 6.15 and later tell how a process ended after its parent has reaped it.
TOLD_LATER = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)


@pytest.fixture
def sleeper():
    """Return sleeper(), which starts a process that does nothing."""
    started = []

    def start(command="read line"):
        process = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("kill -9 $$", "was killed by signal 9"),
        ("kill -15 $$", "was killed by signal 15"),
        ("exit 3", "ended with status 3 without pgas.finalize()"),
        ("exit 0", "ended with status 0 without pgas.finalize()"),
    ],
)
def test_how_a_process_ended(sleeper, command, how):
    """Before its parent reaps it, and after."""
    process = sleeper(command)
    pidfd = os.pidfd_open(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert (liveness.fate(process.pid, pidfd), liveness.state(process.pid)) == (how, "ended")
    process.wait()
    assert liveness.fate(process.pid, pidfd) == (how if TOLD_LATER else UNKNOWN)
    os.close(pidfd)


def test_how_a_process_ended_on_an_old_kernel(sleeper, monkeypatch):
    def refuse(*args):
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(liveness.fcntl, "ioctl", refuse)
    process = sleeper("exit 3")
    pidfd = os.pidfd_open(process.pid)
    process.wait()
    assert liveness.fate(process.pid, pidfd) == UNKNOWN
    os.close(pidfd)


def test_the_first_to_die_is_told():
    """However late the check is, and in any order of pids and descriptors."""
    processes = [subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) for _ in range(4)]
    reading, writing = os.pipe()
    deaths = liveness._Deaths(reading)
    for number, process in enumerate(processes):
        deaths.add(f"PE {number}", process.pid)
    for number in (2, 3, 0, 1):
        processes[number].kill()
        os.waitid(os.P_PID, processes[number].pid, os.WEXITED | os.WNOWAIT)
    assert deaths.first() == ("PE 2", processes[2].pid, "was killed by signal 9")
    deaths.close()
    os.close(reading)
    os.close(writing)
    for process in processes:
        process.wait()
        process.stdin.close()


@pytest.mark.parametrize(("kills_itself", "named"), [(True, "PE 1"), (False, "PE 0")])
def test_the_first_to_close_its_files_is_the_first_to_die(sleeper, monkeypatch, kills_itself, named):
    """The launcher notices that PE 1 closes its sockets, and kills PE 0, whose end is reported first. A PE may also only close files."""
    monkeypatch.setattr(liveness, "_ENDING_S", 5 if kills_itself else 0.1)
    (stdin, stop), (pipe, held) = os.pipe(), os.pipe()
    killed, dying = sleeper(), sleeper()
    deaths = liveness._Deaths(stdin)
    deaths.add("PE 0", killed.pid)
    deaths.add("PE 1", dying.pid, pipe)
    os.close(held)
    killed.kill()
    if kills_itself:
        threading.Timer(0.2, dying.kill).start()
    assert deaths.first()[0] == named
    deaths.close()
    for fd in (stdin, stop, pipe):
        os.close(fd)


def test_one_of_several_processes_reports():
    word, said = LastWord(), []
    other = LastWord((os.getpid(), word.fds))

    def explain():
        assert word.taken(0)
        assert not word.said(0)
        said.append("why")

    assert not other.taken(0)
    assert [other.say(explain), word.say(explain), other.say(explain)] == [True, False, False]
    assert (said, word.taken(0), word.said(0)) == (["why"], True, True)
    word.close()
    assert not other.say(explain)
    other.close()


@pytest.mark.parametrize("taken", [False, True])
def test_the_watcher_reports_a_death_unless_another_has(sleeper, capfd, taken):
    word, victim, survivor = LastWord(), sleeper(), sleeper()
    watcher = Watcher(word, ": that is all")
    for who, process in (("PE 0", survivor), ("PE 1", victim)):
        watcher.add(who, process.pid)
    if taken:
        assert word.say(lambda: None)
    victim.kill()
    assert watcher._process.wait(30) == 0
    said = "" if taken else f"pgas: PE 1 (process {victim.pid}) was killed by signal 9: that is all\n"
    assert capfd.readouterr().err == said
    watcher.add("too late", survivor.pid)
    watcher.stop()
    watcher.stop()
    word.close()


def test_the_watcher_outlives_its_parent(sleeper, capfd):
    """It has its own session, and goes on when its pipe is closed."""
    word, victim = LastWord(), sleeper()
    watcher = Watcher(word, ".")
    watcher.add("PE 1", victim.pid)
    watcher._process.stdin.close()
    assert os.getsid(watcher._process.pid) == watcher._process.pid
    victim.stdin.close()
    assert watcher._process.wait(30) == 0
    assert "PE 1" in capfd.readouterr().err
    word.close()


def test_the_watcher_is_silent_after_an_orderly_end(sleeper, capfd):
    word, victim = LastWord(), sleeper()
    watcher = Watcher(word, "")
    watcher.add("PE 1", victim.pid)
    watcher.stop()
    victim.kill()
    assert capfd.readouterr().err == ""
    word.close()


def test_a_watcher_that_is_stopped_prints_first():
    """If it has taken the word, nobody else would print."""
    word, began = LastWord(), []
    watcher = Watcher(word, "")
    thread = threading.Thread(target=word.say, args=(lambda: (began.append(time.monotonic()), time.sleep(0.3)),))
    thread.start()
    while not began:
        time.sleep(0.01)
    watcher.stop()
    assert time.monotonic() - began[0] >= 0.3
    thread.join()
    word.close()


def test_a_watch_can_be_extended_and_stopped(sleeper):
    lost = []
    done = threading.Event()
    watch = Watch([("PE 0", sleeper().pid)], lambda *death: lost.append(death) or done.set())
    late = sleeper()
    watch.add("the software NIC", late.pid)
    late.kill()
    assert done.wait(30)
    assert lost == [("the software NIC", late.pid, "was killed by signal 9")]
    watch.stop()
    watch.stop()


# ------------------------------------------------------------------------------------------------------------- of a job


def two_machines(pid, fds):
    """A job whose PE 0, on this machine, is another process, and whose PE 2 is on another machine."""
    answers = [[(pid, fds), None, None], [(True, -1), (False, -1), (True, -1)]]
    return SimpleNamespace(
        bootstrap=SimpleNamespace(rank=1, size=3, hearing=lambda: None),
        processes=[processes.Process("here", pid, 0), processes.Process("here", os.getpid(), 0), processes.Process("there", 1, 0)],
        together=lambda call, step: (step(), None),
        exchange=lambda value: answers.pop(0),
    )


def test_a_failure_detector_without_a_common_reporter(sleeper, monkeypatch):
    """If descriptors cannot be passed, each PE reports for itself. Deaths on another machine are not seen here."""
    monkeypatch.setattr(detector, "_word", None)
    lost, done = [], threading.Event()
    peer, failures = sleeper(), detector.FailureDetector()
    failures.begin(two_machines(peer.pid, [999, 998, 997, 996]), lambda death: lost.append(death) or done.set())
    assert detector._word.say(lambda: None)
    assert failures._watcher is None
    peer.kill()
    assert done.wait(30)
    rest = f"on {socket.gethostname()}: the job cannot continue (another PE may have died first on another node)"
    assert lost == [f"PE 0 (process {peer.pid}) was killed by signal 9 {rest}"]
    failures.end()
    detector._word.close()


#: A PE that ends its job by several threads, as its main thread and that which watches the others do. The first PE to abort kills all, like
#: Hydra.
ENDING = """
import json, os, sys, threading, time
from types import SimpleNamespace
from pgas.base.liveness import LastWord
from pgas.job.health import detector, ending

detector._word, detector.GRACE_S = LastWord(inherited=json.loads(sys.argv[1])), float(sys.argv[2])
bootstrap = SimpleNamespace(abort=lambda status: os.killpg(0, 9))

def explain():
    os.write(2, b"the job ends, ")
    time.sleep(0.5)
    os.write(2, b"for this reason\\n")

ways = [{"after": True, "grace_s": 0.1}, {"after": True, "grace_s": 0.0}, {"after": False, "grace_s": 0.0}]
for way in ways:
    threading.Thread(target=ending.end_all, args=(bootstrap, explain), kwargs=way).start()
"""


def ended_by(word, n_pes, patience_s=30.0):
    """Return what some PEs print that end their job at the same time."""
    command = [sys.executable, "-c", ENDING, json.dumps(word.fds), str(patience_s)]
    script = 'for pe in $(seq "$1"); do "$2" "$3" "$4" "$5" "$6" & done; wait'
    shell = ["/bin/sh", "-c", script, "sh", str(n_pes), *command]
    ended = subprocess.run(shell, pass_fds=word.fds, process_group=0, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    word.close()
    assert ended.returncode == -9
    return ended.stderr


@pytest.mark.parametrize("n_pes", [1, 3])
def test_a_job_ends_after_its_reason_is_printed(n_pes):
    """All threads of all PEs notice at the same time, and one of them prints."""
    assert ended_by(LastWord(), n_pes) == "the job ends, for this reason\n"


@pytest.mark.slow
def test_a_job_whose_reporter_was_killed():
    """The word is taken, but nothing was printed."""
    word = LastWord()
    os.read(word.fds[0], 1)
    assert "the job ends, for this reason\n" in ended_by(word, 1, patience_s=0.1)


def test_codes_of_system_exit():
    assert [ending.status_of(code) for code in (None, 0, False, 3, "words", [])] == [0, 0, 0, 3, 1, 1]


@pytest.mark.parametrize("death", [None, "PE 1 was killed"])
def test_a_failure_after_a_death_follows_from_it(monkeypatch, death):
    """Whatever the error is: the process that died is the first, and its end is reported."""
    health, ends = Health(), []
    if death is not None:
        health.lose(death)
    monkeypatch.setattr(ending, "end_all", lambda bootstrap, explain, *, after: ends.append(after))
    ending._fail(SimpleNamespace(size=2), SimpleNamespace(health=health), ConnectionResetError(), lambda: None)
    assert ends == [death is not None]


def test_descriptors_above_those_of_select(sleeper, monkeypatch):
    """A process that reports a long wait at the end of a PE waits for the PE's end, whatever the number of its descriptor."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    opened, pidfd_open = [], os.pidfd_open

    def open_above(pid):
        low = pidfd_open(pid)
        opened.append(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1025))
        os.close(low)
        return opened[-1]

    monkeypatch.setattr(os, "pidfd_open", open_above)
    process = sleeper()
    threading.Timer(0.3, process.kill).start()
    try:
        liveness._be_at_end(0, "MPI_Finalize", 0.1, {0: process.pid})
        assert liveness.readable(opened[0], 0)
        assert opened[0] > 1024
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
