"""The words that kernels share with the host, other PEs, or the proxy thread: offset, width, writers, and readers of each.

* The *state page*: per-PE data in private memory, at the same address on every PE (``window.STATE``). No peer maps it.
* *Team memory*: directly below the heap in every slot. Peers write it.
* The ring of ibrc's proxy thread, in host memory.

Kernels and the host take addresses and offsets only from this module. A test checks that no two words overlap, and that exactly the
declared sides use each word.
"""

import struct
from dataclasses import dataclass, field
from enum import Flag, auto

from pgas.base import events, launcher
from pgas.kernels import window


class Who(Flag):
    """A side that writes or reads a word."""

    HOST = auto()  #: this PE's process
    KERNELS = auto()  #: this PE's kernels
    PEERS = auto()  #: other PEs' kernels, or the NIC on their behalf


HOST, KERNELS, PEERS = Who
BOTH = HOST | KERNELS


#: Default width of a word in bytes.
WORD = 8

REGIONS: list["Region"] = []


@dataclass(frozen=True)
class Word:
    """A word, or a row of ``count`` of them, each ``width`` bytes wide."""

    name: str
    address: int
    width: int
    count: int
    writers: Who
    readers: Who

    @property
    def end(self) -> int:
        """The address just past it."""
        return self.address + self.width * self.count


@dataclass
class Region:
    """A region of memory and the words in it. Addresses in a region with base 0 are offsets."""

    name: str
    base: int
    nbytes: int
    words: list[Word] = field(default_factory=list)

    def __post_init__(self) -> None:
        REGIONS.append(self)

    def word(self, name: str, offset: int, writers: Who, readers: Who, *, width: int = WORD, count: int = 1) -> int:
        """Declare a word and return its address."""
        self.words.append(Word(name, self.base + offset, width, count, writers, readers))
        return self.base + offset


# The error record ---------------------------------------------------------------------------------------------------------------

#: The state of the record (such as state.SOUND) is the word before it. The record has the kind, operation, PE (for a wait: the nanoseconds
#: since its deadline), address, wanted (for a timeout: the value compared with; otherwise a number of bytes or elements), found, comparison
#: (for a rejected operand: its number in operation.py), block, and thread.
ERROR_RECORD = struct.Struct("<9Q")

_waiter = Region("entry of WAITERS", 0, 128)
WAITER_STATE = _waiter.word("WAITER_STATE", 0, BOTH, BOTH)
WAITER_RECORD = _waiter.word("WAITER_RECORD", 16, KERNELS, HOST, count=9)
WAITER_SIZE = _waiter.nbytes

# Registered memory (pgas.register): memory outside the heap that the NIC can access ------------------------------------------------

_piece = Region("entry of REGISTERED", 0, 32)
PIECE_START = _piece.word("PIECE_START", 0, HOST, KERNELS)  #: if both are 0, the entry is free
PIECE_END = _piece.word("PIECE_END", 8, HOST, BOTH)
PIECE_LKEY = _piece.word("PIECE_LKEY", 16, HOST, BOTH)  #: big-endian; ibgda
PIECE_SIZE = _piece.nbytes

# The record of a queue pair: what the host writes at init, then the cursors, each in its own sector -------------------------------------

_queue = Region("entry of RECORDS", 0, 256)
WQ = _queue.word("WQ", 0, HOST, BOTH)
DBR = _queue.word("DBR", 8, HOST, BOTH)
UAR = _queue.word("UAR", 16, HOST, BOTH)
CQE = _queue.word("CQE", 24, HOST, BOTH)  #: the last 8 bytes of the CQE (mlx5.cqe.CQE_TAIL)
QPN = _queue.word("QPN", 32, HOST, BOTH)  #: big-endian, as in a control segment
FIRST_IDX = _queue.word("FIRST_IDX", 40, HOST, KERNELS)  #: initial value of the cursors
RESV_HEAD = _queue.word("RESV_HEAD", 64, BOTH, BOTH)
READY_HEAD = _queue.word("READY_HEAD", 96, BOTH, BOTH)
RUNG_IDX = _queue.word("RUNG_IDX", 104, BOTH, BOTH)  #: index up to which the doorbell has been rung; written by the ringing thread
CONS_IDX = _queue.word("CONS_IDX", 128, BOTH, BOTH)
RECORD_SIZE = _queue.nbytes

CURSORS = (FIRST_IDX, RESV_HEAD, READY_HEAD, RUNG_IDX, CONS_IDX)

#: Maximum number of PEs in a job.
MAX_PES = launcher.MAX_PES

#: Bit in READY_HEAD: a thread is ringing the doorbell and will also ring for WQEs that become ready in the meantime.
RINGING = 1 << 63

# The state page --------------------------------------------------------------------------------------------------------------------

_page = Region("state page", window.STATE, window.STATE_SIZE)
MY_PE = _page.word("MY_PE", 0, HOST, KERNELS)
N_PES = _page.word("N_PES", 8, HOST, BOTH)
TIMEOUT_NS = _page.word("TIMEOUT_NS", 16, HOST, KERNELS)  #: maximum duration of a wait
HEAP_SIZE = _page.word("HEAP_SIZE", 24, HOST, KERNELS)  #: bytes of heap after window.HEAP_OFFSET
NEAR_ROW = _page.word("NEAR_ROW", 32, HOST, KERNELS)  #: first PE that maps this PE's memory; upper 32 bits: number of such PEs
HOST_WORDS = _page.word("HOST_WORDS", 40, HOST, KERNELS)  #: address of ALARM
REGISTERED_END = _page.word("REGISTERED_END", 56, HOST, BOTH)  #: address just past the last entry of REGISTERED ever used
ALL_EPOCH = _page.word("ALL_EPOCH", 64, BOTH, KERNELS)  #: number of the last barrier_all or sync_all of this PE's kernels
POISON = _page.word("POISON", 128, BOTH, BOTH)  #: state.SOUND, CLAIMED while a thread writes ERROR, then FAILED; LOST: the host has aborted
ASKED = _page.word("ASKED", 136, HOST, KERNELS)  #: nonzero: the host requests reports of waits
ERROR = _page.word("ERROR", 144, KERNELS, HOST, count=9)  #: the record of the first error (ERROR_RECORD)
NEAR_BITS = _page.word("NEAR_BITS", 1024, HOST, KERNELS, width=4, count=MAX_PES // 32)  #: one bit per PE: it maps this PE's memory

# For the NIC transports.
LKEY = _page.word("LKEY", 4096, HOST, BOTH)  #: of the heap, big-endian
CELL_LKEY = _page.word("CELL_LKEY", 4104, HOST, BOTH)  #: of the landing cells, big-endian
CELLS = _page.word("CELLS", 4112, HOST, BOTH)  #: address of the first landing cell; SINK follows the last
USED_END = _page.word("USED_END", 4120, HOST, KERNELS)  #: end of the words of USED that have queue pairs
CONTROL = _page.word("CONTROL", 4128, HOST, KERNELS)  #: address of ibrc's control line
CELL_TICKET = _page.word("CELL_TICKET", 4160, BOTH, KERNELS)  #: next landing cell to try
LANDS = _page.word("LANDS", 4192, KERNELS, KERNELS)  #: nonzero: quiet() must settle NIC writes to this PE's memory
USED_WORDS = 120
USED = _page.word("USED", 4224, BOTH, KERNELS, count=USED_WORDS)  #: one bit per queue pair: kernels have used it
RING_HEAD = _page.word("RING_HEAD", 5248, BOTH, BOTH)  #: number of requests reserved in ibrc's ring
RING_SEEN = _page.word("RING_SEEN", 5280, BOTH, KERNELS)  #: the value last read from COMPLETED
RING_LOOKING = _page.word("RING_LOOKING", 5312, BOTH, KERNELS)  #: nonzero: a thread is reading COMPLETED
#: Numbers of events that blocks have begun to write (trace.py), each in its own sector.
TRACE_HEAD_SIZE = 32
N_CELLS = 256
CELL_TAKEN = _page.word("CELL_TAKEN", 6144, BOTH, BOTH, count=N_CELLS)  #: number of lanes that still hold a landing cell
KEY_SIZE = 4
KEYS = _page.word("KEYS", 8192, HOST, BOTH, width=KEY_SIZE, count=MAX_PES)  #: the rkey of each PE's team memory and heap, big-endian
MAX_QUEUES = USED_WORDS * 64
_RECORDS = 8192 + KEY_SIZE * MAX_PES
RECORDS = _page.word("RECORDS", _RECORDS, BOTH, BOTH, width=RECORD_SIZE, count=MAX_QUEUES)

# Teams. The host writes an entry when it makes a team, and zeroes it when it destroys it.
_team = Region("entry of TEAMS", 0, 64)
TEAM_SIZE = _team.word("TEAM_SIZE", 0, HOST, KERNELS, width=4)  #: number of members; 0 if there is no such team or this PE is not a member
TEAM_RANK = _team.word("TEAM_RANK", 4, HOST, KERNELS, width=4)  #: this PE's number in the team
TEAM_LIST = _team.word("TEAM_LIST", 16, HOST, KERNELS)  #: address of the members' PEs, 4 bytes each
TEAM_CHANNELS = _team.word("TEAM_CHANNELS", 24, HOST, KERNELS)  #: address of channel 0
CHANNEL_BYTES = _team.word("CHANNEL_BYTES", 32, HOST, KERNELS, width=4)  #: distance between channels
CHANNEL_COUNT = _team.word("CHANNEL_COUNT", 36, HOST, KERNELS, width=4)  #: number of channels for callers; the host's follow
STAGING_OFFSET = _team.word("STAGING_OFFSET", 40, HOST, KERNELS, width=4)  #: from a channel to its staging
TEAM_NEAR = _team.word("TEAM_NEAR", 44, HOST, KERNELS, width=4)  #: 1: every member maps every member's memory
TEAM_PER_MACHINE = _team.word("TEAM_PER_MACHINE", 48, HOST, KERNELS, width=4)  #: members on each node if the team is regular; otherwise 0
TEAM_ENTRY = _team.nbytes
MAX_TEAMS = 128
TEAMS = _page.word("TEAMS", _RECORDS + RECORD_SIZE * MAX_QUEUES, HOST, KERNELS, width=TEAM_ENTRY, count=MAX_TEAMS)

TRACE_HEADS = _page.word(
    "TRACE_HEADS", TEAMS - window.STATE + TEAM_ENTRY * MAX_TEAMS, KERNELS, KERNELS, width=TRACE_HEAD_SIZE, count=events.BLOCK_RINGS
)

# At the end of the page.
N_WAITERS, N_REGISTERED = 256, 256
_REGISTERED = _page.nbytes - N_REGISTERED * PIECE_SIZE
_WAITERS = _REGISTERED - N_WAITERS * WAITER_SIZE
#: Table of waiting threads. The host empties it before it requests reports. On a collision, the later thread is not recorded.
WAITERS = _page.word("WAITERS", _WAITERS, BOTH, BOTH, width=WAITER_SIZE, count=N_WAITERS)
REGISTERED = _page.word("REGISTERED", _REGISTERED, HOST, BOTH, width=PIECE_SIZE, count=N_REGISTERED)

# Words in the host's memory (Memory.host_words), which the host reads without a copy from the GPU --------------------------------------

N_RESULTS, RESULT_SIZE = 256, 16
_words = Region("words in host memory", 0, 8192)
ALARM = _words.word("ALARM", 0, BOTH, HOST)  #: nonzero: a kernel, or the host, has changed POISON or an entry of WAITERS
#: Results of kernels that the host calls for a value; the slots are used in rotation.
RESULTS = _words.word("RESULTS", 128, KERNELS, HOST, width=RESULT_SIZE, count=N_RESULTS)
HOST_WORDS_SIZE = _words.nbytes

# Landing cells, in memory that the NIC can access. For ibrc over verbs they are outside the heap, so that the page holds their address.
CELL_SIZE = 512  #: one element of 16 bytes per lane of a warp
SINK = N_CELLS * CELL_SIZE  #: after the last cell: where atomics write old values that are not used

# Team memory: channels, each with a head, one row per member, and staging in two halves, with one part per member -----------------

_channel = Region("channel of a team", 0, 128)
EPOCH = _channel.word("EPOCH", 0, BOTH, KERNELS)  #: number of the last collective
ONE_SIDED = _channel.word("ONE_SIDED", 8, BOTH, KERNELS)  #: number of the last one-sided collective (channel.py)
TURN = _channel.word("TURN", 16, KERNELS, KERNELS)  #: 1 while a thread has its turn (channel.take_turn)
CHANNEL_HEAD = _channel.nbytes

# Over a NIC, either flag() alone or put_signal() alone writes a word: they may post to different queue pairs, whose writes to one word are
# not ordered. A collective ends after its put_signal() is complete.
_row = Region("row of a member in a channel", 0, 64)
ARRIVED = _row.word("ARRIVED", 0, PEERS, KERNELS)  #: epoch that this member has reached; written by flag()
DONE = _row.word("DONE", 8, PEERS, KERNELS)  #: last collective for which it has sent everything
ACKED = _row.word("ACKED", 16, PEERS, KERNELS)  #: last one-sided collective that it has left; written by flag()
CHUNK = _row.word("CHUNK", 24, PEERS, KERNELS)  #: collective << CHUNK_SHIFT, plus the number of its chunks sent
SENT = _row.word("SENT", 32, PEERS, KERNELS)  #: last collective for which it has written its part of staging, over a NIC
CALLS = _row.word("CALLS", 48, PEERS | KERNELS, BOTH, count=2)  #: calls of a neighbor; in the own row, of this PE (comparison.py)
ROW_SIZE = _row.nbytes
CHUNK_SHIFT = 20

#: First of the channel numbers for calls on the host, whose memory follows the other channels, and the maximum number of them. Unlike -1,
#: these numbers are unlikely to be passed by mistake. ``HOST_CHANNEL + (call << CALL_SHIFT)`` also has the call of which the members are
#: compared (collectives/comparison.py), of at most CALL_BITS bits.
HOST_CHANNEL, MAX_HOST_CHANNELS, CALL_SHIFT, CALL_BITS = -(1 << 62), 1024, 10, 48

#: Rows of barrier_all and sync_all, one per PE, directly below the heap, so that their addresses are constants in compiled code.
_all = Region("rows of all PEs", window.HEAP_OFFSET - MAX_PES * ROW_SIZE, MAX_PES * ROW_SIZE)
ALL_ROWS = _all.word("ALL_ROWS", 0, PEERS | HOST, BOTH, width=ROW_SIZE, count=MAX_PES)
ALL_ROWS_BYTES = _all.nbytes

# The ring of ibrc -----------------------------------------------------------------------------------------------------------------

_control = Region("control line of the ring", 0, 128)
COMPLETED = _control.word("COMPLETED", 0, HOST, BOTH)  #: number of requests that have completed
FAILED_QUEUE = _control.word("FAILED_QUEUE", 8, HOST, BOTH)  #: 0, or the record of the queue pair whose WQE failed
RING = _control.nbytes  #: the requests follow it

_request = Region("request", 0, 64)
WHAT = _request.word("WHAT", 0, KERNELS, HOST)
NBYTES = _request.word("NBYTES", 8, KERNELS, HOST)
LOCAL = _request.word("LOCAL", 16, KERNELS, HOST)  #: local address; 0 for an atomic that does not return a value
REMOTE = _request.word("REMOTE", 24, KERNELS, HOST)
VALUE = _request.word("VALUE", 32, KERNELS, HOST)
SECOND = _request.word("SECOND", 40, KERNELS, HOST)
SEQUENCE = _request.word("SEQUENCE", 56, KERNELS, HOST)  #: ticket + 1: the request is written
REQUEST_SIZE = _request.nbytes
REQUEST_SHIFT = REQUEST_SIZE.bit_length() - 1

#: WHAT: a codes.Request in the low byte, flags, the number of the queue pair, and the location of local. LANDING: local is in a landing
#: cell. Above LOCAL_SHIFT: i + 1 if local is in entry i of REGISTERED; 0 if, like remote, it is on the heap or in team memory.
OPERATION_MASK, LANDING, NUMBER_SHIFT, NUMBER_MASK, LOCAL_SHIFT = 0xFF, 1 << 8, 16, 0xFFFF, 32
