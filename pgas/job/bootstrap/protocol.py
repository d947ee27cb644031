"""The bootstrap of a job: one small protocol by which PEs find each other, with three implementations.

The implementations are a job of one PE (SingleBootstrap), the processes of an MPI communicator (mpi.MPIBootstrap), and PEs that meet at a
store (store.Store): those of ``python -m pgas.run``, torchrun, and srun, and those to which the program gives a unique id.
"""

import os
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from pgas.base import plain
from pgas.base.errors import BootstrapError
from pgas.base.launcher import launched, starter
from pgas.job.bootstrap import rendezvous
from pgas.job.bootstrap.mpi import MPIBootstrap, world
from pgas.job.bootstrap.processes import flush


class Bootstrap(Protocol):
    """Ranks, and a blocking exchange among them. All ranks make collective calls in the same order."""

    rank: int
    size: int
    met: bool  #: whether all ranks have arrived at the exchange; then ``missing`` are those that have not received this rank's data yet

    @property
    def missing(self) -> set[int] | None:
        """Ranks that have not arrived at the exchange in which this process waits; None: unknown."""

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        """Return every rank's data, by rank. ``poll`` is called while waiting; if it raises, the caller calls leave().

        Raises:
            BootstrapError: if a rank left before it completed this exchange; the message is the argument of its leave().
        """

    def leave(self, why: str) -> None:
        """Leave all further allgathers, and send the reason to the other ranks, because they are one message out of step."""

    def why_left(self) -> str:
        """Return the argument of the first leave() that this process knows of, without waiting; "" if there is none."""

    def is_of(self, comm: Any) -> bool:
        """Whether the job's PEs are the processes of an mpi4py communicator, in its order."""

    def abort(self, status: int) -> NoReturn:
        """End all processes of the job."""

    def hearing(self) -> tuple[int, Callable[[], tuple[str, str] | None]] | None:
        """Return a descriptor of news, and a function that reads name and fate of a dead PE on another node from it.

        The function must be called every second, because it also detects that the others cannot be reached. Return None if the launcher
        ends all PEs when one ends, because then there is no news.
        """

    @property
    def last_call(self) -> str:
        """The call that waits for the other PEs at the end of this process, after the job; "" if none does."""

    @property
    def place(self) -> str:
        """Where the ranks find each other; "" if MPI does this, or there are no others."""

    @property
    def own_address(self) -> str:
        """The IP address by which other nodes reach this one."""

    def close(self) -> None:
        """Leave the job in good order. Further calls do nothing."""


class SingleBootstrap:
    """A job of one PE: no launcher, no MPI."""

    rank = 0
    size = 1
    missing: set[int] | None = None
    met = True
    last_call = place = ""
    own_address = "127.0.0.1"

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        return [data]

    def leave(self, why: str) -> None:
        """Do nothing, because there are no other ranks."""

    def why_left(self) -> str:
        return ""

    def is_of(self, comm: Any) -> bool:
        return getattr(comm, "size", None) == 1

    def abort(self, status: int) -> NoReturn:
        flush()
        os._exit(status)

    def hearing(self) -> None:
        """Return None, because there are no other ranks."""

    def close(self) -> None:
        """Do nothing."""


def find(comm: Any = None, given: "rendezvous.Given | None" = None) -> Bootstrap:
    """Return the bootstrap of this process.

    The arguments decide first, then the launcher that started this process. Without any of these, it is a job of one PE.

    Args:
        comm: an mpi4py communicator.
        given: unique id, rank and size.

    Raises:
        BootstrapError: if the others cannot be reached, or a PE started this process; the message gives the reason.
        ValueError: if variables of several launchers contradict each other.
    """
    if comm is not None:
        return MPIBootstrap(comm)
    if given is not None:
        return rendezvous.at_unique_id(given)
    if (pe := starter()) is not None:
        raise BootstrapError(
            f"this process was started by PE {pe[0]} (process {pe[1]}), and a process that a PE started is not a PE: only processes of the "
            'launcher may call pgas.init() (a worker of multiprocessing imports the program: put the call under if __name__ == "__main__")'
        )
    started = launched()
    if started is None or (started.launcher, started.size) == ("pgas.run", 1):
        return SingleBootstrap()
    return world(started) if started.launcher == "mpirun" else rendezvous.of(started)


def exchange(bootstrap: Bootstrap, value: Any, poll: Callable[[], None] = lambda: None) -> list[Any]:
    """Return every rank's value, by rank. Values are plain (pgas.base.plain).

    Most calls exchange equal tuples to learn that all PEs make the same call. Decoding them would take a quarter of the time.
    """
    own = plain.dumps(value)
    known = {own: value} if type(value) is tuple else {}
    return [known[data] if data in known else plain.loads(data) for data in bootstrap.allgather(own, poll)]
