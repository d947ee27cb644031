"""Connects numba-cuda's simulator to the engine: `cuda.jit`, launches `kernel[grid, block](...)`, arguments, the name `cuda`.

numba-cuda's own simulator still provides streams, `cuda.to_device`, and the classes of device arrays.
"""

import warnings
from collections.abc import Callable
from math import prod
from typing import Any

import numba.cuda
import numpy as np
from numba.core import config as core_config
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaDeprecationWarning
from numba.cuda.core import config
from numba.cuda.core.sigutils import is_signature
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.simulator import api, kernel
from numba.cuda.simulator.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv import devicearray
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from pgas.base import model
from pgas.base.errors import PgasError
from pgas.sim import engine, host_api
from pgas.sim.arrays import KernelArray
from pgas.sim.cuda_module import CACHE_HINTS, KERNEL_MODULE
from pgas.sim.integers import typed
from pgas.sim.kernel_code import lacks_names, of_kernel

_FORALL_THREADS_PER_BLOCK = 128

# Options of the real cuda.jit for its compiler, which have no effect here.
_COMPILER_OPTIONS = frozenset(
    {"inline", "forceinline", "opt", "lineinfo", "cache", "lto", "max_registers", "shared_memory_carveout", "fastmath", "abi", "abi_info"}
)

_installed = False

#: Called with a kernel and its arguments before every launch of the host; PGAS_DEBUG=strict sets it.
before_launch: Callable[[Any, tuple[Any, ...]], None] = lambda kernel, args: None  # noqa: E731


class SimulatedKernel:
    """A kernel with its launch configuration: the result of `kernel[grid, block, stream, shared_bytes]`. A call launches it."""

    def __init__(self, fake: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> None:
        self.kernel = fake
        self.grid_dim, self.block_dim = normalize_kernel_dimensions(griddim, blockdim)
        self.stream = stream
        self.dynshared_size = int(sharedmem)
        model.check_launch(fake.__name__, self.grid_dim, self.block_dim, self.dynshared_size, getattr(fake, "max_threads", None))

    def __call__(self, *args: Any) -> None:
        """Run the kernel to its end; then host arrays hold what it wrote."""
        write_back: list[Callable[[], Any]] = []
        kernel_args = tuple(_argument(self.kernel, arg, write_back) for arg in args)
        fake = self.kernel
        before_launch(fake, kernel_args)
        engine.launch(_runs(fake), kernel_args, self.grid_dim, self.block_dim, self.dynshared_size, fake._debug, self.stream)
        for copy in write_back:
            copy()


class _ForAll:
    """The result of `kernel.forall(ntasks)`: at least ntasks threads, in whole blocks, like on a GPU."""

    def __init__(self, fake: Any, ntasks: int, tpb: int, stream: Any, sharedmem: int) -> None:
        if ntasks < 0:
            raise ValueError(f"forall: ntasks must be at least 0, not {ntasks}")
        self.args = fake, ntasks, tpb or _FORALL_THREADS_PER_BLOCK, stream, sharedmem

    def __call__(self, *args: Any) -> None:
        fake, ntasks, tpb, stream, sharedmem = self.args
        if ntasks:
            fake[-(-ntasks // tpb), tpb, stream, sharedmem](*args)


def jit(func_or_sig: Any = None, device: bool = False, debug: bool | None = None, **options: Any) -> Any:
    """Take all options of the real `cuda.jit`.

    launch_bounds, extensions, and debug are honored, and options for the compiler are ignored. Like in the stock simulator, link and
    boundscheck are rejected.
    """
    if options.pop("boundscheck", None):
        raise NotImplementedError("cuda.jit: bounds checking is not supported for CUDA")
    if options.pop("link", None):
        raise NotImplementedError("cuda.jit: the simulator cannot link PTX or CUDA C++ (link=)")
    extensions = options.pop("extensions", None) or ()
    launch_bounds = options.pop("launch_bounds", None)
    for name in ("argtypes", "restype", "bind"):
        if options.pop(name, None) is not None:
            raise TypeError(f"cuda.jit: {name}= is not supported any more; pass the signature as the first argument")
    unknown = options.keys() - _COMPILER_OPTIONS
    if unknown:
        raise TypeError(f"cuda.jit: unknown option {', '.join(sorted(unknown))}")
    debug = bool(config.CUDA_DEBUGINFO_DEFAULT if debug is None else debug)

    def decorate(fn: Callable[..., Any]) -> Any:
        fake = kernel.FakeCUDAKernel(fn, device=device, fastmath=bool(options.get("fastmath")), extensions=extensions, debug=debug)
        if launch_bounds is not None:
            fake.max_threads = int(launch_bounds[0] if isinstance(launch_bounds, tuple) else launch_bounds)
        return fake

    if func_or_sig is None or isinstance(func_or_sig, list) or is_signature(func_or_sig):
        return decorate
    return decorate(func_or_sig)


def install() -> None:
    """See `pgas.sim.engine.install`."""
    global _installed
    if _installed:
        return
    if not (config.ENABLE_CUDASIM and core_config.ENABLE_CUDASIM):
        raise PgasError("the simulator needs NUMBA_ENABLE_CUDASIM=1 in the environment before Numba is imported")
    fake = kernel.FakeCUDAKernel
    fake.__call__ = _call
    fake.__getitem__ = _configure
    fake.forall = _forall
    kernel.FakeOverload.max_cooperative_grid_blocks = _max_cooperative_grid_blocks
    devicearray.check_array_compatibility = _check_compatibility
    for module in (numba.cuda, numba.cuda.simulator, api):
        module.jit = jit
    host_api.install()
    # Device names that kernels do not find in their globals: `pgas.cuda`, local imports, `from numba.cuda import syncthreads`.
    numba.cuda.__getattr__ = _device_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaDeprecationWarning)
        from numba.cuda import random
    for function in vars(random).values():  # Host and kernels have these functions. The stock simulator interprets them on the host.
        if isinstance(function, Dispatcher):
            function.targetoptions.update(nopython=True, forceobj=False, looplift=False)
    for name in CACHE_HINTS:  # They are None in the stock simulator, so __getattr__() would not be called.
        setattr(numba.cuda, name, getattr(KERNEL_MODULE, name))
    _installed = True


def _check_compatibility(one: Any, other: Any, *, check: Callable[[Any, Any], None] = devicearray.check_array_compatibility) -> None:
    """Check that elements can be copied from one array to another. Like on a GPU, strides do not count if there are no elements."""
    if one.size or one.dtype != other.dtype or one.squeeze().shape != other.squeeze().shape:
        check(one, other)


def _call(self: Any, *args: Any) -> Any:
    if self._device or engine.current() is not None:
        # Called like a function: from a kernel (kernels may also call kernels that way) or, if it is a device function, from the host.
        if engine.current() is not None:
            return _runs(self)(*args)
        return self.fn(*args)
    return SimulatedKernel(self, None, None)(*args)  # This raises an error, because there is no configuration.


def _configure(self: Any, configuration: Any) -> SimulatedKernel:
    if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
        raise ValueError(f"{self.__name__}: a launch configuration is [grid, block, stream, shared_bytes], the last two optional")
    return SimulatedKernel(self, *configuration)


def _forall(self: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> _ForAll:
    return _ForAll(self, ntasks, tpb, stream, sharedmem)


def _max_cooperative_grid_blocks(self: Any, blockdim: Any, dynsmemsize: int = 0) -> int:
    return model.resident_blocks(prod(blockdim) if isinstance(blockdim, tuple) else int(blockdim), int(dynsmemsize))


def _argument(fake: Any, arg: Any, write_back: list[Callable[[], Any]]) -> Any:
    for extension in fake.extensions:
        _, arg = extension.prepare_args(None, arg, stream=0, retr=write_back)
    return _device_value(arg, write_back)


def _device_value(arg: Any, write_back: list[Callable[[], Any]]) -> Any:
    """Return a kernel's value. Like on a GPU, host arrays are copied in and, after the launch, out; device arrays are references."""
    if isinstance(arg, np.ndarray) and arg.ndim > 0:
        arg = InOut(arg)
    if isinstance(arg, ArgHint):
        arg = arg.to_device(write_back)
    elif isinstance(arg, np.void):
        arg = FakeCUDAArray(arg)
    elif isinstance(arg, tuple):
        items = [_device_value(item, write_back) for item in arg]
        return type(arg)(*items) if hasattr(arg, "_fields") else tuple(items)
    return KernelArray(arg) if isinstance(arg, FakeCUDAArray) else typed(arg)


def _runs(fake: Any) -> Callable[..., Any]:
    """Return the function that a kernel or device function runs."""
    run: Callable[..., Any] | None = fake.__dict__.get("_runs")
    if run is None:
        run = of_kernel(fake.fn)
        if not lacks_names(run):
            fake._runs = run
    return run


def _device_name(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'numba.cuda' has no attribute {name!r}")
    return getattr(KERNEL_MODULE, name)
