"""Find what the kernels of a program need on a GPU, without one: ``python -m pgas compile [--transport ibgda] prog.py [arguments]``.

The program runs without a job, as PE 0 of --pes. A launch compiles its kernel for its arguments, and does nothing else. Other host
operations do nothing, arrays are NumPy arrays, and the GPU has the properties of an H100. The program therefore behaves as if its kernels
never ran. Its own output is dropped.

The command prints for each kernel: the number of SASS instructions, the registers of a thread, the bytes that it spills, the bytes of its
stack, and how many of the instructions are loads, stores, atomics, and fences. A PGAS_ variable has the same meaning as for a job's
kernels. On a GPU, numba-cuda optimizes again when it links a kernel (LTO), so that its machine code may differ a little from what is
counted here.
"""

import argparse
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

import pgas
from pgas.api.jit import Kernel
from pgas.base import config, interpreter, model
from pgas.base.arguments import Parser, input_file, one_of, within
from pgas.base.backend import SIMULATOR
from pgas.base.errors import PgasError
from pgas.base.launcher import MAX_PES
from pgas.job import runtime
from pgas.job.memory import dlpack
from pgas.job.memory.array import dtype_of
from pgas.kernels import window
from pgas.kernels.compiler import backend, compiler, cuda
from pgas.kernels.compiler.binding import BINDER, HOST_FORMS
from pgas.kernels.compiler.reason import reason
from pgas.sass import Built, assemble, compile_ptx
from pgas.transports import registry

#: Maximum number of launches of a program, because it may be waiting in a loop for a result, although no kernel runs.
_LAUNCHES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    _add_options(parser)
    parser.add_argument("program", type=input_file, help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program; after --, whatever their names")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transport", type=one_of([*registry.names(), *registry.pairs()]), metavar="NAME", default="p2p")
    parser.add_argument("--pes", type=within(1, MAX_PES), metavar="N", default=2, help="what n_pes() returns (default 2)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the program and print the table. Returns 1 if a kernel cannot be compiled, or if the program launches none."""
    if SIMULATOR:  # In this process, numba.cuda has already chosen the simulator.
        command = interpreter.command("pgas", *sys.argv[1:])
        return subprocess.run(command, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}, check=False).returncode
    from pgas.job.gpu_verdicts import missing

    if lacking := missing():
        raise PgasError(lacking)
    _take_options(options)
    requested = {name: config.read(name) for name in config.VARIABLES}
    window.freeze(window.Constants.of(requested, registry.get(options.transport), 0))
    # An absolute path, so that errors of the compiler can distinguish the program's lines from those of libraries.
    found = launched(os.path.abspath(options.program), options.arguments, options.pes)
    if not found.launches and found.ended is None:
        raise PgasError(f"{options.program} launched no kernel; a kernel is compiled when the program launches it")
    built = found.assembled()
    if options.json:
        print(json.dumps({name: {"arguments": found.arguments[name], **b.summary()} for name, b in built.items()}, indent=1))
    elif built:
        print(_table(built, found.arguments, options.transport))
    for name, error in found.errors.items():
        print(f"{name} does not compile: {error}", file=sys.stderr)
    if found.ended is not None:
        print(_stopped(found.launches, found.ended), file=sys.stderr)
    return 1 if found.errors or not built else 0


def _stopped(launches: int, error: Exception) -> str:
    """Return the message about the exception that ended the program, whose kernels do nothing here, so that its own checks fail."""
    count = "1 launch" if launches == 1 else f"{launches} launches"
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"The program stopped after {count}: {': '.join(filter(None, (type(error).__name__, line.strip())))}"


def _take_options(options: argparse.Namespace) -> None:
    """Take the command's options that follow the program's name, but not those after --."""
    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []  # Not from argparse, which may drop the --.
    before = options.arguments[: len(options.arguments) - len(behind)]
    parser = Parser(prog="python -m pgas compile", add_help=False, allow_abbrev=False)
    _add_options(parser)
    _, others = parser.parse_known_args([argument for argument in before if argument != "--"], options)
    options.arguments = others + behind


def _table(built: dict[str, Built], arguments: dict[str, str], transport: str) -> str:
    width = max([6, *(len(name) for name in built)])
    heads = [f"{head:>5}" for head in ("SASS", "registers", "spills", "stack", "loads", "stores", "atomics", "fences")]
    lines = [f"{'kernel':{width}} {' '.join(heads)}   ({transport}, sm_{model.COMPUTE_CAPABILITY[0]}{model.COMPUTE_CAPABILITY[1]})"]
    for name, b in built.items():
        kinds = [sum(b.count(opcode) for opcode in opcodes) for opcodes in (("LD",), ("ST",), ("ATOM", "RED"), ("MEMBAR",))]
        numbers = [len(b.instructions), b.registers, b.spills, b.stack, *kinds]
        cells = " ".join(f"{number:{len(head)}}" for number, head in zip(numbers, heads, strict=True))
        lines.append(f"{name:{width}} {cells}   {arguments[name]}")
    return "\n".join(lines)


class _Enough(BaseException):
    """Ends a program that has made _LAUNCHES launches."""


class Found:
    """The kernels that a program launched."""

    def __init__(self) -> None:
        self.launches = 0
        self.ended: Exception | None = None  #: Exception that ended the program
        self.arguments: dict[str, str] = {}  #: Argument types, by kernel
        self.errors: dict[str, str] = {}  #: Reasons, by kernel that does not compile
        self._ptx: dict[str, tuple[str, int]] = {}  #: By kernel, its PTX and the limit of its registers
        self._seen: set[tuple[Any, tuple[Any, ...]]] = set()  #: Functions with argument types

    def launch(self, dispatcher: Any, args: tuple[Any, ...]) -> None:
        """Compile a kernel, unless it has already been compiled for such arguments."""
        self.launches += 1
        if self.launches > _LAUNCHES:
            raise _Enough
        function = backend.function_of(dispatcher)
        types = compiler.types_of(dispatcher, args)
        if (function, types) in self._seen:
            return
        self._seen.add((function, types))
        shown, name = ", ".join(_short(t) for t in types), function.__name__
        while name in self.arguments or name in self.errors:
            name += "'"
        try:
            ptx = compile_ptx(dispatcher, types)
        except Exception as error:  # The compiler raises errors of many classes.
            self.errors[name] = reason(error, function)
            return
        self.arguments[name] = shown
        self._ptx[name] = ptx, compiler.options_of(dispatcher).get("max_registers") or 0

    def assembled(self) -> dict[str, Built]:
        """Return the kernels' machine code. Each is assembled alone, because several modules may define the same shared memory."""
        return {name: assemble({name: ptx}, max_registers=limit)[name] for name, (ptx, limit) in self._ptx.items()}


def _short(type_: Any) -> str:
    dtype, ndim = getattr(type_, "dtype", None), getattr(type_, "ndim", None)
    return str(type_) if ndim is None else f"{dtype}[{','.join(':' * ndim)}]"


def launched(program: str, arguments: list[str], n_pes: int = 2) -> Found:
    """Run a program as __main__, and compile the kernels that it launches, with the frozen constants."""
    found = Found()
    _pretend(found, n_pes)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit, _Enough):
        try:
            runpy.run_path(program, run_name="__main__")
        except Exception as error:
            found.ended = error
    return found


# Stubs of pgas's host functions ---------------------------------------------------------------------------------------------------


#: Arrays whose memory other libraries may use.
_lent: list[np.ndarray] = []


class _Array(np.ndarray):
    """A NumPy array with the methods of a symmetric array."""

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        if ary is None:
            return np.array(self)
        ary[...] = self
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        self[...] = ary

    def bind(self, stream: Any = 0) -> "_Array":
        return self

    def __dlpack__(self, **_: Any) -> Any:
        _lent.append(self)
        return dlpack.capsule(self.ctypes.data, self.shape, self.strides, self.dtype, self.__dlpack_device__())

    def __enter__(self) -> "_Array":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def _like(make: Callable[..., _Array]) -> Callable[..., _Array]:
    """Return the _like form of a function that makes arrays."""

    def like(prototype: Any, *value: Any, dtype: Any = None, shape: Any = None, **_: Any) -> _Array:
        return make(prototype.shape if shape is None else shape, *value, dtype=dtype or prototype.dtype)

    return like


def _empty(shape: Any, dtype: Any = np.float64, **_: Any) -> _Array:
    return np.zeros(shape, dtype_of(dtype)).view(_Array)


def _full(shape: Any, value: Any, dtype: Any = None, **_: Any) -> _Array:
    return np.full(shape, value, dtype and dtype_of(dtype)).view(_Array)


def _array(values: Any, dtype: Any = None, **_: Any) -> _Array:
    return np.array(values, dtype and dtype_of(dtype)).view(_Array)


def _pretend(found: Found, n_pes: int) -> None:
    """Replace pgas's functions, for the rest of this process, with functions that do nothing. ``found`` receives the launches."""
    team = SimpleNamespace(pes=tuple(range(n_pes)), channels=config.read("PGAS_CHANNELS"))
    job = SimpleNamespace(my_pe=0, n_pes=n_pes, teams=SimpleNamespace(find=lambda number: team), peer=lambda array, pe: array)
    job.transport, job.nic = window.constants().transport, None
    job.pes = [SimpleNamespace(gpu=pe, gpu_name=model.NAME) for pe in range(n_pes)]

    @contextlib.contextmanager
    def init(*_: Any, **__: Any) -> Iterator[Any]:
        yield job

    def configured(kernel: Any, configuration: Any) -> Any:
        launch = lambda *args: found.launch(getattr(kernel, "dispatcher", kernel), args)  # noqa: E731
        launch.bind = lambda *args: lambda: launch(*args)  # type: ignore[attr-defined]
        return launch

    def launch(kernel: Any, grid: Any, block: Any, args: tuple[Any, ...] = (), *_: Any, **__: Any) -> None:
        found.launch(getattr(kernel, "dispatcher", kernel), args)

    def nothing(*_: Any, **__: Any) -> int:
        return 0

    world = pgas.TEAM_WORLD
    runtime.current = lambda: job  # type: ignore[assignment, return-value]
    HOST_FORMS.update(dict.fromkeys(HOST_FORMS, nothing))
    BINDER[:] = [lambda *_: nothing]
    pretended: dict[str, Callable[..., Any]] = {
        "init": init, "launch": launch, "array": _array, "empty": _empty, "zeros": _empty, "full": _full,
        "ones": lambda shape, dtype=np.float64, **_: _full(shape, 1, dtype),
        "full_like": _like(_full), "empty_like": _like(_empty), "zeros_like": _like(_empty),
        "allgather_object": lambda value: [value] * n_pes,
        "broadcast_object": lambda value, *_: value, "unique_id": lambda *_: bytes(128),
        "team_split_strided": lambda *_, **__: world, "team_create": lambda *_, **__: world,
        "team_split_2d": lambda *_, **__: (world, world),
    }  # fmt: skip
    pretended |= dict.fromkeys(("finalize", "free", "register", "reset", "synchronize", "team_destroy", "unregister"), nothing)
    of_cuda = {"to_device": lambda ary, *_, **__: _array(ary), "device_array": _empty, "device_array_like": _like(_empty)}
    of_cuda |= {"stream": nothing, "synchronize": nothing, "event_elapsed_time": nothing}
    event = SimpleNamespace(record=nothing, synchronize=nothing, wait=nothing, query=lambda: True, elapsed_time=nothing)
    of_cuda["event"] = lambda *_, **__: event
    gpu = SimpleNamespace(id=0, name=model.NAME, compute_capability=model.COMPUTE_CAPABILITY, **model.ATTRIBUTES)
    of_cuda["get_current_device"] = lambda: gpu
    for module, functions in ((pgas, pretended), (cuda, of_cuda)):
        for name, function in functions.items():
            setattr(module, name, function)
    for kind in (Kernel, type(backend.jit(lambda: None))):
        setattr(kind, "__getitem__", configured)  # noqa: B010
