"""Numbers that users, kernels, and the host share. The names of operations are in operation.py."""

from enum import IntEnum


class Comparison(IntEnum):
    """Conditions of wait_until, in the order of NVSHMEM and OpenSHMEM."""

    EQ = 0
    NE = 1
    GT = 2
    LE = 3
    LT = 4
    GE = 5


#: How messages show a comparison.
SIGNS: dict[int, str] = {
    Comparison.EQ: "==", Comparison.NE: "!=", Comparison.GT: ">", Comparison.LE: "<=", Comparison.LT: "<", Comparison.GE: ">=",
}  # fmt: skip


class SignalOp(IntEnum):
    """How a signal changes its word (OpenSHMEM 1.5, "Signaling Operations")."""

    SET = 0
    ADD = 1


class Reduction(IntEnum):
    """Operations of reduce, reducescatter, and scans (OpenSHMEM 1.5, "SHMEM_REDUCTIONS")."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AND = 4
    OR = 5
    XOR = 6


#: Operations by name, each with its own type, so that the compiler of a kernel can tell which operation a call uses.
OPERATIONS: dict[str, IntEnum] = {op.name: IntEnum(op.name, {op.name: int(op)})(int(op)) for op in Reduction}  # type: ignore[operator]

#: Types of the constants for op and cmp, and the name of each in messages.
CONSTANTS: dict[type[IntEnum], str] = {
    Comparison: "a constant for cmp",
    SignalOp: "a constant for signals",
    **{type(op): f"pgas.{name}" for name, op in OPERATIONS.items()},
}


class Update(IntEnum):
    """Kinds of atomic update (OpenSHMEM 1.5, "Atomic Memory Operations"). set is a SWAP whose old value is discarded; inc adds 1."""

    KEEP = 0  #: an atomic read
    ADD = 1
    SWAP = 2
    COMPARE_SWAP = 3
    AND = 4
    OR = 5
    XOR = 6
    MIN = 7
    MAX = 8


class Request(IntEnum):
    """Kinds of request in ibrc's ring."""

    WRITE = 0  #: nbytes from local to remote
    READ = 1  #: nbytes from remote to local
    STORE = 2  #: an element of nbytes, in value and second, to remote
    ADD = 3  #: value to the nbytes at remote
    COMPARE_SWAP = 4  #: value to the nbytes at remote, if they equal second
    SIGNAL_SET = 5  #: WRITE unless nbytes is 0, then value to the signal word at second
    SIGNAL_ADD = 6  #: WRITE unless nbytes is 0, then value is added to the signal word at second
    SWAP = 7  #: value to the nbytes at remote
    AND = 8  #: the bitwise AND of value and the nbytes at remote, to remote; OR and XOR likewise
    OR = 9
    XOR = 10
