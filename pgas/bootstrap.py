"""How the PEs of a job find each other: one small protocol, with mpi4py behind it, or nobody for a job of one PE.

Another launcher needs another class with these methods, and nothing else of pgas changes.
"""

import atexit
import contextlib
import errno
import importlib
import math
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pgas import config, liveness
from pgas.backend import launched_rank
from pgas.errors import BootstrapError, PgasError
from pgas.remedies import mend
from pgas.shared_files import forget_early, forget_shared_files, guard_shared_files

__all__ = [
    "Bootstrap", "Collective", "MPIBootstrap", "Process", "SingleBootstrap", "described", "enough_files", "everywhere",
    "exchange", "find", "node_name", "of_another", "say", "tell_if_late",
]  # fmt: skip

#: Launchers' variables for the number of processes, to notice a launcher of another MPI than the one that mpi4py loaded.
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

#: Seconds that MPI gets to end a job.
_ABORT_S = 5.0

#: Tags that MPI allows at least. The messages of an exchange have one, in turn; that by which a rank leaves has another.
_TAGS, _LEFT = 1 << 15, 0

#: The longest time that poll(2) takes, an int.
_POLL_MAX_MS = (1 << 31) - 1

#: PEs that a line names at most.
_NAMED = 8


class Bootstrap(Protocol):
    """Ranks, and a blocking exchange among them. Collective calls are made by all ranks in the same order."""

    rank: int
    size: int
    missing: set[int] | None  #: who has not come to the exchange in which this process waits; None: somebody

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        """Return every rank's data, by rank. ``poll`` is called while waiting and may raise to give up: leave() then.

        Raises:
            BootstrapError: a rank has left; the text is what it gave leave().
        """

    def leave(self, why: str) -> None:
        """Take part in no allgather any more, and tell the other ranks why, wherever they wait: they are one message out of step."""

    def is_of(self, comm: Any) -> bool:
        """Whether the job's PEs are the processes of an mpi4py communicator, in its order."""

    def abort(self, status: int) -> None:
        """End all processes of the job."""


class SingleBootstrap:
    """A job of one PE: no launcher, no MPI."""

    rank = 0
    size = 1
    missing: set[int] | None = None

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        """Return [data]."""
        return [data]

    def leave(self, why: str) -> None:
        """Do nothing: there is nobody to be out of step with."""

    def is_of(self, comm: Any) -> bool:
        """Whether comm has this process only."""
        return getattr(comm, "size", None) == 1

    def abort(self, status: int) -> None:
        """End this process."""
        _flush()
        os._exit(status)


class MPIBootstrap:
    """Any intracommunicator of mpi4py, duplicated so that the user's messages and ours never meet."""

    def __init__(self, comm: Any) -> None:
        self._mpi = _import_mpi()
        if isinstance(comm, self._mpi.Comm) and comm == self._mpi.COMM_NULL:
            raise ValueError("pgas.init: comm is COMM_NULL: this process is none of the communicator's, and only those call pgas.init")
        if not hasattr(comm, "Is_inter") or comm.Is_inter():
            raise ValueError(f"pgas.init: comm must be an intracommunicator of mpi4py, not {comm!r}")
        forget_early()  # until all have come, the duplicate is not complete
        self._comm, self._making = comm.Idup()
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._left = ""  # why a rank has left
        self.missing: set[int] | None = None
        self._tag = 0
        self._sent: list[tuple[int, Any]] = []  # also of an exchange that an exception left: MPI reads what is sent until it has been

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        """Return every rank's data, by rank; waiting PEs sleep, so that a PE still at work keeps its core.

        Every PE sends to every other, so that each knows who has not come: n * (n - 1) messages, meant for some tens of PEs.
        """
        if self._left:
            raise BootstrapError(self._left)
        mpi, comm = self._mpi, self._comm
        self._wait(self._making.Test, poll)
        self._tag = self._tag % (_TAGS - 1) + 1
        missing = self.missing = set(range(self.size)) - {self.rank}
        self._sent += [(pe, comm.Isend([data, mpi.BYTE], pe, self._tag)) for pe in missing]
        gathered = {self.rank: data}
        status = mpi.Status()

        def arrived() -> bool:
            while (message := comm.Improbe(mpi.ANY_SOURCE, self._tag, status)) is not None:
                pe, received = status.Get_source(), bytearray(status.Get_count(mpi.BYTE))
                message.Recv([received, mpi.BYTE])
                gathered[pe] = bytes(received)
                missing.remove(pe)
            if missing:
                self._hear()
            return not missing

        def delivered() -> bool:
            self._sent = [(pe, request) for pe, request in self._sent if not request.Test()]
            self.missing = {pe for pe, _ in self._sent}
            if self.missing:
                self._hear()
            return not self.missing

        self._wait(arrived, poll)
        self._wait(delivered, poll)
        return [gathered[pe] for pe in range(self.size)]

    def _wait(self, over: Callable[[], bool], poll: Callable[[], None]) -> None:
        """Poll for a while, then sleep between polls, up to 1 ms."""
        started, pause = time.perf_counter(), 20e-6
        while not over():
            if time.perf_counter() - started > 200e-6:
                poll()
                time.sleep(pause)
                pause = min(pause * 1.5, 1e-3)

    def leave(self, why: str) -> None:
        """Tell the others by a message to each; it is short, so that MPI sends it at once. Further calls do nothing."""
        if self._left:
            return
        self._left, deadline = why, time.monotonic() + _ABORT_S
        while not self._making.Test():  # there is nothing yet to tell them by
            if time.monotonic() > deadline:
                return
            time.sleep(1e-3)
        self._sent += [(pe, self._comm.Isend([why.encode(), self._mpi.BYTE], pe, _LEFT)) for pe in set(range(self.size)) - {self.rank}]

    def _hear(self) -> None:
        """Raise what a rank that has left says."""
        status = self._mpi.Status()
        if self._comm.Iprobe(self._mpi.ANY_SOURCE, _LEFT, status):
            why = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv(why, status.Get_source(), _LEFT)
            self._left = why.decode()
            raise of_another(BootstrapError(self._left))

    def is_of(self, comm: Any) -> bool:
        """Whether comm has the job's processes, in the same order."""
        alike = (self._mpi.IDENT, self._mpi.CONGRUENT)
        return isinstance(comm, self._mpi.Intracomm) and self._mpi.Comm.Compare(self._comm, comm) in alike

    def abort(self, status: int) -> None:
        """End all processes of MPI_COMM_WORLD: other PEs may wait in kernels for this one."""
        # SIGALRM kills this process if MPI waits for an mpirun that is gone, or CUDA's exit handlers for a kernel that never ends.
        signal.setitimer(signal.ITIMER_REAL, _ABORT_S)
        _flush()
        time.sleep(0.2)  # mpirun drops what it has not read by then
        with contextlib.suppress(OSError), open(os.devnull, "w") as nobody:
            os.dup2(nobody.fileno(), 2)  # MPICH would say that MPI_Abort was called; why has been said
        self._mpi.COMM_WORLD.Abort(status)

    def close(self) -> None:
        """Free the duplicate, unless MPI has ended already or what an exception left goes on in it."""
        if not self._left and not self._mpi.Is_finalized() and self._making.Test():
            self._comm.Free()


def say(text: str) -> None:
    """Print a line to stderr, in one write: mpirun mixes what PEs write. That it is closed must not keep the job from ending."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"pgas: {text}\n")  # print() writes the end of the line by itself where PYTHONUNBUFFERED is set
        sys.stderr.flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more, or it is closed
            stream.flush()


def find(comm: Any = None) -> SingleBootstrap | MPIBootstrap:
    """Return the bootstrap of this process: comm if given, MPI_COMM_WORLD under a launcher, else a job of one PE.

    Raises:
        BootstrapError: a launcher started this process, but mpi4py has no MPI library, or that of another MPI.
    """
    if comm is not None:
        return MPIBootstrap(comm)
    if launched_rank() is None:
        return SingleBootstrap()
    if "mpi4py.MPI" not in sys.modules:  # it is initialized by the import, which waits for the other processes
        rank, launcher = launched_rank(), os.getppid()
        guard_shared_files(patience(), lambda: _say_who_has_not_started(rank, launcher))
    try:
        mpi = _import_mpi()
    except (ImportError, RuntimeError) as error:
        forget_shared_files()
        raise BootstrapError(
            f"this process was started by mpirun, but mpi4py finds no MPI library ({str(error).splitlines()[0]}): {mend('no mpi')}"
        ) from error
    launched = next((int(os.environ[v]) for v in _SIZE_VARIABLES if os.environ.get(v, "").isdigit()), None)
    if launched is not None and launched != mpi.COMM_WORLD.size:
        library = mpi.Get_library_version().splitlines()[0].strip("\0 ")
        raise BootstrapError(
            f"mpirun started {launched} processes, but each finds itself alone: mpirun and the library that mpi4py loaded "
            f"({library}) are of different MPIs; {mend('another mpi')}"
        )
    return MPIBootstrap(mpi.COMM_WORLD)


def _import_mpi() -> Any:
    """Return mpi4py.MPI. If it is new here, this process finalizes MPI as it ends, and no child that is forked from it: it would hang."""
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    rc = importlib.import_module("mpi4py").rc
    own, rc.finalize = rc.finalize is not False, False
    mpi, pid = importlib.import_module("mpi4py.MPI"), os.getpid()
    if own:
        atexit.register(lambda: None if os.getpid() != pid or mpi.Is_finalized() else mpi.Finalize())
    return mpi


def exchange(bootstrap: Bootstrap, value: Any, poll: Callable[[], None] = lambda: None) -> list[Any]:
    """Return every rank's value, by rank."""
    return [pickle.loads(data) for data in bootstrap.allgather(pickle.dumps(value), poll)]


def everywhere(exchange: Callable[[Any], list[Any]], step: Callable[[], Any], error: type[PgasError]) -> list[Any]:
    """Take a step and return what it gave on each PE. Collective.

    Args:
        exchange: of values among the PEs.
        step: what may fail on some of them.
        error: what that is raised as, on every PE; it names the PEs that failed.
    """
    value, failure = None, None
    try:
        value = step()
    except (PgasError, ValueError, OSError) as caught:
        failure = str(caught)
    except Exception as caught:  # nobody expected it here, and the others wait
        failure = f"{type(caught).__name__}: {caught}"
    answers = exchange((value, failure))
    if failures := [f"PE {pe}: {failed}" for pe, (_, failed) in enumerate(answers) if failed is not None]:
        raise error("; ".join(failures))
    return [v for v, _ in answers]


@contextlib.contextmanager
def enough_files() -> Iterator[None]:
    """Raise an error of too many open files, of this PE or of another one, with what mends it."""
    try:
        yield
    except Exception as error:
        if os.strerror(errno.EMFILE) not in str(error):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        kind = type(error) if isinstance(error, PgasError) else BootstrapError
        raise kind(f"a PE may open too few files ({limit} here): {error}; {mend('open files')}") from error


def of_another(error: Exception) -> Exception:
    """Return an error that another process has, or made, as such."""
    if isinstance(error, PgasError):
        error.of_another = True
    return error


class Process(NamedTuple):
    """A process of a job."""

    node: str  #: node_name()
    pid: int
    parent: int  #: the process that started it; 0: of no launcher, or not to be seen

    @classmethod
    def this(cls) -> "Process":
        """Return this one."""
        return cls(node_name(), os.getpid(), 0 if launched_rank() is None else os.getppid())


class Collective:
    """The PEs as they meet on the host. A subclass sets _bootstrap."""

    _bootstrap: SingleBootstrap | MPIBootstrap
    #: The PEs, once they have met.
    processes: Sequence[Process] = ()
    _made: str  # the collective call that is being made
    _remark = ""  # why this PE makes a call that others do not expect
    _patience_s: float | None = None  # of the waits of this job
    _due = math.inf

    def _interrupt(self) -> None:
        """Called while waiting for the others; may raise to give up."""

    def exchange(self, value: Any) -> list[Any]:
        """Return every PE's value, by PE. Collective.

        Raises:
            BootstrapError: an exception has made a PE leave this or an earlier call.
        """
        if self._patience_s is None:
            self._patience_s = patience()
        self._due = time.monotonic() + self._patience_s
        try:
            return exchange(self._bootstrap, value, self._poll)
        except BaseException as error:
            self._leave(error)
            raise

    def _poll(self) -> None:
        self._interrupt()
        if time.monotonic() > self._due:
            self._due = math.inf
            self._say_who_is_missing()

    def _say_who_is_missing(self) -> None:
        """Say it once, on the lowest of the PEs that wait, where it is known which do."""
        missing, me = self._bootstrap.missing, self._bootstrap.rank
        if missing is None:
            late = sorted(pe for pe in _siblings(os.getppid()) if not self._can_speak(pe))
        else:
            late = sorted(missing)
            if any(pe not in missing and self._can_speak(pe) for pe in range(me)):
                return
        names = [self._name(pe) for pe in late[:_NAMED]] or ["other PEs"]
        more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
        overdue(f"PE {me}", f"{', '.join(names)}{more} in {self._made}")

    def _pid(self, pe: int) -> int | None:
        """Return the process of a PE of this machine, None if it is not known."""
        if not self.processes:
            return _siblings(os.getppid()).get(pe)
        process = self.processes[pe]
        return process.pid if process.node == self.processes[self._bootstrap.rank].node else None

    def _can_speak(self, pe: int) -> bool:
        pid = self._pid(pe)
        return pid is None or not liveness.state(pid)

    def _name(self, pe: int) -> str:
        pid = self._pid(pe)
        return f"PE {pe}" if pid is None else f"PE {pe} {described(pid)}"

    def _leave(self, error: BaseException) -> None:
        """Let no PE make a collective call any more: this one ends by an exception that the others know nothing of."""
        what = " ".join([type(error).__name__, *(f"({line})" for line in str(error).strip().splitlines()[:1])])
        self._bootstrap.leave(
            f"PE {self._bootstrap.rank} left {self._made} by {what}: the PEs are out of step, and the job makes no collective call any more"
        )

    @contextlib.contextmanager
    def making(self, call: str) -> Iterator[None]:
        """Make a collective call. The PEs tell each other of every Exception in it; what else ends it, as Ctrl-C does, leaves it."""
        self._made = call
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            self._leave(error)
            raise

    def agree(self, call: str, error: type[Exception] = BootstrapError, value: Any = None, failure: Exception | None = None) -> list[Any]:
        """Wait until every PE makes the same call, and return the value that each brought, by PE. Collective.

        Args:
            call: the call.
            error: class of the errors.
            value: what this PE brings.
            failure: what this PE's part of the call raised already.

        Raises:
            Exception: the failure.
            Exception: (of the class given) another PE failed, or PEs make different calls; names them.
        """
        if failure is not None:
            value = ": ".join([type(failure).__name__, *str(failure).strip().splitlines()[:1]])
        with self.making(call):
            met = self.exchange((call, self._remark, failure is not None, value))
        if failure is not None:
            raise failure
        for pe, (made, _, failed, what) in enumerate(met):
            if failed:
                raise of_another(error(f"PE {pe} failed in {made}: {what}"))
        calls = [made for made, _, _, _ in met]
        if len(set(calls)) > 1:
            other = next(pe for pe, c in enumerate(calls) if c != calls[0])
            here, there = (f"PE {pe} called {calls[pe]}{met[pe][1]}" for pe in (0, other))
            disagreement = error(f"PEs disagree in a collective call: {here}, {there}")
            raise of_another(disagreement) if not self._remark and any(remark for _, remark, _, _ in met) else disagreement
        return [what for _, _, _, what in met]

    def together(self, call: str, step: Callable[[], Any], error: type[Exception] = BootstrapError) -> tuple[Any, list[Any]]:
        """Take a step of a call and meet the others, also if it fails here; return its result. Collective. Raises as agree()."""
        result, failure = None, None
        with self.making(call):
            try:
                result = step()
            except Exception as caught:
                failure = caught
            return result, self.agree(call, error, failure=failure)


def patience() -> float:
    """Return after how many seconds a wait of the host for another process is told of."""
    try:
        return float(config.read("PGAS_TIMEOUT")) if config.read("PGAS_HANG_REPORT") != "off" else math.inf
    except ValueError:  # init says it
        return math.inf


def overdue(waiter: str, whom: str) -> None:
    """Say of a wait of the host that it lasts."""
    say(f"{waiter} has waited {patience():g} s (PGAS_TIMEOUT) for {whom}, and goes on waiting")


def tell_if_late(source: socket.socket, waiter: str, whom: Callable[[], str]) -> None:
    """Wait until there is something to receive; no longer than until it is told that there is nothing yet."""
    if (seconds := patience()) == math.inf:
        return
    poller = select.poll()
    poller.register(source, select.POLLIN)
    if not poller.poll(min(seconds * 1e3, _POLL_MAX_MS)):
        overdue(waiter, whom())


def described(pid: int) -> str:
    """Return a process of this machine in words, in parentheses."""
    condition = {"": "", "stopped": ", which is stopped", "ended": ", which has ended"}
    return f"(process {pid}{condition[liveness.state(pid)]})"


def _say_who_has_not_started(rank: int | None, launcher: int) -> None:
    """Say for whom a PE waits in MPI_Init, by the process that stands by there; once, by that of the lowest PE that waits."""
    siblings = _siblings(launcher)
    waiting = [pe for pe, pid in siblings.items() if _siblings(pid) and not liveness.state(pid)]  # which have such a process
    if rank == min(waiting, default=rank):
        late = [f"PE {pe} {described(pid)}" for pe, pid in sorted(siblings.items()) if pe not in waiting]
        overdue(f"PE {rank}", f"{', '.join(late[:_NAMED]) or 'other PEs'} in MPI_Init")


def _siblings(launcher: int) -> dict[int, int]:
    """Return the processes that a process started with a rank, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or another user's
            if liveness.parent(int(folder.name)) == launcher:
                environment = (folder / "environ").read_text(errors="replace").split("\0")
                if (rank := launched_rank(dict(entry.partition("=")[::2] for entry in environment))) is not None:
                    found[rank] = int(folder.name)
    return found


def node_name() -> str:
    """Return what is equal exactly for processes that can pass file descriptors to each other: host, boot, PID and network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return "/".join((socket.gethostname(), boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))))
