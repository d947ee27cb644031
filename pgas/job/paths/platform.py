"""Where kernels run: on GPUs (gpu.py), or in the simulator (simulated.py). This module chooses.

Platform is everything in which the two differ, except device code (kernels/compiler/interface.py), the engine of the software NIC
(softhca/engine/ops.py), and the class of symmetric arrays (job/memory/array.py).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pgas.base.backend import SIMULATOR
from pgas.transports.memory.protocol import Memory

if TYPE_CHECKING:
    from pgas.job.paths.gpu import GPU


class Platform(Protocol):
    """The GPU or the simulator, which runs kernels."""

    # Of the kernels that host calls launch: maximum number of blocks and number of threads per block of a copy; threads of a collective.
    COPY_BLOCKS: int
    COPY_THREADS: int
    COLLECTIVE_THREADS: int

    # Devices and memory ---------------------------------------------------------------------------------------------------------

    def bind(self, node_rank: int) -> "GPU | None":
        """Make a GPU current in this process and return it; None in the simulator. node_rank: number of this PE among those of its node."""

    def memory(self, gpu: Any) -> Memory:
        """Return the memory of a PE. gpu: the result of bind()."""

    def host_array(self, array: Any) -> Any:
        """Return the NumPy array that an operand is or wraps, if kernels can use it; otherwise None."""

    # Streams --------------------------------------------------------------------------------------------------------------------

    def core_stream(self, stream: Any) -> Any:
        """Return a stream as a cuda.core.Stream (in the simulator: 0). stream: 0 or None for the default one, or as in streams.handle()."""

    def handle_of(self, stream: Any) -> int:
        """Return the handle of a stream as core_stream() takes it, 0 for the default one and in the simulator."""

    def capturing(self, stream: Any) -> bool:
        """Whether a stream is being captured (cuStreamBeginCapture): calls on it are recorded in a graph instead of being executed."""

    # Launches -------------------------------------------------------------------------------------------------------------------

    def configured(self, dispatcher: Any, name: str, configuration: tuple[Any, ...]) -> Callable[..., None]:
        """Return a function that launches a kernel with its arguments. Raises TypeError if Numba rejects the configuration."""

    def repeatable(self, dispatcher: Any, name: str, configuration: tuple[Any, ...]) -> "Repeatable":
        """Return what repeats launches of pgas.launch with arguments of the same types."""

    def bound(
        self, dispatcher: Any, name: str, configuration: Any, args: tuple[Any, ...], *, cooperative: bool, place: tuple[int, ...]
    ) -> Callable[..., None]:
        """Return a function that launches a kernel with these arguments, which are converted only once.

        It may be given a number, of the same type, that replaces the argument at place (streams.py: with_argument()); if place is (), it
        ignores it.
        """

    def resident(self, dispatcher: Any, args: tuple[Any, ...], threads: int, shared: int) -> tuple[str, int]:
        """Return a name of the GPU, and how many blocks of a kernel can run concurrently on it."""

    def argument(self, address: int, size: int, dtype: np.dtype, make: Callable[[int, int, np.dtype], Any]) -> Any:
        """Return a flat array as a kernel's argument. make: function that makes an array of these three."""

    def copying(self, name: str, to: int, source: int, nbytes: int, stream: Any) -> Callable[[], None]:
        """Return a function that copies between addresses in the order of a stream, without a kernel. name: of the user's call."""

    # Running kernels ------------------------------------------------------------------------------------------------------------

    def wait(self, stream: Any, call: str, poll: Callable[[], None], guarded: Callable[[], AbstractContextManager[None]]) -> None:
        """Wait for the kernels of a stream (None: of the device). Raises if a kernel failed, or the context is lost.

        Args:
            call: the user's call, for messages.
            poll: function called during a wait for a GPU; it may raise to end the wait.
            guarded: function that makes the context of a wait for a GPU.
        """

    def read_again(self) -> None:
        """Let later kernels observe that the host has changed words of the state page that no kernel changes."""

    def forbid(self, why: str) -> None:
        """In a forked child, let every access of kernels to memory raise a PgasError with this text, if that is possible."""

    def host_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the frame of a thread in the host's code, from its innermost frame."""

    def report(self) -> str:
        """Return a description of the threads of running kernels, "" if they are unknown."""


class Repeatable(Protocol):
    """Launches of a kernel with one configuration, all of whose blocks run concurrently."""

    def learn(self, args: tuple[Any, ...]) -> None:
        """Keep what later launches with arguments of these types need."""

    def ready(self, args: tuple[Any, ...]) -> Callable[[], None] | None:
        """Return a function that launches with these arguments; None if that needs more than what is kept.

        Raises:
            HeapError: an argument was freed.
        """


platform: Platform
if SIMULATOR:
    from pgas.job.paths import simulated

    platform = simulated
else:
    from pgas.job.paths import gpu

    platform = gpu
