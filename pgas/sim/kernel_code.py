"""Makes the functions that kernels run: literals, globals, and builtins have the values that Numba's compiler gives them.

Like the compiler, this freezes globals, attributes of modules, and free variables at a kernel's first launch.
"""

import builtins
import dis
import functools
import math
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba.core import types as core_types
from numba.core.dispatcher import Dispatcher
from numba.cuda import types as cuda_types

from pgas.base.code import nested
from pgas.sim.arrays import LocalArray
from pgas.sim.float8 import COPIED
from pgas.sim.integers import CLASSES, Integer, boolean, from_device, int64, int64s, plain, typed
from pgas.sim.operators import OPERATORS, rewritten

#: Objects that stand for modules in kernels, by the module's name.
STAND_INS: dict[str, Any] = {}


def of_kernel(function: FunctionType) -> FunctionType:
    """Return the function that a kernel runs in place of one that `cuda.jit` was given."""
    code = _typed_code(rewritten(function.__code__))
    cells = tuple([_typed_cell(cell) for cell in function.__closure__ or ()]) or None
    names = {name: value_of(function.__globals__[name]) for name in _names(code) if name in function.__globals__}
    names |= OPERATORS | {"__builtins__": _BUILTINS, "__name__": function.__globals__.get("__name__")}
    run = FunctionType(code, names, function.__name__, typed(function.__defaults__), cells)
    run.__qualname__, run.__kwdefaults__ = function.__qualname__, function.__kwdefaults__
    return run


def lacks_names(run: FunctionType) -> bool:
    """Whether a function of of_kernel() reads a global that did not exist, because the program may define it before the next launch."""
    loaded = (i.argval for code in nested(run.__code__) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
    return any(name not in run.__globals__ and name not in _BUILTINS for name in loaded)


def _names(code: CodeType) -> Iterator[str]:
    for part in nested(code):
        yield from part.co_names


def _typed_cell(cell: CellType) -> CellType:
    try:
        found = cell.cell_contents
    except ValueError:  # It is not assigned yet.
        return cell
    value = value_of(found)
    return cell if value is found else CellType(value)


# Literals -------------------------------------------------------------------------------------------------------------------------


def _typed_code(code: CodeType) -> CodeType:
    constants = [_typed_code(c) if isinstance(c, CodeType) else typed(c) for c in code.co_consts]
    instructions = bytearray(code.co_code)
    for at, exponent in _exponents(code):
        # A literal exponent stays a Python integer, because a float32 to its power is a float32, but to an int64 NumPy's is a float64.
        if len(constants) < 256:
            instructions[at + 1] = len(constants)
            constants.append(exponent)
    return code.replace(co_consts=tuple(constants), co_code=bytes(instructions))


def _exponents(code: CodeType) -> Iterator[tuple[int, int]]:
    """Yield the offset of each instruction that loads an integer exponent, and the exponent."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "BINARY_OP" and instruction.argrepr.startswith("**") and before is not None:
            if before.opname == "LOAD_CONST" and type(before.argval) is int and (before.arg or 0) < 256:
                yield before.offset, before.argval
        before = instruction


# Names ----------------------------------------------------------------------------------------------------------------------------


class _Int64:
    """np.int64 in kernels, where it wraps."""

    dtype = np.dtype(np.int64)

    def __new__(cls, value: Any = 0) -> Any:
        return int64(int(value))


class _Module:
    """A module of which a kernel reads attributes."""

    def __init__(self, module: ModuleType) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = value_of(getattr(self._module, name))
        return value


_DTYPES = {bool: np.bool_, int: np.int64, float: np.float64}
_CASTS: dict[Any, Any] = {**CLASSES, **COPIED, np.int64: _Int64, np.bool_: boolean}
_functions: WeakKeyDictionary[Any, FunctionType] = WeakKeyDictionary()


def value_of(value: Any) -> Any:
    """Return the kernel's value for a global, a free variable or a module's attribute."""
    if isinstance(value, ModuleType):
        if value.__name__ in STAND_INS:
            return STAND_INS[value.__name__]
        if value.__name__.partition(".")[0] == "pgas":
            return value
        return _Module(value)  # One for each kernel, because the next kernel may find other values.
    if isinstance(value, type):
        return _casting(value)
    if isinstance(value, (core_types.Integer, cuda_types.Integer)):
        return _casting(np.dtype(value.name).type)
    if isinstance(value, BuiltinFunctionType):
        if value.__module__ == "math":
            return _of_math(value)
        return _BUILTINS[value.__name__] if value in (min, max, len, round) else value
    if isinstance(value, FunctionType) and not (value.__module__ or "").startswith("pgas.api."):
        return _outside(value)
    if isinstance(value, Dispatcher) and value.__module__.startswith("pgas.transports."):  # The software NIC's engine stays compiled.
        return _outside(value)
    if isinstance(value, Dispatcher):  # It is compiled for the CPU; in kernels, it is a device function.
        return _functions.setdefault(value, of_kernel(value.py_func))
    if type(value) is np.ndarray:
        return value.view(LocalArray)
    return typed(value)


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that is not a kernel's, such as device code of pgas, because that computes with Python's integers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return from_device(function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()}))

    return call


def _casting(kind: type) -> Any:
    if issubclass(kind, np.integer) and kind not in _CASTS and kind not in (np.integer, np.signedinteger, np.unsignedinteger):
        kind = np.dtype(np.dtype(kind).str).type  # For longlong.
    return _CASTS.get(kind, kind)


def _of_math(function: Callable[..., Any]) -> Callable[..., Any]:
    rounds = function in (math.floor, math.ceil, math.trunc)

    def call(*args: Any) -> Any:
        result = function(*args)
        if type(result) is float or rounds:
            return np.float32(result) if all(type(arg) is np.float32 for arg in args) else np.float64(result)
        return typed(result)

    return call


# Builtins -------------------------------------------------------------------------------------------------------------------------


class _Range:
    """A range of numbers of one type, over which a kernel may iterate several times."""

    def __init__(self, numbers: range, make: Callable[[int], Any]) -> None:
        self._numbers, self._make = numbers, make

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        return self._make(self._numbers[int(at)])

    def __contains__(self, value: Any) -> bool:
        return int(value) in self._numbers


def _range(*args: Any) -> Any:
    numbers = range(*[int(arg) for arg in args])
    if all(isinstance(arg, Integer) and not arg.signed for arg in args):
        return _Range(numbers, CLASSES[np.uint64])
    if numbers.step == 1 and numbers.start >= 0 and numbers.stop <= len(int64s):
        return int64s[numbers.start : max(numbers.stop, numbers.start)]
    return _Range(numbers, int64)


def _int(value: Any = 0) -> Any:
    return value if isinstance(value, (Integer, np.int64)) and not isinstance(value, boolean) else int64(int(value))


def _float(value: Any = 0) -> Any:
    return value if type(value) is np.float32 else np.float64(value)


def _print(*values: Any, **kwargs: Any) -> None:
    print(*[typed(value) for value in values], **kwargs)


def _round(number: Any, ndigits: int | None = None) -> Any:
    return int64(round(number)) if ndigits is None else round(number, ndigits)


def _extreme(of: Callable[..., Any]) -> Callable[..., Any]:
    """Make the minimum or maximum of numbers, which has the type that holds all."""

    def call(*args: Any) -> Any:
        return functools.reduce(of_two, args) if len(args) > 1 else of(*args)

    def of_two(a: Any, b: Any) -> Any:
        if type(a) is not type(b):
            kinds = [np.dtype(_DTYPES.get(type(n)) or n.dtype) for n in (a, b)]
            common = np.promote_types(*kinds)
            a, b = _CASTS.get(common.type, common.type)(a), _CASTS.get(common.type, common.type)(b)
        return of(a, b)

    return call


class _Type(type):
    """Class of stand-ins for types, which a kernel calls or passes to isinstance()."""

    make: Callable[..., Any]
    of: tuple[type, ...]

    def __call__(cls, *args: Any) -> Any:
        return cls.make(*args)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.of)


_BUILTINS = dict(builtins.__dict__) | {
    "range": _range,
    "int": _Type("int", (), {"make": staticmethod(_int), "of": (int, np.integer)}),
    "float": _Type("float", (), {"make": staticmethod(_float), "of": (float, np.floating)}),
    "bool": _Type("bool", (), {"make": staticmethod(boolean), "of": (boolean, bool, np.bool_)}),
    "len": lambda of: int64(len(of)),
    "print": _print,
    "round": _round,
    "min": _extreme(min),
    "max": _extreme(max),
}
