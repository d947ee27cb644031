"""Functions of kernels on the state page (layout.py): they read the PE's number, check operands, record errors, and report waits.

A thread reports its wait only on request, so that a wait costs nothing but its polls. The host requests reports by setting ASKED, and a
poisoned state also does. Each waiting thread then records its wait in WAITERS when it next reads the clock. Hang reports
(pgas/job/health/hang.py) read this table.
"""

from typing import Any

from pgas.kernels import refusals, window
from pgas.kernels.compiler import constant, cpu, device, outlier, primitive, ptx, u32, u64
from pgas.kernels.operation import ELEMENT, LOCAL, NAMES
from pgas.kernels.typed import layout

#: Values of POISON, and of the first word of an entry of WAITERS.
SOUND, CLAIMED, FAILED, LOST = 0, 1, 2, 3

#: Kinds of error records that are not refusals: a wait for a word; a wait on a queue (address: its record); an error CQE (wanted: its last
#: 8 bytes, found: the 8 before). refusals.TABLE has the other kinds.
TIMED_OUT, NIC_TIMED_OUT, COMPLETION = 1, 5, 6
#: Elements that a part with a negative count or displacement needs (misfit, wanted): more than any array has.
NEGATIVE = 1 << 63
#: Shift of the axis in the comparison of an array with gaps; the bits below are the operand.
AXIS_SHIFT = 8


def _read_only(name: str, address: int, bits: int) -> Any:
    """Make a function that reads a word that no kernel changes; the address is a constant of the instruction."""
    text = f"{{ .reg .u64 a; mov.u64 a, {address:#x}; ld.global.nc.u{bits} $0, [a]; }}"
    return primitive(name, f"u{bits}()", text, lambda: cpu.read_only(address, bits // 8), pure=True)


def _fixed(name: str, nbytes: int) -> Any:
    """Make ``fixed(addr)``, which reads a word that the host wrote and no kernel changes."""
    text = f"ld.global.nc.u{8 * nbytes} $0, [$1];"
    return primitive(name, f"u{8 * nbytes}(u64)", text, lambda addr: cpu.read_only(addr, nbytes), pure=True)


fixed, fixed_u32 = _fixed("fixed", 8), _fixed("fixed_u32", 4)

my_pe = _read_only("my_pe", layout.MY_PE, 32)
n_pes = _read_only("n_pes", layout.N_PES, 32)
timeout_ns = _read_only("timeout_ns", layout.TIMEOUT_NS, 64)
heap_size = _read_only("heap_size", layout.HEAP_SIZE, 64)
_near_row = _read_only("near_row", layout.NEAR_ROW, 64)

#: ``relax(operation, address, comparison, value)``, called between two polls of a spin loop: it does nothing on a GPU, and lets other
#: threads run in the simulator. The operands describe the wait in a hang report.
relax = primitive("relax", "void(u64, u64, u64, u64)", "", lambda op, *wait: cpu.relax(NAMES[op], wait), pure=True)


def _record(addr: int, *words: int) -> None:
    for i, word in enumerate(words):
        cpu.mem.store(addr + 8 * i, word, 8)
    cpu.mem.store(cpu.mem.load(layout.HOST_WORDS, 8) + layout.ALARM, addr, 8)


#: Ten operands: the address, and the words of the record in their order. ALARM is then set to the address.
_store_record = primitive(
    "store_record", "void(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64)",
    "{ .reg .u64 a; st.relaxed.sys.global.v2.u64 [$0], {$1, $2}; st.relaxed.sys.global.v2.u64 [$0+16], {$3, $4};"
    " st.relaxed.sys.global.v2.u64 [$0+32], {$5, $6}; st.relaxed.sys.global.v2.u64 [$0+48], {$7, $8};"
    f" st.relaxed.sys.global.u64 [$0+64], $9; mov.u64 a, {layout.HOST_WORDS:#x};"
    f" ld.relaxed.sys.global.u64 a, [a]; st.relaxed.sys.global.u64 [a+{layout.ALARM}], $0; }}",
    _record,
)  # fmt: skip

_SOUND, _CLAIMED, _FAILED = constant(SOUND), constant(CLAIMED), constant(FAILED)


@device
def fail(kind, op, pe, addr, wanted, found, comparison):
    """Record an error, unless there already is one, and poison the state. Waits then return immediately, so that kernels end."""
    if ptx.atom_cas_sys_u64(layout.POISON, _SOUND, _CLAIMED) == _SOUND:
        _store_record(layout.ERROR, kind, op, u64(pe), addr, wanted, found, comparison, ptx.block_rank(), ptx.thread_rank())
        ptx.st_release_sys_u64(layout.POISON, _FAILED)
        ptx.failed()


_0, _WAITERS = constant(0), constant(layout.WAITERS + layout.WAITER_STATE)
_SEAT_MASK, _WAITER_SHIFT = int(layout.N_WAITERS) - 1, int(layout.WAITER_SIZE).bit_length() - 1


#: Mask of the poll count of waits: to keep polling fast, the clock and the poison word are read only once every 64 polls.
POLLS_MASK = 63


@device
def given_up(kind, op, addr, comparison, wanted, found, deadline):
    """Whether a wait must end without its condition: the state is poisoned, or the deadline has passed, which poisons it.

    The wait is recorded if it is the first to time out, if the host requests reports, or if the state is poisoned.
    """
    poison, asked = ptx.ld_relaxed_sys_pair(layout.POISON)
    late = ptx.globaltimer() >= deadline
    if not late and poison | asked == _0:
        return False
    own = _WAITERS + u64((ptx.seat() & _SEAT_MASK) << _WAITER_SHIFT)
    word = layout.POISON if poison == _SOUND and late else own
    taken = ptx.atom_cas_sys_u64(word, _0, _CLAIMED)
    if taken != _0 and word != own:  # another thread was the first to time out
        word = own
        taken = ptx.atom_cas_sys_u64(word, _0, _CLAIMED)
    if taken == _0:
        overdue = u64(ptx.globaltimer() - deadline)  # reading the clock again takes fewer registers
        _store_record(word + layout.WAITER_RECORD, kind, op, overdue, addr, wanted, found, comparison, ptx.block_rank(), ptx.thread_rank())
        ptx.st_release_sys_u64(word, _FAILED)
        ptx.failed()
    return ptx.ld_relaxed_sys_u64(layout.POISON) != _SOUND


_BASE, _HEAP_OFFSET = constant(window.BASE), constant(window.HEAP_OFFSET)


_2, _5, _31, _32 = constant(2), constant(5), constant(31), constant(32)


@device
def near(pe):
    """Whether PE pe and this PE map each other's memory, in a job with two transports."""
    if window.NEAR_IN_ROW:
        row = _near_row()
        return u32(u32(pe) - u32(row)) < u32(row >> _32)
    return fixed_u32(layout.NEAR_BITS + (u64(pe) >> _5 << _2)) >> u32(u64(pe) & _31) & 1 != 0


_NO_SUCH_PE, _NOT_SYMMETRIC = constant(refusals.kind_of("no such PE")), constant(refusals.kind_of("not symmetric"))


@device
def valid_pe(op, pe, addr, nbytes):
    """Check that PE pe exists. If not, return False and poison the state. addr, nbytes: those of the operand, if there is one."""
    if u64(pe) >= u64(n_pes()):
        fail(_NO_SUCH_PE, u64(op), u64(pe), addr, nbytes, _0, _0)
        return False
    return True


@device
def _valid(op, pe, addr, nbytes, operand):
    if not valid_pe(op, pe, addr, nbytes):
        return False
    n = u64(n_pes())
    # On a GPU, these wrap: an address below BASE gives a slot far above n, and one below the heap an offset far above its size. Python's
    # integers become negative instead.
    offset = (addr & window.OFFSET_MASK) - _HEAP_OFFSET
    slot = (addr - _BASE) >> window.SHIFT
    size = heap_size()
    if slot >= n or slot < _0 or offset > size or offset < _0 or nbytes > size - offset:
        fail(_NOT_SYMMETRIC, u64(op), u64(pe), addr, nbytes, _0, operand)
        return False
    return True


@device
def valid(op, pe, addr, nbytes):
    """Check that PE pe exists and [addr, addr + nbytes) is on a slot's heap. If not, return False and poison the state."""
    return _valid(op, pe, addr, nbytes, _0)


_NO_SUCH_ELEMENT, _NO_SUCH_CODE = constant(refusals.kind_of("no such element")), constant(refusals.kind_of("no such code"))
_LOCAL, _ELEMENT = constant(LOCAL), constant(ELEMENT)


@device
def valid_local(op, pe, addr, nbytes):
    """valid() for the operation's other array."""
    return _valid(op, pe, addr, nbytes, _LOCAL)


@device
def valid_element(op, pe, array, idx, addr, nbytes):
    """Check that the array has an element idx, whose address is addr, and valid()."""
    beyond = outlier(array, idx)
    if beyond[0] >= beyond[1]:
        fail(_NO_SUCH_ELEMENT, u64(op), u64(pe), addr, beyond[0], beyond[1], beyond[2])
        return False
    return _valid(op, pe, addr, nbytes, _ELEMENT)


@device
def valid_code(op, pe, addr, code, count):
    """Check that the op of a signal or the cmp of a wait is 0 to count - 1. If not, return False and poison the state."""
    if u64(code) >= u64(count):
        fail(_NO_SUCH_CODE, u64(op), u64(pe), addr, u64(code), u64(count), _0)
        return False
    return True


_NO_SUCH_QUEUE_PAIR = constant(refusals.kind_of("no such queue pair"))


@device
def valid_queue(op, pe, qp, count):
    """Check that the number of a queue pair is 0 to count. If not, return False and poison the state."""
    if u64(qp) > u64(count):
        fail(_NO_SUCH_QUEUE_PAIR, u64(op), u64(pe), _0, u64(qp), u64(count), _0)
        return False
    return True
