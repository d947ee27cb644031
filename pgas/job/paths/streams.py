"""CUDA streams of any library, and their capture into graphs.

In the simulator, a stream executes its work immediately and in order, so arguments are only checked.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from pgas.base.backend import SIMULATOR

if SIMULATOR:
    from pgas.kernels.compiler import cuda
else:
    from cuda.bindings import driver
    from cuda.core import Stream

__all__ = ["capturing", "core_stream", "failed_in_driver", "handle_of", "interrupts_capture", "loading_allowed", "wait_for_default"]


def core_stream(stream: Any) -> Any:
    """Return a stream as a cuda.core.Stream (in the simulator: 0).

    Args:
        stream: 0 or None for the default stream; a stream of Numba, cuda.core (or a graph builder), CuPy or PyTorch:
            an object with ``__cuda_stream__``, or with its handle as ``ptr``, ``cuda_stream`` or ``handle``.

    Raises:
        TypeError: if it is none of these.
    """
    if SIMULATOR:
        if not (_is_default(stream) or isinstance(stream, cuda.stream) or stream is cuda.stream):
            _handle(stream)
        return 0
    if isinstance(stream, Stream):
        return stream
    return Stream.from_handle(0 if _is_default(stream) else _handle(stream))


def wait_for_default(handle: int) -> None:
    """Let later work of a stream wait for the work that is in the default stream now.

    Args:
        handle: handle of the stream (cudaStream_t), or one of CUDA's numbers 1 and 2 for its default streams.
    """
    Stream.from_handle(handle).wait(core_stream(0).record())


def handle_of(stream: Any) -> int:
    """Return the handle of a stream as core_stream() takes it, 0 for the default one and in the simulator."""
    return 0 if SIMULATOR or _is_default(stream) else int(core_stream(stream).handle)


def _is_default(stream: Any) -> bool:
    return stream is None or (type(stream) is int and stream == 0)


def _handle(stream: Any) -> int:
    """Return the handle of a stream (cudaStream_t)."""
    if not isinstance(stream, type):
        if hasattr(stream, "__cuda_stream__"):
            return int(stream.__cuda_stream__()[1])
        for name in ("ptr", "cuda_stream", "handle"):
            if hasattr(stream, name):
                return int(getattr(stream, name) or 0)
        if hasattr(stream, "is_building"):  # a graph builder of cuda.core
            return _handle(stream.stream)
    raise TypeError(
        "stream must be 0 or a stream of Numba, cuda.core, CuPy or PyTorch (an object with __cuda_stream__, ptr, cuda_stream or handle), "
        f"not {stream!r}"
    )


def capturing(stream: Any) -> bool:
    """Whether a stream is being captured (cuStreamBeginCapture): calls on it are recorded in a graph instead of being executed."""
    if SIMULATOR:
        return False
    status, state = driver.cuStreamIsCapturing(driver.CUstream(handle_of(stream)))
    if status == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:  # the default stream, while a blocking stream is being captured
        return True
    return bool(status == driver.CUresult.CUDA_SUCCESS and state != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


@contextlib.contextmanager
def loading_allowed() -> Iterator[None]:
    """Let this thread load kernels during a capture. Loading allocates memory, which a capture otherwise forbids; no graph replays it."""
    if SIMULATOR:
        yield
        return
    _, before = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def failed_in_driver(error: Exception) -> bool:
    """Whether an error came from the CUDA driver; the bindings have no common public class for these."""
    return "CUDA_ERROR_" in str(error)


def interrupts_capture(error: Exception) -> bool:
    """Whether an error of CUDA says only that a capture does not allow a call; the context works as before."""
    return any(name in str(error) for name in ("CUDA_ERROR_STREAM_CAPTURE_", "CUDA_ERROR_CAPTURED_EVENT"))
