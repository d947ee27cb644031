"""CUDA streams of any library, their capture into graphs, and launches on them."""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Stream
from cuda.core import launch as cuda_launch

from pgas.job.paths.streams import handle, is_default, normalized, with_argument
from pgas.kernels.compiler import compiler, launches
from pgas.transports.memory.vmm import check


def core_stream(stream: Any) -> Any:
    """Return a stream as a cuda.core.Stream (Platform.core_stream)."""
    if isinstance(stream, Stream):
        return stream
    return Stream.from_handle(0 if is_default(stream) else handle(stream))


def wait_for_default(handle: int) -> None:
    """Let later work of a stream wait for the work that is in the default stream now.

    Args:
        handle: handle of the stream (cudaStream_t), or one of CUDA's numbers 1 and 2 for its default streams.
    """
    Stream.from_handle(handle).wait(core_stream(0).record())


def handle_of(stream: Any) -> int:
    """Return the handle of a stream (Platform.handle_of)."""
    return 0 if is_default(stream) else int(stream.handle) if isinstance(stream, Stream) else handle(stream)


def capturing(stream: Any) -> bool:
    """Whether a stream is being captured (Platform.capturing)."""
    status, state = driver.cuStreamIsCapturing(driver.CUstream(handle_of(stream)))
    if status == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:  # The default stream, while a blocking stream is being captured.
        return True
    return bool(status == driver.CUresult.CUDA_SUCCESS and state != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


@contextlib.contextmanager
def loading_allowed() -> Iterator[None]:
    """Let this thread load kernels during a capture. Loading allocates memory, which a capture otherwise forbids; no graph replays it."""
    _, before = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


class Configured:
    """A kernel with its launch configuration; a call launches it."""

    def __init__(self, dispatcher: Any, name: str, configuration: tuple[Any, ...]) -> None:
        self._dispatcher, self._name, self._configuration = dispatcher, name, configuration
        self._configured = dispatcher[configuration]
        self._launches: dict[Any, launches.DriverLaunch] = {}  # By the types of the arguments.

    def __call__(self, *args: Any) -> None:
        given = launches.packed(args)
        if given is not None:
            launch = self._launches.get(given[0])
            if launch is not None and launch(given[1]):
                return
        with loading_allowed():
            try:
                args = launches.unpacked(args)
                self._configured(*args)
            except Exception as error:  # Not narrower, because cuda.core's class of driver errors is in a private module.
                if "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" in str(error):
                    _refuse_threads(self._name, normalized(self._configuration)[1], compiled_for(self._dispatcher, args))
                raise
            if given is not None and given[0] not in self._launches:
                self._keep(args, *given)

    def _keep(self, args: tuple[Any, ...], codes: tuple[Any, ...], parameters: bytes, *, cooperative: bool = False) -> None:
        """Let later launches with arguments of these types go directly to the driver."""
        compiled, configured = compiled_for(self._dispatcher, args), self._configured
        depends = self._dispatcher._launch_config_sensitive or configured._is_kernel_launch_config_sensitive()
        if compiled.plain and not depends and not configured.pre_launch_callbacks:
            grid, block, stream, shared = normalized(self._configuration)
            self._launches[codes] = launches.DriverLaunch(
                compiled.kernel, grid, block, shared, int(core_stream(stream).handle), len(parameters),
                cooperative=cooperative or compiled.cooperative,
            )  # fmt: skip


class CooperativeLaunches(Configured):
    """Launches of pgas.launch that are repeated (Platform.repeatable)."""

    def learn(self, args: tuple[Any, ...]) -> None:
        given = launches.packed(args)
        if given is not None and given[0] not in self._launches:
            self._keep(launches.unpacked(args), *given, cooperative=True)

    def ready(self, args: tuple[Any, ...]) -> Callable[[], None] | None:
        given = launches.packed(args)
        launch = self._launches.get(given[0]) if given is not None else None
        return None if given is None or launch is None else functools.partial(self._again, launch, given[1], args)

    def _again(self, launch: launches.DriverLaunch, parameters: bytes, args: tuple[Any, ...]) -> None:
        if not launch(parameters):
            compiler.enter_device()  # A new thread has no current GPU.
            if not launch(parameters):  # cuda.core raises the driver's error.
                Bound(self._dispatcher, self._name, self._configuration, args, cooperative=True, place=())()


class Bound:
    """A kernel with its launch configuration and its converted arguments; a call launches it."""

    def __init__(
        self, dispatcher: Any, name: str, configuration: Any, args: tuple[Any, ...], *, cooperative: bool, place: tuple[int, ...]
    ) -> None:
        grid, block, given_stream, shared = normalized(configuration)
        stream, given = core_stream(given_stream), launches.packed(args)
        self._place, self._offset = place, launches.offset(args, place) if place else 0
        args = launches.unpacked(args)
        with loading_allowed():
            compiled = compiled_for(dispatcher, args)
            _refuse_threads(name, block, compiled)
            function = compiled.kernel
        try:
            parameters = compiled.flatten(args, stream)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        self._keep, self._thread = args, threading.current_thread()
        self._plain: tuple[launches.DriverLaunch, bytes] | None = None  # A launch without cuda.core's checks, and its parameters.
        cooperative = cooperative or compiled.cooperative
        if given is not None and compiled.plain:
            self._plain = (
                launches.DriverLaunch(function, grid, block, shared, int(stream.handle), len(given[1]), cooperative=cooperative),
                given[1],
            )
        config = LaunchConfig(grid=grid, block=block, shmem_size=shared, is_cooperative=cooperative)
        self._launch = functools.partial(cuda_launch, stream, config, function, *parameters)
        # For another argument, if the driver rejects the launch.
        self._again: Any = dispatcher[grid, block, stream, shared] if place else None

    def __call__(self, *changed: Any) -> None:
        if self._thread is not threading.current_thread():  # A new thread has no current GPU.
            compiler.enter_device()
        if changed and self._place:
            self._changed(changed[0])
        elif self._plain is None or not self._plain[0](self._plain[1]):
            self._launch()

    def _changed(self, value: Any) -> None:
        if self._plain is not None:
            launch, parameters = self._plain
            _, changed = launches.packed((value,)) or (None, b"")
            if changed and launch(parameters[: self._offset] + changed + parameters[self._offset + len(changed) :]):
                return
        self._again(*with_argument(self._keep, self._place, lambda _: value))


#: Handle of the context of this PE's GPU; gpu.bind() sets it.
home = 0


def copying(name: str, to: int, source: int, nbytes: int, stream: Any) -> Callable[[], None]:
    """Return a function that lets the GPU's copy engine copy in the order of a stream (Platform.copying)."""
    arguments = driver.CUdeviceptr(to), driver.CUdeviceptr(source), nbytes, driver.CUstream(handle_of(stream))

    def copy() -> None:
        with contextlib.nullcontext() if int(driver.cuCtxGetCurrent()[1]) == home else _at_home():
            check(driver.cuMemcpyAsync(*arguments), f"pgas.{name} of {nbytes} bytes")

    return copy


@contextlib.contextmanager
def _at_home() -> Iterator[None]:
    """Make this PE's GPU current: a new thread has none, and in another thread the program may have chosen another one."""
    check(driver.cuCtxPushCurrent(driver.CUcontext(home)), "cuCtxPushCurrent")
    try:
        yield
    finally:
        driver.cuCtxPopCurrent()


def resident(dispatcher: Any, args: tuple[Any, ...], threads: int, shared: int) -> tuple[str, int]:
    """Return a name of this GPU, and how many blocks can run concurrently (Platform.resident)."""
    blocks = compiled_for(dispatcher, args).kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared)
    return "this GPU", blocks * Device().properties.multiprocessor_count


def compiled_for(dispatcher: Any, args: tuple[Any, ...]) -> Any:
    """Return the compiled kernel of a dispatcher for these arguments (kernels/compiler/interface.py: Compiled)."""
    return compiler.compiled(dispatcher, compiler.types_of(dispatcher, args))


def _refuse_threads(name: str, block: tuple[int, ...], compiled: Any) -> None:
    """Raise ValueError if CUDA runs no block of this size, because its threads take too many registers or exceed launch_bounds."""
    threads, attributes = math.prod(block), compiled.kernel.attributes
    most = attributes.max_threads_per_block
    if most < threads <= Device().properties.max_threads_per_block:
        raise ValueError(
            f"{name} is compiled for blocks of at most {most} threads, of {attributes.num_regs} registers each, "
            f"not {threads}; compile it with @pgas.jit(launch_bounds={threads})"
        )
