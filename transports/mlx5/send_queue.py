"""The send queue: WQEs in the slots of a ring, and functions that decode them.

``store`` and ``fetch`` handle the ring, ``decode`` the WQE: its control segment, then the segments of its opcode in order. A malformed WQE
raises a ValueError that names the field. Whether the QP may execute the WQE is not checked here.
"""

from dataclasses import dataclass

from pgas.transports.mlx5 import fields, wqe
from pgas.transports.mlx5.fields import Buffer, Table
from pgas.transports.mlx5.wqe import Ce, Fm, Opcode

# --- the ring --------------------------------------------------------------------------------------------------------------------


def _blocks(view: memoryview, wqe_idx: int, count: int) -> list[slice]:
    depth = len(view) // wqe.WQEBB
    if depth == 0 or depth & depth - 1 or len(view) % wqe.WQEBB:
        raise ValueError(f"ring: {len(view)} bytes are not 2^n WQEBBs of {wqe.WQEBB} bytes")
    if count > depth:
        raise ValueError(f"a WQE of {count} WQEBBs is longer than the ring of {depth}")
    slots = [(wqe_idx + k & depth - 1) * wqe.WQEBB for k in range(count)]
    return [slice(slot, slot + wqe.WQEBB) for slot in slots]


def store(ring: Buffer, wqe_idx: int, data: bytes) -> None:
    """Store a WQE in its slot of a ring. It wraps between WQEBBs; the rest of its last WQEBB does not change."""
    view = memoryview(ring).cast("B")
    for k, block in enumerate(_blocks(view, wqe_idx, wqe.wqebbs(-(-len(data) // wqe.OCTOWORD)))):
        part = data[k * wqe.WQEBB : (k + 1) * wqe.WQEBB]
        view[block.start : block.start + len(part)] = part


def fetch(ring: Buffer, wqe_idx: int) -> bytes:
    """Return the ds octowords of the WQE in its slot of a ring. Raises ValueError if ds is 0, or more than the ring holds."""
    view = memoryview(ring).cast("B")
    ds = fields.decode(wqe.CTRL, view[_blocks(view, wqe_idx, 1)[0]])["ds"]
    if ds == 0:
        raise ValueError(f"ctrl.ds: 0 in the WQE at index {wqe_idx}")
    return b"".join(bytes(view[block]) for block in _blocks(view, wqe_idx, wqe.wqebbs(ds)))[: ds * wqe.OCTOWORD]


# --- decoding --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """A data segment."""

    addr: int
    lkey: int
    nbytes: int


@dataclass(frozen=True)
class AtomicOperands:
    """The operands of an atomic of nbytes. A plain CS has masks of ones, a plain FA no boundary. Operands that an opcode lacks are 0."""

    nbytes: int
    add: int = 0
    field_boundary: int = 0
    compare: int = 0
    compare_mask: int = 0
    swap: int = 0
    swap_mask: int = 0


@dataclass(frozen=True)
class Wait:
    """The condition of a WAIT: a CQE by its number in its CQ."""

    max_index: int
    qpn_or_cqn: int


@dataclass(frozen=True)
class Wqe:
    """A decoded WQE; fields of segments that its opcode lacks are None or empty."""

    opcode: Opcode
    opmod: int
    wqe_idx: int  # the 16 bits on the wire
    qpn: int
    ds: int
    fm_ce_se: int
    signature: int = 0
    imm: int = 0
    raddr: int | None = None
    rkey: int | None = None
    atomic: AtomicOperands | None = None
    wait: Wait | None = None
    data: tuple[Data, ...] = ()
    inline: bytes | None = None

    @property
    def fm(self) -> int:
        """The fence mode, a value of Fm unless the WQE is malformed."""
        return self.fm_ce_se & wqe.FM_MASK

    @property
    def ce(self) -> Ce:
        """The condition under which the WQE requests a CQE."""
        return Ce(self.fm_ce_se & wqe.CE_MASK)

    @property
    def wqebbs(self) -> int:
        return wqe.wqebbs(self.ds)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.data) if self.inline is None else len(self.inline)

    def __str__(self) -> str:
        words = [f"{self.opcode.name} wqe_idx {self.wqe_idx:#06x} qpn {self.qpn:#08x} ds {self.ds} ce {self.ce.name}"]
        if self.fm:
            words.append(f"fm {fields.named(Fm, self.fm)}")
        if self.raddr is not None:
            words.append(f"raddr {self.raddr:#x} rkey {self.rkey:#x}")
        if self.atomic is not None:
            operands = {name: value for name, value in vars(self.atomic).items() if name != "nbytes"}
            words.append(f"{self.atomic.nbytes}-byte " + " ".join(f"{name} {value:#x}" for name, value in operands.items() if value))
        if self.wait is not None:
            words.append(f"CQE {self.wait.max_index} of CQ {self.wait.qpn_or_cqn:#x}")
        words += [f"{part.nbytes} bytes at {part.addr:#x} lkey {part.lkey:#x}" for part in self.data]
        if self.inline is not None:
            words.append(f"{len(self.inline)} bytes inline {self.inline.hex()}")
        return ", ".join(words)


def decode(data: Buffer) -> Wqe:
    """Decode one WQE of ds octowords; bytes after them are ignored.

    Raises:
        ValueError: the opcode has no layout here, opmod is not valid for it, or ds is too small for its segments.
    """
    raw = bytes(data)
    ctrl = fields.decode(wqe.CTRL, raw)
    ds = ctrl["ds"]
    end = ds * wqe.OCTOWORD
    if not wqe.CTRL.size <= end <= len(raw):
        raise ValueError(f"ctrl.ds: {ds} octowords, but there are {len(raw)} bytes")
    if ctrl["opcode"] not in _HAS_RADDR:
        raise ValueError(f"ctrl.opcode: {fields.named(Opcode, ctrl['opcode'])} is not defined in pgas")
    opcode = Opcode(ctrl["opcode"])
    head = dict(opcode=opcode, **{name: ctrl[name] for name in ("opmod", "wqe_idx", "qpn", "ds", "fm_ce_se", "signature", "imm")})
    if opcode == Opcode.NOP:
        return Wqe(**head)
    at = wqe.CTRL.size
    if opcode == Opcode.WAIT:
        _room(opcode, wqe.WAIT, at, end)
        return Wqe(**head, wait=Wait(**fields.decode(wqe.WAIT, raw, at)))
    if _HAS_RADDR[opcode]:
        _room(opcode, wqe.RADDR, at, end)
        head |= fields.decode(wqe.RADDR, raw, at)
        at += wqe.RADDR.size
    if opcode in _ATOMIC_OPCODES:
        if (opcode, ctrl["opmod"]) not in wqe.ATOMICS:
            raise ValueError(f"ctrl.opmod: {ctrl['opmod']:#x} does not go with {opcode.name}")
        table, nbytes = wqe.ATOMICS[opcode, ctrl["opmod"]]
        _room(opcode, table, at, end)
        head["atomic"] = _operands(opcode, nbytes, fields.decode(table, raw, at))
        at += table.size
    elif ctrl["opmod"]:
        raise ValueError(f"ctrl.opmod: {ctrl['opmod']:#x} does not go with {opcode.name}")
    if at < end and fields.decode(wqe.INLINE, raw, at)["inline_seg"]:
        head["inline"] = _inline(opcode, raw, at, end)
    else:
        head["data"] = _segments(opcode, raw, at, end)
    return Wqe(**head)


def describe(data: Buffer) -> str:
    """Return a WQE as text; if decode() rejects it, the error and its bytes."""
    try:
        return str(decode(data))
    except ValueError as error:
        return f"a WQE that cannot be decoded ({error}): {bytes(data).hex(' ', -4)}"


#: Opcodes that decode() supports, and whether a raddr segment follows the control segment.
_ATOMIC_OPCODES = frozenset(opcode for opcode, _ in wqe.ATOMICS)
_HAS_RADDR = {
    **dict.fromkeys((Opcode.NOP, Opcode.DUMP, Opcode.WAIT, Opcode.SEND, Opcode.SEND_IMM), False),
    **dict.fromkeys((Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_IMM, Opcode.RDMA_READ, *_ATOMIC_OPCODES), True),
}


def _room(opcode: Opcode, table: Table, at: int, end: int) -> None:
    if at + table.size > end:
        raise ValueError(f"ctrl.ds: {end // wqe.OCTOWORD} leaves no room for the {table.name} segment of {opcode.name}")


def _operands(opcode: Opcode, nbytes: int, segment: dict[str, int]) -> AtomicOperands:
    ones = (1 << 8 * nbytes) - 1
    if opcode == Opcode.ATOMIC_FA:
        return AtomicOperands(nbytes, add=segment["swap_add"])
    if opcode == Opcode.ATOMIC_CS:
        return AtomicOperands(nbytes, compare=segment["compare"], compare_mask=ones, swap=segment["swap_add"], swap_mask=ones)
    return AtomicOperands(nbytes, **segment)


def _inline(opcode: Opcode, raw: bytes, at: int, end: int) -> bytes:
    if opcode not in (Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_IMM, Opcode.SEND, Opcode.SEND_IMM):
        raise ValueError(f"inline.inline_seg: {opcode.name} cannot have inline data")
    count, start = fields.decode(wqe.INLINE, raw, at)["byte_count"], at + wqe.INLINE_HEADER
    if not end - wqe.OCTOWORD < start + count <= end:
        raise ValueError(f"inline.byte_count: {count} bytes do not end in the last of {end // wqe.OCTOWORD} octowords")
    return raw[start : start + count]


def _segments(opcode: Opcode, raw: bytes, at: int, end: int) -> tuple[Data, ...]:
    segments = []
    for offset in range(at, end, wqe.DATA.size):
        values = fields.decode(wqe.DATA, raw, offset)
        if values["byte_count"] & wqe.INLINE_SEG:
            raise ValueError(f"data.byte_count: {values['byte_count']:#x}, an inline segment after a data segment of {opcode.name}")
        segments.append(Data(values["addr"], values["lkey"], values["byte_count"]))
    return tuple(segments)
