"""What programs use of cuda.core, in the simulator: a device, streams, which execute work immediately, and buffers.

``install()`` lets ``import cuda.core`` find them, for programs that know nothing of pgas. Other names are those of the real package.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

from pgas.base import model

__all__ = ["Buffer", "MemoryResource", "install", "stand_in"]


class MemoryResource:
    """The source of a buffer's memory."""


class Buffer:
    """A range of memory."""

    def __init__(self, handle: int, size: int, owner: Any) -> None:
        self.handle, self.size, self.memory_resource, self._owner = handle, size, MemoryResource(), owner

    @classmethod
    def from_handle(cls, ptr: int, size: int, owner: Any = None) -> "Buffer":
        return cls(ptr, size, owner)

    def close(self) -> None:
        self._owner = None

    def __dlpack_device__(self) -> Any:
        return self._owner.__dlpack_device__()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._owner.__dlpack__(**kwargs)


class _Stream:
    handle = 0

    @classmethod
    def from_handle(cls, handle: Any) -> "_Stream":
        return cls()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0

    def sync(self) -> None:
        pass


class _Device:
    compute_capability = model.COMPUTE_CAPABILITY
    properties = SimpleNamespace(multicast_supported=False)
    default_stream = _Stream()

    def __init__(self, device_id: int | None = None) -> None:
        self.device_id = 0 if device_id is None else int(device_id)

    def set_current(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def create_stream(self, options: Any = None) -> _Stream:
        return _Stream()


_SYSTEM = SimpleNamespace(get_num_devices=lambda: 1, num_devices=1)


def stand_in(name: str, real: Any, **members: Any) -> ModuleType:
    """Let ``import name`` find a module with these members, and all others of a real module. Modules below it are not found."""
    module = sys.modules[name] = ModuleType(name)
    spec = ModuleSpec(name, None, is_package=True)
    vars(module).update(members, __getattr__=lambda missing: getattr(real, missing), __path__=[], __spec__=spec)
    return module


def install() -> None:
    """Let ``import cuda.core`` find this module's classes."""
    real = importlib.import_module("cuda.core")
    stand_in("cuda.core", real, Device=_Device, Stream=_Stream, Buffer=Buffer, MemoryResource=MemoryResource, system=_SYSTEM)
    sys.modules["cuda.core.experimental"] = importlib.import_module("cuda").core = sys.modules["cuda.core"]  # type: ignore[attr-defined]
