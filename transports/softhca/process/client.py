"""A PE's side of the software NIC: starting it, connecting to it, and using it as an Adapter."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pgas.base import credentials, interpreter
from pgas.base.backend import for_children
from pgas.base.errors import TransportError
from pgas.base.liveness import described
from pgas.base.waits import tell_if_late
from pgas.transports.memory.protocol import Loan, Memory
from pgas.transports.mlx5.doorbell import UAR_BF_OFFSET, UarType
from pgas.transports.nic.adapter import AdapterGone, AddressPath, FirstError, Inspection, PortAddress, QueueState, Uar
from pgas.transports.softhca import layout
from pgas.transports.softhca.process import bar, messages
from pgas.transports.softhca.process.messages import END, RequestKind
from pgas.transports.softhca.syndromes import command_text

#: Time limit in seconds for the start of a software NIC; the first start after an installation compiles the engine.
_START_TIMEOUT_S = 300.0


class SoftHCAProcess:
    """The process of a software NIC, started by this process; it ends when this one does."""

    def __init__(self, process: subprocess.Popen, control: socket.socket, name: str) -> None:
        self._process, self._control = process, control
        #: Name to which PEs connect: any string, to be passed on to them.
        self.name = name

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, timeout_s: float = 15.0) -> None:
        """End the software NIC now, even if it is in use; kill it after the timeout. Further calls do nothing."""
        with contextlib.suppress(OSError):  # in case it has been closed
            self._control.send(END)
        _hang_up(self._control)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start(
    n_pes: int,
    *,
    trace: str = "",
    faults: str = "",
    engine: str = "cpu",
    device: int = 0,
    sms: int = 0,
    percent: int = 0,
    on_host: bool = False,
    mops: float = 0,
    gbps: float = 0,
    timeline: tuple[str, int] | None = None,
    net: str = "",
) -> SoftHCAProcess:
    """Start the software NIC of a node and return when it is ready. One PE of the node calls this.

    Args:
        n_pes: number of PEs of this node; the software NIC ends when all have connected and left.
        trace: kinds of entries printed to stderr, separated by commas: wqe, cqe, cmd.
        faults: injected faults (config.Faults).
        engine: cpu; cuda for a kernel; or dma for a thread whose kernel copies. Kernels run on a GPU if there is one, otherwise in the
            simulator.
        device: ordinal of the GPU of the engine's kernel.
        sms: number of its multiprocessors that the engine uses; 0 for all that it gets.
        percent: percentage of its multiprocessors under MPS; 0 for no limit.
        on_host: whether a CPU rings the registers, which are then in host memory.
        mops, gbps: limits in million WQEs and 10^9 bits per second; 0 for no limit.
        timeline: trace file, and its number of events.
        net: address or interface of its port, by which it reaches software NICs on other nodes; "" for none.

    Raises:
        TransportError: the software NIC did not start; the text has the reason.
    """
    ours, theirs = socket.socketpair()
    environment = {**os.environ, **for_children(), "PGAS_ENGINE": engine}
    if percent:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
    options = ["--control", str(theirs.fileno()), "--parent", str(os.getpid()), "--pes", str(n_pes), "--trace", trace, "--faults", faults]
    options += ["--engine", engine, "--device", str(device), "--sms", str(sms), *(["--on-host"] if on_host else [])]
    options += ["--net", net, "--mops", str(mops), "--gbps", str(gbps), *(["--timeline", *map(str, timeline)] if timeline else [])]
    command = interpreter.command("pgas.transports.softhca.process", *options)
    with _deaf():
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    ours.settimeout(_START_TIMEOUT_S)
    tell_if_late(ours, f"process {os.getpid()}", lambda: f"the software NIC {described(process.pid)} to start")
    try:
        message = messages.receive(ours)
    except OSError as error:
        process.kill()
        process.wait()
        ours.close()
        raise TransportError(f"the software NIC did not start: {error}") from error
    if message is None or message[0] != RequestKind.OK:
        ours.close()
        status = process.wait()
        raise TransportError(f"the software NIC did not start: {json.loads(message[1]) if message else f'exit status {status}'}")
    return SoftHCAProcess(process, ours, json.loads(message[1]))


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that ignore Ctrl-C and SIGUSR1 from the beginning, because mpirun sends these signals to all, not only to PEs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGUSR1))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def find() -> list[str]:
    """Return the names of the software NICs on this node (in this network namespace)."""
    from pgas.transports.softhca.process.server import SOCKET_PREFIX

    pattern = rb" @(%s\d+-[0-9a-f]{16})$" % SOCKET_PREFIX.encode()  # other sockets' names may have any bytes, including newlines
    return sorted({name.decode() for name in re.findall(pattern, Path("/proc/net/unix").read_bytes(), re.MULTILINE)})


class _Connection:
    """A connection for requests and answers; thread-safe."""

    def __init__(self, name: str, pe: int | None, timeout_s: float | None = None) -> None:
        self._lock, self._pe = threading.Lock(), pe
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(f"\0{name}")
        except OSError as error:
            self._socket.close()
            raise TransportError(f"no software NIC at {name!r}: {error}") from error
        try:
            if not credentials.of(self._socket).ours:
                raise TransportError(f"the software NIC at {name!r} is another user's")
            answer, fds = self._exchange(RequestKind.HELLO, pe)
        except TransportError:
            self._socket.close()
            raise
        self.server: dict[str, Any] = _decoded(answer)
        self.fds = fds

    def _exchange(self, kind: RequestKind, body: Any, fds: tuple[int, ...] = ()) -> tuple[bytes, list[int]]:
        with self._lock:
            try:
                messages.send(self._socket, kind, body, fds)
                if self._pe is not None:
                    tell_if_late(self._socket, f"PE {self._pe}", lambda: f"the software NIC {described(self.card())} to do {kind.name}")
                answer = messages.receive(self._socket)
            except TimeoutError:
                raise TransportError(f"no answer within {self._socket.gettimeout():g} s") from None
            except OSError as error:
                raise AdapterGone(f"the software NIC is gone: {error}") from error
            except BaseException:  # such as Ctrl-C; hang up, so that the next request does not get this one's answer
                _hang_up(self._socket)
                raise
        if answer is None:
            raise AdapterGone("the software NIC is gone: its process has ended")
        if answer[0] == RequestKind.REFUSED:
            raise TransportError(f"softhca: {_decoded(answer[1])}")
        return answer[1], answer[2]

    def card(self) -> int:
        return credentials.of(self._socket).pid

    def ask(self, kind: RequestKind, body: Any = None, fds: tuple[int, ...] = ()) -> Any:
        return _decoded(self._exchange(kind, body, fds)[0])

    def raw(self, kind: RequestKind, body: bytes) -> bytes:
        """Make a request of bytes and return the bytes of its answer."""
        return self._exchange(kind, body)[0]

    def close(self) -> None:
        _hang_up(self._socket)


def _hang_up(connection: socket.socket) -> None:
    """Close a connection, even if a forked child also has its descriptor."""
    with contextlib.suppress(OSError):  # in case the other side has closed it
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _decoded(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise TransportError("softhca: the answer is not JSON") from None


class Observer:
    """Reads a software NIC's counters and trace, and injects faults; for any process of the same user.

    timeout_s: maximum time for an answer. Default: no limit.
    """

    def __init__(self, name: str, timeout_s: float | None = None) -> None:
        self._connection = _Connection(name, None, timeout_s)

    def counters(self) -> dict[str, Any]:
        """Return the software NIC's objects and counters: "hca" (totals), "qps", "cqs", "keys", "uars"; "name" and "pid"."""
        return self._connection.ask(RequestKind.COUNTERS)

    def trace(self, kinds: Iterable[str] | None = None) -> list[str]:
        """Return the trace since the last call. kinds ("wqe", "cqe", "cmd"): what to trace from now on; None: no change."""
        return self._connection.ask(RequestKind.TRACE, None if kinds is None else list(kinds))

    def set_faults(self, text: str) -> None:
        """Replace the faults (config.Faults); "" for none."""
        self._connection.ask(RequestKind.FAULTS, text)

    def pause(self) -> None:
        """Pause the engine; on return no WQE is executing."""
        self._connection.ask(RequestKind.PAUSE)

    def resume(self) -> None:
        self._connection.ask(RequestKind.RESUME)

    def close(self) -> None:
        self._connection.close()


class SoftHCA(Observer):
    """Implements Adapter on a software NIC.

    Args:
        name: the software NIC's name, from Process.name.
        pe: this PE's number.
        memory: (address, nbytes, descriptor) of this PE's segments, which the software NIC maps at the same addresses.
        map_registers: function that maps all UAR pages of a descriptor if single pages cannot be mapped (GPU memory). Default: pages are
            mapped one by one.
        rung_by_cpu: whether a CPU stores to its registers for kernels.

    Raises:
        TransportError: there is no such software NIC, or it refuses this PE or its memory.
    """

    name = "softhca"

    def __init__(
        self,
        name: str,
        pe: int,
        memory: Iterable[tuple[int, int, int]],
        map_registers: Callable[[int], None] | None = None,
        *,
        rung_by_cpu: bool = False,
    ) -> None:
        self.rung_by_cpu = rung_by_cpu
        self._whole = map_registers is not None
        self._card_name, self._pe = name, pe
        self._connection = _Connection(name, pe)
        #: Its engine: "cpu", or "cuda" or "dma" with a hash of its kernel.
        self.engine: str | None = self._connection.server["engine"]
        self._bar = self._connection.fds[0]
        self._pages: set[int] = set()
        self._loans: dict[int, tuple[int, Loan]] = {}
        self._closed = False
        try:
            if map_registers is not None:
                map_registers(self._bar)
            for address, nbytes, fd in memory:
                self.share(address, nbytes, fd)
        except TransportError:
            self.close()
            raise

    def share(self, address: int, nbytes: int, fd: int) -> None:
        self._connection.ask(RequestKind.SHARE, [address, nbytes], (fd,))

    def unshare(self, address: int, nbytes: int) -> None:
        self._connection.ask(RequestKind.UNSHARE, [address, nbytes])

    def lend(self, address: int, nbytes: int, memory: Memory) -> None:
        loan = memory.lend(address, nbytes)
        try:
            number = self._connection.ask(RequestKind.LEND, [loan.start, loan.nbytes, loan.pieces, loan.handle.hex()], loan.fds)
        except TransportError:
            memory.take_back(loan)
            raise
        self._loans[address] = number, loan

    def take_back(self, address: int, memory: Memory) -> None:
        number, loan = self._loans.pop(address)
        self._connection.ask(RequestKind.TAKE_BACK, [number])
        memory.take_back(loan)

    def command(self, inbox: bytes, outlen: int) -> bytes:
        return self._connection.raw(RequestKind.COMMAND, outlen.to_bytes(4, "little") + bytes(inbox))

    def alloc_pd(self) -> int:
        return self._connection.ask(RequestKind.ALLOC_PD, [])

    def dealloc_pd(self, pdn: int) -> None:
        self._connection.ask(RequestKind.DEALLOC_PD, [pdn])

    def register_umem(self, address: int, nbytes: int, page_size: int = layout.UMEM_PAGE_SIZE) -> int:
        return self._connection.ask(RequestKind.REGISTER_UMEM, [address, nbytes, page_size])

    def deregister_umem(self, umem_id: int) -> None:
        self._connection.ask(RequestKind.DEREGISTER_UMEM, [umem_id])

    def register_mr(self, address: int, nbytes: int, pdn: int, access: int) -> tuple[int, int]:
        key = self._connection.ask(RequestKind.REGISTER_MR, [address, nbytes, pdn, int(access)])
        return key, key

    def deregister_mr(self, lkey: int) -> None:
        self._connection.ask(RequestKind.DEREGISTER_MR, [lkey])

    def alloc_uar(self, kind: UarType = UarType.NC) -> Uar:
        page = self._connection.ask(RequestKind.ALLOC_UAR, [int(kind)])
        if not self._whole:
            bar.map_page(self._bar, page)
            self._pages.add(page)
        return Uar(page, layout.page_address(page) + UAR_BF_OFFSET)

    def dealloc_uar(self, page_id: int) -> None:
        self._connection.ask(RequestKind.DEALLOC_UAR, [page_id])
        if not self._whole:
            self._pages.discard(page_id)
            bar.unmap_page(page_id)

    def query_eqn(self) -> int:
        return int(self._connection.server["eqn"])

    def query_port(self) -> PortAddress:
        if (port := self._connection.server["port"]) is not None:
            return PortAddress(1, "Ethernet", port["mtu"], port["udp_port"], bytes.fromhex(port["gid"]), 100.0)
        gid = bytes.fromhex("fe80000000000000020000fffe000001")
        return PortAddress(1, "InfiniBand", 5, layout.LID, gid, 100.0)

    def destination_mac(self, pdn: int, remote: PortAddress, path: AddressPath) -> bytes:
        """Return the MAC address of a software NIC, which has its UDP port. The kernel finds that of the packets."""
        if self._connection.server["port"] is None:
            raise TransportError(f"{self.name} has an InfiniBand port")
        return layout.MAC_PREFIX + remote.lid.to_bytes(2, "big")

    def path_mtus(self, gids: Iterable[bytes]) -> dict[bytes, int]:
        """Return the qpc.mtu of the paths to other nodes (path_mtu.py)."""
        from pgas.transports.softhca.process.path_mtu import path_mtus

        port = self._connection.server["port"]
        return path_mtus(bytes.fromhex(port["gid"]), port["mtu"], gids) if port is not None else {}

    def syndrome_words(self, syndrome: int) -> str:
        return command_text(syndrome)

    def diagnose(self, qpn: int) -> FirstError | None:
        known = self._connection.ask(RequestKind.DIAGNOSE, [qpn])
        return known and FirstError(**{**known, "wqe": bytes.fromhex(known["wqe"])})

    def counts(self) -> dict[str, int]:
        """Return the counters, summed over this PE's QPs. The software NIC may observe two doorbells as one."""
        own = [qp for qp in self.counters()["qps"] if qp["pe"] == self._pe]
        return {name: sum(qp[name] for qp in own) for name in ("wqes", "nbytes", "doorbells", "cqes", "errors")}

    def inspect(self, timeout_s: float) -> Inspection:
        who = f"the software NIC (process {self._connection.card()}"
        try:
            with contextlib.closing(Observer(self._card_name, timeout_s)) as observer:  # because the other connection may be waiting
                answer = observer.counters()
        except TransportError as error:
            raise TransportError(f"{who}) does not answer: {error}") from error
        hca = answer["hca"]
        summary = f"{who}, engine {hca['engine']}) {'is paused' if hca['paused'] else 'runs'}, {hca['wqes']} WQEs executed"
        return Inspection(summary, {qp["qpn"]: QueueState(qp["state"], qp["producer"], qp["consumer"]) for qp in answer["qps"]})

    def set_index(self, qpn: int, index: int, receive_idx: int = 0) -> None:
        """Set the first indices, of WQEBBs and receive WQEs, of a QP that is not in RTS yet."""
        self._connection.ask(RequestKind.SET_INDEX, [qpn, index, receive_idx])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        for page in self._pages:
            bar.unmap_page(page)
        self._pages = set()
        os.close(self._bar)
