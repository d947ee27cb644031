"""The store for bootstrap without MPI: exchanges, authentication, missing and dead PEs, addresses and ports."""

import contextlib
import errno
import fcntl
import os
import resource
import secrets
import select
import signal
import socket
import threading
import time

import pytest

from pgas.base.errors import BootstrapError
from pgas.job.bootstrap import processes, store, store_messages, store_server
from pgas.job.bootstrap.protocol import exchange
from pgas.job.bootstrap.store import Store
from pgas.job.bootstrap.store_messages import Address, Channel, MessageKind
from pgas.job.bootstrap.store_server import StoreServer

SECRET = secrets.token_bytes(32)


@pytest.fixture
def server():
    made = StoreServer("127.0.0.1", 0, SECRET)
    yield made
    made.close()


def enter(server, rank, size, group="job 1", secret=SECRET):
    return Store(Address("127.0.0.1", server.address.port, secret), rank, size, group, 5.0)


def together(*calls):
    """Make calls in parallel; return their results or exceptions."""
    results = [None] * len(calls)

    def make(i):
        try:
            results[i] = calls[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=make, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


@pytest.fixture
def pes(server):
    made = together(*(lambda rank=rank: enter(server, rank, 3) for rank in range(3)))
    yield made
    for pe in made:
        pe.close()


def nothing():
    pass


def test_exchanges_by_rank(pes):
    """Of any size, also 0; several in a row, while some ranks are behind."""
    for nbytes in (0, 1, 5_000_000, 3):
        wanted = [bytes([rank]) * (nbytes + rank) for rank in range(3)]
        gathered = together(*(lambda pe=pe, data=wanted[pe.rank]: pe.allgather(data, nothing) for pe in pes))
        assert gathered == [wanted] * 3
    assert together(*(lambda pe=pe: exchange(pe, ("rank", pe.rank)) for pe in pes)) == [[("rank", rank) for rank in range(3)]] * 3


def test_groups_are_independent(server):
    """The launchers' group, and those of successive jobs of the same processes."""
    members = [enter(server, rank, 2, group) for group in ("job 1", "job 2", "launchers") for rank in range(2)]
    gathered = together(*(lambda m=m, i=i: m.allgather(b"%d" % i, nothing) for i, m in enumerate(members)))
    assert gathered == [[b"0", b"1"]] * 2 + [[b"2", b"3"]] * 2 + [[b"4", b"5"]] * 2
    for member in members:
        member.close()


def test_missing_ranks(pes):
    asked = []
    late = threading.Thread(target=lambda: together(*(lambda pe=pe: pe.allgather(b"late", nothing) for pe in pes[1:])))

    def poll():
        if not asked:
            asked.append(pes[0].missing)
            late.start()

    assert pes[0].allgather(b"first", poll) == [b"first", b"late", b"late"]
    assert asked == [{1, 2}]
    late.join()


def test_an_exception_leaves_the_job_out_of_step(pes):
    """Ranks that wait, or exchange later, get the reason."""
    waits = threading.Thread(target=lambda: heard.extend(together(lambda: pes[0].allgather(b"", nothing))))
    heard = []
    waits.start()

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pes[1].allgather(b"x" * 1000, interrupted)
    pes[1].leave("PE 1 left it by KeyboardInterrupt")
    waits.join(10)
    for error in (*heard, *together(*(lambda pe=pe: pe.allgather(b"", nothing) for pe in pes))):
        assert isinstance(error, BootstrapError)
        assert str(error) == "PE 1 left it by KeyboardInterrupt"


def test_the_last_message_over_a_high_descriptor(pes):
    """select() takes none above 1023."""
    line = pes[1]._calls
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        high = fcntl.fcntl(line.socket, fcntl.F_DUPFD_CLOEXEC, 1024)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    line.socket.close()
    line.socket = socket.socket(fileno=high)
    line.socket.setblocking(False)
    pes[1].leave("PE 1 left")
    assert not line._channel.unsent
    refused = together(lambda: pes[0].allgather(b"", nothing))[0]
    assert str(refused) == "PE 1 left"


def test_a_rank_that_died(pes, monkeypatch):
    """Its connection closes without a message. The others get the news on their second connection, and in exchanges."""
    fd, read = pes[0].hearing()
    monkeypatch.setattr(store, "node_name", lambda: "elsewhere")
    pes[1].forget()
    began = time.monotonic()
    refused = together(lambda: pes[2].allgather(b"", nothing))[0]
    assert str(refused) == f"PE 1 (process {os.getpid()} on {os.uname().nodename}) ended without pgas.finalize(): the job cannot continue"
    assert time.monotonic() - began < 8  # when silence would be an error
    assert read() == (f"PE 1 (process {os.getpid()} on {os.uname().nodename})", "ended without pgas.finalize()")
    assert fd >= 0


def test_a_forked_child_keeps_nothing_open(pes, server):
    """Neither its parent's connections, whose end is the news of a death, nor those of the server."""
    if not (child := os.fork()):
        time.sleep(100)
        os._exit(0)
    try:
        pes[1].forget()
        refused = together(lambda: pes[2].allgather(b"", nothing))[0]
        assert "ended without pgas.finalize()" in str(refused)
        server.close()
        fd, read = pes[0].hearing()
        news = [read() for _ in range(2) if select.select([fd], [], [], 10)[0]]
        gone = f"the store at 127.0.0.1:{server.address.port}", "is gone: the process that served it has ended"
        assert news == [None, gone]  # PE 1 is of this machine
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("group", ["job 1", "job 2"])
def test_a_launcher_reports_how_a_rank_ended(server, group):
    launcher, first, second = enter(server, 0, 1, "launchers"), enter(server, 0, 2, group), enter(server, 1, 2, group)
    assert launcher.say_fate(1, 77, "was killed by signal 9", 137) == 137
    assert launcher.say_fate(0, 78, "ended with status 1", 1) == 137  # the status of the first
    second.forget()
    refused = together(lambda: first.allgather(b"", nothing))[0]
    assert "was killed by signal 9" in str(refused)
    for member in (launcher, first):
        member.close()


@pytest.mark.parametrize("comes", ["before", "after"])
@pytest.mark.parametrize(("how", "status"), [("ended with status 0", 0), ("was killed by signal 9", 137)])
def test_a_rank_that_ends_before_it_joins(server, comes, how, status):
    """Ranks that wait for it, or come later, get an error. So do the launchers. A rank that has left in good order is not missed."""
    launchers = [enter(server, node, 2, "launchers") for node in range(2)]
    done = [enter(server, rank, 2) for rank in range(2)]
    for pe in done:
        pe.close()
    first = enter(server, 0, 2, "job 2") if comes == "before" else None
    launchers[1].say_fate(1, 77, how, status)
    first = first or enter(server, 0, 2, "job 2")
    gone = f"PE 1 (process 77 on {os.uname().nodename}) {how}"
    assert str(together(lambda: first.allgather(b"", nothing))[0]) == f"{gone} without calling pgas.init(): the job cannot continue"
    wanted = gone + ("" if status else " without calling pgas.init()")
    assert [heard(launcher) for launcher in launchers] == [(wanted, status or 1)] * 2
    for each in (*launchers, first):
        each.close()


def heard(launcher):
    """Return the first news of a launcher."""
    deadline = time.monotonic() + 10
    while (news := launcher.news()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return news


def test_launchers_that_end(server):
    """One without BYE, one that is silent, and the store: in good order or not."""
    address, here = Address("127.0.0.1", server.address.port, SECRET), os.uname().nodename
    first, silent, gone = (Store(address, node, 3, "launchers", patience) for node, patience in enumerate((5.0, 0.2, 5.0)))
    gone.forget()
    assert heard(first) == (f"the launcher of node 2 (process {os.getpid()} on {here}) ended", 1)
    began = time.monotonic()
    how = "is unreachable at 127.0.0.1: nothing has come from it for 0.2 s (PGAS_TIMEOUT)"
    assert heard(first) == (f"the launcher of node 1 (process {os.getpid()} on {here}) {how}", 1)
    assert time.monotonic() - began < 5
    server.in_order = True
    server.close()
    assert heard(first) == ("", 0)
    assert heard(first) == (f"the store at 127.0.0.1:{server.address.port} is gone: the process that served it has ended", 1)
    for each in (first, silent):
        each.forget()


def test_an_orderly_leave_is_no_death(pes):
    fd, _ = pes[0].hearing()
    pes[1].close()
    time.sleep(store_server._FATE_S + 0.3)
    assert select.select([fd], [], [], 0)[0] == []


def test_the_server_ends(pes, server):
    server.close()
    refused = together(lambda: pes[0].allgather(b"", nothing))[0]
    how = "is gone: the process that served it has ended"
    assert str(refused) == f"the store at 127.0.0.1:{server.address.port} {how}: the job cannot continue"
    assert pes[0].hearing()[1]() == (f"the store at 127.0.0.1:{server.address.port}", how)


# ------------------------------------------------------------------------------------------------------------- who is let in


def test_a_wrong_secret(server):
    with pytest.raises(BootstrapError) as refused:
        enter(server, 1, 2, secret=b"another")
    where = f"the store at 127.0.0.1:{server.address.port}"
    assert (
        str(refused.value)
        == f"rank 1: {where} refuses: the secrets differ: this store belongs to another job or was started with a different PGAS_SECRET"
    )


def test_a_second_rank(pes, server):
    with pytest.raises(BootstrapError, match=rf"refuses: rank 1 has already joined: process {os.getpid()} on "):
        enter(server, 1, 3)
    with pytest.raises(BootstrapError, match="refuses: according to rank 0, there are 4 PEs, and according to others, 3"):
        enter(server, 0, 4)
    assert together(*(lambda pe=pe: pe.allgather(b"", nothing) for pe in pes)) == [[b""] * 3] * 3


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10, b"\0" * 100, b"n" * 32 + b"\1" + b"\xff" * 7, b"\1"])
def test_garbage(pes, server, garbage):
    """Its connection is closed, and the job goes on."""
    with socket.create_connection(("127.0.0.1", server.address.port)) as stranger:
        stranger.settimeout(10)
        stranger.sendall(garbage)
        if len(garbage) > 1:
            while stranger.recv(4096):
                pass
        assert together(*(lambda pe=pe: pe.allgather(b"", nothing) for pe in pes)) == [[b""] * 3] * 3


def test_a_client_that_never_says_hello(server, monkeypatch):
    monkeypatch.setattr(store_server, "_HELLO_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.address.port)) as silent:
        silent.settimeout(10)
        while silent.recv(4096):
            pass


def test_a_flood_of_strangers(server):
    """The oldest are hung up on; a client gets in."""
    with contextlib.ExitStack() as open_:
        silent = [open_.enter_context(socket.create_connection(("127.0.0.1", server.address.port))) for _ in range(200)]
        enter(server, 0, 1).close()
        assert len(server._strangers) <= store_server._STRANGERS_MAX
        silent[0].settimeout(10)
        while silent[0].recv(4096):
            pass
        assert select.select([silent[-1]], [], [], 0)[0]  # its greeting
        assert silent[-1].recv(4096)


def test_too_many_open_files(server, monkeypatch, capfd):
    """It is said once, the server does not spin, and the client gets in when there are files again."""
    accept, asked = socket.socket.accept, []

    def refused(self):
        asked.append(time.monotonic())
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", refused)
        client = threading.Thread(target=lambda: enter(server, 0, 1).close())
        client.start()
        time.sleep(3 * store_server._FATE_S)
        assert 2 <= len(asked) <= 4
        patch.setattr(socket.socket, "accept", accept)
        client.join(20)
    assert not client.is_alive()
    said = capfd.readouterr().err
    assert said.startswith(f"pgas: the store at {server.address} can admit no more connections (Too many open files): ulimit -n "), said
    assert said.count("\n") == 1


def test_files_that_strangers_have(server, monkeypatch):
    """They lose them to a client."""
    silent = socket.create_connection(("127.0.0.1", server.address.port))
    assert silent.recv(4096)
    accept = socket.socket.accept

    def short(self):
        if server._strangers:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", short)
    enter(server, 0, 1).close()
    assert silent.recv(4096) == b""
    silent.close()


def test_another_service(monkeypatch):
    """Another service listens at the port, or a store that says welcome without knowing the secret."""
    monkeypatch.setattr(store, "_RETRY_S", 0.01)
    stranger = Channel()
    stranger.begin(b"another", b"n" * 64, serves=True)
    stranger.put(store_messages.message(MessageKind.WELCOME))
    greetings = [b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64), store_messages.MAGIC + b"n" * 32 + stranger.unsent]
    for greeting, why in zip(greetings, ("is not a store of this version of pgas", "the secrets differ"), strict=True):
        with socket.create_server(("127.0.0.1", 0)) as other:

            def answer(other=other, greeting=greeting):
                connection, _ = other.accept()
                with connection, contextlib.suppress(ConnectionError):
                    connection.sendall(greeting)
                    connection.recv(4096)

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(BootstrapError, match=rf"rank 0: the store at 127.0.0.1:\d+ refuses: .*{why}"):
                Store(Address("127.0.0.1", other.getsockname()[1], SECRET), 0, 1, "job 1", 2.0)
            thread.join()


def test_the_secret_is_never_sent(server, monkeypatch):
    sent = []
    real = socket.socket.sendall
    monkeypatch.setattr(socket.socket, "sendall", lambda self, data: (sent.append(bytes(data)), real(self, data))[1])
    enter(server, 0, 1).close()
    assert sent
    assert not any(SECRET in data or SECRET.hex().encode() in data for data in sent)
    assert sent[0][32:33] == bytes([MessageKind.HELLO])  # after the nonce


# ------------------------------------------------------------------------------------------------------------------- addresses


def test_a_port_in_use(server):
    with pytest.raises(BootstrapError, match=f"the store cannot listen on 127.0.0.1:{server.address.port}: Address already in use"):
        StoreServer("127.0.0.1", server.address.port, SECRET)


def test_an_address_of_another_machine():
    with pytest.raises(BootstrapError, match=r"the store cannot listen on 192.0.2.1:5000: Cannot assign requested address"):
        StoreServer("192.0.2.1", 5000, SECRET)
    with pytest.raises(BootstrapError, match=r"the store cannot listen on no.such.host.invalid:5000: "):
        StoreServer("no.such.host.invalid", 5000, SECRET)


def test_it_listens_on_its_address_only(server):
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", server.address.port), 2)


def test_the_first_free_port(server):
    """If only the first port is agreed on, clients skip other jobs' stores and other services."""
    port = server.address.port
    own = StoreServer("127.0.0.1", port, b"own", ports=store_messages.PORTS)
    try:
        assert port < own.address.port < port + store_messages.PORTS
        joined = Store(Address("127.0.0.1", port, b"own", store_messages.PORTS), 0, 1, "job 1", 5.0)
        assert joined.allgather(b"me", nothing) == [b"me"]
        joined.close()
    finally:
        own.close()


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BootstrapError, match=rf"rank 3 of 4 did not reach the store at 127.0.0.1:{port} in 0.3 s: Connection refused"):
        Store(Address("127.0.0.1", port, SECRET), 3, 4, "job 1", 0.3)


def test_every_store_that_answers_refuses(server):
    address = Address(server.address.host, server.address.port, b"another", 2)
    with pytest.raises(BootstrapError, match=r"rank 1 of 2 found no store at .* that admitted it in 0\.3 s: the secrets differ"):
        Store(address, 1, 2, "job 1", 0.3)


@pytest.mark.parametrize("ports", [1, 3])
def test_a_stranger_that_drips_bytes(ports):
    """It listens where the store is expected. The store behind it is found, and nobody waits longer than PGAS_TIMEOUT."""
    with contextlib.ExitStack() as ending:
        listener = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = Address("127.0.0.1", listener.getsockname()[1], SECRET, ports)
        ending.callback(listener.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        began = time.monotonic()
        if ports > 1:
            server = StoreServer("127.0.0.1", address.port, SECRET, ports)
            ending.callback(server.close)
            Store(address, 0, 1, "job 1", 1.0).close()
        else:
            with pytest.raises(BootstrapError, match=r"rank 0 of 1 did not reach the store at .* in 1 s: (it does not answer|timed out)"):
                Store(address, 0, 1, "job 1", 1.0)
        assert time.monotonic() - began < 2


def drip(listener):
    """Send each client a greeting, one byte after the other."""

    def send(client):
        with contextlib.suppress(OSError), client:
            for byte in store_messages.MAGIC + bytes(1000):
                client.send(bytes([byte]))
                time.sleep(0.05)

    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=send, args=listener.accept()[:1], daemon=True).start()


def test_a_stranger_that_relays_to_the_store(server):
    """It listens at another port, which a client may try first, and gets no connection of the job."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def relay():
            client, _ = stranger.accept()
            with client, socket.create_connection(("127.0.0.1", server.address.port)) as real, contextlib.suppress(OSError):
                client.sendall(real.recv(4096))
                real.sendall(client.recv(4096))
                client.sendall(real.recv(4096))

        thread = threading.Thread(target=relay)
        thread.start()
        with pytest.raises(BootstrapError, match=r"refuses: it came for a store at port \d+, and this one is at \d+"):
            Store(Address("127.0.0.1", stranger.getsockname()[1], SECRET), 0, 1, "job 1", 2.0)
        thread.join()


def test_two_deaths_in_one_message(server, monkeypatch):
    """The first process is on this machine and watched anyway; the second death is reported."""
    first, second, third = (enter(server, rank, 3) for rank in range(3))
    second.forget()
    monkeypatch.setattr(store, "node_name", lambda: "elsewhere")
    time.sleep(2 * store_server._FATE_S + 0.3)
    third.forget()
    time.sleep(2 * store_server._FATE_S + 0.3)
    monkeypatch.setattr(store, "node_name", iter([processes.node_name(), "elsewhere"]).__next__)
    assert first.hearing()[1]()[0] == f"PE 2 (process {os.getpid()} on {os.uname().nodename})"
    first.forget()


def test_the_secret_is_not_shown():
    assert "5ec" not in repr(Address("here", 1, b"5ec"))
