"""Atomic memory operations from kernels (OpenSHMEM 1.5, "Atomic Memory Operations").

Operations on one element are atomic with respect to each other, from any thread of any PE. They are not atomic with respect to plain
stores, puts, and p() stores. They order nothing else: use fence() or a signal for that. Fetching operations return the old value of the
element and are complete on return; the others are complete after quiet() or barrier_all(). To read data that the writer of a returned value
wrote before, call fence() first. Integers wrap.

Elements, and how each transport updates them:

| elements | operations | p2p | ibgda, ibrc, and jobs with two transports |
|---|---|---|---|
| integers of 32 and 64 bits | all except min and max | an instruction | a request to the NIC |
| integers of 32 and 64 bits | min and max | an instruction | a read, then compare-and-swap until it succeeds |
| integers of 16 bits | all | compare-and-swap until it succeeds; fetch, set: a load, a store | rejected: NIC atomics have 4 or 8 bytes |
| float32, float64 | fetch, set, swap | an instruction | a request to the NIC |
| float32, float64 | add, fetch_add | an instruction | a read, then compare-and-swap until it succeeds |
| float16, bfloat16 | fetch, set | a load, a store | rejected |
| float16, bfloat16 | swap, add, fetch_add | compare-and-swap until it succeeds | rejected |

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import amo

__all__ = [
    "atomic_add", "atomic_and", "atomic_compare_swap", "atomic_fetch", "atomic_fetch_add", "atomic_fetch_and", "atomic_fetch_inc",
    "atomic_fetch_max", "atomic_fetch_min", "atomic_fetch_or", "atomic_fetch_xor", "atomic_inc", "atomic_max", "atomic_min", "atomic_or",
    "atomic_set", "atomic_swap", "atomic_xor",
]  # fmt: skip


@device_function(amo.typing_of("atomic_add"))
def atomic_add(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> None:
    """Add ``value`` to ``dest[idx]`` on PE ``pe``, atomically with respect to all pgas atomics on the element.

    Through a NIC, a float is added by a read and a compare-and-swap, repeated until the compare-and-swap succeeds; the call is then
    complete on return. N threads that add to the same element concurrently send up to N²/2 compare-and-swaps, so add up within the block
    first. OpenSHMEM 1.5, "SHMEM_ATOMIC_ADD".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers or floats, or of 16-bit ones if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: number, converted to dest's dtype: integers modulo 2^bits, floats toward zero if dest holds integers; on the host it must be
            in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 40, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_add(dest, 0, 2, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        42
    """


@device_function(amo.typing_of("atomic_fetch_add"))
def atomic_fetch_add(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Add ``value`` to ``dest[idx]`` on PE ``pe`` atomically, and return the element's old value.

    Through a NIC, a float is added by a read and a compare-and-swap, repeated until the compare-and-swap succeeds. N threads that add to
    the same element concurrently send up to N²/2 compare-and-swaps, so add up within the block first. OpenSHMEM 1.5,
    "SHMEM_ATOMIC_FETCH_ADD".

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers or floats, or of 16-bit ones if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: number, converted to dest's dtype: integers modulo 2^bits, floats toward zero if dest holds integers; on the host it must be
            in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 40, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch_add(dest, 0, 2, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (42, 40)
    """


@device_function(amo.typing_of("atomic_inc"))
def atomic_inc(dest: Any, idx: Index, pe: Integer, *, stream: Any = None) -> None:
    """Add 1 to ``dest[idx]`` on PE ``pe``, atomically with respect to all pgas atomics on the element.

    OpenSHMEM 1.5, "SHMEM_ATOMIC_INC".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 41, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_inc(dest, 0, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        42
    """


@device_function(amo.typing_of("atomic_fetch_inc"))
def atomic_fetch_inc(dest: Any, idx: Index, pe: Integer, *, stream: Any = None) -> Any:
    """Add 1 to ``dest[idx]`` on PE ``pe`` atomically, and return the element's old value.

    OpenSHMEM 1.5, "SHMEM_ATOMIC_FETCH_INC".

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 41, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch_inc(dest, 0, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (42, 41)
    """


@device_function(amo.typing_of("atomic_fetch"))
def atomic_fetch(dest: Any, idx: Index, pe: Integer, *, stream: Any = None) -> Any:
    """Read ``dest[idx]`` on PE ``pe`` atomically, and return it.

    Unlike g(), it is atomic with respect to the other pgas atomics on the element. OpenSHMEM 1.5, "SHMEM_ATOMIC_FETCH".

    Completion:
        on return: the value has been read.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers or floats, or of 16-bit ones if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        pe: number of the PE to read from; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 42, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch(dest, 0, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (42, 42)
    """


@device_function(amo.typing_of("atomic_set"))
def atomic_set(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> None:
    """Set ``dest[idx]`` on PE ``pe`` to ``value`` atomically.

    Unlike p(), it is atomic with respect to the other pgas atomics on the element. OpenSHMEM 1.5, "SHMEM_ATOMIC_SET".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers or floats, or of 16-bit ones if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: number, converted to dest's dtype: integers modulo 2^bits, floats toward zero if dest holds integers; on the host it must be
            in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 1, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_set(dest, 0, 42, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        42
    """


@device_function(amo.typing_of("atomic_swap"))
def atomic_swap(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Set ``dest[idx]`` on PE ``pe`` to ``value`` atomically, and return the element's old value.

    OpenSHMEM 1.5, "SHMEM_ATOMIC_SWAP".

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers or floats, or of 16-bit ones if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: number, converted to dest's dtype: integers modulo 2^bits, floats toward zero if dest holds integers; on the host it must be
            in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 1, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_swap(dest, 0, 42, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (42, 1)
    """


@device_function(amo.typing_of("atomic_compare_swap"))
def atomic_compare_swap(dest: Any, idx: Index, cond: Any, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Set ``dest[idx]`` on PE ``pe`` to ``value`` if it equals ``cond``, and return its old value, atomically.

    The old value equals ``cond`` if the swap took place. OpenSHMEM 1.5, "SHMEM_ATOMIC_COMPARE_SWAP".

    Completion:
        on return: the element is compared and, if it equals cond, set, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        cond: integer to compare the element with, converted like value.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 1, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_compare_swap(dest, 0, 1, 42, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (42, 1)
    """


@device_function(amo.typing_of("atomic_min"))
def atomic_min(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> None:
    """Set ``dest[idx]`` on PE ``pe`` to ``value`` if ``value`` is less, atomically with respect to all pgas atomics on the element.

    Through a NIC, this is a read and a compare-and-swap, repeated until the compare-and-swap succeeds; the call is then complete on return.

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 12, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_min(dest, 0, 6, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        6
    """


@device_function(amo.typing_of("atomic_fetch_min"))
def atomic_fetch_min(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Set ``dest[idx]`` on PE ``pe`` to ``value`` if ``value`` is less, atomically, and return the element's old value.

    Through a NIC, this is a read and a compare-and-swap, repeated until the compare-and-swap succeeds.

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 12, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch_min(dest, 0, 6, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (6, 12)
    """


@device_function(amo.typing_of("atomic_max"))
def atomic_max(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> None:
    """Set ``dest[idx]`` on PE ``pe`` to ``value`` if ``value`` is greater, atomically with respect to all pgas atomics on the element.

    Through a NIC, this is a read and a compare-and-swap, repeated until the compare-and-swap succeeds; the call is then complete on return.

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 12, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_max(dest, 0, 60, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        60
    """


@device_function(amo.typing_of("atomic_fetch_max"))
def atomic_fetch_max(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Set ``dest[idx]`` on PE ``pe`` to ``value`` if ``value`` is greater, atomically, and return the element's old value.

    Through a NIC, this is a read and a compare-and-swap, repeated until the compare-and-swap succeeds.

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 12, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch_max(dest, 0, 60, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (60, 12)
    """


@device_function(amo.typing_of("atomic_and"))
def atomic_and(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> None:
    """Clear the bits of ``dest[idx]`` on PE ``pe`` that are 0 in ``value``, atomically (bitwise and).

    OpenSHMEM 1.5, "SHMEM_ATOMIC_AND".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 12, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_and(dest, 0, 6, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        4
    """


@device_function(amo.typing_of("atomic_fetch_and"))
def atomic_fetch_and(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Clear the bits of ``dest[idx]`` on PE ``pe`` that are 0 in ``value``, atomically, and return its old value.

    Bitwise and. OpenSHMEM 1.5, "SHMEM_ATOMIC_FETCH_AND".

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 12, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch_and(dest, 0, 6, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (4, 12)
    """


@device_function(amo.typing_of("atomic_or"))
def atomic_or(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> None:
    """Set the bits of ``dest[idx]`` on PE ``pe`` that are 1 in ``value``, atomically (bitwise or).

    OpenSHMEM 1.5, "SHMEM_ATOMIC_OR".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 12, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_or(dest, 0, 6, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        14
    """


@device_function(amo.typing_of("atomic_fetch_or"))
def atomic_fetch_or(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Set the bits of ``dest[idx]`` on PE ``pe`` that are 1 in ``value``, atomically, and return its old value.

    Bitwise or. OpenSHMEM 1.5, "SHMEM_ATOMIC_FETCH_OR".

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 12, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch_or(dest, 0, 6, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (14, 12)
    """


@device_function(amo.typing_of("atomic_xor"))
def atomic_xor(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> None:
    """Flip the bits of ``dest[idx]`` on PE ``pe`` that are 1 in ``value``, atomically (bitwise exclusive or).

    OpenSHMEM 1.5, "SHMEM_ATOMIC_XOR".

    Completion:
        on return: the operation has started.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest = pgas.full(1, 12, np.int64)
        >>> @pgas.jit
        ... def update(dest, pe):
        ...     pgas.atomic_xor(dest, 0, 6, pe)
        >>> update[1, 1](dest, right)
        >>> pgas.barrier_all()
        >>> int(dest[0])
        10
    """


@device_function(amo.typing_of("atomic_fetch_xor"))
def atomic_fetch_xor(dest: Any, idx: Index, value: Any, pe: Integer, *, stream: Any = None) -> Any:
    """Flip the bits of ``dest[idx]`` on PE ``pe`` that are 1 in ``value``, atomically, and return its old value.

    Bitwise exclusive or. OpenSHMEM 1.5, "SHMEM_ATOMIC_FETCH_XOR".

    Completion:
        on return: the element is updated, and its old value is returned.
        complete: on return.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers, or of 16-bit integers if the job uses no NIC.
        idx: index of the element: an integer, or a tuple with one integer per dimension of dest. Negative values do not count from the end.
        value: integer, converted to dest's dtype modulo 2^bits; on the host it must be in the dtype's range.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist or dest
            is not on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, found = pgas.full(1, 12, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def update(dest, found, pe):
        ...     found[0] = pgas.atomic_fetch_xor(dest, 0, 6, pe)
        >>> update[1, 1](dest, found, right)
        >>> pgas.barrier_all()
        >>> int(dest[0]), int(found[0])
        (10, 12)
    """
