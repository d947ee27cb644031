"""Bootstrap with and without a launcher, with the wrong MPI and without MPI; descriptors between real processes."""

import contextlib
import functools
import importlib
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import forks
import pytest
from descriptors import few_descriptors
from strangers import NOBODY, stranger

import pgas
from pgas.base import launcher, liveness, plain
from pgas.base.errors import BootstrapError
from pgas.job.bootstrap import mpi as mpi_bootstrap
from pgas.job.bootstrap import processes, protocol
from pgas.perftests.harness.jobs import mpirun
from pgas.transports.memory import fds

RANK_VARIABLES = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"]
SIZE_VARIABLES = ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in RANK_VARIABLES + SIZE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Communicator:
    """A communicator of one process, enough for MPIBootstrap."""

    def __init__(self, size=1, inter=False):
        self.rank, self.size, self.inter, self.freed = 0, size, inter, False

    def Is_inter(self):
        return self.inter

    def Idup(self):
        return Communicator(self.size), SimpleNamespace(Test=lambda: True)

    def Free(self):
        self.freed = True

    def Abort(self, status):
        raise SystemExit(status)


@pytest.fixture
def mpi(monkeypatch):
    """A stand-in for mpi4py.MPI, so that no MPI library is initialized in the tests' own process."""
    stand_in = SimpleNamespace(
        Comm=Communicator,
        Status=SimpleNamespace,
        ANY_SOURCE=-1,
        BYTE=None,
        COMM_NULL=None,
        COMM_WORLD=Communicator(),
        Get_library_version=lambda: "MPICH Version:      5.0.1\nMPICH Release date: ...\0",
        Is_finalized=lambda: False,
        Finalize=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", stand_in)
    real = importlib.import_module
    monkeypatch.setattr(mpi_bootstrap.importlib, "import_module", lambda name: stand_in if name == "mpi4py.MPI" else real(name))
    return stand_in


# ----------------------------------------------------------------------------------------------------------------- rank


def test_no_launcher():
    assert launcher.launched_rank() is None


@pytest.mark.parametrize("name", RANK_VARIABLES)
def test_rank_of_each_launcher(name, monkeypatch):
    monkeypatch.setenv(name, "3")
    assert launcher.launched_rank() == 3


def test_a_rank_that_is_empty(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "")
    assert launcher.launched_rank() is None


# ----------------------------------------------------------------------------------------------------------------- find


def test_without_launcher_a_job_of_one(monkeypatch):
    monkeypatch.setattr(mpi_bootstrap.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    found = protocol.find()
    assert isinstance(found, protocol.SingleBootstrap)
    assert (found.rank, found.size) == (0, 1)
    assert found.allgather(b"data", lambda: None) == [b"data"]
    assert protocol.exchange(found, ("a", 1)) == [("a", 1)]


@pytest.mark.parametrize("name", RANK_VARIABLES)
def test_with_launcher_comm_world(name, mpi, monkeypatch):
    monkeypatch.setenv(name, "0")
    found = protocol.find()
    assert isinstance(found, protocol.MPIBootstrap)
    assert (found.rank, found.size) == (0, 1)
    found.close()


@pytest.mark.parametrize("name", SIZE_VARIABLES)
def test_launchers_size_agrees(name, mpi, monkeypatch):
    monkeypatch.setenv(name.replace("SIZE", "RANK"), "0")
    monkeypatch.setenv(name, "2")
    mpi.COMM_WORLD = Communicator(2)
    assert protocol.find().size == 2


@pytest.mark.parametrize("name", SIZE_VARIABLES)
def test_mpirun_of_another_mpi(name, mpi, monkeypatch):
    monkeypatch.setenv(name.replace("SIZE", "RANK"), "1")
    monkeypatch.setenv(name, "4")
    with pytest.raises(BootstrapError) as refused:
        protocol.find()
    text = str(refused.value)
    assert "mpirun started 4 processes, but each is alone in its job" in text
    assert "(MPICH Version:      5.0.1)" in text
    assert "use the mpirun that belongs to that library" in text
    assert "\n" not in text
    assert "\0" not in text


@pytest.mark.parametrize("error", [ImportError("no module named mpi4py"), RuntimeError("cannot load MPI library\nlibmpi.so.12: not found")])
def test_no_mpi_library(error, monkeypatch):
    def fail(name):
        raise error

    monkeypatch.setattr(mpi_bootstrap.importlib, "import_module", fail)
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(BootstrapError) as refused:
        protocol.find()
    text = str(refused.value)
    assert "started by mpirun, but mpi4py finds no MPI library" in text
    assert str(error).splitlines()[0] in text
    assert "pip install 'pgas[mpich]'" in text
    assert "\n" not in text
    assert refused.value.__cause__ is error


def test_a_pe_missing_in_mpi_init(capfd, monkeypatch):
    """MPI_Init waits with the GIL held, so a watcher process of each PE reports the missing PE, once."""
    monkeypatch.setenv("PGAS_TIMEOUT", "7")
    there, away = "read line < /dev/null; /bin/sleep 100 & wait", "exec /bin/sleep 100"
    pes = [
        subprocess.Popen(["/bin/sh", "-c", text], env={"PMI_RANK": str(pe)}, start_new_session=True)
        for pe, text in enumerate((away, there, there))
    ]
    try:
        os.kill(pes[0].pid, signal.SIGSTOP)
        until = time.monotonic() + 30
        while time.monotonic() < until and not (
            liveness.state(pes[0].pid) == "stopped" and all(processes.siblings(pe.pid) for pe in pes[1:])
        ):
            time.sleep(0.01)
        for rank in (1, 2):
            mpi_bootstrap._say_who_has_not_started(rank, os.getpid())
    finally:
        for pe in pes:
            os.killpg(pe.pid, signal.SIGKILL)
            pe.wait()
    said = f"pgas: PE 1 has waited 7 s (PGAS_TIMEOUT) for PE 0 (process {pes[0].pid}, which is stopped) in MPI_Init and is still waiting\n"
    assert capfd.readouterr().err == said


def test_communicator_of_the_caller(mpi):
    comm = Communicator(3)
    found = protocol.find(comm)
    assert isinstance(found, protocol.MPIBootstrap)
    assert found.size == 3
    found.close()
    assert found._comm.freed
    assert not comm.freed


def test_intercommunicator_is_refused(mpi):
    with pytest.raises(ValueError, match=r"pgas.init: comm must be an intracommunicator"):
        protocol.find(Communicator(inter=True))


def test_what_is_no_communicator_is_refused(mpi):
    with pytest.raises((TypeError, ValueError), match="comm"):
        protocol.find("world")


def test_nothing_is_freed_after_mpi_has_ended(mpi):
    found = protocol.find(Communicator())
    mpi.Is_finalized = lambda: True
    found.close()
    assert not found._comm.freed


class Rank(Communicator):
    """A rank of a communicator in one process. Rank 0 sees the message of a rank that leaves first, as Open MPI may show it."""

    def __init__(self, rank, mail):
        super().__init__(len(mail))
        self.rank, self.mail, self.heard = rank, mail, rank != 0

    def Idup(self):
        return self, SimpleNamespace(Test=lambda: True)

    def Isend(self, data, to, tag):
        self.mail[to].append((self.rank, tag, bytes(data[0])))
        return SimpleNamespace(Test=lambda: True)

    def _find(self, tag, status):
        found = next((message for message in self.mail[self.rank] if message[1] == tag), None)
        if found is not None:
            status.Get_source, status.Get_count = lambda: found[0], lambda unit: len(found[2])
        return found

    def Iprobe(self, source, tag, status):
        return self._find(tag, status) is not None

    def Recv(self, room, source, tag):
        message = self._find(tag, SimpleNamespace())
        self.mail[self.rank].remove(message)
        room[:], self.heard = message[2], True

    def Improbe(self, source, tag, status):
        message = self._find(tag, status) if self.heard else None
        if message is None:
            return None
        self.mail[self.rank].remove(message)
        return SimpleNamespace(Recv=lambda room: room[0].__setitem__(slice(None), message[2]))


def three_ranks():
    mail = [[], [], []]
    return [mpi_bootstrap.MPIBootstrap(Rank(rank, mail)) for rank in range(3)]


def patient(polls=5000):
    """Return a poll that fails after some seconds."""
    left = iter(range(polls))
    return lambda: next(left)


def test_a_rank_leaves_after_an_exchange(mpi):
    """The others complete that exchange; the next one raises the reason."""
    zero, one, two = three_ranks()

    def leave():
        one.allgather(b"1", patient())
        one.leave("why")

    with futures.ThreadPoolExecutor(2) as threads:
        others = threads.submit(leave), threads.submit(two.allgather, b"2", patient())
        assert zero.allgather(b"0", patient()) == [b"0", b"1", b"2"]
    assert others[0].result() is None
    assert others[1].result() == [b"0", b"1", b"2"]
    with pytest.raises(BootstrapError, match="why") as raised:
        zero.allgather(b"", patient())
    assert raised.value.of_another


def test_a_rank_leaves_during_an_exchange(mpi):
    zero, one, _ = three_ranks()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.allgather(b"1", interrupt)
    one.leave("why")
    with pytest.raises(BootstrapError, match="why"):
        zero.allgather(b"0", patient())


def test_nothing_is_freed_after_a_rank_has_left(mpi):
    """It would take part in that."""
    zero, one, two = three_ranks()
    with futures.ThreadPoolExecutor(2) as threads:
        threads.submit(lambda: (one.allgather(b"1", patient()), one.leave("why")))
        threads.submit(two.allgather, b"2", patient())
        zero.allgather(b"0", patient())
    zero.close()
    assert not zero._comm.freed


def test_abort_ends_the_world(mpi):
    with pytest.raises(SystemExit) as ended:
        protocol.find(Communicator()).abort(7)
    assert ended.value.code == 7


@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.parametrize("reads", [True, False])
def test_abort_waits_for_the_reader_of_what_was_printed(reads, kind):
    """mpirun drops what it has not read. The wait is bounded, in case mpirun is stopped."""
    program = textwrap.dedent(
        """
        import os, sys
        from types import SimpleNamespace
        from pgas.job.bootstrap import mpi

        mpi._READ_S = float(sys.argv[1])
        world = mpi.MPIBootstrap.__new__(mpi.MPIBootstrap)
        world._mpi = SimpleNamespace(COMM_WORLD=SimpleNamespace(Abort=os._exit))
        print("why")
        world.abort(7)
        """
    )
    ours, theirs = socket.socketpair() if kind == "socket" else map(open, os.pipe(), "rw")
    with ours, subprocess.Popen([sys.executable, "-c", program, "30" if reads else "0.5"], stdout=theirs.fileno()) as process:
        theirs.close()
        assert select.select([ours], [], [], 30)[0]  # It has printed.
        if reads:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            assert os.read(ours.fileno(), 9) == b"why\n"
        assert process.wait(20) == 7


def test_node_name_has_host_boot_and_namespaces():
    host, boot, pid, net = processes.node_name().split("/")
    assert host == socket.gethostname()
    assert boot.count("-") == 4
    assert (pid, net) == (os.readlink("/proc/self/ns/pid"), os.readlink("/proc/self/ns/net"))


# ---------------------------------------------------------------------------------------------------------- descriptors


def _exchange(connection, value, rank):
    """An allgather() of two processes over a pair of sockets."""
    connection.sendall(pickle.dumps(value).ljust(4096, b"\0"))
    other = pickle.loads(connection.recv(4096, socket.MSG_WAITALL))
    return [value, other] if rank == 0 else [other, value]


def _own_memfd(rank):
    fd = os.memfd_create(f"pgas-test-{rank}")
    os.write(fd, f"written by {rank}".encode())
    return fd


#: Those of this module and of the helpers that it imports.
FOLDERS = os.pathsep.join((os.path.dirname(__file__), os.path.dirname(forks.__file__)))

CHILD = """
import os, socket, sys
from pgas.transports.memory import fds
sys.path[:0] = sys.argv[1].split(os.pathsep)
from test_bootstrap import _exchange, _own_memfd, broken
import functools
connection = socket.socket(fileno=int(sys.argv[2]))
fds._PASS_S = 2
if sys.argv[3] == "broken":
    fds.socket.send_fds = broken
fd = _own_memfd(1)
try:
    got = fds.exchange_fds(1, fd, functools.partial(_exchange, connection, rank=1))
    assert got[1] == fd
    text = os.pread(got[0], 100, 0).decode()
    os.pwrite(got[0], b"WRITTEN", 0)
    os.close(got[0])
except Exception as error:
    text = f"{type(error).__name__}: {error}"
_exchange(connection, text, rank=1)
"""


def broken(*args):
    raise PermissionError(1, "no descriptors")


@pytest.fixture
def peer():
    """Return peer(how), which starts the second process and returns the connection to it and the process."""
    started = []

    def start(how=""):
        here, there = socket.socketpair()
        here.settimeout(30)
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CHILD, FOLDERS, str(there.fileno()), how],
            pass_fds=[there.fileno()], stdout=subprocess.PIPE, text=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        )  # fmt: skip
        there.close()
        started.append((here, process))
        return here, process

    yield start
    for here, process in started:
        here.close()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("uid", [NOBODY, None])
def test_descriptors_between_two_processes(uid, peer):
    """Strangers that connect first, silently or with a descriptor, get none, pass none, and cause no delay."""
    connection, process = peer()
    fd = _own_memfd(0)
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as undo:
        sockets = [undo.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]

        def intrude(name):
            for intruder in sockets:
                intruder.connect(name)
            socket.send_fds(sockets[-1], [b"\0"], [fd])

        def allgather(value):
            if value[0] is not None:  # the name of this rank's socket; the other rank does not have it yet
                strangers.enter_context(stranger(lambda: intrude(value[0][1]), uid))
            return _exchange(connection, value, 0)

        started = time.monotonic()
        with contextlib.ExitStack() as strangers:
            got = fds.exchange_fds(0, fd, allgather)
        assert time.monotonic() - started < 10
        for intruder in sockets:
            intruder.settimeout(10)
            with contextlib.suppress(ConnectionResetError):  # its data was not read
                assert socket.recv_fds(intruder, 1, 1)[:2] == (b"", [])
    assert got[0] == fd
    assert os.pread(got[1], 100, 0) == b"written by 1"
    assert _exchange(connection, "", 0)[1] == "written by 0"
    assert os.pread(fd, 100, 0) == b"WRITTEN by 0"
    os.close(got[1])
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    assert process.wait(30) == 0


@pytest.mark.parametrize("uid", [NOBODY, None])
def test_another_process_with_the_name_of_a_ranks_socket(uid):
    """It gets no descriptor."""
    with socket.socket(socket.AF_UNIX) as impostor, contextlib.ExitStack() as undo:
        impostor.bind(f"\0pgas-test-{os.getpid()}")
        impostor.settimeout(10)
        undo.enter_context(stranger(impostor.listen, uid))
        rank_0 = os.getpid(), impostor.getsockname()
        with pytest.raises(BootstrapError, match=rf"PE 1: the socket of process {os.getpid()} belongs to another process; "):
            fds.exchange_fds(1, 0, lambda mine: [(rank_0, None) if mine[0] else (None, None), mine])
        with impostor.accept()[0] as connection:
            assert socket.recv_fds(connection, 1, 1)[:2] == (b"", [])


@pytest.mark.parametrize(
    ("theirs", "mine", "why"),
    [
        ("broken", "broken", "PE 0: [Errno 1] no descriptors; PE 1: [Errno 1] no descriptors"),
        ("broken", "", "PE 0: the other process has given up; PE 1: [Errno 1] no descriptors"),
        ("", "full", "PE 0: [Errno 24] Too many open files"),
        ("", "nearly full", "PE 0: [Errno 24] Too many open files; PE 1: the other process has given up"),
    ],
)
def test_descriptors_that_cannot_be_passed(peer, monkeypatch, theirs, mine, why):
    """Also if only one process fails: both get the error, and neither waits for the other or keeps a descriptor."""
    if mine == "broken":
        monkeypatch.setattr(fds.socket, "send_fds", broken)
    connection, process = peer(theirs)
    fd = _own_memfd(0)
    before = len(os.listdir("/proc/self/fd"))
    with few_descriptors({"full": 0, "nearly full": 1}.get(mine)), pytest.raises(BootstrapError) as refused:
        fds.exchange_fds(0, fd, functools.partial(_exchange, connection, rank=0))
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    text = str(refused.value)
    assert text.startswith(f"cannot pass memory between processes (SCM_RIGHTS): {why}; allow more open files (ulimit -n); ")
    assert _exchange(connection, "", 0)[1] == f"BootstrapError: {text}"
    assert process.wait(30) == 0


def test_a_rank_that_does_not_come(monkeypatch):
    monkeypatch.setattr(fds, "_PASS_S", 0.05)
    with pytest.raises(BootstrapError, match=r"PE 0: nothing came from PE 1 \(process 1\) in 0\.05 s; "):
        fds.exchange_fds(0, 0, lambda mine: [mine, ((1, b""), None) if mine[0] else (None, None)])


def test_a_rank_that_is_stopped(monkeypatch):
    """It listens, so connections succeed, but never answers."""
    monkeypatch.setattr(fds, "_PASS_S", 0.3)
    name = f"\0pgas-test-{os.getpid()}"
    program = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({name!r}); s.listen(); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        other.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        rank_0 = other.pid, name
        with pytest.raises(BootstrapError, match=rf"PE 1: nothing came from PE 0 \(process {other.pid}, which is stopped\) in 0\.3 s; "):
            fds.exchange_fds(1, 0, lambda mine: [(rank_0, None) if mine[0] else (None, None), mine])
        other.kill()


def test_one_pe_needs_no_peer():
    with open("/dev/null") as file:
        assert fds.exchange_fds(0, file.fileno(), lambda value: [value]) == {0: file.fileno()}


def test_exchange_by_rank():
    calls = []

    class Two:
        rank, size = 0, 2

        def allgather(self, data, poll):
            poll()
            return [data, plain.dumps([1, 2])]

    assert protocol.exchange(Two(), "mine", lambda: calls.append(1)) == ["mine", [1, 2]]
    assert calls == [1]


@pytest.mark.parametrize("code", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_a_pe_of_mpirun_that_ends_before_init(tmp_path, code):
    """MPI_Init of the others would wait forever. The PE is named once."""
    path = tmp_path / "program.py"
    path.write_text(f"import os, sys\nif os.environ['PMI_RANK'] == '1':\n    sys.exit({code})\nimport pgas\npgas.init()\n")
    environment = os.environ | {"PGAS_TIMEOUT": "3", "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(Path(pgas.__file__).parents[1])}
    done = subprocess.run([*mpirun(3), sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    told = re.findall("^pgas: .*", done.stderr, re.MULTILINE)
    assert told == ["pgas: PE 1 ended without calling pgas.init(), for which PE 0 has waited 3 s: the job cannot continue"], done.stderr
