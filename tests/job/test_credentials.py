"""The process at the other end of a socket: stream and datagram sockets, this user and another."""

import os
import socket

import pytest
from strangers import NOBODY, stranger

from pgas.base import credentials
from pgas.base.credentials import Peer


@pytest.mark.parametrize("uid", [NOBODY, None])
def test_the_other_end_of_a_connection(uid):
    """On both sides, also after the process has ended."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as theirs:
        listener.bind(f"\0pgas-test-{os.getpid()}")
        listener.listen()
        with stranger(lambda: theirs.connect(listener.getsockname()), uid) as pid:
            connection, _ = listener.accept()
        with connection:
            assert credentials.of(connection) == Peer(pid, uid is None)
            assert credentials.of(theirs) == Peer(os.getpid(), True)


@pytest.mark.parametrize("uid", [NOBODY, None])
def test_the_sender_of_a_datagram(uid):
    """Descriptors sent with it are not accepted."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outbox:
        credentials.name_senders(inbox)
        inbox.bind(f"\0pgas-test-{os.getpid()}")
        outbox.bind(f"\0pgas-test-{os.getpid()}-out")
        outbox.connect(inbox.getsockname())
        before = len(os.listdir("/proc/self/fd"))
        with stranger(lambda: socket.send_fds(outbox, [b"text"], [0, 1]), uid) as pid:
            assert credentials.receive(inbox, 100) == (b"text", outbox.getsockname(), Peer(pid, uid is None))
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_datagram_without_credentials():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(f"\0pgas-test-{os.getpid()}")
        inbox.sendto(b"text", inbox.getsockname())
        assert credentials.receive(inbox, 100) == (b"text", inbox.getsockname(), Peer(0, False))
