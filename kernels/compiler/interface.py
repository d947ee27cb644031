"""The interface of device-code compilers. Each compiler has a module in this directory that implements it; __init__.py selects one.

* ``Backend``: how device functions are made and bound to public names. numba_cuda.py for GPUs, simulator.py for the simulator.
* ``Compiler``: a Backend that makes machine code; not the simulator, where kernels are Python.

With every compiler, streams, events, bound and cooperative launches, occupancy, and registers come from cuda.core (``Compiled.kernel``).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

#: Function that returns the part of a disk cache key for everything other than its source file on which compiled code depends; raises
#: disk_cache.Uncacheable if there is no such key.
Key = Callable[[], tuple[Any, ...]]


class Backend(Protocol):
    """Makes device code."""

    types: ModuleType  #: types of operands, for typing functions: Array, Integer, UniTuple, Omitted, unliteral, …
    cuda: ModuleType  #: pgas.cuda: names in device code and functions for the host
    KernelTypeError: type[Exception]  #: raised by typing functions that reject a call
    DeviceArray: Any  #: class of arrays in GPU memory, base of SymmetricArray

    # Scalars in device code: conversions, and a constant of 64 bits.
    u32: Any
    u64: Any
    i64: Any
    constant: Any
    cpu: Any  #: module of the primitives' CPU twins, cpu.py; None on GPUs

    # Functions of device code ---------------------------------------------------------------------------------------------------

    def device(self, function: Callable[..., Any], cpu: Callable[..., Any] | None = None) -> Any:
        """Mark an internal device function, which is inlined into its caller; ``cpu`` does the same in the simulator."""

    def primitive(
        self, name: str, sig: str, text: str, cpu: Callable[..., Any] | None, *, convergent: bool = False, pure: bool = False
    ) -> Any:
        """Make a device function from PTX inline assembly, or from ``cpu`` in the simulator.

        Args:
            name: name of the function, for error messages.
            sig: signature such as ``"u64(u64)"``, ``"void(u64, u32)"``, or ``"(u64, u64)(u64)"`` for two results; other types are i32, u16,
                f32, and f64.
            text: PTX with LLVM's operand numbers, results before arguments.
            cpu: equivalent function on Python integers.
            convergent: whether the lanes of a warp execute it together (shfl, match, bar); then the compiler must not move it into a
                branch.
            pure: whether it neither accesses memory nor depends on time, so that it may be merged and hoisted. Everything else is volatile
                and clobbers memory; otherwise LLVM would hoist the load out of a spin loop.
        """

    def bulk_copies(self) -> bool:
        """Whether the GPU that kernels are compiled for has bulk copies: compute capability 9.0 or higher."""

    def element_primitive(self, name: str, arguments: str, text: Callable[[Any], str], cpu: Callable[..., Any]) -> Any:
        """Make a primitive whose operand width follows an array's dtype.

        The device function takes ``(addr, array, *values)``; the array only determines the dtype. Values are converted to it as in an
        assignment ``array[i] = value``.

        Args:
            name: name of the primitive, for error messages.
            arguments: ``"load"`` (returns an element), ``"store"`` (takes one), ``"update"`` (takes one, returns one), or ``"compare"``
                (takes two, returns one).
            text: function from the type of the elements to PTX, with ``$`` operands in LLVM's order.
            cpu: equivalent function of ``(addr, dtype, *values)``.
        """

    def integer_device(self, function: Callable[..., Any]) -> Any:
        """Mark a device function whose arguments are int64, so that it is compiled once for all constants passed to it; inlined or not.

        In the simulator, it is compiled for the CPU.
        """

    def entry(self, sync: Any, suffix: str, name: str) -> Any:
        """Return the ``sync()`` at the start of a call of ``name`` by a warp or block (``suffix``: ``_warp`` or ``_block``).

        In the simulator it rejects a warp or block that is not complete, or whose threads pass different arguments.
        """

    # Device code calls these six.

    def address_of(self, array: Any) -> Any:
        """Return the generic address of an array's first element (equal to its global address for global memory)."""

    def address_of_element(self, array: Any, idx: Any) -> Any:
        """Return the address of array[idx]; idx is an integer or a tuple of them, never counted from the end."""

    def outlier(self, array: Any, idx: Any) -> Any:
        """Return the first subscript out of bounds, the axis's length, and its number, as u64; (0, 1, 0) if array has the element idx."""

    def element_words(self, array: Any, value: Any) -> Any:
        """Return a value's bytes as an element of the array: two u64; the second is 0 unless the element has 16 bytes."""

    def element_of_word(self, array: Any, word: Any) -> Any:
        """Return the element of 4 or 8 bytes whose bits are the low ones of word."""

    def bits_of(self, value: Any) -> Any:
        """Return an integer sign-extended, or the bits of a float, as u64: for error records."""

    def caster(self, dtype: Any) -> Any:
        """Return a function that converts a value to dtype in device code."""

    # Types ----------------------------------------------------------------------------------------------------------------------

    def element_size(self, dtype: Any) -> int:
        """Return the size in bytes of an element of this type."""

    def numpy_dtype(self, dtype: Any) -> Any:
        """Return the NumPy dtype of a scalar or record type; uint16 for bfloat16, which NumPy lacks."""

    def has_type(self, dtype: Any) -> bool:
        """Whether kernels can have elements of this NumPy dtype."""

    def is_float8(self, dtype: Any) -> bool:
        """Whether elements of this type, of NumPy or the compiler, are float8, which can only be copied."""

    # Public names ---------------------------------------------------------------------------------------------------------------

    def overload(self, stub: Callable[..., Any], typing: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
        """Return the public function of a stub: in kernels the body that typing returns for the operands' types, otherwise on_host."""

    def array_overload(self, stub: Callable[..., Any], typing: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
        """Return the public function of a stub of (dest, pe) whose body returns the address of an array that is otherwise like dest."""

    def host_only(self, function: Callable[..., Any], refuse: Callable[..., Any]) -> Callable[..., Any]:
        """Return a host function; a call in a kernel runs refuse instead."""

    # Kernels --------------------------------------------------------------------------------------------------------------------

    def jit(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return the dispatcher of a kernel: ``dispatcher[grid, block, stream, shared](*args)`` compiles and launches it."""

    def function_of(self, kernel: Any) -> Any:
        """Return the function that a dispatcher was made from, None for other objects."""

    def keep_bodies(self, key: Key) -> None:
        """Keep bodies of public functions on disk if that is possible. The key's first part is a hash of their source."""

    def keep(self, kernel: Any, key: Key) -> None:
        """Keep a dispatcher's code on disk if that is possible."""

    def compiling(self, thread: int) -> str:
        """Return the name of the kernel that a thread of this process is compiling, "" if there is none."""

    def deferred_frees(self) -> AbstractContextManager[Any]:
        """Return a context that postpones the freeing of unused arrays, because a free waits for running kernels."""


class Compiled(Protocol):
    """A kernel compiled for arguments of certain types."""

    @property
    def cubin(self) -> bytes:
        """Its machine code."""

    @property
    def kernel(self) -> Any:
        """The cuda.core.Kernel, loaded into the current context."""

    @property
    def cooperative(self) -> bool:
        """Whether the code waits for its whole grid, so that it needs a cooperative launch."""

    def flatten(self, args: Sequence[Any], stream: Any) -> list[Any]:
        """Return the parameters of the machine code in the form that cuda.core.launch takes.

        Raises:
            TypeError: an argument is a host array.
        """


class Compiler(Backend, Protocol):
    """Makes machine code."""

    packages: tuple[str, ...]  #: top-level packages whose code versions() covers

    def versions(self) -> tuple[str, ...]:
        """Return the versions that compiled code depends on."""

    def compiled(self, kernel: Any, argument_types: tuple[Any, ...]) -> Compiled:
        """Compile a dispatcher's kernel for arguments of these types, or find it."""

    def types_of(self, kernel: Any, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the types of arguments of a dispatcher."""

    def options_of(self, kernel: Any) -> dict[str, Any]:
        """Return the options of a dispatcher, none for a plain function."""

    def ptx(self, function: Callable[..., Any], argument_types: tuple[Any, ...], compute_capability: tuple[int, int]) -> str:
        """Compile a kernel to PTX, for a GPU that need not be present."""

    def select_device(self, ordinal: int) -> None:
        """Make the primary context of a GPU current in this thread, also for the compiler's own launches and arrays.

        Other threads get it when they first launch, allocate, or copy, unless they have made another GPU current.
        """

    def enter_device(self) -> None:
        """Make the selected GPU current in this thread, if the thread has no current GPU."""

    def checked_memory(self, address: int, nbytes: int, block: Any, check: Callable[[Any], None]) -> Any:
        """Return memory for a DeviceArray, with an attribute ``block``. Every read of its address, also by a launch, calls check(block)."""
