"""Addresses of this node: the one by which its processes reach each other, and the one by which other nodes reach it."""

import contextlib
import fcntl
import ipaddress
import socket
import struct

#: Addresses for documentation (RFC 5737, RFC 3849), to which nothing is sent.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))

#: ioctl SIOCGIFADDR: the IPv4 address of a network interface, in its request.
_SIOCGIFADDR, _IFREQ = 0x8915, struct.Struct("16s4x4s232x")

#: Flags of an IPv6 address that is not usable: it is tentative, or another node has it.
_UNUSABLE = 0x40 | 0x08


def loopback() -> str:
    """Return the address by which processes of this node reach each other."""
    with socket.socket(socket.AF_INET) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"


def outward(host: str) -> str:
    """Return a name or address of a host that other nodes can also reach. In its own /etc/hosts, its name may stand for 127.0.1.1."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return host
    try:
        found = [ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:  # The later use of the name reports the error.
        return host
    if not found[0].is_loopback or host.partition(".")[0] == "localhost":
        return host
    return next((str(address) for address in found if not address.is_loopback), None) or own_host()


def own_host() -> str:
    """Return the address of the interface of the default route, otherwise of any interface; loopback() if there is none.

    An IPv4 address comes first, because other nodes without IPv6 may exist.
    """
    for family, address in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:  # A kernel may lack IPv6.
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    return next(iter([*_of_interfaces(), *_of_interfaces_6()]), loopback())


def _of_interfaces() -> list[str]:
    """Return the IPv4 addresses of network interfaces other than the loopback one."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # It has none.
                _, packed = _IFREQ.unpack(fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(name.encode(), b"")))
                found.append(ipaddress.IPv4Address(packed))
    return [str(address) for address in found if not address.is_loopback]


def _of_interfaces_6() -> list[str]:
    """Return the usable IPv6 addresses of network interfaces that other nodes can use, thus not those of a link only."""
    found = []
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            packed, _, _, scope, flags, _ = line.split()
            if int(scope, 16) == 0 and not int(flags, 16) & _UNUSABLE:
                found.append(str(ipaddress.IPv6Address(bytes.fromhex(packed))))
    return found
