"""Device operations called from the host, immediately or on a CUDA stream: the same functions, with the argument ``stream=``.

``put put_nbi get get_nbi iput iget put_signal put_signal_nbi``, ``p g``, every atomic, ``signal_fetch signal_op signal_wait_until``, every
``wait_until`` and ``test``, ``set_lock test_lock clear_lock``, ``fence flush quiet quiet_pe barrier_all sync_all`` take the same arguments
on the host as in a kernel, except qp and smem. An invalid argument, or a value that an element cannot hold, raises a ValueError or
TypeError at the call. The status, indices, and values of a wait for several elements must be arrays in GPU memory.

With ``stream=`` (of Numba, cuda.core, CuPy, or PyTorch; 0 for the default stream), a call returns immediately and is executed in stream
order; a graph may capture it. Completion is the same as in a kernel. After a put, later work in the stream may reuse the source; the data
is complete after ``quiet(stream=...)`` or ``barrier_all(stream=...)``, or once the target observes a signal sent later in the stream, after
a ``fence(stream=...)``. After a get, later work in the stream may use the data. A call that returns a value, such as g or a fetching
atomic, waits for the value and therefore for all earlier work in the stream; it cannot be captured.

The GPU's copy engine performs ``put``, ``get``, and ``put_signal`` (64 KiB or more) of PGAS_COPY_ENGINE_BYTES or more if the other PE has
another GPU whose memory is mapped, so that they take no SMs from kernels that run at the same time. Kernels perform all other calls, and
all calls in a job with a trace (PGAS_TRACE).

Without ``stream``, a call runs on the default stream and waits: put until its source may be reused, get until the data has arrived. It
raises the errors of kernels. ``_nbi`` forms do not wait. ``quiet()`` waits for all kernels of this PE and completes their operations;
``barrier_all()`` does so on every PE; ``sync_all()`` waits only for the other PEs' calls. The default stream waits for kernels of other
streams. If such a kernel waits for the call itself, pass a non-blocking stream as ``stream=``. In the simulator, a stream executes each
call immediately, so a wait for a later call of the same process never ends.

``pgas.put.bind(dest, source, pe, stream=s)``, like ``bind`` of every function that returns no value, checks the call once and returns a
function without arguments that performs it (docs/graphs.md).

In kernels and on the host, the local operand of put and get may be in any GPU memory over p2p; through a NIC, it must be on the heap or
registered (pgas.register). synchronize(stream) raises the errors of these calls and of users' kernels.
"""

import ctypes
import functools
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.api import amo, host_copies, lock, rma, signal, sync, wait
from pgas.api.bound import Value, is_recording, recording, remembering
from pgas.api.jit import Kernel, jit
from pgas.api.operands import Operand
from pgas.api.values import check_code, check_value
from pgas.base import parameters
from pgas.base.errors import PgasError
from pgas.base.events import OF_HOST_CALLS
from pgas.job import runtime
from pgas.job.memory.array import at, block_of
from pgas.job.memory.heap import HeapBlock
from pgas.job.paths.platform import platform
from pgas.kernels import layout, refusals, window
from pgas.kernels.codes import Comparison, SignalOp
from pgas.kernels.compiler import cuda, is_float8
from pgas.kernels.compiler.binding import HOST_FORMS

__all__ = ["as_array", "bind", "calling", "enqueue", "fetched", "on_stream"]

#: Copies over p2p: minimum number of bytes per block, maximum number of blocks, number of threads per block.
_SHARE, _BLOCKS, _THREADS = 1 << 15, platform.COPY_BLOCKS, platform.COPY_THREADS
_ONE_WARP = 32

#: Number of bytes of which a block's part is a multiple, so that the part is aligned like the whole.
_GRAIN = 512

#: Names of functions that take only integers, whatever the dtype.
_INTEGRAL = ("signal_op", "signal_wait_until", "wait_until", "test")

_UINT64 = np.dtype(np.uint64)

_cells = itertools.count()


# ---------------------------------------------------------------------------------------------------------------- kernels


def on_stream(kernel: Callable[..., Any], function: Callable[..., Any], threads: int = _ONE_WARP) -> Kernel:
    """Compile a kernel that calls a function, and name it after the function. threads: maximum number of threads in a block."""
    kernel.__name__ = f"{function.__name__}{OF_HOST_CALLS}"
    return jit(launch_bounds=threads)(kernel)  # type: ignore[no-any-return]


def _copying(copy: Callable[..., Any]) -> Kernel:
    """Make a kernel that puts or gets bytes. Each block copies a part."""

    def kernel(dest, source, pe):  # type: ignore[no-untyped-def]
        share = (dest.size // cuda.gridDim.x // _GRAIN + 1) * _GRAIN
        first = min(cuda.blockIdx.x * share, dest.size)
        last = min(first + share, dest.size)
        copy(dest[first:last], source[first:last], pe)

    return on_stream(kernel, copy, _THREADS)


def _striding(copy: Callable[..., Any]) -> Kernel:
    """Make a kernel that puts or gets strided elements. Each block copies a part."""

    def kernel(dest, source, dst_stride, src_stride, pe, nelems):  # type: ignore[no-untyped-def]
        share = nelems // cuda.gridDim.x + 1
        first = min(cuda.blockIdx.x * share, nelems)
        count = min(share, nelems - first)
        copy(dest[first * dst_stride :], source[first * src_stride :], dst_stride, src_stride, pe, count)

    return on_stream(kernel, copy, _THREADS)


_put, _get = _copying(rma.put_block), _copying(rma.get_block)
_iput, _iget = _striding(rma.iput_block), _striding(rma.iget_block)


@functools.partial(on_stream, function=signal.put_signal_block, threads=_THREADS)
def _put_signal(dest, source, sig, idx, value, op, pe):  # type: ignore[no-untyped-def]
    signal.put_signal_block(dest, source, sig, idx, value, op, pe)


@functools.partial(on_stream, function=signal.signal_op)
def _signal_behind(sig, idx, value, op, pe):  # type: ignore[no-untyped-def]
    """Send a signal after the puts of earlier kernels in the stream."""
    sync.fence()
    signal.signal_op(sig, idx, value, op, pe)


@functools.cache
def calling(function: Callable[..., Any], *, arguments: bool, returns: bool) -> Kernel:
    """Make a kernel of one thread that calls a function with a tuple of arguments, and stores its result."""
    if returns:

        def kernel(result, args):  # type: ignore[no-untyped-def]
            result[0] = function(*args)

    elif arguments:

        def kernel(args):  # type: ignore[no-untyped-def,misc]
            function(*args)

    else:

        def kernel():  # type: ignore[no-untyped-def,misc]
            function()

    return on_stream(kernel, function)


def enqueue(kernel: Kernel, grid: int, block: int, stream: Any, *args: Any, wait: bool) -> None:
    """Launch a kernel on a stream. If stream is None, launch it on the default stream and, with ``wait``, wait until it has ended.

    While this thread binds a call, the launch is kept instead (bound.py).
    """
    if recording(kernel, (grid, block, stream), args):
        return
    kernel[grid, block, stream](*args)
    if stream is None and wait:
        runtime.current().synchronize(0)


# -------------------------------------------------------------------------------------------------------------------- put, get


def _copied(name: str, dest: Any, source: Any, nelems: Any, pe: Any, *, adds: bool = False) -> tuple[int, int, int]:
    """Check the operands of a copy, and return their addresses and the number of bytes. adds: whether a signal that adds follows it."""
    job = runtime.current()
    job.check_pe(name, pe)
    to, origin = Operand.of(name, "dest", dest), Operand.of(name, "source", source)
    to.check_pair(origin)
    nbytes = _count(name, origin.size if nelems is None else nelems, to.size, origin.size) * to.dtype.itemsize
    symmetric, local = (origin, to) if name.startswith("get") else (to, origin)
    if local is to:
        _check_writable(name, dest)
    symmetric.check_symmetric(job)
    local.check_local(nbytes, job, pe, adds=adds)
    if pe == job.my_pe and 0 < abs(to.address - origin.address) < nbytes:
        raise ValueError(f"pgas.{name}: dest and source overlap on this PE; they must be separate, or the same elements")
    return to.address, origin.address, nbytes


def _check_writable(name: str, dest: Any) -> None:
    """Check that another library does not protect its array."""
    if block_of(dest) is None:
        interface = getattr(dest, "__cuda_array_interface__", None) or getattr(dest, "__array_interface__", None)
        if interface is not None and interface["data"][1]:
            raise ValueError(f"pgas.{name}: dest must be writable, but is read-only")


def _count(name: str, wanted: Any, in_dest: int, in_source: int) -> int:
    """Check a number of elements against the sizes of both operands, and return it."""
    if not parameters.is_integer(wanted) or wanted < 0:
        raise ValueError(f"pgas.{name}: nelems must be an integer of 0 or more, not {wanted!r}")
    if wanted > min(in_dest, in_source):
        raise ValueError(f"pgas.{name}: {wanted!r} elements wanted, dest has {in_dest} and source {in_source}")
    return int(wanted)


def _bytes(address: int, nbytes: int) -> Any:
    return as_array(address, nbytes, np.dtype(np.uint8))


def _array(address: int, size: int, dtype: np.dtype) -> Any:
    return at(address, (size,), dtype, HeapBlock(0, size * dtype.itemsize, (size,), dtype, "the host's call"))


def as_array(address: int, size: int, dtype: np.dtype) -> Any:
    """Return memory as an array for a kernel's argument."""
    return platform.argument(address, size, dtype, _array)


def _shape_of_copy(nbytes: int, pe: int, *, adds: bool = False) -> tuple[int, int]:
    """Return the blocks and threads that copy nbytes. For a NIC, one warp suffices, because it only posts. adds: like in _copied()."""
    if not runtime.current().stores_to(pe, adds=adds):
        return 1, _ONE_WARP
    return max(1, min(nbytes // _SHARE, _BLOCKS)), _THREADS


def _enqueue_copy(name: str, kernel: Kernel, stream: Any, to: int, origin: int, nbytes: int, pe: int, *, wait: bool) -> None:
    """Enqueue a put or get of a number of bytes, by the GPU's copy engine or a kernel. to, origin: addresses on this PE."""
    job = runtime.current()
    if 0 < job.engine_bytes <= nbytes and job.stores_to(pe) and job.on_another_gpu(pe):
        away = window.slot(pe) - window.slot(job.my_pe)
        host_copies.enqueue(name, *((to, origin + away) if name.startswith("get") else (to + away, origin)), nbytes, stream, wait=wait)
    else:
        enqueue(kernel, *_shape_of_copy(nbytes, pe), stream, _bytes(to, nbytes), _bytes(origin, nbytes), pe, wait=wait)


def _copy(name: str, kernel: Kernel, *, wait: bool) -> Callable[..., None]:
    def form(dest: Any, source: Any, pe: Any, nelems: Any = None, *, stream: Any = None) -> None:
        to, origin, nbytes = _copied(name, dest, source, nelems, pe)
        if nbytes:
            _enqueue_copy(name, kernel, stream, to, origin, nbytes, pe, wait=wait)

    return form


def _strided_copy(name: str, kernel: Kernel) -> Callable[..., None]:
    def form(dest: Any, source: Any, dst_stride: Any, src_stride: Any, pe: Any, nelems: Any = None, *, stream: Any = None) -> None:
        job = runtime.current()
        job.check_pe(name, pe)
        to, origin = Operand.of(name, "dest", dest), Operand.of(name, "source", source)
        to.check_pair(origin)
        if len(to.shape) != 1:
            raise TypeError(refusals.message("strides of dimensions", function=name, found=refusals.dimensions(len(to.shape))))
        to_step, origin_step = _stride(name, "dst_stride", dst_stride, to), _stride(name, "src_stride", src_stride, origin)
        held = -(-to.size // to_step), -(-origin.size // origin_step)
        count = _count(name, min(held) if nelems is None else nelems, *held)
        to_span, origin_span = ((count - 1) * step + 1 if count else 0 for step in (to_step, origin_step))
        symmetric, local, local_span = (origin, to, to_span) if name == "iget" else (to, origin, origin_span)
        if local is to:
            _check_writable(name, dest)
        symmetric.check_symmetric(job)
        local.check_local(local_span * local.dtype.itemsize, job, pe)
        if count:
            unit = _unit(to.dtype)
            operands = as_array(to.address, to_span, unit), as_array(origin.address, origin_span, unit)
            enqueue(kernel, *_shape_of_copy(count * unit.itemsize, pe), stream, *operands, to_step, origin_step, pe, count, wait=True)

    return form


def _stride(name: str, argument: str, stride: Any, operand: Operand) -> int:
    """Check a stride and return it. A stride beyond the operand's size has the same effect as that size, which is returned."""
    if not parameters.is_integer(stride) or stride < 1:
        raise ValueError(f"pgas.{name}: {argument} must be an integer of 1 or more, not {stride!r}")
    return int(min(stride, max(operand.size, 1)))


def _unit(dtype: np.dtype) -> np.dtype:
    """Return the dtype that represents all dtypes of the same size and alignment, so that they share a kernel."""
    part = math.gcd(dtype.itemsize, dtype.alignment, 8)
    number = np.dtype(f"u{part}")
    return number if part == dtype.itemsize else np.dtype([("parts", number, dtype.itemsize // part)], align=True)


def _copy_and_signal(name: str, *, wait: bool) -> Callable[..., None]:
    def form(dest: Any, source: Any, sig: Any, idx: Any, value: Any, op: Any, pe: Any, *, stream: Any = None) -> None:
        adds = op == SignalOp.ADD
        to, origin, nbytes = _copied(name, dest, source, None, pe, adds=adds)
        (idx, dtype), op = _element(name, "sig", sig, idx), check_code(name, "op", op, SignalOp)
        check_value(name, "value", value, dtype, integral=True)
        blocks, threads = _shape_of_copy(nbytes, pe, adds=adds)
        if blocks == 1:
            enqueue(_put_signal, 1, threads, stream, _bytes(to, nbytes), _bytes(origin, nbytes), sig, idx, value, op, pe, wait=wait)
        else:
            _enqueue_copy(name, _put, stream, to, origin, nbytes, pe, wait=False)
            enqueue(_signal_behind, 1, 1, stream, sig, idx, value, op, pe, wait=wait)

    return form


# -------------------------------------------------------------------------------------------------------------- single elements


def _element(function: str, name: str, array: Any, idx: Any) -> tuple[Any, np.dtype]:
    """Check that array[idx] is an element on the heap. Return idx in the form that a kernel takes, and the dtype."""
    operand = Operand.of(function, name, array, contiguous=False)
    operand.check_symmetric(runtime.current())
    if name == "sig" and operand.dtype != _UINT64:
        raise TypeError(refusals.message("signal word", function=function, found=f"an array of {operand.dtype}"))
    if name == "lock" and operand.dtype not in (np.int64, np.uint64):
        raise TypeError(refusals.message("lock word", function=function, dtype=operand.dtype))
    if type(idx) is int and len(operand.shape) == 1 and 0 <= idx < operand.shape[0]:
        return idx, operand.dtype
    indices = idx if isinstance(idx, tuple) else (idx,)
    if len(indices) != len(operand.shape) or not all(
        parameters.is_integer(i) and 0 <= i < n for i, n in zip(indices, operand.shape, strict=True)
    ):
        from_end = any(parameters.is_integer(i) and i < 0 for i in indices)
        raise ValueError(
            f"pgas.{function}: idx must be a subscript of {name}, which has the shape {operand.shape}, not {idx!r}"
            + "; subscripts do not count from the end" * from_end
        )
    return tuple(int(i) for i in indices) if isinstance(idx, tuple) else int(idx), operand.dtype


def _one_thread(function: Callable[..., Any], result: type[int] | None = None) -> Callable[..., Any]:
    """Return the host form of a function that takes at most one element. result: type of its result, unless it is that of the element."""
    signature = inspect.signature(function)
    call = inspect.Signature([p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "qp"])
    names = tuple(name for name in call.parameters if name != "stream")
    returns = signature.return_annotation is not None
    title = function.__name__

    def form(*args: Any, **kwargs: Any) -> Any:
        job = runtime.current()
        values = parameters.bound(title, call, args, kwargs)
        stream = values.pop("stream", None)
        if "idx" in names:
            first = names[0]
            values["idx"], dtype = _element(title, first, values[first], values["idx"])
            for name, codes in (("op", SignalOp), ("cmp", Comparison)):
                if name in values:
                    values[name] = check_code(title, name, values[name], codes)
            for name in ("value", "cond"):
                if name in values:
                    check_value(title, name, values[name], dtype, integral=title in _INTEGRAL)
            if title == "p" and is_float8(dtype):  # Kernels do not take such numbers as arguments.
                values["dest"], values["value"] = values["dest"].view(np.uint8), int(np.array(values["value"], dtype).view(np.uint8))
        if "pe" in names:
            job.check_pe(title, values["pe"])
        kernel = calling(function, arguments=bool(names), returns=returns)
        given = (tuple(values[name] for name in names),) if names else ()
        if not returns:
            enqueue(kernel, 1, 1, stream, *given, wait=True)
            return None
        value = fetched(title, kernel, dtype if result is None else np.dtype(np.int64), stream, *given)
        return value if result is None else result(value)

    return form


def fetched(title: str, kernel: Kernel, dtype: np.dtype, stream: Any, *args: Any) -> Any:
    """Launch a kernel of one thread that stores a result in its first argument, wait for it, and return the result.

    Raises:
        PgasError: the stream is being captured.
        TypeError: the call is being bound.
    """
    if platform.capturing(stream):
        raise PgasError(f"pgas.{title} cannot be captured, because it waits for the value that it returns; call it in a kernel")
    job = runtime.current()
    address = job.memory.host_words + layout.RESULTS + next(_cells) % layout.N_RESULTS * layout.RESULT_SIZE
    enqueue(kernel, 1, 1, stream, as_array(address, 1, dtype), *args, wait=False)
    if is_recording():
        raise TypeError(f"pgas.{title}.bind: the call returns a value and waits for it, so that it cannot be bound")
    job.synchronize(0 if stream is None else stream)
    return np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)[0]


# ------------------------------------------------------------------------------------------------------------------ order


def _order(function: Callable[..., Any], at_once: Callable[[runtime.Job], Any]) -> Callable[..., Any]:
    """Return the host form of a function without arguments. at_once: its implementation without a stream."""
    on_stream = _one_thread(function)

    def form(*, stream: Any = None) -> None:
        if stream is None:
            at_once(runtime.current())
        else:
            on_stream(stream=stream)

    return form


def _clear_lock(*args: Any, stream: Any = None, **kwargs: Any) -> None:
    if stream is None:
        runtime.current().complete("pgas.clear_lock")
    _clear_on_stream(*args, stream=stream, **kwargs)


_clear_on_stream = _one_thread(lock.clear_lock)


def _value(function: Callable[..., Any]) -> Value | None:
    """Return where a function has a value for an element, if it has one."""
    names = list(inspect.signature(function).parameters)
    return Value(names.index("value"), names.index("sig") if "sig" in names else 0) if "value" in names else None


def bind() -> None:
    """Give the public functions their host forms."""
    single: list[Callable[..., Any]] = [rma.p, rma.g, signal.signal_op, signal.signal_fetch, signal.signal_wait_until, sync.wait_until]
    single += [getattr(amo, name) for name in amo.__all__]
    for function in single:
        form = _one_thread(function)
        returns = inspect.signature(function).return_annotation is not None
        HOST_FORMS[function.__name__] = form if returns else remembering(function.__name__, form, waits=True, value=_value(function))
    for name, waits in (("put_signal", True), ("put_signal_nbi", False)):
        form = _copy_and_signal(name, wait=waits)
        HOST_FORMS[name] = remembering(name, form, waits=waits, value=_value(signal.put_signal))
    for name, kernel, waits in (("put", _put, True), ("put_nbi", _put, False), ("get", _get, True), ("get_nbi", _get, False)):
        HOST_FORMS[name] = remembering(name, _copy(name, kernel, wait=waits), waits=waits)
    waiting = {
        "iput": _strided_copy("iput", _iput),
        "iget": _strided_copy("iget", _iget),
        "fence": _one_thread(sync.fence),
        "flush": _one_thread(sync.flush),
        "quiet_pe": _one_thread(sync.quiet_pe),
    }
    HOST_FORMS.update({name: remembering(name, form, waits=True) for name, form in waiting.items()})
    without_kernel = {
        "quiet": _order(sync.quiet, lambda job: job.complete("pgas.quiet")),
        "barrier_all": _order(sync.barrier_all, lambda job: job.meet("pgas.barrier_all()")),
        "sync_all": _order(sync.sync_all, lambda job: job.agree("pgas.sync_all()")),
    }
    HOST_FORMS.update({name: remembering(name, form, waits=None) for name, form in without_kernel.items()})
    HOST_FORMS.update(
        set_lock=_one_thread(lock.set_lock),
        test_lock=_one_thread(lock.test_lock, int),
        clear_lock=_clear_lock,
        test=_one_thread(wait.test, bool),
    )
