"""The introduction of PEs to each other at the start of a job, and the job's messages to its user."""

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pgas.base import config, parameters
from pgas.base.errors import PgasWarning
from pgas.base.version import __version__
from pgas.job.bootstrap import processes
from pgas.job.memory.array import stacklevel
from pgas.job.paths import hca, topology

if TYPE_CHECKING:
    from pgas.job.paths.gpu import GPU


def introduce(me: int, requested: Mapping[str, Any], gpu: "GPU | None", exchange: Callable[[Any], list[Any]]) -> list[topology.PE]:
    """Exchange the descriptions of all PEs, check that they fit together, and return them by number. Collective.

    Args:
        gpu: this PE's GPU; None: the simulator.

    Raises:
        BootstrapError: if PEs were started differently.
        TransportError: if PEs share a GPU without MPS.
        HeapError: if the heaps of a node's PEs together exceed its memory.
    """
    alike = {name: value for name, value in requested.items() if name not in hca.LOCAL}
    options = tuple((name, _text(value)) for name, value in alike.items())
    this = topology.PE(
        me,
        processes.node_name(),
        os.getpid(),
        __version__,
        gpu.uuid if gpu else None,
        gpu.name if gpu else "",
        gpu.mps if gpu else False,
        gpu.memory if gpu else 0,
        options,
    )
    pes = [topology.PE(*told) for told in exchange(dataclasses.astuple(this))]
    topology.check_alike(pes)
    topology.check_shared_gpus(pes)
    topology.check_memory(pes, requested["PGAS_SYMMETRIC_SIZE"])
    return pes


def _text(value: Any) -> Any:
    """Return lists and sets in the form in which users write them, because the values are compared and shown."""
    if isinstance(value, config.Tracing):
        return value.text
    if isinstance(value, frozenset):
        value = tuple(sorted(value))
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def announce(me: int, line: str, remarks: list[str]) -> None:
    """On PE 0, print a line about the started job, if there is one. Issue the remarks as warnings."""
    if me == 0 and line:
        print(line, file=sys.stderr)
    if me == 0 and (unknown := config.unknown_variables()):
        names = ", ".join(name + parameters.suggestion(name, config.VARIABLES) for name in unknown)
        remarks.append(f"unknown environment variables are ignored: {names}; check the spelling (python -m pgas info lists the variables)")
    for remark in remarks:
        warnings.warn(remark, PgasWarning, stacklevel=stacklevel())  # At the call of pgas.init().
