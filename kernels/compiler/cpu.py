"""The simulator's twins of the typed primitives: access to elements of arrays in host memory, by address and dtype.

``mem`` is the memory on which they act: host memory itself, or the weak model, which delays and reorders stores to other PEs.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.sim import arrays, bulk, engine, mem, set_memory_model
from pgas.sim.integers import tagged

__all__ = [
    "atomic_max", "begin", "bulk", "element_of_word", "element_words", "load_acquire_element", "load_element", "mem",
    "read_again", "read_only", "relax", "store_element", "store_octoword", "swapped", "update_element",
]  # fmt: skip


_read_only: dict[int, int] = {}


def read_only(addr: int, nbytes: int) -> int:
    """Return a word of the state page that is constant while a kernel runs."""
    value = _read_only.get(addr)
    if value is None:
        value = _read_only[addr] = mem.load(addr, nbytes)
    return value


def read_again() -> None:
    """Forget what read_only() has read, because the host has changed words between two kernels."""
    _read_only.clear()


def begin(weak_seed: int | None, own_lo: int, own_hi: int) -> None:
    """Start a job: forget the last one's words, and choose the memory model.

    Args:
        weak_seed: seed of the weak model's delays; None for host memory itself.
        own_lo, own_hi: bounds of the part of its slot that only this PE reads; stores to the rest of the window are remote.
    """
    read_again()
    if weak_seed is None:
        set_memory_model(None)
    else:
        from pgas.sim.weak import WeakMemory

        set_memory_model(WeakMemory(weak_seed, own_lo, own_hi))


def thread_rank() -> int:
    """Number of this thread in its block."""
    return _thread().linear


def _thread() -> Any:
    return engine.current()


def lane() -> int:
    """Number of this thread in its warp."""
    return int(_thread().lane)


def block_size() -> int:
    """Number of threads in the block."""
    x, y, z = engine.block_dim()
    return x * y * z


def warp_size() -> int:
    """Number of threads in this thread's warp."""
    return min(block_size() - thread_rank() // 32 * 32, 32)


def block_rank() -> int:
    """Number of this block in its grid."""
    (x, y, z), (nx, ny, _) = engine.block_index(), engine.grid_dim()
    return x + nx * (y + ny * z)


def launch_number() -> int:
    """Number of the running launch in this process."""
    return int(engine.worker().launch.number)


def store_octoword(addr: int, low: int, high: int) -> None:
    """Store 16 bytes."""
    mem.store(addr, low, 8)
    mem.store(addr + 8, high, 8)


def load_line(addr: int) -> tuple[int, int, int, int]:
    """Return the four 4-byte words of a line; each half of the line is loaded by one access."""
    one, other = mem.load(addr, 8), mem.load(addr + 8, 8)
    return one & 0xFFFF_FFFF, one >> 32, other & 0xFFFF_FFFF, other >> 32


def atomic_max(addr: int, value: int) -> None:
    """Raise a word to value if it is less; atomic only among the threads of this process."""
    if mem.load(addr, 8) < value:
        mem.store(addr, value, 8)


def number(bits: int, integer: str, real: str) -> Any:
    """Return the float (NumPy's type code) that has the bits of an unsigned integer."""
    return np.array([bits], integer).view(real)[0]


def bits(value: Any, real: str, integer: str) -> int:
    """Return the bits of a value as a float of a type."""
    with np.errstate(over="ignore"):
        return int(np.array([value]).astype(real).view(integer)[0])


def bf16_bits(value: Any) -> int:
    """Return the bits of a float32 as bfloat16, to the nearest even."""
    word = bits(value, "f4", "u4")
    if word & 0x7FFF_FFFF > 0x7F80_0000:
        return word >> 16 | 0x40  # NaN
    return word + 0x7FFF + (word >> 16 & 1) >> 16


def swapped(value: int, nbytes: int) -> int:
    """Return an integer with its bytes in the other order."""
    return int.from_bytes(value.to_bytes(nbytes, "little"), "big")


def relax(operation: str, wait: tuple[int, ...]) -> None:
    """Let other threads run; reports name the operation that waits. wait: words that identify the wait among those of the thread."""
    arrays.begin_turn()  # it yields here, so that its polls need not preempt it
    engine.poll_again(operation, wait)


def _ignore() -> None:
    """Do nothing, because there is no job."""


#: Function called by a thread that has poisoned the state; the job sets it to raise the error inside the kernel.
on_failure: Callable[[], None] = _ignore


def load_element(addr: int, dtype: np.dtype) -> Any:
    """Return the element at addr: for integers a Python integer that remembers its type, otherwise a NumPy scalar."""
    arrays.count_read()  # a user's loop that calls g must end
    nbytes = dtype.itemsize
    if nbytes == 16:
        return np.frombuffer(struct.pack("<2Q", mem.load(addr, 8), mem.load(addr + 8, 8)), dtype)[0]
    return element_of_word(dtype, mem.load(addr, nbytes))


def element_of_word(dtype: np.dtype, word: int) -> Any:
    """Return the element of up to 8 bytes that has these bits."""
    nbytes = dtype.itemsize
    if dtype.kind in "iu":
        if dtype.kind == "i" and word >> (8 * nbytes - 1):
            word -= 1 << 8 * nbytes
        remember = tagged.get(dtype)
        return word if remember is None else remember(word)
    return np.frombuffer(word.to_bytes(nbytes, "little"), dtype)[0]


def load_acquire_element(addr: int, dtype: np.dtype) -> Any:
    """Return the element at addr. Loads acquire on x86."""
    return load_element(addr, dtype)


def store_element(addr: int, dtype: np.dtype, value: Any) -> None:
    """Store an element, converted as an assignment would."""
    for offset, word, nbytes in _words(dtype, value):
        mem.store(addr + offset, word, nbytes)


def element_words(dtype: np.dtype, value: Any) -> tuple[int, int]:
    """Return an element's bytes as two words; the second is 0 unless the element has 16 bytes."""
    words = [word for _, word, _ in _words(dtype, value)]
    return words[0], words[1] if len(words) > 1 else 0


def update_element(change: str, addr: int, dtype: np.dtype, *values: Any) -> Any:
    """Change an element atomically, like PTX's atom with that name, and return its old value."""
    arrays.count_read(arrays.ATOMIC_READS)
    if change in ("min", "max") or (dtype.itemsize == 2 and change == "add"):
        return _by_compare_swap(_COMBINED[change], addr, dtype, values[0])
    if dtype.kind == "f" and change == "add":
        add = mem.atomic_add_f32 if dtype.itemsize == 4 else mem.atomic_add_f64
        return dtype.type(add(addr, float(values[0])))
    words = [element_words(dtype, value)[0] for value in values]
    return element_of_word(dtype, getattr(mem, _CHANGES[change])(addr, *words, dtype.itemsize))


_CHANGES = {
    "add": "atomic_add", "exch": "atomic_exchange", "cas": "atomic_compare_swap", "and": "atomic_and", "or": "atomic_or",
    "xor": "atomic_xor",
}  # fmt: skip


_COMBINED: dict[str, Callable[[Any, Any], Any]] = {"add": lambda old, value: old + value, "min": min, "max": max}


def _by_compare_swap(combine: Callable[[Any, Any], Any], addr: int, dtype: np.dtype, value: Any) -> Any:
    nbytes = dtype.itemsize
    value = element_of_word(dtype, element_words(dtype, value)[0])
    while True:
        word = mem.load(addr, nbytes)
        old = element_of_word(dtype, word)
        if mem.atomic_compare_swap(addr, word, element_words(dtype, combine(old, value))[0], nbytes) == word:
            return old


def whole(value: Any, dtype: np.dtype) -> int:
    """Return a value as an integer, which wraps in an element of dtype. A float must fit: on a GPU the result is undefined otherwise.

    Raises:
        OverflowError: the float does not fit.
    """
    if isinstance(value, (float, np.floating)):
        bounds = np.iinfo(dtype)
        if not bounds.min - 1 < value < bounds.max + 1:
            raise OverflowError(f"{value} is beyond the integers that an element of type {dtype} can hold, {bounds.min} to {bounds.max}")
    return int(value)


def _words(dtype: np.dtype, value: Any) -> list[tuple[int, int, int]]:
    """The (offset, value, bytes) of the machine words of one element: one, or two of 8 bytes."""
    nbytes = dtype.itemsize
    if dtype.kind in "iu":
        return [(0, whole(value, dtype) & ((1 << 8 * nbytes) - 1), nbytes)]
    data = np.asarray(value).astype(dtype).tobytes()
    return [(offset, int.from_bytes(data[offset : offset + 8], "little"), min(nbytes, 8)) for offset in range(0, nbytes, 8)]
