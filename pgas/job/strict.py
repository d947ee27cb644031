"""PGAS_DEBUG=strict, in the simulator: symmetric arrays lack on the host what a GPU's arrays lack, and kernels must compile for a GPU.

Numba's fake arrays forward attributes, operators, and subscripts to the NumPy arrays that they wrap. A program may come to depend on some
that a GPU's arrays lack (``a.fill``, ``a[mask]``), or that differ there: ``a == b`` compares identities on a GPU.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from pgas.base.parameters import is_integer
from pgas.job.gpu_compiler import GPUCompiler
from pgas.job.memory.array import SymmetricArray
from pgas.sim import engine, frontend

#: Public attributes of numba-cuda's DeviceNDArray (a test compares them).
ATTRIBUTES = frozenset(
    """
    T alloc_size as_cuda_arg bind copy_to_device copy_to_host device_ctypes_pointer dtype flags get_ipc_handle getitem gpu_data
    is_c_contiguous is_f_contiguous nbytes ndim ravel reshape setitem shape size split squeeze stream strides transpose view
    """.split()  # noqa: SIM905
)

_OPERATORS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "add": "+", "sub": "-", "mul": "*", "floordiv": "//",
    "truediv": "/", "mod": "%", "pow": "**",
}  # fmt: skip


#: The end of an error's message.
_INSTEAD = "(PGAS_DEBUG=strict): use copy_to_host() and copy_to_device(), or a kernel"


def _words(what: str) -> str:
    return f"on GPUs a symmetric array has no {what} on the host {_INSTEAD}"


def _operator(sign: str) -> Callable[..., NoReturn]:
    def refuse(array: Any, other: Any) -> NoReturn:
        raise TypeError(_words(f"operator {sign}"))

    return refuse


def _attribute(given: Callable[..., Any]) -> Callable[..., Any]:
    def getattribute(array: Any, name: str) -> Any:
        if not name.startswith("_") and name not in ATTRIBUTES and engine.current() is None:
            raise AttributeError(_words(name))
        return given(array, name)

    return getattribute


def _subscript(given: Callable[..., Any]) -> Callable[..., Any]:
    def item(array: Any, idx: Any, *value: Any) -> Any:
        for part in (idx if isinstance(idx, tuple) else (idx,)) if engine.current() is None else ():
            if not (is_integer(part) or isinstance(part, slice)):
                raise TypeError(
                    f"on GPUs symmetric arrays take only integers and slices as subscripts on the host, not {_named(part)} {_INSTEAD}"
                )
        return given(array, idx, *value)

    return item


def _named(part: Any) -> str:
    if part is None or isinstance(part, bool):
        return str(part)
    return "..." if part is Ellipsis else "an array" if isinstance(part, np.ndarray) else f"a {type(part).__name__}"


@contextlib.contextmanager
def as_on_gpus() -> Iterator[None]:
    """Let the simulator's symmetric arrays reject what a GPU's arrays lack, and launches reject what a GPU's compiler rejects."""
    operators = [(prefix, name, sign) for name, sign in _OPERATORS.items() for prefix in _prefixes(name)]
    refusals = {f"__{prefix}{name}__": _operator(sign) for prefix, name, sign in operators}
    hooks = {"__getattr__": _attribute, "__getitem__": _subscript, "__setitem__": _subscript}
    changed = refusals | {name: hook(getattr(SymmetricArray, name)) for name, hook in hooks.items()}
    own = {name: vars(SymmetricArray)[name] for name in changed if name in vars(SymmetricArray)}
    for name, method in changed.items():
        setattr(SymmetricArray, name, method)
    launching = frontend.before_launch
    try:
        with GPUCompiler() as gpu_compiler:
            frontend.before_launch = gpu_compiler.check
            yield
    finally:
        frontend.before_launch = launching
        for name in changed:
            delattr(SymmetricArray, name)
        for name, method in own.items():
            setattr(SymmetricArray, name, method)


def _prefixes(name: str) -> tuple[str, ...]:
    """Return the prefixes of an operator's methods; arithmetic also has reflected ones."""
    return ("",) if name in ("eq", "ne", "lt", "le", "gt", "ge") else ("", "r")
