"""The simulator as the platform of kernels. platform.py documents its functions.

A stream executes its work immediately and in order, so arguments are only checked. A launch returns when the kernel has ended.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.base import model
from pgas.job.paths.streams import handle, is_default, with_argument
from pgas.kernels.compiler import cpu, cuda
from pgas.sim import engine
from pgas.sim import forbid as forbid  # A member of the interface, unchanged.
from pgas.sim.arrays import is_array, ndarray_of
from pgas.transports.memory.memfd import HostMemory

COPY_BLOCKS, COPY_THREADS, COLLECTIVE_THREADS = 4, 32, 32
read_again, report, host_frame = cpu.read_again, engine.report, engine.host_frame


def bind(node_rank: int) -> None:
    return None


def memory(gpu: Any) -> HostMemory:
    return HostMemory()


def host_array(array: Any) -> Any:
    return ndarray_of(array) if is_array(array) else None


def core_stream(stream: Any) -> Any:
    if is_default(stream):
        return 0
    if not isinstance(stream, cuda.stream):
        handle(stream)
    return stream


def handle_of(stream: Any) -> int:
    return 0


def capturing(stream: Any) -> bool:
    return False


def configured(dispatcher: Any, name: str, configuration: tuple[Any, ...]) -> Any:
    return dispatcher[configuration]


class SimulatedLaunches:
    """Launches of pgas.launch that are repeated (Platform.repeatable)."""

    def __init__(self, dispatcher: Any, name: str, configuration: tuple[Any, ...]) -> None:
        self._launch, self._known = dispatcher[configuration], set[tuple[type, ...]]()

    def learn(self, args: tuple[Any, ...]) -> None:
        self._known.add(tuple(map(type, args)))

    def ready(self, args: tuple[Any, ...]) -> Callable[[], None] | None:
        return functools.partial(self._launch, *args) if tuple(map(type, args)) in self._known else None


repeatable = SimulatedLaunches


def copying(name: str, to: int, source: int, nbytes: int, stream: Any) -> Callable[[], Any]:
    core_stream(stream)
    return functools.partial(ctypes.memmove, to, source, nbytes)


def bound(
    dispatcher: Any, name: str, configuration: Any, args: tuple[Any, ...], *, cooperative: bool, place: tuple[int, ...]
) -> Callable[..., None]:
    launch = dispatcher[configuration]

    def launched(*changed: Any) -> None:
        launch(*(with_argument(args, place, lambda _: changed[0]) if changed and place else args))

    return launched


def resident(dispatcher: Any, args: tuple[Any, ...], threads: int, shared: int) -> tuple[str, int]:
    return f"an {model.NAME}", model.resident_blocks(threads, shared)


def argument(address: int, size: int, dtype: np.dtype, make: Callable[[int, int, np.dtype], Any]) -> Any:
    return make(address, size, dtype)


def wait(stream: Any, call: str, poll: Any, guarded: Any) -> None:
    if stream is None:  # The kernels of a stream have ended, because launches return only then.
        engine.wait_for_kernels(f"{call}()")
