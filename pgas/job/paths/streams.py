"""Streams and launch configurations as programs give them, and the errors of calls on streams; without CUDA."""

from collections.abc import Callable
from typing import Any


def is_default(stream: Any) -> bool:
    """Whether this is 0 or None, the default stream."""
    return stream is None or (type(stream) is int and stream == 0)


def handle(stream: Any) -> int:
    """Return the handle of a stream (cudaStream_t) of Numba, cuda.core (or a graph builder), CuPy or PyTorch.

    Raises:
        TypeError: if it is not an object with ``__cuda_stream__``, or with its handle as ``ptr``, ``cuda_stream`` or ``handle``.
    """
    if not isinstance(stream, type):
        if hasattr(stream, "__cuda_stream__"):
            return int(stream.__cuda_stream__()[1])
        for name in ("ptr", "cuda_stream", "handle"):
            if hasattr(stream, name):
                return int(getattr(stream, name) or 0)
        if hasattr(stream, "is_building"):  # It is a graph builder of cuda.core.
            return handle(stream.stream)
    raise TypeError(
        "stream must be 0 or a stream of Numba, cuda.core, CuPy or PyTorch (an object with __cuda_stream__, ptr, cuda_stream or handle), "
        f"not {stream!r}"
    )


#: For streams of which a library makes a new object each time, such as torch.cuda.current_stream(), the attribute with the handle.
_handles: dict[type, str | None] = {}


def identity(stream: Any) -> Any:
    """Return what tells a stream from all others while both exist: the handle of one of PyTorch or CuPy, otherwise the object's ID."""
    kind = type(stream)
    if kind not in _handles:
        _handles[kind] = next((name for name in ("cuda_stream", "ptr") if isinstance(getattr(stream, name, None), int)), None)
    name = _handles[kind]
    found = None if name is None else getattr(stream, name, None)
    return id(stream) if found is None else (found,)


def failed_in_driver(error: Exception) -> bool:
    """Whether an error came from the CUDA driver; the bindings have no common public class for these."""
    return "CUDA_ERROR_" in str(error)


def interrupts_capture(error: Exception) -> bool:
    """Whether an error of CUDA means only that a capture does not allow a call, so that the context works as before."""
    return any(name in str(error) for name in ("CUDA_ERROR_STREAM_CAPTURE_", "CUDA_ERROR_CAPTURED_EVENT"))


def with_argument(args: tuple[Any, ...], place: tuple[int, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return the arguments of a launch with one changed. place: its index, after that of the tuple that contains it."""
    first, *rest = place
    changed = with_argument(args[first], tuple(rest), change) if rest else change(args[first])
    return (*args[:first], changed, *args[first + 1 :])


def normalized(configuration: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...], Any, int]:
    """Return the four parts of a configuration, with the sizes of grid and block in three dimensions. Raises like three()."""
    grid, block, *rest = configuration
    stream, shared = (*rest, 0, 0)[:2] if rest else (0, 0)
    return three("grid", grid), three("block", block), stream, shared


def sizes_of(sizes: Any) -> tuple[Any, ...]:
    """Return the sizes of a grid or block as a tuple."""
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)


def three(name: str, sizes: Any) -> tuple[int, ...]:
    """Return the sizes of a grid or block, which are integers, in three dimensions.

    Raises:
        ValueError: if there are no sizes, or more than three.
    """
    given = sizes_of(sizes)
    if not 1 <= len(given) <= 3:
        raise ValueError(f"{name} must be an integer or up to three of them, not {sizes!r}")
    return tuple(int(n) for n in given) + (1,) * (3 - len(given))
