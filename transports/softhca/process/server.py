"""The process of the software NIC, which accepts the PEs of one node, maps their memory, executes their requests, and ends with the job.

It ends when all expected PEs have joined and left, when the process that started it ends (noticed by its pidfd, even if the server is busy)
or closes the control socket, or by a signal. It has no names in a file system, so that it leaves nothing behind. If a PE dies, its objects
are destroyed as if it had left: its QPs are gone, and its peers' WQEs to them fail.
"""

import argparse
import contextlib
import json
import os
import select
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pgas.base import credentials
from pgas.base.config import Faults
from pgas.base.errors import PgasError, TransportError
from pgas.base.liveness import readable
from pgas.kernels import window
from pgas.transports.memory.protocol import Loan, Memory, Segment
from pgas.transports.mlx5.doorbell import UarType
from pgas.transports.softhca.firmware.objects import EQN, RequestRefused
from pgas.transports.softhca.firmware.queue_pairs import Refused
from pgas.transports.softhca.process import engines, messages
from pgas.transports.softhca.process.card import Card
from pgas.transports.softhca.process.messages import END, RequestKind
from pgas.transports.softhca.syndromes import command_text
from pgas.transports.softhca.wire.port import WirePort

#: Prefix of the abstract sockets of software NICs, by which `python -m pgas hca` finds them in /proc/net/unix.
SOCKET_PREFIX = "pgas-hca-"

_TRACE_INTERVAL_S = 0.02

#: Seconds between checks of the engine.
_CHECK_INTERVAL_S = 1.0

#: Seconds in which the server must notice that it should end, because it may be busy with a request.
_GRACE_S = 1.0

#: Seconds in which it can then stop the engine and complete the trace file.
_STOP_S = 10.0

#: Seconds that a software NIC stays whose engine has failed, or whose PE 0 is dying: the other PEs must detect the failure of the PE first.
#: Under MPS, the failure of a PE causes the engine to fail; and the end of a process that has GPU memory is reported seconds after its
#: sockets are closed.
_NEWS_S = 4.0


@dataclass
class Connection:
    """A PE, or an observer (pe None), at the other end of a socket."""

    socket: socket.socket
    greeted: bool = False
    pe: int | None = None
    memory: Memory | None = None
    borrowed: dict[int, tuple[Loan, int]] = field(default_factory=dict)  #: by number, and where they are mapped


class Server:
    """Executes requests of connections on one software NIC."""

    def __init__(self, card: Card, n_pes: int, ends: tuple[int, ...], *, trace_to_stderr: bool) -> None:
        self._card, self._n_pes, self._ends = card, n_pes, ends  # ends: descriptors, of which one becomes readable when the job ends
        self._trace_to_stderr = trace_to_stderr
        self._connections: dict[int, Connection] = {}
        self._came = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.name = f"{SOCKET_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(64)

    def run(self) -> None:
        """Serve until the job has ended. Raises Exception if the engine has ended, for example after a CUDA error.

        At the end of a job, PE 0 closes the control socket, and nothing is destroyed object by object.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, self._accept)
            for end in self._ends:
                selector.register(end, selectors.EVENT_READ, None)
            while not self._over():
                gone = []
                for key, _ in selector.select(_TRACE_INTERVAL_S if self._card.tracing else _CHECK_INTERVAL_S):
                    if key.data is None:  # The parent has ended, or has closed the control socket.
                        self._print_trace()
                        return
                    if isinstance(key.data, Connection):
                        if not self._serve(key.data):
                            selector.unregister(key.data.socket)
                            gone.append(key.data)
                    else:
                        connection = key.data()
                        if connection is not None:
                            selector.register(connection.socket, selectors.EVENT_READ, connection)
                self._leave(gone)
                self._card.engine.check()
                self._print_trace()

    def _print_trace(self) -> None:
        if self._trace_to_stderr:
            for entry in self._card.take_trace():
                print(entry, file=sys.stderr, flush=True)

    def _over(self) -> bool:
        return self._came >= self._n_pes and not self._connections

    def _accept(self) -> Connection | None:
        connection, _ = self._listener.accept()
        if not credentials.of(connection).ours:
            connection.close()
            return None
        connection.settimeout(10)  # in case a peer stops in the middle of a message
        return Connection(connection)

    def _serve(self, connection: Connection) -> bool:
        """Execute one request; return whether the connection goes on."""
        fds: list[int] = []
        try:
            try:
                message = messages.receive(connection.socket)
            except TransportError as error:
                messages.send(connection.socket, RequestKind.REFUSED, str(error))
                return True
            if message is None:
                return False
            kind, body, fds = message
            try:
                reply, (answer, given) = RequestKind.OK, self._execute(connection, kind, body, fds)
            except Exception as error:  # one PE's request must not end the software NIC for the others
                reply, answer, given = RequestKind.REFUSED, _reason(kind, error), ()
            messages.send(connection.socket, reply, answer, given)
        except OSError:
            return False
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _leave(self, gone: list[Connection]) -> None:
        """Forget connections that have ended, and destroy the objects of their PEs together."""
        for connection in gone:
            connection.socket.close()
        if pes := {connection.pe: connection for connection in gone if connection.pe is not None}:
            self._card.firmware.leave(pes.keys())
        for pe, connection in pes.items():
            del self._connections[pe]
            if connection.memory is not None:
                for loan in connection.borrowed.values():
                    connection.memory.give_back(*loan)
                connection.memory.close()

    # ---------------------------------------------------------------------------------------------------------------- requests

    def _execute(self, connection: Connection, kind: RequestKind, body: bytes, fds: list[int]) -> tuple[Any, tuple[int, ...]]:
        if kind == RequestKind.HELLO:
            return self._hello(connection, _value(body))
        if not connection.greeted:
            raise RequestRefused("the first message must be a HELLO")
        if kind in _OBSERVER:
            return _OBSERVER[kind](self, _value(body)), ()
        if connection.pe is None:
            raise RequestRefused(f"only PEs may send {kind.name}")
        if kind == RequestKind.COMMAND:
            return self._card.firmware.execute(connection.pe, body[4:], min(int.from_bytes(body[:4], "little"), 1 << 20)), ()
        if kind == RequestKind.SHARE:
            address, nbytes = _integers(body)
            self._share(connection, address, nbytes, fds)
            return None, ()
        if kind == RequestKind.UNSHARE:
            self._unshare(connection, *_integers(body))
            return None, ()
        if kind == RequestKind.LEND:
            start, nbytes, pieces, handle = _value(body)
            return self._borrow(connection, Loan(start, nbytes, tuple(map(tuple, pieces)), tuple(fds), bytes.fromhex(handle))), ()
        if kind == RequestKind.TAKE_BACK:
            self._give_back(connection, *_integers(body))
            return None, ()
        if kind not in _PE:
            raise RequestRefused(f"{kind.name} is not a request")
        return _PE[kind](self._card, connection.pe, *_integers(body)), ()

    def _hello(self, connection: Connection, pe: int | None) -> tuple[Any, tuple[int, ...]]:
        if connection.greeted:
            raise RequestRefused("HELLO must be the first message, and must be sent only once")
        if pe is None:
            connection.greeted = True
            return {"pid": os.getpid()}, ()
        if type(pe) is not int or not 0 <= pe < 1 << 16 or pe in self._connections:
            raise RequestRefused(f"PE {pe!r} cannot join: it has already joined, or it is not the number of a PE")
        if self._came >= self._n_pes:
            raise RequestRefused(f"PE {pe} cannot join: all {self._n_pes} PEs have joined")
        connection.greeted, connection.pe = True, pe
        self._connections[pe] = connection
        self._came += 1
        port = self._card.port
        address = None if port is None else {"gid": port.gid.hex(), "mtu": int(port.mtu), "udp_port": port.udp_port}
        return {"pid": os.getpid(), "eqn": EQN, "engine": self._card.engine.words, "port": address}, (self._card.bar,)

    def _share(self, connection: Connection, address: int, nbytes: int, fds: list[int]) -> None:
        if connection.memory is None:
            connection.memory = self._card.engine.memory()
        size = os.fstat(fds[0]).st_size if len(fds) == 1 and not connection.memory.on_gpu else nbytes  # of GPU memory, the driver checks it
        if len(fds) != 1 or address < window.BASE or not 0 < nbytes <= size:
            raise RequestRefused(
                f"{nbytes} bytes at {address:#x}: SHARE needs one descriptor of a file of this size, and an address in the window"
            )
        connection.memory.attach(address, Segment(0, nbytes), fds[0])
        self._card.objects.share(connection.pe or 0, address, nbytes)

    def _unshare(self, connection: Connection, address: int, nbytes: int) -> None:
        self._card.objects.unshare(connection.pe or 0, address, nbytes)
        if connection.memory is not None:
            connection.memory.discard(address)

    def _borrow(self, connection: Connection, loan: Loan) -> int:
        sizes = [os.fstat(fd).st_size for fd in loan.fds]
        fit = all(offset >= 0 and n > 0 and offset + n <= size for (offset, n), size in zip(loan.pieces, sizes, strict=True))
        if not fit or (sum(n for _, n in loan.pieces) != loan.nbytes) is not bool(loan.handle) or loan.nbytes < 1:
            raise RequestRefused(f"{loan.nbytes} bytes at {loan.start:#x}: LEND needs files of this size, or a handle")
        if connection.memory is None:
            connection.memory = self._card.engine.memory()
        mapped = connection.memory.borrow(loan)
        number = self._card.objects.borrow(connection.pe or 0, loan.start, loan.nbytes, mapped)
        connection.borrowed[number] = loan, mapped
        return number

    def _give_back(self, connection: Connection, number: int) -> None:
        if number not in connection.borrowed or connection.memory is None:
            raise RequestRefused(f"PE {connection.pe} has lent no memory {number}")
        self._card.objects.give_back(connection.pe or 0, number)
        connection.memory.give_back(*connection.borrowed.pop(number))

    def _trace(self, kinds: list[str] | None) -> list[str]:
        if kinds is not None:
            self._card.set_trace(frozenset(kinds))
        return self._card.take_trace()


def _value(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise RequestRefused(f"the body is not JSON: {error}") from None


def _integers(body: bytes) -> list[int]:
    values = _value(body)
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise RequestRefused("the body is not a list of integers")
    return values


def _reason(kind: RequestKind, error: Exception) -> str:
    if isinstance(error, Refused):
        return f"{error.status.name}, {error.why.name}: {command_text(error.why)}"
    if isinstance(error, RequestRefused | ValueError | TransportError | TimeoutError):
        return str(error)
    return f"{kind.name} has invalid arguments ({type(error).__name__}: {error})"


#: Requests that any process of the same user may make.
_OBSERVER: dict[RequestKind, Callable[[Server, Any], Any]] = {
    RequestKind.COUNTERS: lambda server, _: {"name": server.name, "pid": os.getpid(), **server._card.counters()},
    RequestKind.TRACE: Server._trace,
    RequestKind.FAULTS: lambda server, text: server._card.set_faults(Faults.parse(text)),
    RequestKind.PAUSE: lambda server, _: server._card.pause(),
    RequestKind.RESUME: lambda server, _: server._card.resume(),
}

#: Requests of a PE, on its own objects.
_PE: dict[RequestKind, Callable[..., Any]] = {
    RequestKind.ALLOC_PD: lambda card, pe: card.objects.alloc_pd(pe),
    RequestKind.DEALLOC_PD: lambda card, pe, pdn: card.objects.dealloc_pd(pe, pdn),
    RequestKind.REGISTER_UMEM: lambda card, pe, address, nbytes, page_size: card.objects.register_umem(pe, address, nbytes, page_size),
    RequestKind.DEREGISTER_UMEM: lambda card, pe, umem_id: card.objects.deregister_umem(pe, umem_id),
    RequestKind.REGISTER_MR: lambda card, pe, address, nbytes, pdn, access: card.objects.register_mr(pe, address, nbytes, pdn, access),
    RequestKind.DEREGISTER_MR: lambda card, pe, key: card.objects.deregister_mr(pe, key),
    RequestKind.ALLOC_UAR: lambda card, pe, kind: card.objects.alloc_uar(pe, UarType(kind)),
    RequestKind.DEALLOC_UAR: lambda card, pe, page: card.objects.dealloc_uar(pe, page),
    RequestKind.DIAGNOSE: lambda card, pe, qpn: card.diagnose(pe, qpn),
    RequestKind.SET_INDEX: lambda card, pe, qpn, index, receive_idx: card.firmware.queues.set_index(pe, qpn, index, receive_idx),
}


def _end_after(noticed: threading.Event, *descriptors: int) -> None:
    """End this process soon after one of these descriptors is readable, even during a request, or if the engine hangs.

    noticed: set when the server has ended, so that only the engine and the trace file are left.
    """
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    poller.poll()
    if noticed.wait(_GRACE_S):
        time.sleep(_STOP_S)
    os._exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Run the software NIC of a node (`python -m pgas.transports.softhca.process`, started by client.start)."""
    parser = argparse.ArgumentParser(prog="python -m pgas.transports.softhca.process", description=main.__doc__)
    parser.add_argument("--control", type=int, required=True, help="descriptor of the socket to the process that starts the software NIC")
    parser.add_argument("--parent", type=int, required=True, help="the pid of that process")
    parser.add_argument("--pes", type=int, required=True, help="PEs of this node")
    parser.add_argument("--engine", choices=("cpu", "cuda", "dma"), default="cpu", help="a thread, a kernel, or a thread with a kernel")
    parser.add_argument("--device", type=int, default=0, help="ordinal of the GPU of the engine's kernel")
    parser.add_argument("--sms", type=int, default=0, help="number of multiprocessors to use; 0: all")
    parser.add_argument("--on-host", action="store_true", help="registers are in host memory, and a CPU rings them")
    parser.add_argument("--mops", type=float, default=0, help="limit in million WQEs per second; 0: none")
    parser.add_argument("--gbps", type=float, default=0, help="limit in 10^9 bits per second; 0: none")
    parser.add_argument("--net", default="", help="address or interface of the port; without one, there is no wire")
    parser.add_argument("--trace", default="", help="kinds of entries to print: wqe,cqe,cmd")
    parser.add_argument("--timeline", nargs=2, metavar=("FILE", "EVENTS"), help="trace file, and its number of events")
    parser.add_argument("--faults", default="", help=Faults.__doc__)
    options = parser.parse_args(arguments)
    # Use a pidfd, because children of the parent may keep the control socket open, and PR_SET_PDEATHSIG applies to the parent's thread.
    try:
        parent = os.pidfd_open(options.parent)
    except ProcessLookupError:
        return
    if os.getppid() != options.parent:  # the parent has ended, and its pid belongs to another process
        return
    noticed = threading.Event()
    threading.Thread(target=_end_after, args=(noticed, options.control, parent), name="softhca-end", daemon=True).start()
    control = socket.socket(fileno=options.control)
    try:
        if options.engine == "dma":  # whose queue pairs all use packets
            options.net = options.net or "127.0.0.1"
        engine = engines.make(options.engine, options.device, options.sms, wired=bool(options.net))
        port = WirePort(engine.tables, options.net) if options.net else None
        kinds = frozenset(filter(None, options.trace.split(",")))
        card = Card(Faults.parse(options.faults), kinds, engine, on_host=options.on_host, port=port)
        card.set_limits(options.mops, options.gbps)
        if options.timeline is not None:
            card.set_timeline(options.timeline[0], int(options.timeline[1]))
        server = Server(card, options.pes, (control.fileno(), parent), trace_to_stderr=bool(options.trace))
    except (ValueError, PgasError, OSError) as error:
        messages.send(control, RequestKind.REFUSED, str(error))
        return
    messages.send(control, RequestKind.OK, server.name)
    try:
        server.run()
    except Exception as error:
        with contextlib.suppress(OSError):
            print(f"pgas: the software NIC cannot continue: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        noticed.set()
        time.sleep(_NEWS_S)
        os._exit(1)  # skip CUDA's exit handlers, which may wait
    noticed.set()
    try:
        card.stop()
    finally:
        if _hung_up(control):
            readable(parent, _NEWS_S)


def _hung_up(control: socket.socket) -> bool:
    """Whether the control socket was closed without END."""
    try:
        return not control.recv(len(END), socket.MSG_DONTWAIT)
    except OSError:
        return False
