"""The MTU of the paths to other nodes, found by an ordinary UDP socket (RFC 1191, RFC 8201) before queue pairs are connected.

A datagram as long as the longest packet, which routers must not fragment, goes to a port of each node on which nobody listens. If the node
answers that (ICMP port unreachable), it has arrived. If it is too long for a router, the router reports its MTU, Linux keeps it, and a
shorter one follows. Where neither comes, because a firewall drops them, the path is taken to be as good as the interface.
"""

import contextlib
import errno
import select
import socket
import time
from collections.abc import Iterable

from pgas.transports.mlx5.contexts import Mtu
from pgas.transports.softhca.wire.packets import OVERHEAD_MAX
from pgas.transports.softhca.wire.port import address_of, forbid_fragments, mtu_nbytes, mtu_within

#: Seconds to wait for answers.
_WAIT_S = 0.15

#: UDP port of the discard service (RFC 863), which hardly any node has.
_DISCARD = 9

# Options of sockets that the module socket lacks.
_IP_MTU, _IPV6_MTU = 14, 24


def path_mtus(own: bytes, mtu: int, gids: Iterable[bytes]) -> dict[bytes, int]:
    """Return for each GID of other nodes the largest qpc.mtu, at most mtu, whose packets arrive there, as far as the network reports it.

    own: GID of this node's port, which is of the same kind (IPv4 or IPv6).
    """
    found = dict.fromkeys(gids, mtu)
    with contextlib.ExitStack() as opened:
        probes: dict[int, tuple[socket.socket, bytes]] = {}
        poller, end = select.poll(), time.monotonic() + _WAIT_S
        for gid in found:
            with contextlib.suppress(OSError):  # no route: connecting the queue pair reports it
                probe = opened.enter_context(_probe(own, gid))
                found[gid] = _send(probe, found[gid])
                probes[probe.fileno()] = probe, gid
                poller.register(probe, select.POLLERR)
        while probes and (left := end - time.monotonic()) > 0:
            for fd, _ in poller.poll(left * 1e3):
                probe, gid = probes[fd]
                error = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error == errno.ECONNREFUSED:  # it has arrived
                    poller.unregister(fd)
                    del probes[fd]
                elif error == errno.EMSGSIZE:
                    with contextlib.suppress(OSError):  # the route has gone
                        found[gid] = _send(probe, found[gid])
    return found


def _probe(own: bytes, gid: bytes) -> socket.socket:
    address = address_of(gid)
    probe = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        forbid_fragments(probe)
        probe.bind((str(address_of(own)), 0))
        probe.connect((str(address), _DISCARD))
    except OSError:
        probe.close()
        raise
    return probe


def _send(probe: socket.socket, mtu: int) -> int:
    """Send a datagram of the largest qpc.mtu that the known MTU of the route allows, at most mtu; return that."""
    v4 = probe.family == socket.AF_INET
    for _ in Mtu:  # a report may come between the two calls
        nbytes = probe.getsockopt(*((socket.IPPROTO_IP, _IP_MTU) if v4 else (socket.IPPROTO_IPV6, _IPV6_MTU)))
        mtu = int(min(mtu, mtu_within(nbytes, v4=v4) or min(Mtu)))
        try:
            probe.send(bytes(mtu_nbytes(mtu) + OVERHEAD_MAX))
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                continue
        break
    return mtu
