"""uverbs in this process: descriptors of devices; ioctls as object, method and attributes (<rdma/rdma_user_ioctl_cmds.h>)."""

import ctypes
import errno
import os
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pgas.base.errors import TransportError
from uverbs import cards, devices

#: The preloaded shim.
SHIM = "UVERBS_SHIM"

_HEADER = struct.Struct("<HHHHQII")  # struct ib_uverbs_ioctl_hdr: length, object_id, method_id, num_attrs, reserved, driver_id, reserved
_ATTRIBUTE = struct.Struct("<HHHHQ")  # struct ib_uverbs_attr: attr_id, len, flags, attr_data, data
_VALID_OUTPUT = 1 << 1  # UVERBS_ATTR_F_VALID_OUTPUT

#: Attributes up to this length lie in the header itself.
_INLINE = 8


class Errno(Exception):
    """The kernel refuses an ioctl."""

    def __init__(self, number: int, why: str = "") -> None:
        super().__init__(number, why)
        self.number = number


class Attributes:
    def __init__(self, header: int) -> None:
        _, self.object_id, self.method_id, count, _, self.driver_id, _ = _HEADER.unpack(ctypes.string_at(header, _HEADER.size))
        #: attr_id -> (len, flags, data, address of the attribute)
        self._all: dict[int, tuple[int, int, int, int]] = {}
        for i in range(count):
            at = header + _HEADER.size + i * _ATTRIBUTE.size
            number, nbytes, flags, _, data = _ATTRIBUTE.unpack(ctypes.string_at(at, _ATTRIBUTE.size))
            self._all[number] = nbytes, flags, data, at

    def __contains__(self, number: int) -> bool:
        return number in self._all

    def _of(self, number: int) -> tuple[int, int, int, int]:
        if number not in self._all:
            raise Errno(errno.EINVAL, f"attribute {number:#x} of object {self.object_id:#x}, method {self.method_id:#x} is missing")
        return self._all[number]

    def nbytes(self, number: int) -> int:
        """Return the length of an attribute, 0 if it is missing."""
        return self._all[number][0] if number in self._all else 0

    def data(self, number: int) -> bytes:
        nbytes, _, data, at = self._of(number)
        return ctypes.string_at(at + 8 if nbytes <= _INLINE else data, nbytes)

    def integer(self, number: int, default: int | None = None) -> int:
        """Return an integer input, or the default if the attribute is missing."""
        if default is not None and number not in self._all:
            return default
        return int.from_bytes(self.data(number), "little")

    def handle(self, number: int) -> int:
        """Return an input that is a handle or a descriptor."""
        return self._of(number)[2] & 0xFFFF_FFFF

    def set(self, number: int, value: bytes | int | ctypes.Structure, nbytes: int = 4) -> None:
        """Set an output, cut or zero-filled to the requested length; an integer has nbytes. Without the attribute, do nothing."""
        if number not in self._all:
            return
        length, flags, data, at = self._all[number]
        raw = value.to_bytes(nbytes, "little") if isinstance(value, int) else bytes(value)
        ctypes.memmove(data, raw[:length].ljust(length, b"\0"), length)
        ctypes.memmove(at + 4, (flags | _VALID_OUTPUT).to_bytes(2, "little"), 2)

    def set_handle(self, number: int, value: int) -> None:
        ctypes.memmove(self._of(number)[3] + 8, value.to_bytes(8, "little"), 8)


@dataclass
class File:
    """An open device: its context on the card, and the objects made through it."""

    fd: int
    device: devices.Device
    card: cards.Card
    objects: dict[int, Any] = field(default_factory=dict)
    handles: int = 0x100
    devx: bool = False  #: whether the context was opened for DevX

    def add(self, thing: Any) -> int:
        """Return the handle of a new object."""
        self.handles += 1
        self.objects[self.handles] = thing
        return self.handles

    def find(self, handle: int, kind: type) -> Any:
        thing = self.objects.get(handle)
        if not isinstance(thing, kind):
            raise Errno(errno.ENOENT, f"handle {handle:#x} is no {kind.__name__}")
        return thing

    def remove(self, handle: int, kind: type, give_back: Callable[[Any], None]) -> None:
        """Destroy an object. The card may refuse because others use it."""
        try:
            give_back(self.find(handle, kind))
        except TransportError as error:
            raise Errno(errno.EBUSY, str(error)) from error
        del self.objects[handle]


Method = Callable[[File, Attributes], None]

_methods: dict[tuple[int, int], Method] = {}


def method(object_id: int, method_id: int) -> Callable[[Method], Method]:
    def register(function: Method) -> Method:
        _methods[object_id, method_id] = function
        return function

    return register


_files: dict[int, File] = {}


def _open(fd: int, name: bytes) -> int:
    device = devices.by_node(name.decode())
    if device is None:
        return -errno.ENOENT
    if not devices.machine.access:
        return -errno.EACCES
    card = cards.connect()
    _files[fd] = File(fd, device, card)
    return 0


def _ioctl(fd: int, header: int) -> int:
    attributes = Attributes(header)
    answer = _methods.get((attributes.object_id, attributes.method_id))
    if answer is None:
        return -errno.EOPNOTSUPP
    try:
        answer(_files[fd], attributes)
    except Errno as refused:
        return -refused.number
    return 0


def _close(fd: int) -> None:
    _files.pop(fd).card.close()


def _guarded(function: Callable[..., Any], failed: Any) -> Callable[..., Any]:
    """Print any exception of this code, which is a bug, and fail the call."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return failed

    return call


_keep: list[Any] = []


def install() -> None:
    """Connect the shim to this module. The shim calls this when the first device is opened."""
    from uverbs import devx, queues, verbs

    _keep.extend((devx, queues, verbs))
    shim = ctypes.CDLL(os.environ[SHIM])
    kinds = (
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p),
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p),
        ctypes.CFUNCTYPE(None, ctypes.c_int),
    )
    functions = (_guarded(_open, -errno.EIO), _guarded(_ioctl, -errno.EIO), _guarded(_close, None))
    callbacks = [kind(function) for kind, function in zip(kinds, functions, strict=True)]
    _keep.extend(callbacks)
    shim.uverbs_install(*callbacks)


def map_registers(file: File) -> None:
    """Make mmap of a device map the card's register pages."""
    ctypes.CDLL(os.environ[SHIM]).uverbs_registers(file.fd, file.card.registers)
