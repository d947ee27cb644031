"""Waits for several elements at once, and tests without waiting (OpenSHMEM 1.5, "Point-To-Point Synchronization Routines").

The *wait set* consists of the elements of ``ivars`` whose ``status`` is 0, or of all elements if status is None. The comparison is
``ivars[i] cmp value``; in the vector forms ``ivars[i] cmp values[i]``.

If the condition holds, the writers' operations before their fence(), or the data of their put_signal(), are visible on return, as with
wait_until(). A wait lasts at most PGAS_TIMEOUT seconds, and ends at once when the job has failed.

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
    """Return whether this PE's ``ivar[idx]`` satisfies the comparison. Arguments and errors as wait_until(), without the timeout.

    Completion:
        on return: as wait_until() if the result is true.
        complete: on return.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> pgas.test(flags, 0, pgas.EQ, 1), pgas.test(flags, 1, pgas.GT, 0)
        (True, False)
    """


@device_function(wait.several("all", waits=True, vector=False))
def wait_until_all(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> None:
    """Wait until every element of the wait set has satisfied the comparison, at the same time or one after another.

    Returns at once if the wait set is empty.

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Args:
        ivars: array on the symmetric heap with one dimension, contiguous, of 16-, 32- or 64-bit integers; this PE's.
        status: None, or an array of integers (int32 in C) in any memory: elements whose status is not 0 are left out of the wait set.
        cmp: pgas.EQ, NE, GT, LE, LT or GE.
        value: integer, converted to ivars' dtype as by p().
        nelems: number of elements, from the first on; if None, all of ivars, but no more than the other arrays have.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch. Default: call it immediately.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: PGAS_TIMEOUT seconds have passed; names an element of the wait set and the value found. Under
            PGAS_DEBUG=check and in the simulator also: an array is too short, or not on the heap.

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
    """Wait until some element of the wait set satisfies the comparison, and return its index (int64); -1 if the wait set is empty.

    If several do, any of them may be returned; repeated calls return each of them in the end. In C the result for an empty set is SIZE_MAX,
    which has the same bits as -1. Arguments and errors as wait_until_all().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

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
    """Wait until at least one element of the wait set satisfies the comparison; store the indices of all that do, return their number.

    The number (int64) is 0 if the wait set is empty. The indices ascend.

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Args:
        ivars, status, cmp, value, nelems: as wait_until_all().
        indices: array of at least nelems integers, in any memory.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch. Default: call it immediately.

    Raises: as wait_until_all().

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
    """wait_until_all() with a value for each element.

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Args:
        ivars, status, cmp, nelems: as wait_until_all().
        values: array of integers in any memory, each converted to ivars' dtype.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch. Default: call it immediately.

    Raises: as wait_until_all().

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
    """wait_until_any() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

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
    """wait_until_some() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

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
    """Return whether every element of the wait set satisfies the comparison; True if it is empty. Arguments as wait_until_all().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> skip = pgas.array(np.array([0, 1, 0], np.int32))  # leaves out the second element
        >>> pgas.test_all(flags, None, pgas.GT, 0), pgas.test_all(flags, skip, pgas.GT, 0)
        (False, True)
    """


@device_function(wait.several("any", waits=False, vector=False))
def test_any(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Return the index of an element of the wait set that satisfies the comparison, any as in wait_until_any(); -1 if none does.

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> pgas.test_any(flags, None, pgas.EQ, 3), pgas.test_any(flags, None, pgas.EQ, 9)
        (2, -1)
    """


@device_function(wait.several("some", waits=False, vector=False))
def test_some(ivars: Any, indices: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """Store the indices of the elements of the wait set that satisfy the comparison; return their number. Arguments as wait_until_some().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> indices = pgas.zeros(3, np.int64)
        >>> count = pgas.test_some(flags, indices, None, pgas.GT, 0)
        >>> indices[:count].copy_to_host().tolist()
        [0, 2]
    """


@device_function(wait.several("all", waits=False, vector=True))
def test_all_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """test_all() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> pgas.test_all_vector(flags, None, pgas.LE, values), pgas.test_all_vector(flags, None, pgas.EQ, values)
        (True, False)
    """


@device_function(wait.several("any", waits=False, vector=True))
def test_any_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None, *, stream: Any = None) -> Any:
    """test_any() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

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
    """test_some() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy the comparison.
        complete: on return.

    Example:
        >>> flags = pgas.array(np.array([1, 0, 3], np.int32))
        >>> values = pgas.array(np.array([1, 2, 3]))
        >>> indices = pgas.zeros(3, np.int64)
        >>> pgas.test_some_vector(flags, indices, None, pgas.EQ, values)
        2
    """
