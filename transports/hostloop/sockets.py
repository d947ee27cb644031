"""System calls on datagram sockets, for compiled loops. Errors are results below 0, without errno."""

from numba import int32, types, uint32

from pgas.native.cpu import on_host
from pgas.transports.hostloop.memory_ops import stack_words, store

_MSG_DONTWAIT = 0x40
_POLLIN, _POLLOUT = 1, 4

_sendmmsg = types.ExternalFunction("sendmmsg", int32(int32, types.intp, uint32, int32))
_recvmmsg = types.ExternalFunction("recvmmsg", int32(int32, types.intp, uint32, int32, types.intp))
_ppoll = types.ExternalFunction("ppoll", int32(types.intp, types.uintp, types.intp, types.intp))


@on_host
def send_messages(fd: int, headers: int, number: int) -> int:
    """Send datagrams without waiting, and return the number sent. headers: address of struct mmsghdr."""
    return _sendmmsg(int32(fd), headers, uint32(number), int32(_MSG_DONTWAIT))


@on_host
def receive_messages(fd: int, headers: int, number: int) -> int:
    """Receive datagrams without waiting, and return their number. headers: address of struct mmsghdr."""
    return _recvmmsg(int32(fd), headers, uint32(number), int32(_MSG_DONTWAIT), 0)


@on_host
def wait_writable(fd: int, ms: int) -> int:
    """Wait until a socket has room, at most some milliseconds."""
    return _wait(fd, _POLLOUT, ms * 1_000_000)


@on_host
def wait_readable(fd: int, ns: int) -> int:
    """Wait until a socket has a datagram, at most some nanoseconds; return whether it has one."""
    return _wait(fd, _POLLIN, ns)


@on_host
def _wait(fd: int, events: int, ns: int) -> int:
    """Wait for events of a descriptor: struct pollfd has the descriptor, the events (16 bits), and those that came (16 bits)."""
    entry, limit = stack_words(), stack_words()
    store(entry, fd | events << 32)
    store(limit, 0)
    store(limit + 8, ns)
    return _ppoll(entry, types.uintp(1), limit, 0)
