"""The card's process: joining, PEs that leave or are killed, and the end of the card."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import rig
import wqes as wqe
from descriptors import few_descriptors
from rig import PE, QP, gone, pair, wait_until

from pgas.base.errors import TransportError
from pgas.kernels import window
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.softhca.process import client, messages
from pgas.transports.softhca.process.messages import RequestKind
from pgas.transports.softhca.syndromes import Vendor

card, pes, observer = rig.card, rig.pes, rig.observer

#: A PE in a separate process: prints its QP, heap and key, reads those of its peer, and writes there until it is killed.
PE_PROGRAM = textwrap.dedent(
    """
    import sys
    import rig

    pe = rig.PE(sys.argv[1], int(sys.argv[2]))
    qp = rig.QP(pe)
    print(qp.qpn, pe.heap, pe.key, flush=True)
    peer, heap, key = map(int, sys.stdin.readline().split())
    qp.init().rtr(peer).rts()
    print("connected", flush=True)
    while True:
        for _ in range(20):
            qp.post(rig.wqe.write, heap + 64, key, pe.heap, pe.key, 1 << 20)
        qp.run(rig.wqe.nop)
    """
)


@pytest.fixture
def program():
    """Start Python programs that can import the rig and pgas; they are killed at the end."""
    started = []

    def run(text, *arguments):
        path = os.pathsep.join([os.path.dirname(rig.__file__), *sys.path])
        process = subprocess.Popen(
            [sys.executable, "-c", text, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def own_card(request):
    """A card for a number of PEs, which the test may end."""
    process = client.start(getattr(request, "param", 2))
    yield process
    process.end()


def connection_of(name):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(f"\0{name}")
    return connection


def busy(name):
    """Send half of a message to a card, and check that it waits for the rest; return the connection."""
    connection = connection_of(name)
    connection.sendall(messages.pack(RequestKind.HELLO)[:5])
    with pytest.raises(TransportError, match="no answer within"):
        client.Observer(name, timeout_s=0.2)
    return connection


def answer(connection, kind, body):
    messages.send(connection, kind, body)
    kind, body, fds = messages.receive(connection)
    for fd in fds:
        os.close(fd)
    return kind, json.loads(body)


@pytest.mark.parametrize("free", [0, 1])
def test_too_many_descriptors_for_a_process(free):
    """Linux drops some of them. Those that arrived are closed, and the next message is read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(2):
            messages.send(ours, RequestKind.OK, "two", (0, 1))
        before = len(os.listdir("/proc/self/fd"))
        with few_descriptors(free), pytest.raises(TransportError, match=f"{free} of 2 descriptors came .*too many open files"):
            messages.receive(theirs)
        assert len(os.listdir("/proc/self/fd")) == before
        kind, body, fds = messages.receive(theirs)
        assert (kind, body, len(fds)) == (RequestKind.OK, b'"two"', 2)
        for fd in fds:
            os.close(fd)


# ------------------------------------------------------------------------------------------------------------------------- leaving


def test_a_pe_that_is_killed_is_cleaned_up(card, pes, observer, program):
    """Its QP is destroyed with WQEs in flight, its memory is unmapped, its peer's WQEs fail, and other PEs go on."""
    mine, good = QP(pes[0]), pair(pes)[0]
    victim = program(PE_PROGRAM, card.name, 7)
    qpn, heap, key = map(int, victim.stdout.readline().split())
    mine.init().rtr(qpn).rts()
    victim.stdin.write(f"{mine.qpn} {pes[0].heap} {pes[0].key}\n")
    victim.stdin.flush()
    assert victim.stdout.readline() == "connected\n"
    mine.run(wqe.write_inline, heap, key, b"are you there?")
    assert 7 in observer.counters()["hca"]["pes"]
    victim.kill()
    wait_until(lambda: 7 not in observer.counters()["hca"]["pes"], "the PE remains")
    left = observer.counters()
    assert 7 not in {entry["pe"] for kind in ("qps", "cqs", "keys", "uars") for entry in left[kind]}
    with open(f"/proc/{card.pid}/maps", encoding="ascii") as file:
        assert not [line for line in file if (int(line.split("-")[0], 16) - window.BASE) >> window.STRIDE_SHIFT == 7]
    assert mine.fail(wqe.write_inline, heap, key, b"are you there?") == (Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.NO_RESPONDER)
    good.run(wqe.nop)


@pytest.mark.parametrize("own_card", [1], indirect=True)
def test_the_card_ends_when_its_last_pe_is_killed(own_card, program):
    victim = program(PE_PROGRAM, own_card.name, 0)
    victim.stdin.write(victim.stdout.readline())  # connected to itself
    victim.stdin.flush()
    assert victim.stdout.readline() == "connected\n"
    victim.kill()
    wait_until(lambda: gone(own_card.pid), "the card outlives its PEs")
    wait_until(lambda: own_card.name not in client.find(), "its socket remains")
    own_card.end()


def test_the_card_ends_when_all_pes_have_come_and_gone(own_card):
    first = PE(own_card.name, 0)
    first.close()
    assert not gone(own_card.pid)  # a PE has yet to join
    second = PE(own_card.name, 1)
    watching = client.Observer(own_card.name)
    second.close()
    second.hca.close()
    wait_until(lambda: gone(own_card.pid), "the card outlives its PEs")  # an observer does not keep it
    with pytest.raises(TransportError, match="gone"):
        watching.counters()
    watching.close()
    own_card.end()
    own_card.end()


def test_the_card_ends_with_the_process_that_started_it(program):
    parent = program(
        "import sys\nfrom pgas.transports.softhca.process import client\n"
        "p = client.start(2)\nprint(p.pid, p.name, flush=True)\nsys.stdin.read()"
    )
    pid, name = parent.stdout.readline().split()
    assert name in client.find()
    parent.kill()
    wait_until(lambda: gone(int(pid)), "the card outlives its parent")
    wait_until(lambda: name not in client.find(), "its socket remains")


def test_the_card_does_not_end_before_the_process_that_started_it(program):
    """Linux closes the sockets of a process that dies before it reports its end, with GPU memory seconds before."""
    parent = program(
        "import sys\nfrom pgas.transports.softhca.process import client\n"
        "p = client.start(2)\np._control.close()\nprint(p.pid, flush=True)\nsys.stdin.read()"
    )
    pid = int(parent.stdout.readline())
    time.sleep(1)
    assert not gone(pid)
    parent.kill()
    wait_until(lambda: gone(pid), "the card outlives its parent", 2)


@pytest.mark.slow
def test_a_busy_card_ends_with_the_process_that_started_it(program):
    """It waits for the rest of a message, and a child of its parent keeps the control socket open, but it ends within seconds."""
    parent = program(
        "import os, sys, time\nfrom pgas.transports.softhca.process import client\np = client.start(2)\n"
        "child = os.fork() or time.sleep(60)\nprint(p.pid, p.name, child, flush=True)\nsys.stdin.read()"
    )
    pid, name, child = parent.stdout.readline().split()
    with busy(name):
        parent.kill()
        try:
            wait_until(lambda: gone(int(pid)), "the card outlives its parent", 8)  # less than it waits for the rest of the message
            assert not gone(int(child))
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("own_card", [1], indirect=True)
def test_a_busy_card_is_ended(own_card):
    """A busy server is killed after a grace period."""
    with busy(own_card.name):
        started = time.monotonic()
        own_card.end()
        assert time.monotonic() - started < 8  # less than it waits for the rest of the message
        assert gone(own_card.pid)


@pytest.mark.slow
def test_the_card_outlives_the_thread_that_started_it():
    """Jobs may begin in a thread, which then ends."""
    started = []
    thread = threading.Thread(target=lambda: started.append(client.start(1)))
    thread.start()
    thread.join()
    pe = PE(started[0].name, 0)
    rig.connect(qp := QP(pe), qp)
    assert not qp.run(wqe.nop).is_error
    assert not gone(started[0].pid)
    pe.close()
    started[0].end()
    assert gone(started[0].pid)


@pytest.mark.slow
def test_calls_after_the_card_was_killed(own_card):
    pe = PE(own_card.name, 0)
    qp = QP(pe)
    os.kill(own_card.pid, signal.SIGKILL)
    for call in (
        qp.state, pe.hca.alloc_pd, pe.hca.alloc_uar, lambda: pe.hca.dealloc_uar(qp.uar.page_id), lambda: pe.hca.dealloc_pd(pe.pdn),
        lambda: pe.hca.register_umem(pe.heap, 64), lambda: pe.hca.deregister_umem(pe.umem), lambda: pe.hca.diagnose(qp.qpn),
        lambda: pe.hca.register_mr(pe.heap, 64, pe.pdn, 0), lambda: pe.hca.deregister_mr(pe.key), pe.hca.counters,
    ):  # fmt: skip
        with pytest.raises(TransportError, match="the software NIC is gone"):
            call()
    pe.close()
    own_card.end()
    with pytest.raises(TransportError, match="no software NIC at"):
        client.SoftHCA(own_card.name, 1, [])
    assert own_card.name not in client.find()


def test_calls_after_close(own_card):
    pe = PE(own_card.name, 0)
    uar = pe.hca.alloc_uar()
    pe.close()
    with open("/proc/self/maps", encoding="ascii") as file:
        assert not [line for line in file if line.startswith(f"{uar.register_address & ~4095:x}-")]
    with pytest.raises(TransportError):
        pe.hca.alloc_pd()
    pe.hca.close()


#: A card in whose process the engine ends soon.
FAILED_ENGINE = textwrap.dedent(
    """
    import os, socket, sys, threading
    from pgas.transports.softhca.process import engines, server
    from pgas.transports.softhca import tables

    ours, theirs = socket.socketpair()
    def loop(self, run=engines._Thread._loop):
        threading.Timer(0.5, self.tables.set, (tables.CTL_STOP, 1)).start()
        run(self)
    engines._Thread._loop = loop
    server._NEWS_S = 0.5
    sys.stderr = sys.stdout
    server.main(["--control", str(theirs.fileno()), "--parent", str(os.getppid()), "--pes", "1"])
    """
)


@pytest.mark.slow
def test_the_card_ends_when_its_engine_has_failed(program):
    """It prints an error; PEs notice the end of its process."""
    card = program(FAILED_ENGINE)
    out, _ = card.communicate(timeout=30)
    assert out == "pgas: the software NIC cannot continue: TimeoutError: the engine of the software NIC has ended\n"
    assert card.returncode == 1


# ------------------------------------------------------------------------------------------------------------------------- joining


@pytest.mark.parametrize("own_card", [1], indirect=True)
def test_joining(own_card):
    """As many PEs as announced, each number once."""
    with pytest.raises(TransportError, match="is not the number of a PE"):
        client.SoftHCA(own_card.name, 1 << 16, [])
    first = client.SoftHCA(own_card.name, 3, [])
    with pytest.raises(TransportError, match="PE 3 cannot join: it has"):
        client.SoftHCA(own_card.name, 3, [])
    with pytest.raises(TransportError, match="PE 4 cannot join: all 1 PEs have"):
        client.SoftHCA(own_card.name, 4, [])
    first.close()


def test_memory_that_cannot_be_shared(card):
    fd = os.memfd_create("small")
    os.ftruncate(fd, 4096)
    address = rig.window.slot(5)
    for memory in ((address, 8192, fd), (address, 0, fd), (window.BASE - 4096, 4096, fd)):
        with pytest.raises(TransportError, match="needs one descriptor of a file of this size"):
            client.SoftHCA(card.name, 5, [memory])
    with pytest.raises(TransportError, match="cannot map"):
        client.SoftHCA(card.name, 5, [(address, 4096, fd)] * 2)
    wait_until(lambda: 5 not in _pes(card), "the PE remains")
    os.close(fd)


def _pes(card):
    observer = client.Observer(card.name)
    seen = observer.counters()["hca"]["pes"]
    observer.close()
    return seen


# ------------------------------------------------------------------------------------------------------------------------ messages


def test_garbage_ends_only_its_connection(card, observer):
    for data in (b"\xff" * 64, messages.pack(RequestKind.HELLO, None)[:5], b""):
        connection = connection_of(card.name)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        try:
            assert connection.recv(16) == b""
        except ConnectionResetError:  # it did not read to the end
            assert data
        connection.close()
    assert observer.counters()["name"] == card.name


def test_requests_of_the_wrong_order_or_kind(card):
    connection = connection_of(card.name)
    assert answer(connection, RequestKind.COUNTERS, None) == (RequestKind.REFUSED, "the first message must be a HELLO")
    assert answer(connection, RequestKind.HELLO, None)[0] == RequestKind.OK
    twice = (RequestKind.REFUSED, "HELLO must be the first message, and must be sent only once")
    assert answer(connection, RequestKind.HELLO, None) == twice
    assert answer(connection, RequestKind.ALLOC_PD, []) == (RequestKind.REFUSED, "only PEs may send ALLOC_PD")
    connection.close()
    connection = connection_of(card.name)
    assert answer(connection, RequestKind.HELLO, 6)[0] == RequestKind.OK
    assert answer(connection, RequestKind.OK, []) == (RequestKind.REFUSED, "OK is not a request")
    for kind, body in (
        (RequestKind.DEALLOC_PD, [1, 2]),
        (RequestKind.SHARE, 5),
        (RequestKind.FAULTS, "boom=1"),
        (RequestKind.TRACE, ["bell"]),
    ):
        assert answer(connection, kind, body)[0] == RequestKind.REFUSED
    assert answer(connection, RequestKind.ALLOC_PD, [])[0] == RequestKind.OK
    connection.close()


GARBAGE = [
    b"", b"\xff\xfe", b"{", b"null", b"true", b"5", b"-1", b"1e999", b'"x"', b"[]", b"{}", b"[null]", b"[5]", b"[true]", b"[1e30]", b"[-1]",
    b'["a","b"]', b"[[],[]]", b"[0,0]", b"[-1,-1]", b"[1,2,3,4]", b"[" + b"9" * 400 + b"]", b"[" + b",".join([b"9" * 40] * 4) + b"]",
    b"[" * 100_000, b'{"seed":1}', bytes(64), b"\x10\0\0\0" + b"\xff" * 64,
]  # fmt: skip


@pytest.mark.parametrize("who", [None, 6])
def test_garbage_of_every_kind(card, pes, observer, who):
    """The card refuses it with one sentence, goes on, and neither creates nor destroys anything."""
    before = {kind: observer.counters()[kind] for kind in ("qps", "cqs", "keys")}
    connection = connection_of(card.name)
    assert answer(connection, RequestKind.HELLO, who)[0] == RequestKind.OK
    for kind in RequestKind:
        for body in GARBAGE:
            messages.send(connection, kind, body)
            reply, text, fds = messages.receive(connection)
            assert reply in (RequestKind.OK, RequestKind.REFUSED), (kind, body)
            assert not fds
            if reply == RequestKind.REFUSED:
                assert len(json.loads(text)) > 8, (kind, body)
                assert "\n" not in json.loads(text)
    if who is not None:  # the right number of integers
        for body in ([1], ["1", "2"], [1.0, 2.0]):
            assert answer(connection, RequestKind.REGISTER_UMEM, body)[0] == RequestKind.REFUSED
    kind, text = answer(connection, RequestKind.FAULTS, 5)
    assert (kind, text.partition("(")[0]) == (RequestKind.REFUSED, "FAULTS has invalid arguments ")
    connection.close()
    observer.resume()
    observer.trace([])
    wait_until(lambda: 6 not in observer.counters()["hca"]["pes"], "the PE remains")
    assert {kind: observer.counters()[kind] for kind in before} == before
    pair(pes)[0].run(wqe.nop)


# ------------------------------------------------------------------------------------------------------------------------ starting


@pytest.mark.parametrize(
    ("options", "text"), [({"faults": "boom"}, "unknown fault 'boom'"), ({"trace": "bell"}, "unknown: bell; must be one or more of")]
)
def test_a_card_that_cannot_start_says_why(options, text):
    with pytest.raises(TransportError, match=f"the software NIC did not start: .*{text}"):
        client.start(1, **options)


def test_trace_and_faults_from_the_start(capfd):
    process = client.start(1, trace="cmd,wqe", faults="fail=1:0x13")
    pe = PE(process.name, 0)
    qp = QP(pe)
    rig.connect(qp, qp)
    assert qp.fail(wqe.nop) == (Syndrome.REMOTE_ACCESS_ERR, Vendor.INJECTED)
    pe.close()
    process.end()
    printed = capfd.readouterr().err
    assert "cmd PE 0 CREATE_QP: OK" in printed
    assert f"wqe PE 0 qpn {qp.qpn:#08x} index 0: NOP" in printed
    assert "\ncqe " not in printed


def test_a_timeline_does_not_change_how_wqes_are_executed(tmp_path):
    """Printed traces need one WQE at a time; on a GPU, one thread then copies what a CTA copies otherwise, 40 times as slowly."""
    program = f"""
from pgas.transports.softhca.process.card import Card
card = Card()
card.set_timeline({str(tmp_path / "t")!r}, 64)
serial = [int(card.tables.control[0]["serial"])]
card.set_trace(frozenset({{"wqe"}}))
print(*serial, int(card.tables.control[0]["serial"]))
card.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("0 1\n", 0), done.stderr
