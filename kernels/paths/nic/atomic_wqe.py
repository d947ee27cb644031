"""Atomics of a ConnectX: opcode and operands of the WQE for every update of a word of 4 or 8 bytes.

=============  ===================================  ========================================
update         4 bytes                              8 bytes
=============  ===================================  ========================================
KEEP, ADD      masked FA of 0 or value              FA
XOR            masked FA, a boundary at every bit   the same: no carries
COMPARE_SWAP   masked CS, all bits in both masks    CS
SWAP           masked CS that compares no bit and swaps all
AND            masked CS that compares no bit and swaps in the zeros of value
OR             masked CS that compares no bit and swaps in the ones of value
=============  =============================================================================

Only a masked CS of 8 bytes takes two WQEBBs.
"""

import functools
from dataclasses import dataclass
from typing import Any

from pgas.kernels.codes import Update
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.transports.mlx5 import wqe
from pgas.transports.mlx5.wqe import Opcode, Opmod

MASKED_CS_8 = Opmod.MASKED_8 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_CS

_0, _32 = constant(0), constant(32)
_OPCODES = {
    4: (Opmod.MASKED_4 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_FA, Opmod.MASKED_4 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_CS),
    8: (Opmod.MASKED_8 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_FA, MASKED_CS_8),
}


@dataclass(frozen=True)
class Form:
    """Form of an update as a WQE.

    ``operands(value, compare)`` takes words in the host's order. It returns the 16 bytes of the atomic segment as two words, and the first
    8 bytes of the next segment, which a WQE of two WQEBBs has (its compare mask is 0). wide: 1 for such a WQE, otherwise 0.
    """

    opcode: Any
    wide: Any
    operands: Any


@functools.cache
def form(update: Update, size: int) -> Form:
    """Return the form of an update of ``size`` bytes, 4 or 8."""
    fetch_add, compare_swap = _OPCODES[size]
    if update in (Update.SWAP, Update.AND, Update.OR):
        return Form(constant(compare_swap), constant(size == 8), _masked_swap(update, size))
    if update is Update.COMPARE_SWAP:
        return Form(constant(compare_swap if size == 4 else Opcode.ATOMIC_CS), _0, _compare_swap(size))
    if update is Update.XOR or size == 4:
        return Form(constant(fetch_add), _0, _fetch_add(update, size))
    return Form(constant(Opcode.ATOMIC_FA), _0, _fetch_add(update, size))


def _wire(size: int) -> Any:
    """Make ``wire(value)``: 8 bytes for the NIC that begin with a big-endian word of ``size`` bytes."""

    @device
    def wire(value):
        return u64(ptx.swap_u32(u32(value))) if size == 4 else ptx.swap_u64(value)

    return wire


def _fetch_add(update: Update, size: int) -> Any:
    """Make operands: add, field boundary. Those of 4 bytes share the first word."""
    wire, xor = _wire(size), update is Update.XOR
    beside = constant(0xFFFF_FFFF << 32 if xor and size == 4 else 0)
    behind = constant((1 << 64) - 1 if xor and size == 8 else 0)

    @device
    def operands(value, compare):
        return wire(value) | beside, behind, _0

    return operands


def _compare_swap(size: int) -> Any:
    """Make operands: swap, compare. Those of 4 bytes share the first word; both masks follow, all ones."""
    wire = _wire(size)
    if size == 8:

        @device
        def operands(value, compare):
            return wire(value), wire(compare), _0

    else:
        masks = constant((1 << 64) - 1)

        @device
        def operands(value, compare):
            return wire(value) | wire(compare) << _32, masks, _0

    return operands


def _masked_swap(update: Update, size: int) -> Any:
    """Make operands: swap, compare, swap mask, compare mask. compare and its mask are 0."""
    wire, ones = _wire(size), constant((1 << 8 * size) - 1)
    swaps_all, inverted = update is Update.SWAP, update is Update.AND

    @device
    def operands(value, compare):
        swap = wire(value)
        mask = swap
        if swaps_all:
            mask = ones
        elif inverted:
            mask = swap ^ ones
        if size == 4:
            return swap, mask, _0
        return swap, _0, mask

    return operands
