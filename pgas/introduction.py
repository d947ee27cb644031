"""What the PEs of a job tell each other of themselves as it starts."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pgas import bootstrap as bootstraps
from pgas import hca, topology
from pgas._version import __version__
from pgas.transports.selection import Choice

if TYPE_CHECKING:
    from pgas.gpu import GPU

__all__ = ["introduce"]


def introduce(
    me: int, requested: Mapping[str, Any], gpu: "GPU | None", choice: Choice | None, exchange: Callable[[Any], list[Any]]
) -> list[topology.PE]:
    """Tell the others who this PE is, check that all can work together, and return them by number. Collective.

    Args:
        me: this PE's number.
        requested: the job's variables, as this PE reads them.
        gpu: that its kernels run on; None: the simulator.
        choice: its NIC.
        exchange: of small values among the PEs.

    Raises:
        BootstrapError: PEs were started differently.
        TransportError: PEs share a GPU without MPS.
    """
    alike = {name: value for name, value in requested.items() if name not in hca.LOCAL}
    options = tuple((name, value if not isinstance(value, frozenset) else tuple(sorted(value))) for name, value in alike.items())
    this = topology.PE(
        me,
        bootstraps.node_name(),
        os.getpid(),
        __version__,
        gpu.uuid if gpu else None,
        gpu.name if gpu else "",
        gpu.mps if gpu else False,
        gpu.memory if gpu else 0,
        options,
        choice.name if choice else "",
        choice.reason if choice else "",
    )
    pes: list[topology.PE] = exchange(this)
    topology.check_alike(pes)
    topology.check_shared_gpus(pes)
    return pes
