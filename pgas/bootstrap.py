"""How the PEs of a job find each other: one small protocol, with mpi4py behind it, or nobody for a job of one PE.

Another launcher needs another class with these methods, and nothing else of pgas changes.
"""

import atexit
import contextlib
import errno
import importlib
import os
import pickle
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pgas.backend import launched_rank
from pgas.errors import BootstrapError, PgasError
from pgas.remedies import mend
from pgas.shared_files import forget_early, forget_shared_files, guard_shared_files

__all__ = [
    "Bootstrap", "Collective", "MPIBootstrap", "SingleBootstrap", "enough_files", "everywhere", "exchange", "find", "node_name",
]  # fmt: skip

#: Launchers' variables for the number of processes, to notice a launcher of another MPI than the one that mpi4py loaded.
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

#: Seconds that MPI gets to end a job.
_ABORT_S = 5.0

#: Requests that nobody waits for any more, and with them the memory that MPI still reads and writes.
_unfinished: list[Any] = []


class Bootstrap(Protocol):
    """Ranks, and a blocking exchange among them. Collective calls are made by all ranks in the same order."""

    rank: int
    size: int

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
        forget_early()  # Dup() waits for the other processes
        self._comm = comm.Dup()
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._left = ""  # why a rank has left

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        """Return every rank's data, by rank; waiting PEs sleep, so that a PE still at work keeps its core."""
        import numpy as np

        if self._left:
            raise BootstrapError(self._left)
        sizes = np.empty(self.size, np.int64)
        self._wait(self._comm.Iallgather(np.array([len(data)], np.int64), sizes), poll)
        gathered = np.empty(int(sizes.sum()), np.uint8)
        offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        spec = [gathered, sizes.tolist(), offsets.tolist(), self._mpi.BYTE]
        self._wait(self._comm.Iallgatherv(np.frombuffer(data, np.uint8), spec), poll)
        return [gathered[offset : offset + size].tobytes() for offset, size in zip(offsets, sizes, strict=True)]

    def _wait(self, request: Any, poll: Callable[[], None]) -> None:
        """Poll for a while, then sleep between polls, up to 1 ms."""
        started, pause = time.perf_counter(), 20e-6
        try:
            while not request.Test():
                if time.perf_counter() - started > 200e-6:
                    poll()
                    self._hear()
                    time.sleep(pause)
                    pause = min(pause * 1.5, 1e-3)
        except BaseException:
            _unfinished.append(request)
            raise

    def leave(self, why: str) -> None:
        """Tell the others by a message to each; it is short, so that MPI sends it at once. Further calls do nothing."""
        if self._left:
            return
        self._left = why
        for rank in set(range(self.size)) - {self.rank}:
            _unfinished.append(self._comm.Isend([why.encode(), self._mpi.BYTE], rank))

    def _hear(self) -> None:
        """Raise what a rank that has left says."""
        status = self._mpi.Status()
        if self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
            why = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv(why, status.Get_source(), status.Get_tag())
            self._left = why.decode()
            raise BootstrapError(self._left)

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
        self._mpi.COMM_WORLD.Abort(status)

    def close(self) -> None:
        """Free the duplicate, unless MPI has ended already or what an exception left goes on in it."""
        if not self._left and not self._mpi.Is_finalized():
            self._comm.Free()


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
        guard_shared_files()
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


class Collective:
    """The PEs as they meet on the host. A subclass sets _bootstrap."""

    _bootstrap: SingleBootstrap | MPIBootstrap
    _made: str  #: the collective call that is being made

    def _interrupt(self) -> None:
        """Called while waiting for the others; may raise to give up."""

    def exchange(self, value: Any) -> list[Any]:
        """Return every PE's value, by PE. Collective.

        Raises:
            BootstrapError: an exception has made a PE leave this or an earlier call.
        """
        try:
            return exchange(self._bootstrap, value, self._interrupt)
        except BaseException as error:
            self._leave(error)
            raise

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
            met = self.exchange((call, failure is not None, value))
        if failure is not None:
            raise failure
        for pe, (made, failed, what) in enumerate(met):
            if failed:
                raise error(f"PE {pe} failed in {made}: {what}")
        calls = [made for made, _, _ in met]
        if len(set(calls)) > 1:
            other = next(pe for pe, c in enumerate(calls) if c != calls[0])
            raise error(f"PEs disagree in a collective call: PE 0 called {calls[0]}, PE {other} called {calls[other]}")
        return [what for _, _, what in met]

    def together(self, call: str, step: Callable[[], Any], error: type[Exception] = BootstrapError) -> tuple[Any, list[Any]]:
        """Take a step of a call and meet the others, also if it fails here; return its result. Collective. Raises as agree()."""
        result, failure = None, None
        with self.making(call):
            try:
                result = step()
            except Exception as caught:
                failure = caught
            return result, self.agree(call, error, failure=failure)


def node_name() -> str:
    """Return what is equal exactly for processes that can pass file descriptors to each other: host, boot, PID and network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return "/".join((socket.gethostname(), boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))))
