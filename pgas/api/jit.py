"""@pgas.jit and pgas.launch: compiling kernels with a disk cache, checks at launch, and cheap repeated launches."""

import contextlib
import dis
import enum
import functools
import hashlib
import inspect
import math
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pgas import kernels
from pgas.api.host_only import host_only
from pgas.base import disk_cache
from pgas.base.code import nested
from pgas.base.errors import BootstrapError
from pgas.base.parameters import is_integer
from pgas.base.version import __version__
from pgas.job import runtime
from pgas.job.memory import teams
from pgas.job.memory.array import SymmetricArray
from pgas.job.paths.platform import platform
from pgas.job.paths.streams import identity, normalized, sizes_of, three
from pgas.kernels import window
from pgas.kernels.compiler import backend, compiler
from pgas.transports import mlx5

__all__ = ["BoundLaunch", "Kernel", "jit", "launch"]

#: Maximum number of launch configurations that a kernel keeps.
_MOST_CONFIGURED = 64


@host_only
def jit(function: Callable[..., Any] | None = None, *, cache: bool = True, **options: Any) -> Any:
    """Compile a kernel that may call pgas functions. Takes the same options as ``numba.cuda.jit``.

    In addition to what numba.cuda.jit does, compiled code is kept on disk under a key that contains everything it depends on (pgas, its
    configuration, the values of globals and the device functions that the kernel uses, and all their options). The code of the pgas
    functions that it calls is kept apart, so that a changed kernel is compiled quickly. A launch before pgas.init()
    or after pgas.finalize() raises an error. ``kernel[grid, block].bind(*args)`` makes repeated launches cheap. ``kernel.py_func`` is the
    function.

    With ``device=True`` the result is a device function, which kernels may call, like that of ``numba.cuda.jit(device=True)``. Its code is
    kept with that of the kernels.

    Args:
        function: the kernel, without a signature: a launch compiles it for the types of its arguments.
        cache: whether to keep the kernel's compiled code on disk, in a directory ``pgas`` that only this user may enter, in the first of
            these locations that permits it: NUMBA_CACHE_DIR if it is set, ``__pycache__`` next to the source, ``~/.cache/numba``. Code that
            another user owns or may write is never loaded. Every process compiles a kernel again if it comes from no file (such as at the
            prompt), uses globals without a plain value, or is linked with other code: that of numba-cuda (an array's reshape, float16) or
            what ``link=`` names. The code of pgas functions is kept in any case, in NUMBA_CACHE_DIR or ``~/.cache/numba``. Default: True.
        options: for numba.cuda.jit. In a block of 1,024 threads, a thread has 64 registers. Some calls over ibgda need more
            (``python -m pgas compile --transport ibgda`` prints how many); use ``launch_bounds=1024`` for them.

    Raises:
        TypeError: function is not a Python function (for example, a signature or a kernel).

    Example:
        >>> @pgas.jit
        ... def scale(a, factor):
        ...     i = cuda.grid(1)
        ...     if i < a.size:
        ...         a[i] *= factor
        >>> a = pgas.full(5, 2.0)
        >>> scale[2, 32](a, 3.0)
        >>> pgas.synchronize()
        >>> float(a[4])
        6.0
    """
    if function is None:
        return functools.partial(jit, cache=cache, **options)
    if isinstance(function, Kernel) or backend.function_of(function) is not None:
        raise TypeError(f"pgas.jit: {function.__name__} already has a jit decorator; replace that decorator with @pgas.jit")
    if not isinstance(function, types.FunctionType):
        raise TypeError(
            f"pgas.jit: function must be a Python function, not {function!r}; write @pgas.jit without a signature, "
            "because a launch compiles the kernel for its arguments"
        )
    if options.get("device"):
        return backend.jit(function, **options)
    return Kernel(function, cache=cache, **options)


class Kernel:
    """A kernel made by @pgas.jit. ``kernel[grid, block, stream, shared_bytes](*args)`` launches it; stream is like that of launch()."""

    __name__: str
    dispatcher: Any

    def __init__(self, function: Callable[..., Any], *, cache: bool, **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.dispatcher = backend.jit(function, **options)
        self._configured: dict[Any, ConfiguredKernel] = {}
        self.again: dict[Any, _Again] = {}
        if cache:
            backend.keep(self.dispatcher, lambda: (*_depended_on(), _fingerprint(self.dispatcher)))

    @property
    def py_func(self) -> Callable[..., Any]:
        """The Python function from which the kernel was made."""
        return backend.function_of(self.dispatcher)  # type: ignore[no-any-return]

    @functools.cached_property
    def numbers(self) -> range:
        """Numbers of arguments that the kernel takes."""
        function: Any = self.py_func
        code = function.__code__
        most = sys.maxsize if code.co_flags & inspect.CO_VARARGS else code.co_argcount + 1
        return range(code.co_argcount - len(function.__defaults__ or ()), most)

    def __getitem__(self, configuration: Any) -> "ConfiguredKernel":
        configuration = configuration if isinstance(configuration, tuple) else (configuration,)
        key = configuration if _is_key(configuration) else None
        if key is not None and (found := self._configured.get(key)) is not None:
            return found
        if len(configuration) > 2:
            configuration = (*configuration[:2], platform.core_stream(configuration[2]), *configuration[3:])
        configured = ConfiguredKernel(self, configuration)
        if key is not None:
            if len(self._configured) >= _MOST_CONFIGURED:
                self._configured.clear()
            self._configured[key] = configured
        return configured

    def __call__(self, *args: Any) -> None:
        raise ValueError(f"kernel {self.__name__} needs a launch configuration: {self.__name__}[blocks, threads_per_block](...)")


class ConfiguredKernel:
    """A kernel with grid, block, stream and dynamic shared memory."""

    def __init__(self, kernel: Kernel, configuration: tuple[Any, ...]) -> None:
        self._kernel, self._configuration = kernel, configuration
        _check_integers(f"{kernel.__name__}: ", configuration)
        self._launch = platform.configured(kernel.dispatcher, kernel.__name__, configuration)
        self._described = _described(kernel, configuration)

    def __call__(self, *args: Any, **names: Any) -> None:
        """Launch the kernel. Returns while it runs (in the simulator, after it has run).

        Raises:
            TypeError: if an argument is missing, or there are more than the kernel takes.
            PgasError: if pgas.init() has not run, or pgas.finalize() has, or an argument is a team that was destroyed.
            HeapError: if an argument was freed.
            ValueError: if no block of this size fits on an SM, because its threads take too many registers or exceed launch_bounds.
        """
        if names:
            raise TypeError(
                f"{self._kernel.__name__}: the arguments of a kernel have no names in a launch; give {next(iter(names))} by its position"
            )
        job = runtime.current()
        if len(args) not in self._kernel.numbers:
            _refuse_arguments(self._kernel, args)
        job.teams.check(teams.handles(args))
        job.launching(*self._described)
        self._launch(*args)
        if job.timeline is not None:
            job.timeline.launched()

    def bind(self, *args: Any) -> "BoundLaunch":
        """Return an object whose call launches the kernel with these arguments, which are converted only once.

        Arrays are bound by address: none of them may be freed while the object is in use.
        """
        runtime.current()
        return BoundLaunch(self._kernel, self._configuration, args)


class BoundLaunch:
    """A launch with its arguments converted. A call takes about one microsecond of host time in addition to the driver's.

    place: of the argument that may change from launch to launch (streams.py: with_argument()), if there is one.
    """

    def __init__(
        self,
        kernel: Kernel,
        configuration: tuple[Any, ...],
        args: tuple[Any, ...],
        *,
        cooperative: bool = False,
        place: tuple[int, ...] = (),
    ) -> None:
        _check_integers("", configuration)
        if len(args) not in kernel.numbers:
            _refuse_arguments(kernel, args)
        self._described = _described(kernel, configuration)
        self._teams, self.varies = teams.handles(args), bool(place)
        runtime.current().teams.check(self._teams)
        self._launch = platform.bound(kernel.dispatcher, kernel.__name__, configuration, args, cooperative=cooperative, place=place)

    def __call__(self, *changed: Any) -> None:
        """Launch the kernel. Returns while it runs (in the simulator, after it has run).

        changed: a number that replaces the argument at ``place``. A launch without such an argument ignores it.

        Raises:
            PgasError: if pgas.finalize() has run, or an argument is a team that was destroyed.
        """
        job = runtime.current()
        job.teams.check(self._teams)
        job.launching(*self._described)
        self._launch(*changed)
        if job.timeline is not None:
            job.timeline.launched()


def _is_key(configuration: tuple[Any, ...]) -> bool:
    """Whether equal configurations are the same. 1.0 and True equal 1, but must be rejected."""
    stream = configuration[2] if len(configuration) > 2 else None
    if isinstance(stream, (bool, float, complex, np.generic, tuple)) or type(stream).__hash__ is None:
        return False
    if 2 <= len(configuration) <= 3 and type(configuration[0]) is type(configuration[1]) is int:
        return True
    sizes = (n for item in (*configuration[:2], *configuration[3:]) for n in (item if type(item) is tuple else (item,)))
    return all(type(n) is int for n in sizes)


def _described(kernel: Kernel, configuration: tuple[Any, ...]) -> tuple[str, int]:
    """Return the description of a launch for hang reports, and the handle of its stream."""
    grid, block, *rest = configuration if len(configuration) > 1 else (*configuration, "?")
    stream = platform.handle_of(rest[0] if rest else None)
    return f"{kernel.__name__}[{grid}, {block}]" + (f" on stream {stream:#x}" if stream else ""), stream


@host_only
def launch(kernel: Any, grid: Any, block: Any, args: tuple[Any, ...] = (), stream: Any = 0, shared: int = 0) -> None:
    """Launch a kernel on all PEs. Its blocks may wait for each other and for the kernels of other PEs. Collective.

    All blocks of the grid run concurrently (a cooperative launch), so a block may wait for any other. Plain launches give no such
    guarantee: a block may wait for one that never starts. A launch is not a barrier: call barrier_all() before it if kernels of other PEs
    access what this host has written. NVSHMEM: nvshmemx_collective_launch.

    The call waits until the host of every PE has made it, and compares these calls.

    Args:
        kernel: a kernel made by @pgas.jit or @cuda.jit.
        grid: number of blocks, or a tuple of up to three.
        block: number of threads per block, or a tuple of up to three.
        args: tuple of the kernel's arguments, device arrays and numbers. Default: none.
        stream: CUDA stream of Numba, cuda.core, CuPy, or PyTorch. Default: the default stream.
        shared: size of the dynamic shared memory in bytes. Default: 0.

    Raises:
        TypeError: kernel is not a kernel, args is not a tuple, or grid, block, or shared contains something other than integers.
        ValueError: raised on every PE, if on some PE the blocks do not all fit on the GPU concurrently (in the simulator: on an H100,
            registers not counted), and the message gives the largest grid that fits; or if not even one block fits.
        BootstrapError: PEs launch different kernels, or with a different grid, block, shared, or dtype of a symmetric array in args.
        PgasError: args contains a team that was destroyed; a PE whose args contain none gets a ValueError.

    Example:
        >>> @pgas.jit
        ... def meet(out):
        ...     pgas.barrier_all_block()  # waits for the kernels of all PEs
        ...     out[cuda.threadIdx.x] = 1
        >>> out = pgas.zeros(32, np.int32)
        >>> pgas.launch(meet, 1, 32, (out,))
        >>> pgas.synchronize()
        >>> int(out.copy_to_host().sum())
        32
    """
    job = runtime.current()
    if not isinstance(kernel, Kernel):
        if backend.function_of(kernel) is None:
            raise TypeError(f"pgas.launch: kernel must be made by @pgas.jit or @cuda.jit, not {kernel!r}")
        kernel = _adopted(kernel)
    if not isinstance(args, tuple):  # Otherwise an array would be unpacked into its elements.
        raise TypeError(f"pgas.launch: args must be a tuple of the kernel's arguments, not {type(args).__name__}: (array,) if it takes one")

    configuration = (grid, block, stream, shared)
    key = (grid, block, shared, identity(stream)) if _is_key(configuration) else None
    known = kernel.again.get(key)
    again = known if known is not None and known.job() is job else None

    def prepare() -> Callable[[], None]:
        if again is not None and (ready := again.ready(args)) is not None:
            return ready
        configuration = (grid, block, platform.core_stream(stream), shared)
        bound = BoundLaunch(kernel, configuration, args, cooperative=True)
        blocks, threads = (math.prod(x) for x in normalized(configuration)[:2])
        gpu, most = platform.resident(kernel.dispatcher, args, threads, shared)
        if blocks > most:
            raise ValueError(
                f"{kernel.__name__}: {blocks} blocks of {threads} threads cannot run concurrently on {gpu}; the maximum is {most}"
            )
        return bound

    call = f"pgas.launch({kernel.__name__})"
    with job.making(call):
        shape = _shape(grid, block, shared, args) if again is None else again.shape(args)
        launch, shapes = job.together(call, prepare, value=shape, failed_there=ValueError)
        if (other := next((pe for pe, shape in enumerate(shapes) if shape != shapes[0]), None)) is not None:
            here, there = (f"PE {pe} called {call} with {shapes[pe]}" for pe in (0, other))
            raise BootstrapError(f"PEs disagree in a collective call: {here}; {there}")
    launch()
    if key is not None and isinstance(launch, BoundLaunch):
        if again is None:
            if len(kernel.again) >= _MOST_CONFIGURED:
                kernel.again.clear()
            again = kernel.again[key] = _Again(job, kernel, configuration)
        again.learn(args)


class _Again:
    """What launches of a kernel with one configuration keep for those that repeat them."""

    def __init__(self, job: runtime.Job, kernel: Kernel, configuration: tuple[Any, ...]) -> None:
        self.job, self._given = weakref.ref(job), configuration  # It has the stream, whose ID may be in the key.
        grid, block, stream, shared = configuration
        launched = grid, block, platform.core_stream(stream), shared
        self._described = _described(kernel, launched)
        self._numbers, self._launches = kernel.numbers, platform.repeatable(kernel.dispatcher, kernel.__name__, launched)
        self._shapes: dict[tuple[Any, ...], str] = {}

    def learn(self, args: tuple[Any, ...]) -> None:
        """Let ready() know the types of these arguments."""
        self._launches.learn(args)

    def shape(self, args: tuple[Any, ...]) -> str:
        """Return the result of _shape(), which it makes once for the same dtypes."""
        dtypes = tuple([arg.dtype if isinstance(arg, SymmetricArray) else None for arg in args])
        if (shape := self._shapes.get(dtypes)) is None:
            grid, block, _, shared = self._given
            shape = self._shapes[dtypes] = _shape(grid, block, shared, args)
        return shape

    def ready(self, args: tuple[Any, ...]) -> Callable[[], None] | None:
        """Return a function that launches with arguments of types that are known; otherwise None.

        Raises:
            HeapError: an argument was freed.
            PgasError: an argument is a team that was destroyed.
        """
        if len(args) not in self._numbers or (launch := self._launches.ready(args)) is None:
            return None
        job = runtime.current()
        job.teams.check(teams.handles(args))

        def launched() -> None:
            job.launching(*self._described)
            launch()
            if job.timeline is not None:
                job.timeline.launched()

        return launched


def _shape(grid: Any, block: Any, shared: Any, args: tuple[Any, ...]) -> str:
    """Return what must be the same on all PEs in a collective launch, as text. Other arguments, such as numbers, may differ."""
    sizes = []
    for given in (grid, block):
        with contextlib.suppress(TypeError, ValueError):  # BoundLaunch raises it.
            given = three("", given)
        sizes.append(str(given)[:200])
    dtypes = [f"{arg.dtype} as argument {i}" for i, arg in enumerate(args) if isinstance(arg, SymmetricArray)]
    return ", ".join([f"grid {sizes[0]}", f"block {sizes[1]}", f"shared {str(shared)[:200]}", *dtypes])


def _adopted(dispatcher: Any) -> Kernel:
    """Return the kernel of a dispatcher made by @cuda.jit: the same each time, so that it keeps its launches."""
    kernel: Kernel | None = getattr(dispatcher, "_pgas_kernel", None)
    if kernel is None:
        kernel = dispatcher._pgas_kernel = Kernel.__new__(Kernel)
        functools.update_wrapper(kernel, backend.function_of(dispatcher))
        kernel.dispatcher, kernel._configured, kernel.again = dispatcher, {}, {}
    return kernel


def _refuse_arguments(kernel: Kernel, args: tuple[Any, ...]) -> NoReturn:
    """Raise TypeError for a wrong number of arguments, at every launch and bind(), with GPUs and in the simulator."""
    function: Any = kernel.py_func
    code, least = function.__code__, kernel.numbers.start
    varies = kernel.numbers.stop == sys.maxsize
    needed = f"at least {least}" if varies else f"{least}" if least == code.co_argcount else f"{least} to {code.co_argcount}"
    raise TypeError(
        f"{kernel.__name__}: the kernel takes {needed} argument{'s' * (code.co_argcount != 1)} "
        f"({', '.join(code.co_varnames[: code.co_argcount]) or 'none'}), not {len(args)}"
    )


def _check_integers(where: str, configuration: tuple[Any, ...]) -> None:
    """Check that the sizes of a launch are integers. Numba accepts True, and its messages do not name the kernel."""
    for name, sizes in zip(("grid", "block"), configuration, strict=False):
        if not all(is_integer(n) for n in sizes_of(sizes)):
            raise TypeError(f"{where}{name} must be an integer or up to three of them, not {sizes!r}")
    for shared in configuration[3:4]:
        if not is_integer(shared):
            raise TypeError(f"{where}shared must be an integer, not {shared!r}")


# ---------------------------------------------------------------------------------------------------------------------- the cache


@functools.cache
def _library_hash() -> str:
    """Return the hash of pgas's own sources, which Numba's key does not cover."""
    digest = hashlib.sha256(__version__.encode())
    for path in _sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _depended_on() -> tuple[str, window.Constants]:
    """Return what code of pgas depends on, other than types."""
    return _library_hash(), window.constants()


backend.keep_bodies(_depended_on)


def _sources() -> list[Path]:
    """Return the source files of device code and of its constants."""
    folders = [Path(folder) for package in (kernels, mlx5) for folder in package.__path__] + [Path(__file__).parents[1] / "nvshmem"]
    return sorted([Path(__file__), *(path for folder in folders for path in folder.rglob("*.py"))])


def _fingerprint(function: Any) -> str:
    """Return the hash of everything a kernel depends on. function: a function, or a dispatcher with its options.

    Raises:
        Uncacheable: if _dependencies() raises it.
    """
    digest = hashlib.sha256()
    for part in _dependencies(function, set()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _dependencies(function: Any, seen: set[Any]) -> list[bytes]:
    """Return code, defaults, and options of a function and of every device function it names, and the values of its globals.

    Raises:
        Uncacheable: if the function uses a global that is neither a plain value nor code nor a module.
    """
    parts = []
    for option, value in sorted(compiler.options_of(function).items()):
        parts += [option.encode(), *_value(tuple(value) if isinstance(value, list) else value, (), seen)]
    function = inspect.unwrap(compiler.function_of(function) or function)
    parts.append(f"{function.__module__}.{function.__qualname__}".encode())
    if id(function) in seen:
        return parts
    seen.add(id(function))
    codes = list(nested(function.__code__))
    names = tuple(name for code in codes for name in code.co_names)
    for code in codes:
        plain = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        # Sorted, because a frozenset has no defined order.
        constants = [sorted(map(repr, c)) if isinstance(c, frozenset) else c for c in plain]
        parts += [code.co_code, repr((constants, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)).encode()]
    variables: dict[str, Any] = {name: function.__globals__[name] for name in _global_names(codes) if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # The compiler will report an empty cell.
            variables[name] = cell.cell_contents
    variables["defaults of the arguments"] = (function.__defaults__, *sorted((function.__kwdefaults__ or {}).items()))
    for name, value in sorted(variables.items()):
        parts += [name.encode(), *_value(value, names, seen)]
    return parts


def _global_names(codes: Iterable[types.CodeType]) -> set[str]:
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    return {instruction.argval for code in codes for instruction in dis.get_instructions(code) if instruction.opname in loads}


def _versioned(module: str) -> bool:
    """Whether the key already covers a module's code, by a version (Compiler.versions) or by _library_hash()."""
    versioned = ("pgas", *compiler.packages, "numpy", "math", "operator")
    return module.split(".")[0] in versioned and not module.startswith("pgas.perftests")


def _value(value: Any, names: tuple[str, ...], seen: set[Any]) -> list[bytes]:
    if isinstance(value, types.ModuleType):
        parts = [value.__name__.encode()]
        for name in sorted(set(names)) if not _versioned(value.__name__) else ():
            if hasattr(value, name) and (id(value), name) not in seen:
                seen.add((id(value), name))
                parts += [name.encode(), *_value(getattr(value, name), names, seen)]
        return parts
    if isinstance(value, Kernel):
        return _dependencies(value.dispatcher, seen)
    if isinstance(value, types.FunctionType) or compiler.function_of(value) is not None:
        module = getattr(value, "__module__", None) or ""
        return [f"{module}.{value.__name__}".encode()] if _versioned(module) else _dependencies(value, seen)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [repr((value.dtype, value.shape, value.flags.f_contiguous, value.flags.writeable)).encode(), value.tobytes()]
    if isinstance(value, enum.Enum):
        kind = type(value)
        return [f"{kind.__module__}.{kind.__qualname__}.{value.name}".encode(), *_value(value.value, names, seen)]
    if isinstance(value, enum.EnumType):
        members: Any = value.__members__
        return [part for name, member in members.items() for part in (name.encode(), *_value(member, names, seen))]
    if isinstance(value, teams.Handle):  # Not its repr(), which names the members.
        return [repr(int(value)).encode()]
    if isinstance(value, (int, float, complex, str, bytes, bool, type(None), np.generic, np.dtype)):
        return [repr(value).encode()]
    if isinstance(value, tuple):
        fields = repr(getattr(value, "_fields", len(value)))
        return [fields.encode(), *(part for item in value for part in _value(item, names, seen))]
    if isinstance(value, type) and issubclass(value, tuple):
        return [repr((value, getattr(value, "_fields", None))).encode()]
    known = value if isinstance(value, type) else type(value)
    text = "" if hasattr(value, "__cuda_array_interface__") else repr(value)
    if text and " at 0x" not in text and (_versioned(known.__module__) or known.__module__ == "builtins"):
        return [text.encode()]
    raise disk_cache.Uncacheable(repr(known))
