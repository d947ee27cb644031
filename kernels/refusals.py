"""The table of refusals: what is refused, by which transports, and when; the message; and the form in which kernels record it.

The messages come from here, and the documentation's table is made from it (``TABLE``).
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NoReturn

from pgas.kernels.codes import SignalOp
from pgas.kernels.compiler import KernelTypeError


class When(Enum):
    """When a program gets the error, and how."""

    COMPILED = "TypingError when the kernel is compiled (in the simulator: TypeError at the first call with these types)"
    CHECKED = "DeviceError on the host after the kernel ran, under PGAS_DEBUG=check and in the simulator"
    RUN = "error on the host after the kernel ran"


@dataclass(frozen=True)
class Refusal:
    """A row of the table."""

    what: str  #: what a program requested
    when: When
    message: str  #: names in braces are filled in
    transports: tuple[str, ...] = ("p2p", "ibgda", "ibrc")  #: those that refuse it
    kind: int = 0  #: number of the kind in error records (state.fail); 0 if kernels do not record it

    # The other words of the record, by their values in the message: numbers of that name, or what device_state.py makes of them (_VALUES).
    # The address is the target in all messages.
    pe: str = "pe"
    wanted: str = "wanted"
    found: str = "found"
    comparison: str = "operand"


_NIC, _TWO = ("ibgda", "ibrc"), ("p2p,ibgda", "p2p,ibrc")
_COMPILED, _CHECKED, _RUN = When.COMPILED, When.CHECKED, When.RUN

#: By name; refuse(), message(), and kind_of() take the name.
TABLE = {
    # Types of operands ---------------------------------------------------------------------------------------------------------
    "no integer": Refusal("a pe, idx, nelems, qp, stride, op, or cmp that is not an integer", _COMPILED,
                          "pgas.{function}: {name} must be an integer, not {found}"),
    "no array": Refusal("an operand that is not an array", _COMPILED, "pgas.{function}: {name} must be an array, not {found}"),
    "other dtype": Refusal("dest and source of different dtypes", _COMPILED,
                           "pgas.{function}: source has elements of type {source}, dest of type {dest}; they must be the same"),
    "other dimensions": Refusal("dest and source of different numbers of dimensions", _COMPILED,
                                "pgas.{function}: source has {source}, dest has {dest}; they must have the same number"),
    "other order": Refusal("dest and source whose types say that one is in C order, the other in Fortran order", _COMPILED,
                           "pgas.{function}: source is in {source} order, dest in {dest} order; they must be the same"),
    "strides of dimensions": Refusal("iput and iget of arrays with several dimensions", _COMPILED,
                                     "pgas.{function}: dest and source have {found}, but must have 1, because strides count elements "
                                     "within a row"),
    "subscripts": Refusal("an idx with more or fewer subscripts than the array has dimensions", _COMPILED,
                          "pgas.{function}: idx has {count} subscript(s), but {name} has {found}"),
    "element size": Refusal("p and g of records, and of elements that are not 1, 2, 4, 8, or 16 bytes", _COMPILED,
                            "pgas.{function}: elements of type {dtype} are not numbers of 1, 2, 4, 8, or 16 bytes; use put or get"),
    "other value": Refusal("a value of a type that elements cannot hold: a complex number for other dtypes, or anything but a number. A "
                           "number out of range is converted instead", _COMPILED,
                           "pgas.{function}: {name} is {value}, which an element of type {dtype} cannot hold"),
    "atomic": Refusal("atomics on anything but integers, and floats for fetch, set, swap, add, fetch_add, of 16, 32, or 64 bits", _COMPILED,
                      "pgas.{function}: dest has elements of type {dtype}; it must hold {allowed} of 16, 32, or 64 bits"),
    "narrow atomic": Refusal("atomics on 16 bits in a job that uses a NIC", _COMPILED,
                             "pgas.{function}: dest has elements of type {dtype}; through a NIC, atomics need elements of 32 or 64 bits",
                             (*_NIC, *_TWO)),
    "awaited": Refusal("waits and tests of elements other than integers of 16, 32, or 64 bits", _COMPILED,
                       "pgas.{function}: {name} has elements of type {dtype}; it must hold integers of 16, 32, or 64 bits"),
    "row": Refusal("wait_until_all, _any, _some, their tests and vector forms on arrays of several dimensions", _COMPILED,
                   "pgas.{function}: {name} has {count} dimensions; it must have 1"),
    "row of integers": Refusal("status, indices, or values that is not a one-dimensional array of integers", _COMPILED,
                               "pgas.{function}: {name} must be an array of integers with 1 dimension, not {found}"),
    "signal word": Refusal("signals that are not uint64", _COMPILED, "pgas.{function}: sig must be an array of uint64, not {found}"),
    "lock word": Refusal("locks that are not int64 or uint64", _COMPILED,
                         "pgas.{function}: lock has elements of type {dtype}; they must be int64 or uint64"),
    "unmapped": Refusal("ptr", _COMPILED, "pgas.{function}: transport {transport} does not map other PEs' memory; use put and get", _NIC),
    "host only": Refusal("host functions, such as init, zeros, and launch", _COMPILED,
                         "pgas.{function}: this is a host function; call it outside the kernel"),
    "other code": Refusal("a constant of another kind for op or cmp, such as pgas.SUM for a signal", _COMPILED,
                          "pgas.{function}: {name} must be one of {allowed}, not {found}"),
    "operation": Refusal("an op of reduce, reducescatter, or a scan that is not a constant of the kernel (the simulator accepts one that "
                         "the kernel chooses at run time, except under PGAS_DEBUG=strict)", _COMPILED,
                         "pgas.{function}: op must be pgas.SUM, PROD, MIN, MAX, AND, OR or XOR itself, not {found}"),
    "reduction": Refusal("an op that is not defined for the type of the elements", _COMPILED,
                         "pgas.{function}: op {op} takes {allowed}, not elements of type {dtype}"),
    "only copied": Refusal("reductions, scans, atomics, waits, and tests of float8 elements", _COMPILED,
                           "pgas.{function}: elements of type {dtype} can be copied, but not computed with or compared"),
    "pairs": Refusal("maxloc and minloc of anything but rows of value and location", _COMPILED,
                     "pgas.{function}: {name} must be a C-contiguous array of shape (n, 2), of 32 or 64 bits, not {found}"),
    # Values of operands --------------------------------------------------------------------------------------------------------
    "no such PE": Refusal("a pe that does not exist", _CHECKED, "{who}: PE {pe} does not exist; pe must be 0 to {last}", kind=2),
    "not symmetric": Refusal("dest of a put, source of a get, ivar, or sig that is not on the symmetric heap", _CHECKED,
                             "{who} {peer}: {operand}, {nbytes} bytes at {target}, is not on the symmetric heap; "
                             "allocate it with pgas.empty or a similar function",
                             kind=3, pe="peer", wanted="nbytes"),
    "not registered": Refusal("a local operand that the NIC cannot access, such as shared or local memory", _RUN,
                              "{who} {peer}: {operand}, {nbytes} bytes at {target}, is neither on the symmetric heap nor registered, "
                              "so the NIC cannot access it; call pgas.register()", _NIC,
                              kind=7, pe="peer", wanted="nbytes", comparison="local"),
    "too long": Refusal("more elements than an operand holds", _CHECKED,
                        "{who} {peer}: {wanted} elements wanted, but {operand} has {found} ({target})", kind=4, pe="peer"),
    "no such element": Refusal("an idx out of bounds", _CHECKED,
                               "{who} {peer}: idx is {wanted} on axis {axis} of {operand}, which has {found} there",
                               kind=9, pe="peer", comparison="axis"),
    "no such code": Refusal("an op or cmp that does not exist", _CHECKED, "{who}: {name} must be one of {allowed}, not {wanted}",
                            kind=10, found="codes"),
    "no such queue pair": Refusal("a qp that does not exist", _CHECKED,
                                  "{who} {peer}: qp must be 1 to {count} (PGAS_IBGDA_NUM_RC_PER_PE), or 0 for the one that "
                                  "PGAS_IBGDA_RC_MAP_BY selects, not {wanted}", _NIC, kind=8, pe="peer", found="count"),
    "far": Refusal("ptr of a PE that is reached only through a NIC", _RUN,
                   "{who}: the memory of PE {pe} is not mapped here ({why}); use put and get", _TWO, kind=20, pe="far"),
    "gaps": Refusal("an array that is not contiguous, such as a[::2] or a column: put, get, their other forms, iput, iget, ptr, "
                    "collectives, waits, and tests of several elements", _RUN,
                    "{who}: {operand} must be contiguous, but its elements on axis {axis} are {found} bytes apart instead of {wanted} "
                    "({target}); copy it, or use slices without gaps, unlike a[::2] and a[:, 0]", kind=21),
    "different order": Refusal("slices of which one is in C order, the other in Fortran order", _RUN,
                               "{who}: source is in {source} order, dest in {dest} order; they must be the same", kind=22, found="order"),
    "not set": Refusal("clear_lock of a lock that is not set", _CHECKED, "{who}: the lock, {target}, is not set; call set_lock first",
                       kind=23),
    "stride": Refusal("a stride of iput or iget below 1", _RUN,
                      "{who} {peer}: dst_stride and src_stride must be 1 or more, not {wanted}", kind=11, pe="peer"),
    "no team": Refusal("a team that is None, as for a PE that is not a member", _COMPILED,
                       "pgas.{function}: {name} is None: this PE is not a member of the team and must not make this call"),
    "no such team": Refusal("a team that does not exist", _RUN,
                            "{who}: team {wanted} does not exist, or this PE is not a member of it", kind=12),
    "no such channel": Refusal("a channel that the team does not have", _RUN,
                               "{who}: channel must be 0 to {last} (channels= of the team, or PGAS_CHANNELS), not {wanted}",
                               kind=13, found="limit"),
    "no part": Refusal("a part that is not two integers", _COMPILED, "pgas.{function}: part must be two integers (i, k), not {found}"),
    "no such part": Refusal("a part that does not exist", _RUN,
                            "{who}: part must be (i, k) with 0 <= i < k, but i is {wanted} and k is {found}", kind=24),
    "no shared memory": Refusal("give_smem of an array that is too small or not in shared memory", _RUN,
                                "{who}: array must be at least {wanted} bytes of shared memory, not {found} bytes at {target}", kind=25),
    "not given": Refusal("an smem that give_smem has not prepared", _CHECKED,
                         "{who}: smem, {target}, is not prepared; call give_smem first", ("p2p",), kind=26),
    "misfit": Refusal("operands of a collective that are too short", _RUN,
                      "{who}: {operand} has {found} elements, {wanted} are needed for a team of {size}", kind=14, pe="size"),
    "negative part": Refusal("alltoallv with a negative count or displacement", _RUN,
                             "{who}: {operand}_counts or {operand}_displs has a negative element"),
    "other call": Refusal("members of a team that make different calls of collectives on a channel: another function, op, root, dtype, "
                          "size, or dest; PEs of which some call barrier_all and others sync_all. Calls on the host are always compared, "
                          "kernels under PGAS_DEBUG=check", _RUN,
                          "{who}: PE {pe} calls {theirs}, but this PE calls {mine}; all members of a team must make the same calls in the "
                          "same order", kind=27, wanted="mine", found="theirs"),
    "no multiple": Refusal("alltoall of a source whose size is not a multiple of the team size", _RUN,
                           "{who}: source has {wanted} elements, which is not a multiple of the team size, {size}", kind=15, pe="size"),
    "in place": Refusal("alltoall, alltoallv, and collect with dest the same as source; fcollect and reducescatter, except on member 0",
                        _RUN,
                        "{who}: dest must not be source", kind=16),
    "no member": Refusal("a root that is not a member of the team", _RUN, "{who}: root must be 0 to {last}, not {wanted}",
                         kind=17, pe="limit"),
    "no pairs": Refusal("maxloc and minloc of rows that are not pairs", _RUN, "{who}: {operand} must have 2 columns, not {found}",
                        kind=19),
    "other count": Refusal("alltoallv whose counts do not fit together", _RUN,
                           "{who}: source_counts sends {wanted} elements to PE {pe}, whose dest_counts allows {found}", kind=18),
    # What devices lack ---------------------------------------------------------------------------------------------------------
    "no atomics": Refusal("atomics and signals over an RDMA device without atomics", _RUN,
                          "{request} needs an atomic, and RDMA device {device} has none (atomic_cap is ATOMIC_NONE): put, get, p, g, "
                          "fence, quiet, and barriers work; for atomics and signals use a device with atomics, or PGAS_HCA=softhca",
                          ("ibrc",)),
}  # fmt: skip


def choices(codes: type[IntEnum]) -> str:
    """Return the valid codes of an op or a cmp, for a message."""
    prefix = "SIGNAL_" if codes is SignalOp else ""
    return ", ".join(f"pgas.{prefix}{code.name} ({code.value})" for code in codes)


def dimensions(count: int) -> str:
    """Return a number of dimensions, for a message."""
    return f"{count} dimension{'s' * (count != 1)}"


def message(row: str, /, **values: Any) -> str:
    """Return the message of a refusal with its values filled in."""
    return TABLE[row].message.format(**values)


def kind_of(row: str) -> int:
    """Return the kind of a refusal in error records, for state.fail()."""
    return TABLE[row].kind


def refuse(row: str, /, **values: Any) -> NoReturn:
    """Refuse a call when a kernel is compiled.

    Raises:
        KernelTypeError: always.
    """
    raise KernelTypeError(message(row, **values))
