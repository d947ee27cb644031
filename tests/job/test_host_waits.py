"""A long wait on the host reports the awaited process: other PEs, the software card."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from pgas.base import waits
from pgas.job.bootstrap import calls
from pgas.job.bootstrap import processes as job_processes
from pgas.transports.nic.adapter import AdapterGone
from pgas.transports.softhca.process import client, messages


class Late(calls.Collective):
    """An exchange that some PEs do not join."""

    def __init__(self, rank, missing, processes, polls=3, met=False):
        def allgather(data, poll):
            for _ in range(polls):
                poll()
            return [data]

        self.bootstrap = SimpleNamespace(rank=rank, size=4, missing=missing, met=met, allgather=allgather, place="")
        self.processes = processes
        self._made = "pgas.barrier_all()"


def node_of(*pids, node="here"):
    return [job_processes.Process(node, pid, 0) for pid in pids]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv("PGAS_TIMEOUT", "1e-9")


@pytest.fixture
def halted():
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    yield process.pid
    process.kill()
    process.communicate()


def test_a_wait_is_reported_once(impatient, halted, capsys):
    here = os.getpid()
    Late(0, {1, 2, 3}, [*node_of(here, halted, here), *node_of(halted, node="elsewhere")]).exchange(None)
    assert capsys.readouterr().err == (
        f"pgas: PE 0 has waited 1e-09 s (PGAS_TIMEOUT) for PE 1 (process {halted}, which is stopped), PE 2 (process {here}), PE 3 "
        "in pgas.barrier_all() and is still waiting\n"
    )


def test_the_lowest_waiting_pe_reports(impatient, halted, capsys):
    """The lowest PE that is not stopped or dead."""
    here = os.getpid()
    Late(2, {3}, node_of(here, here, here, here)).exchange(None)
    assert capsys.readouterr().err == ""
    Late(2, {1, 3}, node_of(halted, here, here, here)).exchange(None)
    assert capsys.readouterr().err.startswith("pgas: PE 2 has waited")


def test_each_waiting_pe_reports_after_all_have_arrived(impatient, halted, capsys):
    """A lower PE may have gone on already."""
    here = os.getpid()
    Late(2, {3}, node_of(here, here, here, halted), met=True).exchange(None)
    assert capsys.readouterr().err.startswith(f"pgas: PE 2 has waited 1e-09 s (PGAS_TIMEOUT) for PE 3 (process {halted}, which is stopped)")


def test_a_pe_that_was_stopped_does_not_report(monkeypatch, capsys):
    """The others wait for it. While a process is stopped its clock goes on; here it jumps."""
    monkeypatch.setenv("PGAS_TIMEOUT", "30")
    times = iter([0, 0.1, 100.1, 100.2, 129.9, 130.2])
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: next(times)))
    Late(0, {1}, node_of(os.getpid(), os.getpid()), polls=4).exchange(None)
    assert capsys.readouterr().err == ""


def test_many_missing_pes(impatient, capsys):
    Late(0, set(range(1, 20)), node_of(*[os.getpid()] * 20)).exchange(None)
    assert f"PE 8 (process {os.getpid()}) and 11 more in pgas.barrier_all()" in capsys.readouterr().err


@pytest.mark.parametrize("between", [False, True])
def test_a_launcher_that_is_stopped(impatient, monkeypatch, capsys, between):
    """Without it nobody knows who is missing: it serves the store, or the processes between it and the PEs (Hydra's) ask it."""
    command = ["/bin/sh", "-c", "/bin/sleep 100 & echo $!; wait"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        child = int(launcher.stdout.readline())
        os.kill(launcher.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, launcher.pid, os.WSTOPPED)
        monkeypatch.setattr(os, "getppid", lambda: child if between else launcher.pid)
        Late(0, None, node_of(os.getpid(), os.getpid())).exchange(None)
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()
    whom = f"the launcher (process {launcher.pid}, which is stopped)"
    assert f"for {whom} in pgas.barrier_all() and is still waiting\n" in capsys.readouterr().err


@pytest.mark.parametrize("variable", [{"PGAS_HANG_REPORT": "off"}, {"PGAS_TIMEOUT": "never"}, {"PGAS_TIMEOUT": "60"}])
def test_waits_without_a_report(impatient, monkeypatch, capsys, variable):
    """Also with an invalid PGAS_TIMEOUT, which init refuses later."""
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    Late(0, {1}, node_of(os.getpid(), os.getpid())).exchange(None)
    assert capsys.readouterr().err == ""


def test_processes_of_one_launcher():
    """Before bootstrap, processes of a job are known by the launcher's variables."""
    commands = {"PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "2", "HOME": "3"}
    processes = [subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={name: value}) for name, value in commands.items()]
    try:
        assert job_processes.siblings(os.getpid()) == {1: processes[0].pid, 2: processes[1].pid}
    finally:
        for process in processes:
            process.communicate()


@pytest.mark.parametrize("variable", [{"PGAS_TIMEOUT": "1e7"}, {"PGAS_HANG_REPORT": "off"}])
def test_sources_without_a_report(impatient, monkeypatch, capsys, variable):
    """An answer that has arrived; a missing one without anyone to report to."""
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if "PGAS_TIMEOUT" in variable:  # more milliseconds than poll(2) takes
            theirs.send(b"answer")
        waits.tell_if_late(ours, "PE 0", lambda: "the card")
    assert capsys.readouterr().err == ""


def test_an_interrupted_request(monkeypatch):
    """The next request does not get its answer."""
    name = f"pgas-test-{os.getpid()}"

    def interrupted(*args):
        raise KeyboardInterrupt

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()

        def serve():
            with listener.accept()[0] as served, contextlib.suppress(OSError):  # the second is not accepted
                for answer in ("hello", "first"):
                    messages.receive(served)
                    messages.send(served, messages.RequestKind.OK, answer)

        thread = threading.Thread(target=serve)
        thread.start()
        connection = client._Connection(name, 3)
        with monkeypatch.context() as patch:
            patch.setattr(client, "tell_if_late", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.ask(messages.RequestKind.COUNTERS)
        with pytest.raises(AdapterGone, match="the software NIC is gone"):
            connection.ask(messages.RequestKind.COUNTERS)
        thread.join()


def test_a_card_that_does_not_answer_is_reported_once(monkeypatch, capfd):
    """Its client waits on, and gets the answer."""
    name, told = f"pgas-test-{os.getpid()}", threading.Event()
    monkeypatch.setenv("PGAS_TIMEOUT", "0.01")
    monkeypatch.setattr(waits, "say", lambda text, say=waits.say: (say(text), told.set()))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()

        def serve():
            with listener.accept()[0] as connection:
                messages.receive(connection)
                told.wait(30)
                messages.send(connection, messages.RequestKind.OK, {})

        thread = threading.Thread(target=serve)
        thread.start()
        connection = client._Connection(name, 3)
        thread.join()
    with contextlib.closing(connection):
        assert connection.server == {}
    words = f"the software NIC (process {os.getpid()}) to do HELLO and is still waiting"
    assert capfd.readouterr().err == f"pgas: PE 3 has waited 0.01 s (PGAS_TIMEOUT) for {words}\n"


def test_a_card_that_does_not_start_is_reported(monkeypatch, capfd, tmp_path):
    """After PGAS_TIMEOUT; the limit of its start is minutes."""
    monkeypatch.setenv("PGAS_TIMEOUT", "0.01")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "card"))
    (tmp_path / "card").write_text("#!/bin/sh\nkill -STOP $$\n")
    (tmp_path / "card").chmod(0o755)
    monkeypatch.setattr(client, "_START_TIMEOUT_S", 0.01)
    with pytest.raises(client.TransportError, match="the software NIC did not start: timed out"):
        client.start(1)
    said = capfd.readouterr().err
    assert said.startswith(f"pgas: process {os.getpid()} has waited 0.01 s (PGAS_TIMEOUT) for the software NIC (process "), said
    assert said.endswith(" to start and is still waiting\n"), said


def test_a_starting_card_ignores_ctrl_c(monkeypatch, tmp_path):
    """And SIGUSR1, from its first instruction on. Its first start compiles for seconds, and would print a traceback."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "card"))
    (tmp_path / "card").write_text("#!/bin/sh\nkill -INT $$\nkill -USR1 $$\nexit 3\n")
    (tmp_path / "card").chmod(0o755)
    with pytest.raises(client.TransportError, match="the software NIC did not start: exit status 3"):
        client.start(1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
