"""The engines of a software NIC: a thread of its process (cpu), a persistent kernel (cuda), or a thread with a kernel that copies (dma).

Kernels run on a GPU or in the simulator.
"""

import contextlib
import ctypes
import functools
import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pgas.base.backend import SIMULATOR
from pgas.base.errors import PgasError, TransportError
from pgas.native import atomics
from pgas.transports.hostloop.slack import sleep_precisely
from pgas.transports.memory.memfd import HostMemory
from pgas.transports.memory.protocol import Memory
from pgas.transports.softhca import tables
from pgas.transports.softhca.engine import dma
from pgas.transports.softhca.engine import loop as engine
from pgas.transports.softhca.tables import Tables

_BEAT_S = 1.0


class Engine(Protocol):
    """Executes the WQEs of a software NIC's tables."""

    tables: Tables

    #: Description of the engine: cpu; or cuda or dma, and the beginning of the SHA-256 of the kernel's machine code.
    words: str

    on_gpu: bool  #: whether it runs on a GPU, like the kernels of the PEs

    def memory(self) -> Memory:
        """Return memory that the engine can access, for the PEs' shared memory and the registers."""

    def start(self) -> None:
        """Begin."""

    def check(self) -> None:
        """Raise TimeoutError if it has ended."""

    def stop(self) -> None:
        """End it and free its resources. CTL_STOP is set."""


class _Thread:
    """An engine in a thread of this process."""

    words = "cpu"
    on_gpu = False

    def __init__(self, tables_: Tables, run: Callable[[int], int] | None = None) -> None:
        self.tables, self._loop_of_tables = tables_, run
        self._thread = threading.Thread(target=self._run, name="softhca-engine", daemon=True)

    def memory(self) -> Memory:
        return HostMemory()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        sleep_precisely()
        self._loop()

    def _loop(self) -> None:
        (self._loop_of_tables or engine.run)(self.tables.address)

    def check(self) -> None:
        if not self._thread.is_alive():
            raise TimeoutError("the engine of the software NIC has ended")

    def stop(self) -> None:
        self._thread.join()


class _SimulatedKernel(_Thread):
    """The kernel of the cuda engine in the simulator, for tests."""

    words = "cuda"
    CTAS = 1  # because in the simulator a CTA that only waits does not yield to others

    def __init__(self) -> None:
        from pgas.transports.softhca.cuda import block  # compiles its functions before a PE waits for it

        super().__init__(Tables(workers=self.CTAS))
        self._kernel = block.loop[self.CTAS, block.THREADS]
        self._beat = _Beat(functools.partial(self.tables.set, tables.CTL_BEAT))

    def _loop(self) -> None:
        self._kernel(self.tables.address)

    def start(self) -> None:
        super().start()
        self._beat.start()

    def stop(self) -> None:
        self._beat.stop()
        super().stop()


class _Beat(threading.Thread):
    """Signals to the kernel that its process is alive; without the beat, the kernel ends."""

    def __init__(self, set_beat: Callable[[int], object], prepare: Any = None) -> None:
        super().__init__(name="softhca-beat", daemon=True)
        self._set, self._prepare, self._ended = set_beat, prepare, threading.Event()

    def run(self) -> None:
        if self._prepare is not None:
            self._prepare()
        beats = 0
        with contextlib.suppress(PgasError):  # a GPU error, which the server also gets
            while not self._ended.wait(_BEAT_S):
                beats += 1
                self._set(beats)

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()


class CopyingKernel(Protocol):
    """The kernel of a dma engine."""

    words: str

    def page_locked(self, nbytes: int) -> Any:
        """Return zeroed bytes that the CPU and the kernel can access, at an address that is a multiple of 64."""

    def memory(self) -> Memory:
        """Return memory that the kernel can access."""

    def start(self, ring: int) -> None:
        """Launch the kernel."""

    def check(self) -> None:
        """Raise TimeoutError if it has ended."""

    def stop(self) -> None:
        """Wait until it has ended, which it has been told to do."""


class _SimulatedCopies:
    """The kernel of the dma engine in the simulator, for tests."""

    words = "dma"

    def page_locked(self, nbytes: int) -> Any:
        return tables.zeroed(nbytes, np.dtype(np.uint8))

    def memory(self) -> Memory:
        return HostMemory()

    def start(self, ring: int) -> None:
        from pgas.transports.softhca.cuda import dma as kernel

        run = kernel.loop[1, kernel.THREADS]
        self._thread = threading.Thread(target=run, args=(ring,), name="softhca-dma", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if not self._thread.is_alive():
            raise TimeoutError("the kernel of the software NIC has ended")

    def stop(self) -> None:
        self._thread.join()


class _ByDma(_Thread):
    """An engine in a thread of this process that reaches the PEs' memory by a kernel (engine/dma.py)."""

    def __init__(self, kernel: CopyingKernel) -> None:
        from pgas.transports.softhca.wire import loop  # imported here because it compiles

        self._kernel, self.words = kernel, kernel.words
        self._ring = kernel.page_locked(dma.RING_BYTES)
        address = int(self._ring.ctypes.data)
        super().__init__(Tables(page_locked=kernel.page_locked, ring=address), loop.run)
        self._address = address
        self._beat = _Beat(functools.partial(atomics.store_release_u64, address + dma.RING_BEAT))

    def memory(self) -> Memory:
        return self._kernel.memory()

    def start(self) -> None:
        self._kernel.start(self._address)
        self._beat.start()
        super().start()

    def check(self) -> None:
        super().check()
        self._kernel.check()

    def stop(self) -> None:
        super().stop()
        self._beat.stop()
        atomics.store_release_u64(self._address + dma.RING_HEAD, dma.STOP & (1 << 64) - 1)
        self._kernel.stop()


def make(kind: str, device: int, sms: int, *, wired: bool = False) -> Engine:
    """Return an engine that has not been started.

    Args:
        kind: cpu, cuda, or dma.
        device: ordinal of the GPU of the engine's kernel (not in the simulator).
        sms: number of its multiprocessors that the cuda engine uses; 0 for all that this process gets.
        wired: whether the software NIC has a port, as one with a dma engine must have.

    Raises:
        TransportError: the engine cannot run here.
    """
    engines: dict[tuple[str, bool], Callable[[], Engine]] = {
        ("cpu", True): lambda: _wired_thread() if wired else _Thread(Tables(receives=True)),
        ("cuda", True): _SimulatedKernel,
        ("cuda", False): lambda: _kernel(device, sms),
        ("dma", True): lambda: _ByDma(_SimulatedCopies()),
        ("dma", False): lambda: _ByDma(_copies(device)),
    }
    if wired and kind == "cuda":
        raise TransportError("the cuda engine of the software NIC has no wire, so it connects only PEs on one node: PGAS_ENGINE=dma")
    if (chosen := engines.get((kind, SIMULATOR))) is None:
        raise TransportError("the cpu engine of the software NIC cannot reach heaps in GPU memory: PGAS_ENGINE=cuda or dma")
    return chosen()


def _wired_thread() -> Engine:
    from pgas.transports.softhca.wire import loop  # imported here because it compiles

    return _Thread(Tables(receives=True), loop.run)


def _kernel(device: int, sms: int) -> Engine:
    from cuda.bindings import driver
    from cuda.core import Device

    from pgas.kernels.compiler import compiler
    from pgas.transports.memory import vmm
    from pgas.transports.softhca.cuda import block

    check = vmm.check

    class Image:
        """Implements tables.Mirror in the GPU's memory."""

        def __init__(self) -> None:
            self._stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
            self._places: dict[int, int] = {}
            self._lock = threading.Lock()

        def place(self, table: Any) -> int:
            address = self._places[id(table)] = int(check(driver.cuMemAlloc(table.nbytes), "cuMemAlloc"))
            self.publish(table, 0, table.nbytes)
            return address

        def publish(self, table: Any, start: int, nbytes: int) -> None:
            source = int(table.ctypes.data) + start
            with self._lock:
                check(driver.cuMemcpyHtoDAsync(self._places[id(table)] + start, source, nbytes, self._stream), "cuMemcpyHtoD")
                check(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

        def fetch(self, table: Any, start: int, nbytes: int) -> None:
            target = int(table.ctypes.data) + start
            with self._lock:
                check(driver.cuMemcpyDtoHAsync(target, self._places[id(table)] + start, nbytes, self._stream), "cuMemcpyDtoH")
                check(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    class EngineKernel:
        """The kernel, on its own stream. This process never synchronizes the whole device."""

        PER_SM = 2
        on_gpu = True

        def __init__(self) -> None:
            compiler.select_device(device)
            gpu = Device(device)
            gpu.set_current()
            self._context = check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
            count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
            available = int(check(driver.cuDeviceGetAttribute(count, device), "cuDeviceGetAttribute"))
            self._stream = gpu.create_stream()
            self._event = self._stream.record()
            code = compiler.compiled(block.loop, block.SIGNATURE).cubin  # before a PE waits for it
            self.words = f"cuda {hashlib.sha256(code).hexdigest()[:16]}"
            self.tables = Tables(workers=self.PER_SM * (min(sms, available) if sms else available), mirror=Image())
            set_beat = functools.partial(self.tables.set, tables.CTL_BEAT)
            self._beat = _Beat(set_beat, lambda: check(driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent"))

        def memory(self) -> Memory:
            return vmm.GPUMemory(device)

        def start(self) -> None:
            block.loop[self.tables.workers, block.THREADS, self._stream](self.tables.address)
            self._event = self._stream.record()
            self._beat.start()

        def check(self) -> None:
            if self._event.is_done:
                raise TimeoutError("the engine of the software NIC has ended")

        def stop(self) -> None:
            self._beat.stop()
            _await(self._event)

    return EngineKernel()


def _copies(device: int) -> CopyingKernel:
    from cuda.bindings import driver
    from cuda.core import Device

    from pgas.kernels.compiler import compiler
    from pgas.transports.memory import vmm
    from pgas.transports.softhca.cuda import dma as kernel

    check = vmm.check

    class Copies:
        """The kernel, on its own stream."""

        def __init__(self) -> None:
            compiler.select_device(device)
            gpu = Device(device)
            gpu.set_current()
            self._stream = gpu.create_stream()
            self._event = self._stream.record()
            code = compiler.compiled(kernel.loop, kernel.SIGNATURE).cubin  # before a PE waits for it
            self.words = f"dma {hashlib.sha256(code).hexdigest()[:16]}"

        def page_locked(self, nbytes: int) -> Any:
            flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
            address = int(check(driver.cuMemHostAlloc(nbytes, flags), "cuMemHostAlloc"))
            ctypes.memset(address, 0, nbytes)
            return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

        def memory(self) -> Memory:
            return vmm.GPUMemory(device)

        def start(self, ring: int) -> None:
            kernel.loop[1, kernel.THREADS, self._stream](ring)
            self._event = self._stream.record()

        def check(self) -> None:
            if self._event.is_done:
                raise TimeoutError("the kernel of the software NIC has ended")

        def stop(self) -> None:
            _await(self._event)

    return Copies()


def _await(event: Any) -> None:
    """Wait until a kernel has ended, at most 5 s."""
    deadline = time.monotonic() + 5
    while not event.is_done and time.monotonic() < deadline:
        time.sleep(1e-3)
