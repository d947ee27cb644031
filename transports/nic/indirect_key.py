"""One memory key for memory registered in several pieces: an indirect key (KLM), which refers to the keys of the pieces.

Kernels have one key per PE's heap, so that a heap of several regions needs one that covers all. The NIC finds the piece of an address; a
message or an element may cross from one piece to the next. UCX makes such keys for regions of large memory, for READs, WRITEs, and atomics
(uct_ib_mlx5_devx_reg_ksm_data_mt).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgas.transports.mlx5.commands import Command, build_klms
from pgas.transports.mlx5.contexts import ANY_QPN, KLM, KLM_MAX, AccessMode, mkc_access, mkey
from pgas.transports.nic.adapter import Adapter, execute


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
    klms = build_klms(parts)
    mkc = {
        **mkc_access(access),
        "access_mode_1_0": AccessMode.KLM,
        "qpn": ANY_QPN,
        "pd": pdn,
        "start_addr": pieces[0].address,
        "len": sum(piece.nbytes for piece in pieces),
        "translations_octword_size": len(klms) // KLM.size,
    }
    made = execute(adapter, Command.CREATE_MKEY, klms=klms, mkc=mkc, translations_octword_actual_size=len(klms) // KLM.size)
    return mkey(made["mkey_index"])


def destroy(adapter: Adapter, key: int) -> None:
    """Destroy an indirect key; the pieces stay. Raises CommandError if the adapter refuses."""
    execute(adapter, Command.DESTROY_MKEY, mkey_index=key >> 8)
