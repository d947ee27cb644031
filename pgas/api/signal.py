"""Signals from kernels: words of uint64 that tell a PE that its data has arrived (OpenSHMEM 1.5, "Signaling Operations").

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.codes import SignalOp
from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import signal, sync, wait
from pgas.kernels.scope import BLOCK, THREAD, WARP

__all__ = [
    "SIGNAL_ADD", "SIGNAL_SET", "put_signal", "put_signal_block", "put_signal_nbi", "put_signal_nbi_block", "put_signal_nbi_warp",
    "put_signal_warp", "signal_fetch", "signal_op", "signal_wait_until",
]  # fmt: skip

#: The signal replaces the word.
SIGNAL_SET = SignalOp.SET
#: The signal is added to the word, atomically.
SIGNAL_ADD = SignalOp.ADD


@device_function(signal.put_signal(THREAD, nbi=False))
def put_signal(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer, *, stream: Any = None) -> None:
    """put() all of source, then update ``sig[idx]`` on the same PE. The update never overtakes the data.

    A thread that sees the new value in signal_wait_until() or wait_until() sees the data. Only fence() orders other operations of this
    thread.

    Completion:
        on return: source may be reused.
        complete: the data once a wait sees the signal; both after quiet(), quiet_pe() or barrier_all().

    Args:
        dest, source, pe: those of put().
        sig: array of uint64 on the symmetric heap.
        idx: integer, or tuple of as many integers as sig has dimensions.
        value: non-negative integer.
        op: pgas.SIGNAL_SET or pgas.SIGNAL_ADD.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises: the same errors as put().

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source, sig = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32), pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def exchange(dest, source, sig, pe):
        ...     pgas.put_signal(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)
        ...     pgas.signal_wait_until(sig, 0, pgas.EQ, 1)  # the left neighbor's data is in dest
        >>> pgas.launch(exchange, 1, 1, (dest, source, sig, right))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(signal.put_signal(WARP, nbi=False))
def put_signal_warp(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """put_signal() by all threads of a warp together (none may have exited), with the same arguments; one update of the signal."""


@device_function(signal.put_signal(BLOCK, nbi=False))
def put_signal_block(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """put_signal() by all threads of a block together (none may have exited), with the same arguments; one update of the signal."""


@device_function(signal.put_signal(THREAD, nbi=True))
def put_signal_nbi(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer, *, stream: Any = None) -> None:
    """Start a put_signal(): source may be reused only after quiet() or barrier_all().

    Completion:
        on return: it has begun.
        complete: the data once a wait sees the signal; both, and the use of source, after quiet(), quiet_pe() or barrier_all().

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source, sig = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32), pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def exchange(dest, source, sig, pe):
        ...     pgas.put_signal_nbi(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)
        ...     pgas.signal_wait_until(sig, 0, pgas.EQ, 1)  # the left neighbor's data is in dest
        ...     pgas.quiet()  # now source may be overwritten
        >>> pgas.launch(exchange, 1, 1, (dest, source, sig, right))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(signal.put_signal(WARP, nbi=True))
def put_signal_nbi_warp(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """put_signal_nbi() by all threads of a warp together (none may have exited), with the same arguments."""


@device_function(signal.put_signal(BLOCK, nbi=True))
def put_signal_nbi_block(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """put_signal_nbi() by all threads of a block together (none may have exited), with the same arguments."""


@device_function(signal.signal_op)
def signal_op(sig: Any, idx: Index, value: Any, op: int, pe: Integer, *, stream: Any = None) -> None:
    """Update ``sig[idx]`` on PE ``pe``; arguments as put_signal(). Orders nothing before it: call fence() first for that.

    Completion:
        on return: value has been read.
        complete: after quiet(), quiet_pe() or barrier_all().

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> sig = pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def tell(sig, pe):
        ...     pgas.signal_op(sig, 0, 5, pgas.SIGNAL_ADD, pe)
        >>> tell[1, 2](sig, right)
        >>> pgas.barrier_all()
        >>> int(sig[0])
        10
    """


@device_function(sync.signal_wait_until)
def signal_wait_until(sig: Any, idx: Index, cmp: int, value: Any, *, stream: Any = None) -> Any:
    """Wait until this PE's ``sig[idx]`` satisfies the comparison, and return it. See wait_until().

    Completion:
        on return: the condition has held; this thread sees the writer's operations before its fence(), or the data of its
            put_signal().
        complete: on return.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> sig, seen = pgas.zeros(1, np.uint64), pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def meet(sig, seen, pe):
        ...     pgas.signal_op(sig, 0, 3, pgas.SIGNAL_SET, pe)
        ...     seen[0] = pgas.signal_wait_until(sig, 0, pgas.GE, 1)
        >>> pgas.launch(meet, 1, 1, (sig, seen, right))
        >>> pgas.synchronize()
        >>> int(seen[0])
        3
    """


@device_function(wait.signal_fetch)
def signal_fetch(sig: Any, idx: Index, *, stream: Any = None) -> Any:
    """Return this PE's ``sig[idx]`` (uint64), read atomically. The data of the put_signal() that wrote the value is visible.

    Completion:
        on return: the value has been read.
        complete: on return.

    Args:
        sig: array of uint64 on the symmetric heap.
        idx: integer, or tuple of as many integers as sig has dimensions.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises: the same errors as put().

    Example:
        >>> sig = pgas.zeros(1, np.uint64)
        >>> pgas.signal_op(sig, 0, 4, pgas.SIGNAL_SET, pgas.my_pe())
        >>> pgas.quiet()
        >>> int(pgas.signal_fetch(sig, 0))
        4
    """
