"""A job whose PEs are the processes of an MPI communicator. mpi4py is imported only under mpirun, or if a communicator is given."""

import atexit
import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from pgas.base import liveness
from pgas.base.agreement import of_another
from pgas.base.errors import BootstrapError
from pgas.base.launcher import Launched
from pgas.base.remedies import mend
from pgas.base.waits import overdue, patience, say, until
from pgas.job.bootstrap.own_addresses import own_host
from pgas.job.bootstrap.processes import await_readers, siblings
from pgas.job.bootstrap.shared_files import forget_early, forget_shared_files, guard_shared_files

#: Seconds for MPI to end a job.
_ABORT_S = 5.0

#: Maximum number of seconds for mpirun to read what this process has printed, and seconds for it to print that.
_READ_S, _PRINT_S = 5.0, 0.2

#: Variables of mpirun for the number of its processes on this node.
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")

#: Number of tags that every MPI allows. Exchanges use all of them in turn except _LEFT, which is for the message of a rank that leaves.
_TAGS, _LEFT = 1 << 15, 0


class MPIBootstrap:
    """Any intracommunicator of mpi4py, duplicated so that the user's messages and those of pgas never mix."""

    place = ""

    def __init__(self, comm: Any) -> None:
        self._mpi = _import_mpi()
        if isinstance(comm, self._mpi.Comm) and comm == self._mpi.COMM_NULL:
            raise ValueError("pgas.init: comm is COMM_NULL; only the processes of a communicator may call pgas.init")
        if not hasattr(comm, "Is_inter") or comm.Is_inter():
            raise ValueError(f"pgas.init: comm must be an intracommunicator of mpi4py, not {comm!r}")
        forget_early()  # Before Idup, because that completes only when all ranks have arrived.
        self._comm, self._making = comm.Idup()
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._left = ""  #: why a rank has left
        self._completed = 0  #: number of completed exchanges
        self._gone: list[tuple[int, str]] = []  #: for each rank that left, the number of exchanges that it completed, and why it left
        self.missing: set[int] | None = None
        self.met = False
        self._sent: list[tuple[int, Any]] = []  #: requests, kept after an exception, because MPI still reads their buffers

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        """Return every rank's data, by rank. Waiting PEs sleep, so that a PE that still works keeps its core.

        Every PE sends to every other PE, so that each knows which ones are missing. This takes n * (n - 1) messages, for some tens of PEs.
        """
        if self._left:
            raise BootstrapError(self._left)
        mpi, comm = self._mpi, self._comm
        self.met = False
        until(self._making.Test, poll)
        tag = self._completed % (_TAGS - 1) + 1
        missing = self.missing = set(range(self.size)) - {self.rank}
        self._sent += [(pe, comm.Isend([data, mpi.BYTE], pe, tag)) for pe in missing]
        gathered = {self.rank: data}
        status = mpi.Status()

        def arrived() -> bool:
            while (message := comm.Improbe(mpi.ANY_SOURCE, tag, status)) is not None:
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

        until(arrived, poll)
        self.met = True
        until(delivered, poll)
        self._completed += 1
        return [gathered[pe] for pe in range(self.size)]

    def leave(self, why: str) -> None:
        """Send the reason to each other rank, in a message so short that MPI sends it immediately. Further calls do nothing.

        The message contains the number of completed exchanges, because it may arrive before the data of the last one.
        """
        if self._left:
            return
        self._left, deadline = why, time.monotonic() + _ABORT_S
        while not self._making.Test():  # The communicator does not exist yet.
            if time.monotonic() > deadline:
                return
            time.sleep(1e-3)
        text = f"{self._completed} {why}".encode()
        self._sent += [(pe, self._comm.Isend([text, self._mpi.BYTE], pe, _LEFT)) for pe in set(range(self.size)) - {self.rank}]

    def _hear(self) -> None:
        """Raise the reason of a rank that left before it completed this exchange. If it left later, the next exchange raises it."""
        self._read_reasons()
        for number, why in self._gone:
            if number <= self._completed:
                self._left = why
                raise of_another(BootstrapError(why))

    def why_left(self) -> str:
        if not self._left and not self._mpi.Is_finalized() and self._making.Test():
            self._read_reasons()
        return self._left or next((why for _, why in self._gone), "")

    def _read_reasons(self) -> None:
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _LEFT, status):
            said = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv(said, status.Get_source(), _LEFT)
            completed, _, why = said.decode().partition(" ")
            self._gone.append((int(completed), why))

    def is_of(self, comm: Any) -> bool:
        alike = (self._mpi.IDENT, self._mpi.CONGRUENT)
        return isinstance(comm, self._mpi.Intracomm) and self._mpi.Comm.Compare(self._comm, comm) in alike

    def abort(self, status: int) -> NoReturn:
        """End all processes of MPI_COMM_WORLD, because other PEs may wait in kernels for this one."""
        # SIGALRM kills this process if MPI waits for an mpirun that is gone, or CUDA's exit handlers for a kernel that never ends.
        signal.setitimer(signal.ITIMER_REAL, _READ_S + _ABORT_S)
        _let_launcher_read()
        with contextlib.suppress(OSError), open(os.devnull, "w") as nobody:
            os.dup2(nobody.fileno(), 2)  # To suppress MPICH's message about MPI_Abort, because the reason has already been printed.
        self._mpi.COMM_WORLD.Abort(status)
        time.sleep(_ABORT_S)  # MPICH's Abort returns, and mpirun ends this process a moment later; meanwhile it must not call finalize().
        os._exit(status)

    @property
    def own_address(self) -> str:
        return own_host()

    @property
    def last_call(self) -> str:
        return "" if self._mpi.Is_finalized() else "MPI_Finalize"

    def hearing(self) -> None:
        """Return None, because mpirun ends all processes when one ends."""

    def close(self) -> None:
        """Free the duplicate, unless MPI has ended or a rank has left, because freeing is collective and that rank would take no part."""
        if not self._left and not self._gone and not self._mpi.Is_finalized() and self._making.Test():
            self._comm.Free()


def _let_launcher_read() -> None:
    """Wait for mpirun, which drops output that it has not read before it ends the job; on a busy machine, it reads seconds later."""
    await_readers(_READ_S)
    time.sleep(_PRINT_S)


def world(launched: Launched) -> MPIBootstrap:
    """Return the bootstrap of MPI.COMM_WORLD, for a process that mpirun started.

    Raises:
        BootstrapError: if mpi4py finds no MPI library, or that of another MPI.
    """
    if "mpi4py.MPI" not in sys.modules:  # The import initializes MPI, which waits for the other processes.
        rank, launcher = launched.rank, os.getppid()
        guard_shared_files(patience(), lambda: _say_who_has_not_started(rank, launcher))
    try:
        mpi = _import_mpi()
    except (ImportError, RuntimeError) as error:
        forget_shared_files()
        raise BootstrapError(
            f"this process was started by mpirun, but mpi4py finds no MPI library ({str(error).splitlines()[0]}): {mend('no mpi')}"
        ) from error
    if launched.size is not None and launched.size != mpi.COMM_WORLD.size:
        library = mpi.Get_library_version().splitlines()[0].strip("\0 ")
        raise BootstrapError(
            f"mpirun started {launched.size} processes, but each is alone in its job, because mpirun and the library that "
            f"mpi4py loaded ({library}) belong to different MPIs; {mend('another mpi')}"
        )
    return MPIBootstrap(mpi.COMM_WORLD)


def _import_mpi() -> Any:
    """Return mpi4py.MPI. If this imports it, only this process finalizes MPI at its end; a forked child that did so would hang."""
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    rc = importlib.import_module("mpi4py").rc
    own, rc.finalize = rc.finalize is not False, False
    mpi, pid = importlib.import_module("mpi4py.MPI"), os.getpid()
    if own:
        atexit.register(lambda: None if os.getpid() != pid or mpi.Is_finalized() else mpi.Finalize())
    return mpi


def _started_here() -> int:
    """Return the number of processes that mpirun started on this node; 0 if it is unknown."""
    values = (os.environ.get(name, "") for name in _LOCAL_SIZES)
    return next((int(value) for value in values if value.isdecimal()), 0)


def _end_without(started: dict[int, int]) -> None:
    """End the job, because a PE of this node has ended before MPI_Init. mpirun does not notice, and the others would wait forever.

    started: the remaining PEs of this node. Called in the stand-by process of the lowest one.
    """
    count = _started_here()
    ended = sorted(set(range(count)) - set(started)) if max(started, default=0) < count else []
    who = liveness.listed([f"PE {pe}" for pe in ended]) if ended else f"{count - len(started)} PEs of this node"
    say(f"{who} ended without calling pgas.init(), for which PE {min(started)} has waited {patience():g} s: the job cannot continue")
    _let_launcher_read()
    for pid in started.values():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _say_who_has_not_started(rank: int | None, launcher: int) -> None:
    """Report which PEs a PE waits for in MPI_Init, or end the job if one has ended.

    It is called in the stand-by process; only that of the lowest waiting PE prints.
    """
    started = siblings(launcher)
    if len(started) < _started_here():
        if rank == min(started, default=rank):
            _end_without(started)
        return
    waiting = [pe for pe, pid in started.items() if siblings(pid) and not liveness.state(pid)]  # Waiting PEs have a stand-by process.
    if rank == min(waiting, default=rank):
        late = [f"PE {pe} {liveness.described(pid)}" for pe, pid in sorted(started.items()) if pe not in waiting]
        overdue(f"PE {rank}", f"{liveness.listed(late + liveness.stopped_launcher(launcher))} in MPI_Init")
