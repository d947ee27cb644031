"""The trace file of a PE, or of the software NIC: its layout, and the records of events (docs/trace.md).

Kernels, host threads, and the proxy thread write events into rings of the file, which is mapped as shared memory, so that a process that is
killed loses nothing. A file is::

    0          header: magic, number of rings, events per ring
    TEXT       lines of JSON about the job, the clocks, and names
    RINGS      rings of events: HOST, PROXY, then one per block of a grid, modulo BLOCK_RINGS

Events of a ring have numbers, *tickets*, that only grow. The event of ticket t is at slot t modulo the ring's size, so that the newest
events are kept. Its first word has the lower half of the ticket, which tells how many events were overwritten.
"""

import contextlib
import json
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pgas.base.errors import TransportError

MAGIC = b"pgas trace 1\n"
_HEADER = struct.Struct("<16s2Q")

TEXT, TEXT_SIZE = 4096, (1 << 20) - 4096
RINGS = TEXT + TEXT_SIZE

#: Words of the header by which the host asks a kernel for the time of the GPU (pgas/job/gpu_clock.py).
CLOCK_ASKED, CLOCK_ANSWERED, CLOCK_TIME = 1024, 1088, 1096

#: End of the names of kernels by which the host makes its calls.
OF_HOST_CALLS = "_on_stream"

#: Numbers of rings.
HOST, PROXY, BLOCKS, BLOCK_RINGS = 0, 1, 2, 256
N_RINGS = BLOCKS + BLOCK_RINGS

# The record of an event: offsets of its words.
WHAT, BEGIN, END, WHO, ADDRESS, SIZE, WORD, VALUE = range(0, 64, 8)
EVENT = struct.Struct("<8Q")
EVENT_SIZE = EVENT.size
EVENT_SHIFT = EVENT_SIZE.bit_length() - 1

# WHAT: a code, the scope, the comparison of a wait or op of a signal, the thread in its block, and the lower half of the ticket.
SCOPE_SHIFT, COMPARISON_SHIFT, THREAD_SHIFT, TICKET_SHIFT = 12, 14, 17, 32
CODE_MASK, SCOPE_MASK, COMPARISON_MASK, THREAD_MASK = 0xFFF, 0x3, 0x7, 0x7FFF
# WHO: the peer, and the number of the block in its grid.
BLOCK_SHIFT, NOBODY = 32, 0xFFFF_FFFF
# SIZE: bytes, and the lower bits of the number of the launch.
LAUNCH_SHIFT, SIZE_MASK, LAUNCH_MASK = 40, (1 << 40) - 1, (1 << 24) - 1

# Codes of events. Those of calls in kernels are the numbers of operations (kernels/operation.py).
#: Of queue pairs; WORD: number of the queue pair, VALUE: index just past the last WQEBB.
WRITTEN, RUNG, COMPLETED = 0x400, 0x401, 0x402
#: Of ibrc's ring; VALUE: ticket of the request, WORD: number of the queue pair. POSTED and DONE are the proxy thread's.
REQUESTED, POSTED, RUNG_BY_PROXY, DONE = 0x410, 0x411, 0x412, 0x413
#: Of the host; ADDRESS: number of a name. VALUE of LAUNCHED: the handle of the stream.
CALLED, LAUNCHED = 0x420, 0x421
#: Of the software NIC; WORD: number of the queue pair, VALUE: index of the WQEBB.
FETCHED, EXECUTED = 0x430, 0x431

#: Names of events other than operations, by code.
NAMES = {
    WRITTEN: "WQE written", RUNG: "doorbell", COMPLETED: "CQE seen", REQUESTED: "request", POSTED: "posted", RUNG_BY_PROXY: "doorbell",
    DONE: "completed", CALLED: "call", LAUNCHED: "launch", FETCHED: "WQE fetched", EXECUTED: "CQE written",
}  # fmt: skip

#: Folder of files in memory.
IN_MEMORY = "/dev/shm"

#: Bytes of a ring that are looked at to find out whether it has any events.
_LOOKED_AT = 64 * EVENT_SIZE

#: Bytes of a file that are copied at once.
_COPIED = 1 << 20


def file_size(capacity: int, rings: int = N_RINGS) -> int:
    """Return the size of a trace file, in whole pages."""
    nbytes = RINGS + rings * capacity * EVENT_SIZE
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


class TraceFile:
    """A trace file that is being written. Several threads of the process may write."""

    def __init__(self, path: str, capacity: int, rings: int = N_RINGS) -> None:
        self.path, self.capacity, self.nbytes = os.path.abspath(path), capacity, file_size(capacity, rings)
        _remove(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self.fd, self.nbytes)
            self._map = mmap.mmap(self.fd, self.nbytes)
        except BaseException:
            os.close(self.fd)
            raise
        self._elsewhere: str | None = None  #: where the file is until close()
        self._lock, self._naming = threading.Lock(), threading.Lock()
        self._names: dict[str, int] = {}
        self._tickets = [0] * BLOCKS
        self._text_end = TEXT
        self._map[: _HEADER.size] = _HEADER.pack(MAGIC, rings, capacity)

    def map(self, map_file: Callable[[int], None]) -> None:
        """Call ``map_file(fd)``, which maps the file for kernels; if it is refused, move the file, because CUDA pins files in memory only.

        Raises:
            TransportError: the file cannot be mapped there, or there is no room in memory.
        """
        try:
            map_file(self.fd)
        except TransportError as refused:
            try:
                self._move()
            except OSError as error:
                room = f"{self.nbytes >> 20} MiB in {IN_MEMORY} ({error.strerror}); a smaller PGAS_TRACE_EVENTS needs less"
                raise TransportError(f"{refused}, and there is no room for {room}") from refused
            map_file(self.fd)

    def _move(self) -> None:
        """Go on in a file in memory until close(); the path links to it, also if the process is killed. Not after add()."""
        fd, path = tempfile.mkstemp(prefix=os.path.basename(self.path) + "-", dir=IN_MEMORY)
        try:
            os.posix_fallocate(fd, 0, self.nbytes)
            moved = mmap.mmap(fd, self.nbytes)
            moved[:RINGS] = self._map[:RINGS]
            os.unlink(self.path)
            os.symlink(path, self.path)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        self._map.close()
        os.close(self.fd)
        self.fd, self._map, self._elsewhere = fd, moved, path

    def tell(self, **line: Any) -> None:
        """Write a line of JSON. A line that does not fit, or that comes after close(), is dropped."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self.fd >= 0 and self._text_end + len(data) < RINGS:
                self._map[self._text_end : self._text_end + len(data)] = data
                self._text_end += len(data)

    def name(self, text: str) -> int:
        """Return the number of a name of a call or kernel."""
        with self._naming:
            number = self._names.get(text)
            if number is None:
                number = self._names[text] = len(self._names)
                self.tell(name=number, text=text)
        return number

    def add(self, ring: int, code: int, begin: int, end: int, *, thread: int = 0, address: int = 0, word: int = 0, value: int = 0) -> None:
        """Write an event of the host, unless the file is closed."""
        with self._lock:
            if self.fd < 0:
                return
            ticket = self._tickets[ring]
            self._tickets[ring] += 1
            at = RINGS + (ring * self.capacity + ticket % self.capacity) * EVENT_SIZE
            what = code | (thread & THREAD_MASK) << THREAD_SHIFT | (ticket & 0xFFFF_FFFF) << TICKET_SHIFT
            EVENT.pack_into(self._map, at, what, begin, end, NOBODY, address, 0, word, value)

    def newest(self, count: int) -> dict[int, list[tuple[int, ...]]]:
        """Return the newest events of each block, as records in the order of tickets. count: maximum number of events per block."""
        found = {}
        for block in range(BLOCK_RINGS):
            start = RINGS + (BLOCKS + block) * self.capacity * EVENT_SIZE
            if not any(self._map[start : start + _LOOKED_AT]):  # The first call may still be in progress, and has no record.
                continue
            records = [EVENT.unpack_from(self._map, start + slot * EVENT_SIZE) for slot in range(self.capacity)]
            written = sorted((record for record in records if record[BEGIN // 8]), key=lambda record: record[0] >> TICKET_SHIFT)
            found[block] = written[-count:]
        return found

    def word(self, offset: int) -> int:
        """Return a word of the file."""
        return int.from_bytes(self._map[offset : offset + 8], "little")

    def set_word(self, offset: int, value: int) -> None:
        """Set a word of the file."""
        self._map[offset : offset + 8] = value.to_bytes(8, "little")

    def close(self) -> None:
        """Stop writing, and put the file where it belongs.

        Raises:
            OSError: if there is no room for it. It stays where it is, and the path links to it.
        """
        if self.fd >= 0:
            with self._lock:
                fd, self.fd = self.fd, -1
            try:
                if self._elsewhere is not None:
                    self._copy(self.path + ".new")
                    os.replace(self.path + ".new", self.path)
                    os.unlink(self._elsewhere)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(self.path + ".new")
                raise
            finally:
                self._map.close()
                os.close(fd)

    def _copy(self, path: str) -> None:
        """Write a sparse copy."""
        with open(path, "wb") as copy:
            copy.truncate(self.nbytes)
            for at in range(0, self.nbytes, _COPIED):
                part = self._map[at : at + _COPIED]
                if any(part):
                    copy.seek(at)
                    copy.write(part)


def _remove(path: str) -> None:
    """Remove what an earlier job has left, which another process may still have mapped: also a link, and the file in memory behind it."""
    with contextlib.suppress(OSError):
        if os.path.islink(path) and os.readlink(path).startswith(f"{IN_MEMORY}/{os.path.basename(path)}-"):
            os.unlink(os.readlink(path))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def open_for_reading(path: str) -> tuple[mmap.mmap, int, int]:
    """Return the contents of a trace file, its number of rings, and the number of events of a ring.

    Raises:
        ValueError: if it is not a trace file.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < RINGS:
            raise ValueError(f"{path} is not a trace file of pgas")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, rings, capacity = _HEADER.unpack_from(data)
    if magic.rstrip(b"\0") != MAGIC or len(data) < file_size(capacity, rings):
        raise ValueError(f"{path} is not a trace file of pgas {MAGIC.split()[-1].decode()}, or is not complete")
    return data, rings, capacity


def lines(data: mmap.mmap) -> Iterator[dict[str, Any]]:
    """Yield the lines of JSON of a trace file."""
    for line in data[TEXT : data.find(b"\0", TEXT)].splitlines():
        yield json.loads(line)
