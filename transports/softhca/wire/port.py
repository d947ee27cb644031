"""The port of a card with a wire: its address, its UDP socket, and the connections of its queue pairs.

The port is an Ethernet port with one GID, its IPv4 or IPv6 address. The kernel sends its packets as those of any program, so that it needs
no privileges, and finds routes and MAC addresses.

Only one socket can have UDP port 4791 of an address. A port that finds it in use, for example by another job, takes a free UDP port. Its
peers, which are software NICs of the same job, learn that from its MAC address, which has no other use: 02:00:00:00 and the UDP port.
"""

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import socket
import struct
from typing import Any

import numpy as np

from pgas.base.errors import TransportError
from pgas.transports.mlx5.contexts import Mtu
from pgas.transports.softhca import layout
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.wire import icrc
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.packets import OVERHEAD_MAX, UDP_PORT

#: Bytes that the port requests for the socket's buffers. Without privileges, net.core.rmem_max and wmem_max limit them.
_BUFFER = 8 << 20

# Constants of Linux that the module socket lacks.
_SO_NO_CHECK, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 11, 32, 33
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_DO = 10, 23, 2
_SIOCGIFMTU, _IFREQ = 0x8921, struct.Struct("16si20x")

_FAMILY, _IFADDRS_NEXT, _IFADDRS_NAME, _IFADDRS_ADDR = struct.Struct("<H"), 0, 8, 24

#: Prefix of the GID of an IPv4 address.
_V4_MAPPED = bytes(10) + b"\xff\xff"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def interface_addresses() -> list[tuple[str, _Address]]:
    """Return the name and address of every address of this machine's network interfaces, except link-local ones."""
    libc, first = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found: list[tuple[str, _Address]] = []
    at = first.value
    while at:
        following, name, _, address = struct.unpack("QQQQ", ctypes.string_at(at, 32))
        family = _FAMILY.unpack(ctypes.string_at(address, 2))[0] if address else 0
        if family == socket.AF_INET:
            found.append((ctypes.string_at(name).decode(), ipaddress.IPv4Address(ctypes.string_at(address + r.SOCKADDR_V4, 4))))
        elif family == socket.AF_INET6:
            found.append((ctypes.string_at(name).decode(), ipaddress.IPv6Address(ctypes.string_at(address + r.SOCKADDR_V6, 16))))
        at = following
    libc.freeifaddrs(first)
    return [(name, address) for name, address in found if not address.is_link_local]


def find_address(net: str) -> tuple[str, _Address]:
    """Return the interface and the address that PGAS_SOFTHCA_NET names: an address of this machine, or an interface.

    Raises:
        TransportError: there is none; the text lists those of this machine.
    """
    there = interface_addresses()
    text = ", ".join(f"{name} {address}" for name, address in there) or "none"
    try:
        wanted = ipaddress.ip_address(net)
    except ValueError:
        of_interface = sorted((address for name, address in there if name == net), key=lambda address: address.version)
        if not of_interface:
            raise TransportError(f"PGAS_SOFTHCA_NET={net}: this machine has no such interface with an address; it has {text}") from None
        return net, of_interface[0]
    for name, address in there:
        if address == wanted or (wanted.is_loopback and address.is_loopback and wanted.version == address.version == 4):
            return name, wanted
    raise TransportError(f"PGAS_SOFTHCA_NET={net}: this machine does not have this address; it has {text}")


def mtu_of(interface: str, *, v4: bool) -> Mtu:
    """Return the largest MTU of RoCE whose packets fit into those of an interface (annex A17.9.1)."""
    with socket.socket(socket.AF_INET if v4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        _, nbytes = _IFREQ.unpack(fcntl.ioctl(probe, _SIOCGIFMTU, _IFREQ.pack(interface.encode(), 0)))
    if (mtu := mtu_within(nbytes, v4=v4)) is None:
        least = mtu_nbytes(min(Mtu)) + _headers(v4=v4)
        raise TransportError(f"the software NIC needs an MTU of at least {least} bytes, but that of {interface} is {nbytes}")
    return mtu


def mtu_within(nbytes: int, *, v4: bool) -> Mtu | None:
    """Return the largest MTU of RoCE whose packets are at most nbytes long; None if there is none."""
    return max((mtu for mtu in Mtu if mtu_nbytes(mtu) <= nbytes - _headers(v4=v4)), default=None)


def _headers(*, v4: bool) -> int:
    return (icrc.IPV4_BYTES if v4 else icrc.IPV6_BYTES) + icrc.UDP_BYTES + OVERHEAD_MAX


def forbid_fragments(udp: socket.socket) -> None:
    """Let a UDP socket send datagrams that are not fragmented, here or by routers."""
    v4 = udp.family == socket.AF_INET
    udp.setsockopt(*((socket.IPPROTO_IP, _IP_MTU_DISCOVER) if v4 else (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER)), _PMTUDISC_DO)


def address_of(gid: bytes) -> _Address:
    """Return the address of a GID."""
    return ipaddress.ip_address(gid[len(_V4_MAPPED) :] if gid.startswith(_V4_MAPPED) else gid)


def udp_port_of(mac: bytes) -> int:
    """Return the UDP port of a software NIC with a MAC address, and that of RoCE v2 for any other device."""
    return int.from_bytes(mac[4:], "big") or UDP_PORT if mac.startswith(layout.MAC_PREFIX) else UDP_PORT


def mtu_nbytes(mtu: int) -> int:
    """Return the bytes of qpc.mtu."""
    return 128 << mtu


class WirePort:
    """The open port of a card.

    Args:
        tables: contexts of the card.
        net: value of PGAS_SOFTHCA_NET.

    Raises:
        TransportError: this machine has no such address, or a socket cannot have it.
    """

    def __init__(self, tables: t.Tables, net: str) -> None:
        self.interface, self.address = find_address(net)
        self.v4 = self.address.version == 4
        self.mtu = mtu_of(self.interface, v4=self.v4)
        self.records = r.Records(tables)
        self._loops_back = bool(tables.ring)
        self._socket = self._bound()
        port = self.records.port[0]
        port["fd"], port["v4"], port["udp"] = self._socket.fileno(), int(self.v4), self.udp_port
        raw = self.records.port.view(np.uint8)
        raw[r.PORT_GID : r.PORT_GID + len(self.address.packed)] = np.frombuffer(self.address.packed, np.uint8)
        r.set_names(self.records, len(self._sockaddr(self.address, UDP_PORT)))

    @property
    def gid(self) -> bytes:
        """The GID: the IPv6 address, or the IPv4 address mapped to one."""
        return _V4_MAPPED + self.address.packed if self.v4 else self.address.packed

    @property
    def udp_port(self) -> int:
        """The UDP port: 4791, or another one if that was in use."""
        return int(self._socket.getsockname()[1])

    def _bound(self) -> socket.socket:
        bound = socket.socket(socket.AF_INET if self.v4 else socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        for forced, limited in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            bound.setsockopt(socket.SOL_SOCKET, limited, _BUFFER)
            with contextlib.suppress(OSError):  # only root may exceed the limit
                bound.setsockopt(socket.SOL_SOCKET, forced, _BUFFER)
        forbid_fragments(bound)
        try:  # UDP_SEGMENT requires UDP checksums
            bound.getsockopt(r.SOL_UDP, r.UDP_SEGMENT)
            self.records.port[0]["segments"] = r.SEGMENTS_MAX
        except OSError:  # Linux before 4.18
            if self.v4:  # no UDP checksum, because the ICRC covers more
                bound.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        if not self.v4:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            try:
                bound.bind((str(self.address), UDP_PORT))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                bound.bind((str(self.address), 0))
        except OSError as error:
            bound.close()
            raise TransportError(f"the software NIC cannot use UDP port {UDP_PORT} of {self.address}: {error}") from error
        return bound

    @staticmethod
    def _sockaddr(address: _Address, udp_port: int) -> bytes:
        family = _FAMILY.pack(socket.AF_INET if address.version == 4 else socket.AF_INET6)
        port = udp_port.to_bytes(2, "big")
        return family + port + (address.packed + bytes(8) if address.version == 4 else bytes(4) + address.packed + bytes(4))

    def connect(self, row: int, gid: bytes, qpc: dict[str, Any]) -> int:
        """Set the connection of a queue pair that becomes RTR, and return its address, for QP_WIRE; 0 if the engine needs no packets.

        It needs none if the peer is on this card, unless the engine reaches the PEs' memory by DMA.

        Args:
            row: row of the queue pair.
            gid: the peer's GID, which must be of the port's kind (reachable()).
            qpc: the input of INIT2RTR_QP.
        """
        if gid == self.gid and not self._loops_back:
            return 0
        address, path = address_of(gid), qpc["primary_address_path"]
        mac = path["rmac_47_32"].to_bytes(2, "big") + path["rmac_31_0"].to_bytes(4, "big")
        udp_port = udp_port_of(mac)
        self.records.connect(
            row, address.packed, self._sockaddr(address, udp_port), mtu=mtu_nbytes(qpc["mtu"]), log_msg_max=qpc["log_msg_max"],
            rnr_timer=qpc["min_rnr_nak"], receive_psn=qpc["next_rcv_psn"], udp=udp_port if mac.startswith(layout.MAC_PREFIX) else 0,
        )  # fmt: skip
        return self.records.connection(row)

    def reachable(self, gid: bytes) -> bool:
        """Whether a GID is of the same kind as the port's: both IPv4 or both IPv6."""
        return gid.startswith(_V4_MAPPED) is self.v4

    def start(self, row: int, qpc: dict[str, Any], cursor: int) -> None:
        """Set the requester of a queue pair that becomes RTS. qpc: the input of RTR2RTS_QP; cursor: index of the first WQEBB."""
        timeout = qpc["primary_address_path"]["ack_timeout"]
        self.records.start(
            row, send_psn=qpc["next_send_psn"], timeout_ns=4096 << timeout if timeout else 0, retries=qpc["retry_count"],
            reads_max=1 << qpc["log_sra_max"], cursor=cursor,
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return the port's address and counters, as plain values."""
        where = {"address": str(self.address), "interface": self.interface, "udp_port": self.udp_port, "mtu": mtu_nbytes(self.mtu)}
        return {**where, **self.records.counters()}

    def close(self) -> None:
        """Close the socket. The engine has ended."""
        self._socket.close()
