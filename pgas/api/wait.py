"""Waits for several elements, and tests without waiting (OpenSHMEM 1.5, "Point-To-Point Synchronization Routines").

The *wait set* consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. The comparison is
``ivars[i] cmp value``; in the vector forms it is ``ivars[i] cmp values[i]``.

If the condition holds, what the writers wrote before their fence(), or the data of their put_signal(), is visible on return; the same
applies to wait_until(). A wait lasts at most PGAS_TIMEOUT seconds, and ends immediately if the job has failed.

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import wait

__all__ = [
    "test", "test_all", "test_all_vector", "test_any", "test_any_vector", "test_some", "test_some_vector", "wait_until_all",
    "wait_until_all_vector", "wait_until_any", "wait_until_any_vector", "wait_until_some", "wait_until_some_vector",
]  # fmt: skip


@device_function(wait.test)
def test(ivar: Any, idx: Index, cmp: int, value: Any, *, stream: Any = None) -> Any:
    """Return whether this PE's ``ivar[idx]`` satisfies the comparison, without waiting (OpenSHMEM 1.5, "SHMEM_TEST").

    Completion:
        on return: if the result is true, this thread may read what the writer wrote before its fence(), or the data of its put_signal().
        complete: on return.

    Args:
        ivar: array of 16-, 32-, or 64-bit integers on the symmetric heap.
        idx: index of the element: an integer, or a tuple with one integer per dimension of ivar. Negative values do not count from the end.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivar[idx] cmp value``.
        value: integer, converted to ivar's dtype modulo 2^bits; on the host it must be in the dtype's range.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if the element does not exist, ivar is not on
            the heap, or cmp is invalid.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> pgas.test(flags, 0, pgas.EQ, 1), pgas.test(flags, 1, pgas.GT, 0)
        (True, False)
    """


@device_function(wait.several("all", waits=True, vector=False))
def wait_until_all(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> None:
    """Wait until every element of the wait set has satisfied the comparison, at the same time or one after another.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Returns immediately if
    the wait set is empty. OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL_ALL".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp value``.
        value: integer, converted to ivars' dtype modulo 2^bits; on the host it must be in the dtype's range.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds, with the message giving an element of the wait set
            and the last value read, or if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is too
            short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> flags = pgas.zeros(3, np.int32)
        >>> @pgas.jit
        ... def exchange(flags, pe):
        ...     for i in range(3):
        ...         pgas.p(flags, i, 1, pe)
        ...     pgas.wait_until_all(flags, None, pgas.NE, 0)
        >>> pgas.launch(exchange, 1, 1, (flags, right))
        >>> pgas.synchronize()
        >>> flags.copy_to_host().tolist()
        [1, 1, 1]
    """


@device_function(wait.several("any", waits=True, vector=False))
def wait_until_any(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Wait until an element of the wait set satisfies the comparison, and return its index (int64).

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Returns -1 if the wait
    set is empty. If several elements do, any of them may be returned; repeated calls eventually return each of them. In C, the result for
    an empty set is SIZE_MAX, which has the same bits as -1. OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL_ANY".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp value``.
        value: integer, converted to ivars' dtype modulo 2^bits; on the host it must be in the dtype's range.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds, with the message giving an element of the wait set
            and the last value read, or if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is too
            short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> flags = pgas.zeros(3, np.int32)
        >>> status, order = pgas.zeros(3, np.int32), pgas.zeros(3, np.int64)
        >>> @pgas.jit
        ... def exchange(flags, status, order, pe):
        ...     for i in range(3):
        ...         pgas.p(flags, i, 1, pe)
        ...     for n in range(3):  # in the order of arrival
        ...         i = pgas.wait_until_any(flags, status, pgas.NE, 0)
        ...         status[i] = 1  # leave it out from now on
        ...         order[n] = i
        >>> pgas.launch(exchange, 1, 1, (flags, status, order, right))
        >>> pgas.synchronize()
        >>> sorted(order.copy_to_host().tolist())
        [0, 1, 2]
    """


@device_function(wait.several("some", waits=True, vector=False))
def wait_until_some(
    ivars: Any, indices: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None
) -> Any:
    """Wait until an element of the wait set satisfies the comparison; store the indices of all that do.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Returns the number of
    indices (int64), which is 0 if the wait set is empty. The indices ascend. OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL_SOME".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        indices: array of at least nelems integers, in any memory.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp value``.
        value: integer, converted to ivars' dtype modulo 2^bits; on the host it must be in the dtype's range.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds, with the message giving an element of the wait set
            and the last value read, or if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is too
            short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> flags = pgas.zeros(3, np.int32)
        >>> status, indices = pgas.zeros(3, np.int32), pgas.zeros(3, np.int64)
        >>> @pgas.jit
        ... def exchange(flags, status, indices, pe):
        ...     for i in range(3):
        ...         pgas.p(flags, i, 1, pe)
        ...     done = 0
        ...     while done < 3:
        ...         count = pgas.wait_until_some(flags, indices, status, pgas.NE, 0)
        ...         for k in range(count):
        ...             status[indices[k]] = 1
        ...         done += count
        >>> pgas.launch(exchange, 1, 1, (flags, status, indices, right))
        >>> pgas.synchronize()
        >>> status.copy_to_host().tolist()
        [1, 1, 1]
    """


@device_function(wait.several("all", waits=True, vector=True))
def wait_until_all_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None) -> None:
    """Wait until every element of the wait set has satisfied the comparison with its own value.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Elements may satisfy it
    at the same time or one after another. Returns immediately if the wait set is empty. OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL_ALL_VECTOR".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp values[i]``.
        values: array of integers in any memory, one for each element, each converted to ivars' dtype.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds, with the message giving an element of the wait set
            and the last value read, or if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is too
            short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> flags = pgas.zeros(3, np.int32)
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> for i in range(3):
        ...     pgas.p(flags, i, i + 1, right)
        >>> pgas.wait_until_all_vector(flags, None, pgas.EQ, values)
        >>> flags.copy_to_host().tolist()
        [1, 2, 3]
    """


@device_function(wait.several("any", waits=True, vector=True))
def wait_until_any_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Wait until an element of the wait set satisfies the comparison with its own value, and return its index (int64).

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Returns -1 if the wait
    set is empty. If several elements do, any of them may be returned; repeated calls eventually return each of them. In C, the result for
    an empty set is SIZE_MAX, which has the same bits as -1. OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL_ANY_VECTOR".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp values[i]``.
        values: array of integers in any memory, one for each element, each converted to ivars' dtype.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds, with the message giving an element of the wait set
            and the last value read, or if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is too
            short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> flags = pgas.zeros(3, np.int32)
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> for i in range(3):
        ...     pgas.p(flags, i, i + 1, right)
        >>> pgas.wait_until_any_vector(flags[2:], None, pgas.EQ, values[2:])
        0
    """


@device_function(wait.several("some", waits=True, vector=True))
def wait_until_some_vector(
    ivars: Any, indices: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None
) -> Any:
    """Wait until an element of the wait set satisfies the comparison with its own value; store the indices of all that do.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Returns the number of
    indices (int64), which is 0 if the wait set is empty. The indices ascend. OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL_SOME_VECTOR".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        indices: array of at least nelems integers, in any memory.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp values[i]``.
        values: array of integers in any memory, one for each element, each converted to ivars' dtype.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds, with the message giving an element of the wait set
            and the last value read, or if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is too
            short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> flags = pgas.zeros(3, np.int32)
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> indices = pgas.zeros(3, np.int64)
        >>> for i in range(3):
        ...     pgas.p(flags, i, i + 1, right)
        >>> pgas.wait_until_some_vector(flags, indices, None, pgas.GE, values) > 0
        True
    """


@device_function(wait.several("all", waits=False, vector=False))
def test_all(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Return whether every element of the wait set satisfies the comparison, without waiting.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. The result is True if
    the wait set is empty. OpenSHMEM 1.5, "SHMEM_TEST_ALL".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp value``.
        value: integer, converted to ivars' dtype modulo 2^bits; on the host it must be in the dtype's range.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is
            too short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> skip = pgas.array(np.array([0, 1, 0], np.int32))  # leaves out the second element
        >>> pgas.test_all(flags, None, pgas.GT, 0), pgas.test_all(flags, skip, pgas.GT, 0)
        (False, True)
    """


@device_function(wait.several("any", waits=False, vector=False))
def test_any(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Return the index (int64) of an element of the wait set that satisfies the comparison, or -1 if none does.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. If several elements do,
    any of them may be returned; repeated calls eventually return each of them. Never waits. OpenSHMEM 1.5, "SHMEM_TEST_ANY".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp value``.
        value: integer, converted to ivars' dtype modulo 2^bits; on the host it must be in the dtype's range.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is
            too short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> pgas.test_any(flags, None, pgas.EQ, 3), pgas.test_any(flags, None, pgas.EQ, 9)
        (2, -1)
    """


@device_function(wait.several("some", waits=False, vector=False))
def test_some(ivars: Any, indices: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Store the indices of the elements of the wait set that satisfy the comparison, without waiting.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Returns the number of
    indices (int64), which may be 0. The indices ascend. OpenSHMEM 1.5, "SHMEM_TEST_SOME".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        indices: array of at least nelems integers, in any memory.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp value``.
        value: integer, converted to ivars' dtype modulo 2^bits; on the host it must be in the dtype's range.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is
            too short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> indices = pgas.zeros(3, np.int64)
        >>> count = pgas.test_some(flags, indices, None, pgas.GT, 0)
        >>> indices[:count].copy_to_host().tolist()
        [0, 2]
    """


@device_function(wait.several("all", waits=False, vector=True))
def test_all_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Return whether every element of the wait set satisfies the comparison with its own value, without waiting.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. The result is True if
    the wait set is empty. OpenSHMEM 1.5, "SHMEM_TEST_ALL_VECTOR".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp values[i]``.
        values: array of integers in any memory, one for each element, each converted to ivars' dtype.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is
            too short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> pgas.test_all_vector(flags, None, pgas.LE, values), pgas.test_all_vector(flags, None, pgas.EQ, values)
        (True, False)
    """


@device_function(wait.several("any", waits=False, vector=True))
def test_any_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Return the index (int64) of an element of the wait set that satisfies the comparison with its own value, or -1 if none does.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. If several elements do,
    any of them may be returned; repeated calls eventually return each of them. Never waits. OpenSHMEM 1.5, "SHMEM_TEST_ANY_VECTOR".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp values[i]``.
        values: array of integers in any memory, one for each element, each converted to ivars' dtype.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is
            too short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> pgas.test_any_vector(flags, None, pgas.NE, values)
        1
    """


@device_function(wait.several("some", waits=False, vector=True))
def test_some_vector(
    ivars: Any, indices: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None
) -> Any:
    """Store the indices of the elements of the wait set that satisfy the comparison with their own values, without waiting.

    The wait set consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. Returns the number of
    indices (int64), which may be 0. The indices ascend. OpenSHMEM 1.5, "SHMEM_TEST_SOME_VECTOR".

    Completion:
        on return: for the elements that satisfy the comparison, this thread may read what the writers wrote before their fence(), or the
            data of their put_signal().
        complete: on return.

    Args:
        ivars: contiguous one-dimensional array of 16-, 32-, or 64-bit integers on the symmetric heap.
        indices: array of at least nelems integers, in any memory.
        status: None, or a mask: an array of integers (int32 in C) in any memory. Elements with a nonzero status are excluded from the wait
            set.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivars[i] cmp values[i]``.
        values: array of integers in any memory, one for each element, each converted to ivars' dtype.
        nelems: number of elements to consider, starting at the first. Default: all of ivars, but no more than the other arrays have.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous; with PGAS_DEBUG=check or in the simulator also if an array is
            too short or not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> indices = pgas.zeros(3, np.int64)
        >>> pgas.test_some_vector(flags, indices, None, pgas.EQ, values)
        2
    """
