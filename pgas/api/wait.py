"""Waiting for several elements at once, and looking without waiting (OpenSHMEM 1.5, sections 9.10.2 to 9.10.13).

The elements that count are the *wait set*: those of ``ivars`` whose element of ``status`` is 0, or all if status is None. An element is
compared as ``ivars[i] cmp value``; the vector forms compare each with its own of ``values``.

As by wait_until(), what the writers did before their fence(), or the data of their put_signal(), is visible on return, if the condition
holds. Waits last PGAS_TIMEOUT seconds at most, and end at once when the job has failed.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import wait

__all__ = [
    "test", "test_all", "test_all_vector", "test_any", "test_any_vector", "test_some", "test_some_vector", "wait_until_all",
    "wait_until_all_vector", "wait_until_any", "wait_until_any_vector", "wait_until_some", "wait_until_some_vector",
]  # fmt: skip


@device_function(wait.test)
def test(ivar: Any, idx: Index, cmp: int, value: Any) -> Any:
    """Return whether this PE's ``ivar[idx]`` compares as asked. Arguments and errors as wait_until(), but for the timeout.

    Completion:
        on return: if it is true, as wait_until().
        complete: on return.
    """


@device_function(wait.several("all", waits=True, vector=False))
def wait_until_all(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None) -> None:
    """Wait until every element of the wait set has compared as asked, each at some time since the call.

    Returns at once if the wait set is empty.

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.

    Args:
        ivars: array on the symmetric heap with one dimension, contiguous, of 16-, 32- or 64-bit integers; this PE's.
        status: None, or an array of integers (C's are int32): elements of ivars whose status is not 0 are left out. Any memory.
        cmp: pgas.EQ, NE, GT, LE, LT or GE.
        value: integer, converted to ivars' dtype as by p().
        nelems: how many elements to look at, the first ones; all of ivars if None, but no more than the other arrays have.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: PGAS_TIMEOUT seconds have passed; names an element that was awaited and what was there. Where
            arguments are checked (in the simulator, and under PGAS_DEBUG=check): an array is too short, or not on the heap.
    """


@device_function(wait.several("any", waits=True, vector=False))
def wait_until_any(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None) -> Any:
    """Wait until some element of the wait set compares as asked, and return its index (int64); -1 if the wait set is empty.

    Of several that do, any may be returned; called again and again, each of them is in the end. In C the value for an empty set is
    SIZE_MAX, which has the same bits. Arguments and errors as wait_until_all().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("some", waits=True, vector=False))
def wait_until_some(ivars: Any, indices: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None) -> Any:
    """Wait until at least one element of the wait set compares as asked; store the indices of those that do, and return their number.

    The number (int64) is 0 if the wait set is empty. Indices rise.

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.

    Args:
        ivars, status, cmp, value, nelems: as wait_until_all().
        indices: array of integers with room for nelems. Any memory.

    Raises: as wait_until_all().
    """


@device_function(wait.several("all", waits=True, vector=True))
def wait_until_all_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None) -> None:
    """wait_until_all() with a value for each element.

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.

    Args:
        ivars, status, cmp, nelems: as wait_until_all().
        values: array of integers, each converted to ivars' dtype: ``ivars[i] cmp values[i]``. Any memory.

    Raises: as wait_until_all().
    """


@device_function(wait.several("any", waits=True, vector=True))
def wait_until_any_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None) -> Any:
    """wait_until_any() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("some", waits=True, vector=True))
def wait_until_some_vector(ivars: Any, indices: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None) -> Any:
    """wait_until_some() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("all", waits=False, vector=False))
def test_all(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None) -> Any:
    """Return whether every element of the wait set compares as asked; True if it is empty. Arguments as wait_until_all().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("any", waits=False, vector=False))
def test_any(ivars: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None) -> Any:
    """Return the index of an element of the wait set that compares as asked, chosen as by wait_until_any(); -1 if none does.

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("some", waits=False, vector=False))
def test_some(ivars: Any, indices: Any, status: Any, cmp: int, value: Any, nelems: Integer | None = None) -> Any:
    """Store the indices of the elements of the wait set that compare as asked, and return their number. Arguments as wait_until_some().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("all", waits=False, vector=True))
def test_all_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None) -> Any:
    """test_all() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("any", waits=False, vector=True))
def test_any_vector(ivars: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None) -> Any:
    """test_any() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """


@device_function(wait.several("some", waits=False, vector=True))
def test_some_vector(ivars: Any, indices: Any, status: Any, cmp: int, values: Any, nelems: Integer | None = None) -> Any:
    """test_some() with a value for each element; values as wait_until_all_vector().

    Completion:
        on return: as wait_until(), for the elements that satisfy it.
        complete: on return.
    """
