"""Remote memory access from kernels: put, get, iput, iget, p, g (OpenSHMEM 1.5, "Remote Memory Access Routines").

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import rma, strided
from pgas.kernels.scope import BLOCK, THREAD, WARP

__all__ = [
    "g", "get", "get_block", "get_nbi", "get_nbi_block", "get_nbi_warp", "get_warp", "iget", "iget_block", "iget_warp", "iput",
    "iput_block", "iput_warp", "p", "put", "put_block", "put_nbi", "put_nbi_block", "put_nbi_warp", "put_warp",
]  # fmt: skip


@device_function(rma.put(THREAD, nbi=False))
def put(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, *, stream: Any = None) -> None:
    """Copy elements of local ``source`` to the symmetric array ``dest`` on PE ``pe``; called by one thread.

    Completion:
        on return: source may be reused.
        complete: after quiet(), quiet_pe() or barrier_all(), or once the target sees a signal or flag that this PE wrote after a fence().

    Args:
        dest: contiguous array or slice on the symmetric heap, any alignment.
        source: contiguous array of the same dtype and number of dimensions; heap, other global, shared or local memory.
        pe: number of the target PE; this PE itself is allowed.
        nelems: number of elements, from the first of both arrays on; all of source if left out.
        qp: queue pair of a NIC transport, 1 to PGAS_IBGDA_NUM_RC_PER_PE; 0: one by this thread's cta, sm or warp
            (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: dtype, dimensions or contiguity do not fit.
        DeviceError: later, on the host, under PGAS_DEBUG=check and in the simulator: pe does not exist, dest is not on the heap, or
            an operand is shorter than nelems.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32)
        >>> @pgas.jit
        ... def send(dest, source, pe):
        ...     pgas.put_block(dest, source, pe)  # all threads of the block copy together
        >>> send[1, 32](dest, source, right)
        >>> pgas.put(dest[2:], source, right, nelems=1)  # on the host
        >>> pgas.barrier_all()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(rma.put(WARP, nbi=False))
def put_warp(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """put() by all threads of a warp, with the same arguments; synchronizes the warp on entry and return. None may have exited.

    Each thread copies a share of the data. If a thread has returned or waits at another barrier, its share is missing; the simulator
    refuses such calls.
    """


@device_function(rma.put(BLOCK, nbi=False))
def put_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """put() by all threads of a block, with the same arguments; synchronizes the block on entry and return. None may have exited."""


@device_function(rma.put(THREAD, nbi=True))
def put_nbi(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, *, stream: Any = None) -> None:
    """Start a put(). The data is at its destination only after quiet() or barrier_all(); ``source`` may be reused then, or after flush().

    Arguments and errors as for put().

    Completion:
        on return: it has begun.
        complete: after quiet(), quiet_pe() or barrier_all(); source may be reused then, or after flush().

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32)
        >>> @pgas.jit
        ... def send(dest, source, pe):
        ...     pgas.put_nbi(dest[:2], source[:2], pe)
        ...     pgas.put_nbi(dest[2:], source[2:], pe)
        ...     pgas.quiet()  # both are complete, and source may be overwritten
        >>> send[1, 1](dest, source, right)
        >>> pgas.barrier_all()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(rma.put(WARP, nbi=True))
def put_nbi_warp(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """put_nbi() by all threads of a warp together (none may have exited), with the same arguments; synchronizes the warp on entry."""


@device_function(rma.put(BLOCK, nbi=True))
def put_nbi_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """put_nbi() by all threads of a block together (none may have exited), with the same arguments; synchronizes the block on entry."""


@device_function(rma.get(THREAD, nbi=False))
def get(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, *, stream: Any = None) -> None:
    """Copy elements of the symmetric array ``source`` on PE ``pe`` to local ``dest``; called by one thread.

    Completion:
        on return: the data is in dest.
        complete: on return.

    Args:
        dest: contiguous array of the same dtype and number of dimensions; heap, other global, shared or local memory.
        source: contiguous array or slice on the symmetric heap, any alignment.
        pe: number of the PE to read from; this PE itself is allowed.
        nelems: number of elements, from the first of both arrays on; all of source if left out.
        qp: queue pair of a NIC transport, 1 to PGAS_IBGDA_NUM_RC_PER_PE; 0: one by this thread's cta, sm or warp
            (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises: the same errors as put(), with source in the place of dest.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32)
        >>> @pgas.jit
        ... def fetch(dest, source, pe):
        ...     pgas.get_block(dest, source, pe)
        >>> fetch[1, 32](dest, source, right)
        >>> pgas.get(dest[:2], source, right, nelems=2)  # on the host
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(rma.get(WARP, nbi=False))
def get_warp(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """get() by all threads of a warp, with the same arguments; synchronizes the warp on entry and return. None may have exited."""


@device_function(rma.get(BLOCK, nbi=False))
def get_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """get() by all threads of a block, with the same arguments; synchronizes the block on entry and return. None may have exited."""


@device_function(rma.get(THREAD, nbi=True))
def get_nbi(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, *, stream: Any = None) -> None:
    """Start a get(). The data is in ``dest`` after quiet(), quiet_pe() or barrier_all(); nobody may access ``dest`` before.

    Arguments and errors as for get() (OpenSHMEM 1.5, "SHMEM_GET_NBI").

    Completion:
        on return: it has begun.
        complete: after quiet(), quiet_pe() or barrier_all(); nobody may access dest before.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32)
        >>> @pgas.jit
        ... def fetch(dest, source, pe):
        ...     pgas.get_nbi(dest, source, pe)
        ...     pgas.quiet()  # now dest may be read
        ...     dest[0] += 1
        >>> fetch[1, 1](dest, source, right)
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [8, 7, 7, 7]
    """


@device_function(rma.get(WARP, nbi=True))
def get_nbi_warp(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """get_nbi() by all threads of a warp together (none may have exited), with the same arguments; synchronizes the warp on entry.

    One thread's quiet() covers the other threads' copies only after a syncwarp or syncthreads.
    """


@device_function(rma.get(BLOCK, nbi=True))
def get_nbi_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """get_nbi() by all threads of a block together (none may have exited), with the same arguments; synchronizes the block on entry.

    One thread's quiet() covers the other threads' copies only after a syncthreads.
    """


@device_function(strided.iput(THREAD))
def iput(
    dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None, *, stream: Any = None
) -> None:
    """Copy every ``src_stride``-th element of ``source`` to every ``dst_stride``-th of ``dest`` on PE ``pe``; called by one thread.

    ``dest[i * dst_stride] = source[i * src_stride]`` for i below nelems (OpenSHMEM 1.5, "SHMEM_IPUT"). Completion is that of put(). A NIC
    takes one WQE per element; if both strides are 1, it is a put(). A column of a matrix is ``matrix.reshape(-1)[column:]`` with the row
    length as stride.

    Completion:
        on return: source may be reused.
        complete: after quiet(), quiet_pe() or barrier_all(), or once the target sees a signal or flag that this PE wrote after a fence().

    Args:
        dest: contiguous array or slice of one dimension on the symmetric heap, any alignment.
        source: contiguous array of one dimension and the same dtype; heap, other global, shared or local memory (NICs: heap, registered).
        dst_stride: elements from one to the next in dest, at least 1.
        src_stride: elements from one to the next in source, at least 1.
        pe: number of the target PE; this PE itself is allowed.
        nelems: number of elements that are copied; as many as both arrays hold at these strides if left out.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: dtype, dimensions or contiguity do not fit.
        DeviceError: later, on the host: a stride is below 1; under PGAS_DEBUG=check and in the simulator also: pe does not exist, dest
            is not on the heap, or an operand holds fewer than nelems elements at its stride.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(6, np.int32), pgas.array(np.arange(1, 4, dtype=np.int32))
        >>> @pgas.jit
        ... def scatter(dest, source, pe):
        ...     pgas.iput(dest, source, 2, 1, pe)  # to every second element
        >>> scatter[1, 1](dest, source, right)
        >>> pgas.barrier_all()
        >>> dest.copy_to_host().tolist()
        [1, 0, 2, 0, 3, 0]
    """


@device_function(strided.iput(WARP))
def iput_warp(dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None) -> None:
    """iput() by all threads of a warp, with the same arguments; synchronizes the warp on entry and return. None may have exited."""


@device_function(strided.iput(BLOCK))
def iput_block(dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None) -> None:
    """iput() by all threads of a block, with the same arguments; synchronizes the block on entry and return. None may have exited."""


@device_function(strided.iget(THREAD))
def iget(
    dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None, *, stream: Any = None
) -> None:
    """Copy every ``src_stride``-th element of ``source`` on PE ``pe`` to every ``dst_stride``-th of ``dest``; called by one thread.

    The data is in dest on return (OpenSHMEM 1.5, "SHMEM_IGET"). A NIC takes one WQE per element; if both strides are 1, it is a get().

    Completion:
        on return: the data is in dest.
        complete: on return.

    Args:
        dest: contiguous array of one dimension; heap, other global, shared or local memory (NICs: heap, registered).
        source: contiguous array or slice of one dimension and the same dtype on the symmetric heap, any alignment.
        dst_stride: elements from one to the next in dest, at least 1.
        src_stride: elements from one to the next in source, at least 1.
        pe: number of the PE to read from; this PE itself is allowed.
        nelems: number of elements that are copied; as many as both arrays hold at these strides if left out.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises: as iput(), with source in the place of dest.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(3, np.int32), pgas.array(np.arange(6, dtype=np.int32))
        >>> @pgas.jit
        ... def gather(dest, source, pe):
        ...     pgas.iget(dest, source, 1, 2, pe)  # every second element
        >>> gather[1, 1](dest, source, right)
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [0, 2, 4]
    """


@device_function(strided.iget(WARP))
def iget_warp(dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None) -> None:
    """iget() by all threads of a warp, with the same arguments; synchronizes the warp on entry and return. None may have exited."""


@device_function(strided.iget(BLOCK))
def iget_block(dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None) -> None:
    """iget() by all threads of a block, with the same arguments; synchronizes the block on entry and return. None may have exited."""


@device_function(rma.p)
def p(dest: Any, idx: Index, value: Any, pe: Integer, qp: Integer = 0, *, stream: Any = None) -> None:
    """Store ``value`` to ``dest[idx]`` on PE ``pe``.

    Completion:
        on return: value has been read.
        complete: after quiet(), quiet_pe() or barrier_all(), or once the target sees a signal or flag that this PE wrote after a fence().

    Args:
        dest: array or slice on the symmetric heap; elements of 1, 2, 4, 8 or 16 bytes (integers, floats, complex, bool).
        idx: integer, or tuple of as many integers as dest has dimensions; negative ones do not count from the end.
        value: converted to dest's dtype: integers modulo 2^bits, floats to integers toward zero. A float beyond the range of an integer
            dtype gives an undefined integer; the simulator raises OverflowError. On the host a value out of range is a ValueError.
        pe: number of the target PE; this PE itself is allowed.
        qp: queue pair of a NIC transport, 1 to PGAS_IBGDA_NUM_RC_PER_PE; 0: one by this thread's cta, sm or warp
            (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises: the same errors as put().

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.zeros((2, 3), np.float32)
        >>> @pgas.jit
        ... def store(dest, pe):
        ...     pgas.p(dest, (1, cuda.threadIdx.x), 0.5, pe)
        >>> store[1, 3](dest, right)
        >>> pgas.barrier_all()
        >>> dest.copy_to_host().tolist()
        [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]
    """


@device_function(rma.g)
def g(source: Any, idx: Index, pe: Integer, qp: Integer = 0, *, stream: Any = None) -> Any:
    """Return ``source[idx]`` of PE ``pe``. Arguments and errors as for p().

    Completion:
        on return: the value has been read.
        complete: on return.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> source, out = pgas.array(np.array([3, 5])), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def load(source, out, pe):
        ...     out[0] = 10 * pgas.g(source, 1, pe)
        >>> load[1, 1](source, out, right)
        >>> pgas.synchronize()
        >>> int(out[0]), int(pgas.g(source, 0, right))  # the second one on the host
        (50, 3)
    """
