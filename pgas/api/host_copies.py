"""Copies by the GPU's copy engine, for calls on the host. They take no SMs; large ones take less time over NVLink than those of kernels."""

from typing import Any

from pgas.api.bound import keeping
from pgas.job import runtime
from pgas.job.paths.platform import platform

__all__ = ["enqueue"]


class _Copy:
    """A copy in the order of a stream. It is called like a launch with its arguments (jit.py: BoundLaunch)."""

    varies = False

    def __init__(self, name: str, to: int, source: int, nbytes: int, stream: Any) -> None:
        self._copy, on = platform.copying(name, to, source, nbytes, stream), platform.handle_of(stream)
        self._described = f"{name} of {nbytes} bytes" + (f" on stream {on:#x}" if on else ""), on

    def __call__(self, *changed: Any) -> None:
        """Copy. changed: ignored."""
        runtime.current().launching(*self._described)
        self._copy()


def enqueue(name: str, to: int, source: int, nbytes: int, stream: Any, *, wait: bool = False) -> None:
    """Copy nbytes between addresses that this GPU maps; like host_ops.enqueue(). name: of the user's call, for messages."""
    copy = _Copy(name, to, source, nbytes, stream)
    if keeping(copy):
        return
    copy()
    if stream is None and wait:
        runtime.current().synchronize(0)
