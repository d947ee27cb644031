"""Remote memory access from kernels: put, get, iput, iget, p, and g (OpenSHMEM 1.5, "Remote Memory Access Routines").

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import rma, strided
from pgas.kernels.scope import BLOCK, THREAD, WARP

__all__ = [
    "g", "get", "get_block", "get_nbi", "get_nbi_block", "get_nbi_warp", "get_warp", "give_smem", "give_smem_block", "give_smem_warp",
    "iget", "iget_block", "iget_warp", "iput", "iput_block", "iput_warp", "p", "put", "put_block", "put_nbi", "put_nbi_block",
    "put_nbi_warp", "put_warp",
]  # fmt: skip


@device_function(rma.put(THREAD, nbi=False))
def put(
    dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, smem: Any = None, *, stream: Any = None
) -> None:
    """Copy elements of the local array ``source`` to the symmetric array ``dest`` on PE ``pe``. Called by a single thread.

    OpenSHMEM 1.5, "SHMEM_PUT".

    Completion:
        on return: source may be reused.
        complete: after quiet(), quiet_pe(), or barrier_all(), or once the target observes a signal or flag that this PE wrote after a
            fence().

    Args:
        dest: contiguous array or slice on the symmetric heap; any alignment.
        source: contiguous array with the same dtype and number of dimensions as dest, in any memory: symmetric heap, other global, shared,
            or local; through a NIC, only on the heap or registered.
        pe: number of the target PE; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        nelems: number of elements to copy, starting at the first element of each array. Default: all of source.
        qp: queue pair to use over a NIC transport: 1 to PGAS_IBGDA_NUM_RC_PER_PE, or 0 to select one by the calling thread's CTA, SM, or
            warp (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p; not accepted on the host. Default: 0.
        smem: array in shared memory that give_smem() or one of its forms has prepared; only this call may use it until the call returns.
            One thread then copies through it by bulk copies (give_smem() says when). Not accepted on the host. Default: none.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous, or a NIC cannot access the local array; with PGAS_DEBUG=check
            or in the simulator also if pe does not exist, dest is not on the heap, or an array has fewer than nelems elements.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
def put_warp(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, smem: Any = None) -> None:
    """Like put(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry and on return. Each thread copies part of the data. If a thread has returned or is waiting at another
    barrier, its part is not copied; the simulator rejects such calls.
    """


@device_function(rma.put(BLOCK, nbi=False))
def put_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, smem: Any = None) -> None:
    """Like put(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry and on return. Each thread copies part of the data. If a thread has returned or is waiting at another
    barrier, its part is not copied; the simulator rejects such calls.
    """


@device_function(rma.put(THREAD, nbi=True))
def put_nbi(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, *, stream: Any = None) -> None:
    """Start copying the local array ``source`` to the symmetric array ``dest`` on PE ``pe``: a non-blocking put().

    The data has arrived after quiet(), quiet_pe(), or barrier_all(); ``source`` may be reused then, or after flush(). OpenSHMEM 1.5,
    "SHMEM_PUT_NBI".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all(); source may be reused then, or after flush().

    Args:
        dest: contiguous array or slice on the symmetric heap; any alignment.
        source: contiguous array with the same dtype and number of dimensions as dest, in any memory: symmetric heap, other global, shared,
            or local; through a NIC, only on the heap or registered.
        pe: number of the target PE; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        nelems: number of elements to copy, starting at the first element of each array. Default: all of source.
        qp: queue pair to use over a NIC transport: 1 to PGAS_IBGDA_NUM_RC_PER_PE, or 0 to select one by the calling thread's CTA, SM, or
            warp (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p; not accepted on the host. Default: 0.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous, or a NIC cannot access the local array; with PGAS_DEBUG=check
            or in the simulator also if pe does not exist, dest is not on the heap, or an array has fewer than nelems elements.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
    """Like put_nbi(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry, but not on return. One thread's quiet() covers the other threads' copies only after a syncwarp or
    syncthreads.
    """


@device_function(rma.put(BLOCK, nbi=True))
def put_nbi_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """Like put_nbi(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry, but not on return. One thread's quiet() covers the other threads' copies only after a syncthreads.
    """


@device_function(rma.get(THREAD, nbi=False))
def get(
    dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, smem: Any = None, *, stream: Any = None
) -> None:
    """Copy elements of the symmetric array ``source`` on PE ``pe`` to the local array ``dest``. Called by a single thread.

    OpenSHMEM 1.5, "SHMEM_GET".

    Completion:
        on return: the data is in dest.
        complete: on return.

    Args:
        dest: contiguous array with the same dtype and number of dimensions as source, in any memory: symmetric heap, other global, shared,
            or local; through a NIC, only on the heap or registered.
        source: contiguous array or slice on the symmetric heap; any alignment.
        pe: number of the PE to read from; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        nelems: number of elements to copy, starting at the first element of each array. Default: all of source.
        qp: queue pair to use over a NIC transport: 1 to PGAS_IBGDA_NUM_RC_PER_PE, or 0 to select one by the calling thread's CTA, SM, or
            warp (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p; not accepted on the host. Default: 0.
        smem: array in shared memory that give_smem() or one of its forms has prepared; only this call may use it until the call returns.
            One thread then copies through it by bulk copies (give_smem() says when). Not accepted on the host. Default: none.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous, or a NIC cannot access the local array; with PGAS_DEBUG=check
            or in the simulator also if pe does not exist, source is not on the heap, or an array has fewer than nelems elements.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
def get_warp(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, smem: Any = None) -> None:
    """Like get(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(rma.get(BLOCK, nbi=False))
def get_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, smem: Any = None) -> None:
    """Like get(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(rma.get(THREAD, nbi=True))
def get_nbi(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0, *, stream: Any = None) -> None:
    """Start copying the symmetric array ``source`` on PE ``pe`` to the local array ``dest``: a non-blocking get().

    The data is in ``dest`` after quiet(), quiet_pe(), or barrier_all(); ``dest`` must not be accessed before then. OpenSHMEM 1.5,
    "SHMEM_GET_NBI".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all(); dest must not be accessed before then.

    Args:
        dest: contiguous array with the same dtype and number of dimensions as source, in any memory: symmetric heap, other global, shared,
            or local; through a NIC, only on the heap or registered.
        source: contiguous array or slice on the symmetric heap; any alignment.
        pe: number of the PE to read from; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        nelems: number of elements to copy, starting at the first element of each array. Default: all of source.
        qp: queue pair to use over a NIC transport: 1 to PGAS_IBGDA_NUM_RC_PER_PE, or 0 to select one by the calling thread's CTA, SM, or
            warp (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p; not accepted on the host. Default: 0.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous, or a NIC cannot access the local array; with PGAS_DEBUG=check
            or in the simulator also if pe does not exist, source is not on the heap, or an array has fewer than nelems elements.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
    """Like get_nbi(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry, but not on return. One thread's quiet() covers the other threads' copies only after a syncwarp or
    syncthreads.
    """


@device_function(rma.get(BLOCK, nbi=True))
def get_nbi_block(dest: Any, source: Any, pe: Integer, nelems: Integer | None = None, qp: Integer = 0) -> None:
    """Like get_nbi(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry, but not on return. One thread's quiet() covers the other threads' copies only after a syncthreads.
    """


@device_function(rma.give_smem(THREAD))
def give_smem(array: Any) -> None:
    """Prepare an array in shared memory for puts and gets, which then move their data through it. Called by a single thread.

    A put() or get() with ``smem=array`` is issued by one thread as bulk copies (PTX: cp.async.bulk), so that a thread, or a warp, moves
    data as fast as a block of 1,024 threads does without. Puts and gets of the block may use the array one after another. Several warps
    that copy at the same time need an array each. Between two calls, nothing is in flight, and the array keeps no data. A program that
    stores to the array must call give_smem() again before the next put or get that uses it (NVSHMEM 3.7: nvshmemx_give_smem).

    Small messages, operands whose addresses differ modulo 16, local operands that are not in global memory, PEs that are reached through a
    NIC, and GPUs without bulk copies (compute capability below 9.0) use ordinary copies. Results are the same.

    Completion:
        on return: the array may be passed as smem by this thread.
        complete: on return.

    Args:
        array: contiguous array of any dtype in shared memory, at least 2,048 bytes. The more bytes, the more are in flight: with 44 KiB
            one thread moves 40 GB/s over NVLink.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if array is not an array.
        DeviceError: raised later on the host, if array is too small, not contiguous, or not in shared memory.
        TypeError: on the host.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(8192, np.int32), pgas.full(8192, 7, np.int32)
        >>> @pgas.jit
        ... def send(dest, source, pe):
        ...     smem = pgas.cuda.shared.array(8192, np.uint8)
        ...     pgas.give_smem_block(smem)
        ...     pgas.put_block(dest, source, pe, smem=smem)
        >>> send[1, 32](dest, source, right)
        >>> pgas.barrier_all()
        >>> int(dest.copy_to_host().sum())
        57344
    """


@device_function(rma.give_smem(WARP))
def give_smem_warp(array: Any) -> None:
    """Like give_smem(), but called by all threads of a warp together with the same array; none may have exited.

    Synchronizes the warp on entry and on return. All threads of the warp may then pass the array as smem.
    """


@device_function(rma.give_smem(BLOCK))
def give_smem_block(array: Any) -> None:
    """Like give_smem(), but called by all threads of a block together with the same array; none may have exited.

    Synchronizes the block on entry and on return. All threads of the block may then pass the array as smem.
    """


@device_function(strided.iput(THREAD))
def iput(
    dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None, *, stream: Any = None
) -> None:
    """Copy every ``src_stride``-th element of ``source`` to every ``dst_stride``-th element of ``dest`` on PE ``pe``.

    Called by a single thread. Element ``i * src_stride`` of source is copied to element ``i * dst_stride`` of dest, for every i below
    nelems (OpenSHMEM 1.5, "SHMEM_IPUT"). Through a NIC, each element takes one WQE; if both strides are 1, this is the same as put(). To
    copy a column of a matrix, use ``matrix.reshape(-1)[column:]`` with the row length as stride.

    Completion:
        on return: source may be reused.
        complete: after quiet(), quiet_pe(), or barrier_all(), or once the target observes a signal or flag that this PE wrote after a
            fence().

    Args:
        dest: contiguous one-dimensional array or slice on the symmetric heap; any alignment.
        source: contiguous one-dimensional array with the same dtype as dest, in any memory: symmetric heap, other global, shared, or local;
            through a NIC, only on the heap or registered.
        dst_stride: distance between consecutive elements of dest, in elements; at least 1.
        src_stride: distance between consecutive elements of source, in elements; at least 1.
        pe: number of the target PE; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        nelems: number of elements to copy. Default: as many as fit in both arrays at these strides.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if a stride is below 1, an array is not contiguous, or a NIC cannot access the local array;
            with PGAS_DEBUG=check or in the simulator also if pe does not exist, dest is not on the heap, or an array holds fewer than
            nelems elements at its stride.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
    """Like iput(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(strided.iput(BLOCK))
def iput_block(dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None) -> None:
    """Like iput(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(strided.iget(THREAD))
def iget(
    dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None, *, stream: Any = None
) -> None:
    """Copy every ``src_stride``-th element of ``source`` on PE ``pe`` to every ``dst_stride``-th element of ``dest``.

    Called by a single thread. Element ``i * src_stride`` of source is copied to element ``i * dst_stride`` of dest, for every i below
    nelems (OpenSHMEM 1.5, "SHMEM_IGET"). Through a NIC, each element takes one WQE; if both strides are 1, this is the same as get().

    Completion:
        on return: the data is in dest.
        complete: on return.

    Args:
        dest: contiguous one-dimensional array with the same dtype as source, in any memory: symmetric heap, other global, shared, or local;
            through a NIC, only on the heap or registered.
        source: contiguous one-dimensional array or slice on the symmetric heap; any alignment.
        dst_stride: distance between consecutive elements of dest, in elements; at least 1.
        src_stride: distance between consecutive elements of source, in elements; at least 1.
        pe: number of the PE to read from; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        nelems: number of elements to copy. Default: as many as fit in both arrays at these strides.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if a stride is below 1, an array is not contiguous, or a NIC cannot access the local array;
            with PGAS_DEBUG=check or in the simulator also if pe does not exist, source is not on the heap, or an array holds fewer than
            nelems elements at its stride.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
    """Like iget(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(strided.iget(BLOCK))
def iget_block(dest: Any, source: Any, dst_stride: Integer, src_stride: Integer, pe: Integer, nelems: Integer | None = None) -> None:
    """Like iget(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(rma.p)
def p(dest: Any, idx: Index, value: Any, pe: Integer, qp: Integer = 0, *, stream: Any = None) -> None:
    """Store ``value`` to the element ``dest[idx]`` on PE ``pe`` (OpenSHMEM 1.5, "SHMEM_P").

    Completion:
        on return: value has been read.
        complete: after quiet(), quiet_pe(), or barrier_all(), or once the target observes a signal or flag that this PE wrote after a
            fence().

    Args:
        dest: array or slice on the symmetric heap, with elements of 1, 2, 4, 8, or 16 bytes (integers, floats, complex, bool).
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: value to store, converted to dest's dtype: integers modulo 2^bits; floats toward zero if dest holds integers. A float outside
            the range of an integer dtype gives an undefined integer; in the simulator it raises OverflowError. On the host, a value out of
            range raises ValueError.
        pe: number of the target PE; this PE is allowed.
        qp: queue pair to use over a NIC transport: 1 to PGAS_IBGDA_NUM_RC_PER_PE, or 0 to select one by the calling thread's CTA, SM, or
            warp (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p; not accepted on the host. Default: 0.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
    """Return the value of the element ``source[idx]`` on PE ``pe`` (OpenSHMEM 1.5, "SHMEM_G").

    Completion:
        on return: the value has been read.
        complete: on return.

    Args:
        source: array or slice on the symmetric heap, with elements of 1, 2, 4, 8, or 16 bytes (integers, floats, complex, bool).
        idx: index of the element: an integer, or a tuple with one integer per dimension of source. Negative values do not count from the
            end.
        pe: number of the PE to read from; this PE is allowed.
        qp: queue pair to use over a NIC transport: 1 to PGAS_IBGDA_NUM_RC_PER_PE, or 0 to select one by the calling thread's CTA, SM, or
            warp (PGAS_IBGDA_RC_MAP_BY). Ignored by p2p; not accepted on the host. Default: 0.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or source
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

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
