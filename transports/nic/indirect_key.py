"""One memory key for memory registered in several pieces: an indirect key (KLM), which refers to the keys of the pieces.

Kernels have one key per PE's heap, so that a heap of several regions needs one that covers all. The NIC finds the piece of an address; a
message or an element may cross from one piece to the next. UCX makes such keys for regions of large memory, for READs, WRITEs, and atomics
(uct_ib_mlx5_devx_reg_ksm_data_mt).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgas.transports.mlx5 import commands
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.contexts import ANY_QPN, KLM, KLM_MAX, AccessMode, mkc_access, mkey
from pgas.transports.nic.adapter import Adapter

__all__ = ["Piece", "destroy", "over"]


@dataclass(frozen=True)
class Piece:
    """A registered range."""

    address: int
    nbytes: int
    lkey: int


def over(adapter: Adapter, pdn: int, access: int, pieces: Sequence[Piece]) -> int:
    """Return a key (lkey and rkey) for the range of adjacent pieces. They cannot be deregistered while it exists.

    Args:
        adapter: the NIC.
        pdn: the protection domain of the pieces.
        access: flags of contexts.Access.
        pieces: pieces in address order, each starting at the end of the previous one.

    Raises:
        CommandError: the adapter refuses.
    """
    parts = [
        {"byte_count": min(KLM_MAX, piece.nbytes - offset), "mkey": piece.lkey, "address": piece.address + offset}
        for piece in pieces
        for offset in range(0, piece.nbytes, KLM_MAX)
    ]
    klms = commands.build_klms(parts)
    mkc = {
        **mkc_access(access),
        "access_mode_1_0": AccessMode.KLM,
        "qpn": ANY_QPN,
        "pd": pdn,
        "start_addr": pieces[0].address,
        "len": sum(piece.nbytes for piece in pieces),
        "translations_octword_size": len(klms) // KLM.size,
    }
    inbox = commands.build(Command.CREATE_MKEY, mkc=mkc, translations_octword_actual_size=len(klms) // KLM.size) + klms
    outbox = adapter.command(inbox, commands.output_size(Command.CREATE_MKEY))
    commands.check(Command.CREATE_MKEY, outbox, adapter.syndrome_words)
    return mkey(commands.parse_output(Command.CREATE_MKEY, outbox)["mkey_index"])


def destroy(adapter: Adapter, key: int) -> None:
    """Destroy an indirect key; the pieces stay.

    Raises:
        CommandError: the adapter refuses.
    """
    inbox = commands.build(Command.DESTROY_MKEY, mkey_index=key >> 8)
    outbox = adapter.command(inbox, commands.output_size(Command.DESTROY_MKEY))
    commands.check(Command.DESTROY_MKEY, outbox, adapter.syndrome_words)
