"""The objects of PEs on the software NIC, and the calls that are not commands: protection domains, UMEMs, memory regions, and UARs.

Every object belongs to one PE and does not exist for the others. An object that is in use by another one cannot be destroyed.
"""

import secrets
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from pgas.transports.memory.protocol import Memory
from pgas.transports.mlx5.contexts import Access, mkey
from pgas.transports.mlx5.doorbell import UAR_BF_BUFFER_SIZE, UAR_BF_OFFSET, UAR_BF_REGISTERS, UAR_WORD, UarType
from pgas.transports.mlx5.fields import decode
from pgas.transports.softhca import layout
from pgas.transports.softhca.tables import LOCAL_READ, SHARED, Tables

#: Number of the predefined event queue, like that of the kernel driver (mlx5dv_devx_query_eqn).
EQN = 7


class RequestRefused(Exception):
    """The software NIC refuses a PE's request; the text is for the PE."""


@dataclass
class Owned:
    """Any object."""

    pe: int
    users: int = 0  #: number of objects that use this one


@dataclass
class Umem(Owned):
    """User memory."""

    address: int = 0
    nbytes: int = 0
    page_size: int = layout.UMEM_PAGE_SIZE  #: alignment of objects in it, except doorbell records


@dataclass
class Borrowed(Umem):
    """Memory that a PE has lent."""

    mapped: int = 0  #: the engine's address of the byte at address


#: Number of buffers in a page of BlueFlame registers, of which each has two that its QP rings alternately.
_BF_BUFFERS = 2 * UAR_BF_REGISTERS


@dataclass
class UarPage(Owned):
    """A UAR, and the QPs of its registers."""

    kind: UarType = UarType.NC
    qpns: list[int] = field(default_factory=list)

    def full(self, *, shared: bool) -> bool:
        """Whether there is no register for another QP. shared: whether the engine allows QPs to share one of type NC."""
        return len(self.qpns) == UAR_BF_REGISTERS if self.kind == UarType.BF else bool(self.qpns) and not shared

    @property
    def buffers(self) -> int:
        """Return QP_BUFFERS of another QP here: number of buffers, SHARED if it shares its register, 0 if it has its own."""
        if self.kind == UarType.BF:
            return _BF_BUFFERS
        return SHARED if self.qpns else 0


@dataclass
class Key(Owned):
    """A memory key."""

    row: int = 0
    pd: Owned | None = None
    umem: Owned | None = None  #: or its lent memory
    parts: list["Key"] = field(default_factory=list)  #: those of an indirect key


@dataclass
class Numbers:
    """The rows of a table, and the number of uses of each. The lowest free row is taken first."""

    count: int
    used: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    high: int = 0

    def draw(self, reserved: int = 0) -> int | None:
        """Return a random free row that was never used, otherwise that of take()."""
        for _ in range(64):
            row = reserved + secrets.randbelow(self.count - reserved)
            if row not in self.used:
                self.used[row] = 1
                return row
        return self.take(reserved)

    def take(self, reserved: int = 0) -> int | None:
        """Return a free row, None if there is none. Rows below reserved are never returned."""
        if self.free:
            row = min(self.free)
            self.free.remove(row)
        elif max(self.high, reserved) < self.count:
            row = max(self.high, reserved)
            self.high = row + 1
            if row in self.used:  # drawn before
                return self.take(reserved)
        else:
            return None
        self.used[row] = self.used.get(row, 0) + 1
        return row

    def generation(self, row: int, bits: int) -> int:
        """Return a number from 1 to 2^bits - 1, other than that of the row's previous user."""
        return (self.used[row] - 1) % ((1 << bits) - 1) + 1


class Objects:
    """The objects of all PEs of one software NIC."""

    def __init__(self, tables: Tables, registers: Memory, *, on_host: bool = False, secret_keys: bool = False) -> None:
        self.tables, self._registers, self.on_host = tables, registers, on_host  # on_host: whether CPUs ring the registers
        self._secret_keys = secret_keys  # whether all bits of keys are random, because others can send packets to the card
        self.segments: dict[int, list[tuple[int, int]]] = {}
        self.pds: dict[int, Owned] = {}
        self.umems: dict[int, Umem] = {}
        self.borrowed: dict[int, Borrowed] = {}
        self.uars: dict[int, UarPage] = {}
        self.keys: dict[int, Key] = {}
        self.refuses_chunks = False  #: whether a memory region may not span several segments; a fault sets it
        self._key_rows = Numbers(1 << layout.LOG_MAX_MKEY)
        self._uar_pages = Numbers(1 << layout.LOG_MAX_UAR)
        self._next = 0x10

    def _number(self) -> int:
        self._next += 1
        return self._next

    # ----------------------------------------------------------------------------------------------------------------- memory

    def share(self, pe: int, address: int, nbytes: int) -> None:
        """Record memory of a PE that the server has mapped at the PE's address."""
        self.segments.setdefault(pe, []).append((address, nbytes))

    def unshare(self, pe: int, address: int, nbytes: int) -> None:
        if (address, nbytes) not in self.segments.get(pe, ()):
            raise RequestRefused(f"PE {pe} has not shared {nbytes} bytes at {address:#x}")
        regions = [(umem.address, umem.nbytes) for umem in self.umems.values() if umem.pe == pe]
        for entry in (key for key in self.keys.values() if key.pe == pe):
            row = self.tables.mkeys[entry.row]
            regions.append((int(row["address"]), int(row["nbytes"])))
        if users := sum(start < address + nbytes and address < start + size for start, size in regions):
            raise RequestRefused(f"{nbytes} bytes at {address:#x} are in use by {users} object(s): destroy them first")
        self.segments[pe].remove((address, nbytes))

    def borrow(self, pe: int, address: int, nbytes: int, mapped: int) -> int:
        """Record memory of a PE that the server has mapped at another address; return its number."""
        self.borrowed[number := self._number()] = Borrowed(pe, 0, address, nbytes, mapped=mapped)
        return number

    def give_back(self, pe: int, number: int) -> None:
        self._forget(self.borrowed, pe, number, "lent memory")

    def _lender(self, pe: int, address: int, nbytes: int) -> Borrowed | None:
        """Return the newest lent memory of a PE that contains a range; None if PE and software NIC have it at the same address."""
        found = [b for b in self.borrowed.values() if b.pe == pe and b.address <= address and address + nbytes <= b.address + b.nbytes]
        return found[-1] if found else None

    def check_memory(self, pe: int, address: int, nbytes: int, what: str) -> None:
        """Reject memory that the PE has not shared; adjacent shared pieces count as one range."""
        reached = address
        for start, size in sorted(self.segments.get(pe, ())):
            if start <= reached:
                reached = max(reached, start + size)
        if nbytes < 1 or reached < address + nbytes:
            raise RequestRefused(f"{what}: {nbytes} bytes at {address:#x} are not memory of PE {pe} that the software NIC can access")

    def register_umem(self, pe: int, address: int, nbytes: int, page_size: int = layout.UMEM_PAGE_SIZE) -> int:
        """Return the id of a new UMEM, like CREATE_UMEM with an mtt of pages of this size."""
        self.check_memory(pe, address, nbytes, "register_umem")
        if page_size < layout.UMEM_PAGE_SIZE or page_size & page_size - 1:
            raise RequestRefused(f"register_umem: page_size must be a power of two of at least {layout.UMEM_PAGE_SIZE}, not {page_size}")
        self.umems[number := self._number()] = Umem(pe, 0, address, nbytes, page_size)
        return number

    def deregister_umem(self, pe: int, umem_id: int) -> None:
        self._forget(self.umems, pe, umem_id, "umem")

    # --------------------------------------------------------------------------------------------------- protection domains, UARs

    def alloc_pd(self, pe: int) -> int:
        self.pds[number := self._number()] = Owned(pe)
        return number

    def dealloc_pd(self, pe: int, pdn: int) -> None:
        self._forget(self.pds, pe, pdn, "protection domain")

    def alloc_uar(self, pe: int, kind: UarType = UarType.NC) -> int:
        """Return the number of a new UAR page with a clear register.

        kind: BF has registers for two QPs. They are not assigned, because the doorbell has the QPN.
        """
        page = self._uar_pages.take(reserved=1)
        if page is None:
            raise RequestRefused(f"alloc_uar: all {(1 << layout.LOG_MAX_UAR) - 1} UARs are in use")
        self.uars[page] = UarPage(pe, kind=kind)
        self.clear_register(page)
        return page

    def dealloc_uar(self, pe: int, page: int) -> None:
        self._forget(self.uars, pe, page, "UAR")
        self._uar_pages.free.append(page)

    @staticmethod
    def register(page: int) -> int:
        return layout.page_address(page) + UAR_BF_OFFSET

    def clear_register(self, page: int, qpn: int | None = None) -> None:
        """Discard the pending doorbell of a QP, or of any QP."""
        for buffer in range(_BF_BUFFERS if self.uars[page].kind == UarType.BF else 1):
            address = self.register(page) + buffer * UAR_BF_BUFFER_SIZE
            if (
                qpn is None
                or self.uars[page].kind != UarType.BF
                or decode(UAR_WORD, self._registers.read(address, UAR_WORD.size))["qpn"] == qpn
            ):
                self._registers.write(address, bytes(UAR_WORD.size))

    @staticmethod
    def _forget(objects: dict, pe: int, number: int, what: str) -> None:
        if number not in objects or objects[number].pe != pe:
            raise RequestRefused(f"PE {pe} has no {what} {number:#x}")
        if objects[number].users:
            raise RequestRefused(f"{what} {number:#x} is in use by {objects[number].users} object(s): destroy them first")
        del objects[number]

    # ------------------------------------------------------------------------------------------------------------------- keys

    def register_mr(self, pe: int, address: int, nbytes: int, pdn: int, access: int) -> int:
        """Return the key of a new memory region, like ibv_reg_mr."""
        lender = self._lender(pe, address, nbytes)
        if lender is None:
            self.check_memory(pe, address, nbytes, "register_mr")
            whole = any(start <= address and address + nbytes <= start + size for start, size in self.segments[pe])
            if self.refuses_chunks and not whole:
                raise RequestRefused(f"register_mr: {nbytes} bytes at {address:#x} are several pieces of memory, which a fault forbids")
        if pdn not in self.pds or self.pds[pdn].pe != pe:
            raise RequestRefused(f"register_mr: PE {pe} has no protection domain {pdn:#x}")
        if access & ~sum(Access):
            raise RequestRefused(f"register_mr: access {access:#x} has bits outside {sum(Access):#x}")
        if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC) and not access & Access.LOCAL_WRITE:
            raise RequestRefused("register_mr: REMOTE_WRITE and REMOTE_ATOMIC require LOCAL_WRITE (ibv_reg_mr(3))")
        where = address if lender is None else lender.mapped + address - lender.address
        key = self.add_key(pe, self.pds[pdn], pdn, access | LOCAL_READ, address, nbytes, where, lender, None)
        if key is None:
            raise RequestRefused(f"register_mr: all {(1 << layout.LOG_MAX_MKEY) - 1} memory keys are in use")
        return key

    def add_key(
        self,
        pe: int,
        pd: Owned,
        pdn: int,
        access: int,
        start: int,
        nbytes: int,
        address: int,
        umem: Owned | None,
        variant: int | None,
        parts: Sequence[Key] = (),
    ) -> int | None:
        """Publish a key to the engine; return None if none is free.

        variant: mkey_7_0; if None, it is chosen like in the kernel driver. parts: keys to which the key refers.

        As on a ConnectX, the index of a destroyed key is reused, and an old key with the same mkey_7_0 would access the new memory. The
        kernel therefore increments mkey_7_0, which repeats after 255 uses of the index.
        """
        # Row 0 is reserved, because find_key returns it if there is no such key.
        row = self._key_rows.draw(reserved=1) if self._secret_keys else self._key_rows.take(reserved=1)
        if row is None:
            return None
        index, number = row, self._key_rows.generation(row, 8)
        if self._secret_keys:
            index, number = row | secrets.randbits(24 - layout.LOG_MAX_MKEY) << layout.LOG_MAX_MKEY, secrets.randbits(8)
        key = mkey(index, number if variant is None else variant)
        record = self.tables.mkeys[row]
        record["pe"], record["pd"], record["access"] = pe, pdn, access
        record["start"], record["nbytes"], record["address"] = _signed(start), nbytes, address
        self.tables.publish_key(row, key)
        self.keys[key] = Key(pe, 0, row, pd, umem, list(parts))
        pd.users += 1
        for used in (*parts, *([] if umem is None else [umem])):
            used.users += 1
        return key

    def remove_keys(self, removed: list[int]) -> None:
        """Invalidate keys; afterwards no WQE uses them."""
        for key in removed:
            self.tables.publish_key(self.keys[key].row, 0)
        self.tables.wait_for_engine()
        for key in removed:
            entry = self.keys.pop(key)
            self._key_rows.free.append(entry.row)
            if entry.pd is not None:
                entry.pd.users -= 1
            for used in (*entry.parts, *([] if entry.umem is None else [entry.umem])):
                used.users -= 1

    def deregister_mr(self, pe: int, key: int) -> None:
        if key not in self.keys or self.keys[key].pe != pe:
            raise RequestRefused(f"PE {pe} has no memory region with key {key:#x}")
        if users := self.keys[key].users:
            raise RequestRefused(f"memory region {key:#x} is in use by {users} object(s): destroy them first")
        self.remove_keys([key])

    def leave(self, pes: Set[int]) -> None:
        """Forget all objects of some PEs, whose QPs and CQs have been destroyed."""
        self.remove_keys([key for key, entry in self.keys.items() if entry.pe in pes])
        for objects in (self.pds, self.umems, self.borrowed):
            for number in [n for n, entry in objects.items() if entry.pe in pes]:  # type: ignore[attr-defined]
                del objects[number]  # type: ignore[attr-defined]
        for page in [n for n, entry in self.uars.items() if entry.pe in pes]:
            del self.uars[page]
            self._uar_pages.free.append(page)
        for pe in pes:
            self.segments.pop(pe, None)


def _signed(value: int) -> int:
    """Return 64 bits as an int64, like in the tables."""
    return value - (1 << 64) if value >> 63 else value
