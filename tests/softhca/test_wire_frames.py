"""Messages of several packets that a port gives to its socket, and the datagrams that the kernel makes of them."""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from pgas.base.backend import SIMULATOR
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.wire import frames
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.packets import Rc, header_nbytes
from pgas.transports.softhca.wire.port import WirePort

if not SIMULATOR:
    pytest.skip("the wire is part of the cpu engine", allow_module_level=True)

ROW, BTH_END = 1, header_nbytes(Rc.RDMA_WRITE_MIDDLE)
LENGTHS = [1024] * 70 + [40, 40, 40, 1024, 8]


@pytest.fixture
def ends():
    """A port, the address of its queue pair, and a socket in place of the peer's port."""
    tables = t.Tables(receives=True)
    port = WirePort(tables, f"127.0.{int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:])}.79")
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind(("127.0.0.1", 0))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    peer.settimeout(10)
    udp = peer.getsockname()[1]
    port.records.connect(
        ROW, socket.inet_aton("127.0.0.1"), port._sockaddr(port.address, udp)[:4] + socket.inet_aton("127.0.0.1") + bytes(8),
        mtu=1024, log_msg_max=30, rnr_timer=1, receive_psn=0, udp=udp,
    )  # fmt: skip
    tables.set_wire(ROW, port.records.connection(ROW))
    if port.records.port[0]["segments"] == 1:
        pytest.skip("capability missing: UDP_SEGMENT")
    yield port, tables.row_address(tables.qps, ROW), peer
    peer.close()
    port.close()


def send(port, qp, lengths):
    """Send packets with data of these lengths; return the number of packets in each message."""
    address = port.records.address
    for psn, nbytes in enumerate(lengths):
        bth = frames.frame(address)
        frames.complete_frame(address, qp, bth, Rc.RDMA_WRITE_MIDDLE, BTH_END, nbytes, 0, psn)
    headers = port.records.out.view("<i8").reshape(-1, r.MMSG_BYTES // 8)[: int(port.records.port[0]["messages"])]
    numbers = headers[:, r.MMSG_IOVLEN // 8].tolist()
    frames.send_frames(address)
    return numbers


def psns(peer, number):
    """Receive datagrams; return the PSNs and the lengths of their data."""
    found = [peer.recv(8192) for _ in range(number)]
    return [int.from_bytes(data[9:12], "big") for data in found], [len(data) - BTH_END - 4 for data in found]


def test_datagrams_of_messages(ends):
    """Each packet arrives as a datagram, in order. A message ends with a shorter packet, before a longer one, and at the limits."""
    port, qp, peer = ends
    assert send(port, qp, LENGTHS) == [62, 9, 2, 2]
    assert psns(peer, len(LENGTHS)) == ([*range(len(LENGTHS))], LENGTHS)
    assert send(port, qp, [8] * 100) == [r.SEGMENTS_MAX, 100 - r.SEGMENTS_MAX]
    assert psns(peer, 100) == ([*range(100)], [8] * 100)


def test_a_kernel_that_refuses_messages(ends):
    """For example because the interface cannot compute checksums: packets are sent one by one, from then on."""
    port, qp, peer = ends
    port._socket.setsockopt(socket.SOL_SOCKET, 11, 1)  # SO_NO_CHECK, with which the kernel refuses them
    for _ in range(2):
        send(port, qp, LENGTHS)
        assert psns(peer, len(LENGTHS)) == ([*range(len(LENGTHS))], LENGTHS)
        assert port.records.port[0]["segments"] == 1
    assert port.records.counters()["unsent"] == 0


def test_a_network_that_is_down_for_a_while(ends):
    """While the socket refuses all packets, they are lost; afterwards messages have several packets again."""
    port, qp, peer = ends
    connection = port.records.connections[ROW : ROW + 1].view("u1")
    address = connection[r.CONN_SOCKADDR + r.SOCKADDR_V4 : r.CONN_SOCKADDR + r.SOCKADDR_V4 + 4]
    address[:] = 255, 255, 255, 255  # which requires SO_BROADCAST
    send(port, qp, LENGTHS)
    assert port.records.counters()["unsent"] == len(LENGTHS)
    address[:] = 127, 0, 0, 1
    assert send(port, qp, LENGTHS) == [62, 9, 2, 2]
    assert psns(peer, len(LENGTHS)) == ([*range(len(LENGTHS))], LENGTHS)


TUN = """
import fcntl, os, socket, struct, subprocess, sys, time
tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"tun0", 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
for command in ("link set lo up", "addr add 10.99.0.1/24 dev tun0", "link set tun0 up"):
    subprocess.run(["ip", *command.split()], check=True)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
udp.sendmsg([bytes(440)], [(17, 103, struct.pack("H", 100))], 0, ("10.99.0.2", 4791))
found, deadline = [], time.monotonic() + 10
while len(found) < 5 and time.monotonic() < deadline:
    try:
        packet = os.read(tun, 2000)
    except BlockingIOError:
        time.sleep(0.01)
        continue
    if packet[0] == 0x45 and packet[9] == 17:
        found.append((len(packet) - 28, int.from_bytes(packet[4:6], "big"), packet[6:8].hex()))
print(found)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/net/tun", os.W_OK) or None in map(shutil.which, ("ip", "unshare")),
    reason="capability missing: a TUN device, as root",
)
def test_identifications_of_datagrams():
    """The kernel numbers the datagrams of a message from 0: this interface gets them as a network interface without offload does."""
    command = ["unshare", "--net", sys.executable, "-c", TUN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if any(text in done.stderr for text in ("Operation not permitted", "No such device", "Input/output error")):
        pytest.skip("capability missing: network namespaces, TUN devices, or messages to interfaces without checksums")
    assert done.stdout == f"{[(100, 0, '4000'), (100, 1, '4000'), (100, 2, '4000'), (100, 3, '4000'), (40, 4, '4000')]}\n", done.stderr
