"""The job on the host: init, finalize, collective calls, and what happens when a PE fails.

Every host collective begins with the same small exchange, in which the PEs compare their calls. If they differ, every PE raises an error
instead of a hang.
"""

import contextlib
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np

from pgas.base import config, parameters
from pgas.base.agreement import everywhere
from pgas.base.backend import say_where
from pgas.base.errors import HeapError, PgasError, PgasWarning, about, again
from pgas.base.output import open_standard_files
from pgas.base.parameters import is_integer
from pgas.base.waits import say
from pgas.job import growth
from pgas.job.blocks import Blocks, engine_bytes
from pgas.job.bootstrap import protocol, rendezvous
from pgas.job.bootstrap.calls import Collective, alone, enough_files
from pgas.job.bootstrap.processes import Process
from pgas.job.bootstrap.shared_files import forget_shared_files
from pgas.job.health import device_state, ending, hang, threads
from pgas.job.health.detector import GRACE_S
from pgas.job.health.health import Health
from pgas.job.introduction import announce, introduce
from pgas.job.memory import teams
from pgas.job.memory.array import SymmetricArray, at, block_of, caller, check_freeable, dtype_of, shape_of, stacklevel
from pgas.job.memory.heap import ALIGNMENT, Allocator
from pgas.job.memory.local_memory import LocalMemory
from pgas.job.paths import card, choice, streams
from pgas.job.paths.platform import platform
from pgas.job.paths.topology import by_gpu
from pgas.job.timeline import Timeline
from pgas.job.traffic import Traffic
from pgas.kernels import window
from pgas.kernels.compiler import backend
from pgas.transports import registry
from pgas.transports.memory.protocol import Memory, heap_segment, whole_pages
from pgas.transports.nic.protocol import NIC, Part

_job: "Job | None" = None

#: The parent's job in a process forked from a PE, where it is kept but not used.
_of_parent: "Job | None" = None

#: Why there is no job.
_no_job = "pgas.init() has not been called, or pgas.finalize() has already been called"


def current() -> "Job":
    """Return the job. Raises PgasError if pgas.init() has not been called, the job is over, or this process was forked from a PE."""
    if _job is None:
        raise PgasError(_no_job)
    return _job


def active() -> bool:
    """Whether init has run and finalize has not."""
    return _job is not None


class Job(Collective):
    """The state of this PE in the job; a context manager that finalizes."""

    def __init__(self, comm: Any, given: rendezvous.Given | None = None) -> None:
        self.depth = 1
        self.health = Health(self._why_left)
        self._remarks: list[str] = []
        self._ending = contextlib.ExitStack()
        self._deferred: contextlib.ExitStack | None = None
        self.repeated: dict[str, dict[Any, Any]] = {}  #: by function, calls of the host that may be repeated (pgas/api/bound.py)
        self._formed = self._released = False
        self.timeline: Timeline | None = None
        self.traffic: Traffic | None = None
        self.heap = Allocator(0)
        self.bootstrap = protocol.find(comm, given)
        self.my_pe, self.n_pes = self.bootstrap.rank, self.bootstrap.size
        ending.install(self.bootstrap, lambda: _job)
        try:
            with self.making("pgas.init()"), enough_files():
                self._start()
        except BaseException:
            self.release()
            raise
        where = self.pes[0].gpu_name or "the simulator"
        line = f"pgas: {self.n_pes} PEs on {where}; transport {self.transport}: {self.reason}"
        announce(self.my_pe, line if self.info else "", self._remarks)

    # ------------------------------------------------------------------------------------------------------------------- set-up

    def _start(self) -> None:
        """Form the job. Each part is collective. A part that may fail on one PE is a _step, so that no PE waits for that one."""
        self._watch_processes()
        requested = self._step(lambda: {name: config.read(name) for name in config.VARIABLES})
        bounds = self._step(lambda: growth.Bounds.of(requested))
        self.info, self.timeout_s = "info" in requested["PGAS_DEBUG"], requested["PGAS_TIMEOUT"]
        self._choose_paths(requested)
        plan = self._step(lambda: teams.Plan.of(self.n_pes, requested))
        sharing = max(len(group) for group in by_gpu(self.pes)) if self.gpu is not None else 1
        self.engine_bytes = engine_bytes(requested, on_gpu=self.gpu is not None)
        self.blocks = Blocks(requested["PGAS_HOST_BLOCKS"], sharing)
        heap_size = whole_pages(requested["PGAS_SYMMETRIC_SIZE"])
        if requested["PGAS_TRACE"].timeline:
            self.timeline = self._step(lambda: Timeline(requested["PGAS_TRACE"].timeline, self.my_pe, requested["PGAS_TRACE_EVENTS"]))
            self._ending.callback(self.timeline.close)
        self._create_memory(requested, plan.nbytes, heap_size)
        self.teams = self._step(lambda: teams.Teams(self.memory, self.my_pe, plan, self.groups, self.paths.nodes))
        self.heap = Allocator(heap_size, window.HEAP_OFFSET, bounds.limit)
        self.places = device_state.Places(self.heap, self.teams, self.my_pe, self.paths)
        self._growth = growth.Growth(bounds, self.heap, self.memory, self.nic, self.near_pes, self.my_pe, self.exchange)
        self._listen(requested["PGAS_HANG_REPORT"])
        if self.gpu is None:
            self._simulate(requested)
        if self.nic is not None and (process := self.nic.process):
            self._step(lambda: self.health.detector.add("the software NIC", process))
        if self.timeline is not None:
            job = {"pe": self.my_pe, "n_pes": self.n_pes, "transport": self.transport, "reason": self.reason}
            qpns = [qp.qpn for qp in self.nic.qps] if self.nic is not None else []
            job |= {"gpu": self.pes[self.my_pe].gpu_name, "near": list(self.near_pes), "qpns": qpns}
            self.timeline.start(job, [(number, record.pes) for number, record in self.teams.records.items()], self.exchange)
        if requested["PGAS_TRACE"].traffic:
            self.traffic = self._step(lambda: Traffic(requested["PGAS_TRACE"].traffic, self.memory, self.my_pe, self.paths))
            self._ending.callback(self.traffic.close)
        self._formed = True

    def _step(self, step: Callable[[], Any]) -> Any:
        """Take a step of init, on every PE, and return its result here. An error on one PE is raised on all."""
        return self.together("pgas.init()", step)[0]

    def _watch_processes(self) -> None:
        """Learn the processes of all PEs, and notice from now on if one ends."""
        self.processes = [Process(*told) for told in self.exchange(Process.this())]
        self._step(forget_shared_files)
        self.health.detector.begin(self, self._process_lost)

    def _choose_paths(self, requested: dict[str, Any]) -> None:
        """Bind a GPU, learn those of the other PEs, and choose transports; their constants hold for all kernels from now on."""
        nodes = [process.node for process in self.processes]
        node_rank = nodes[: self.my_pe].count(nodes[self.my_pe])
        self.gpu = self._step(lambda: platform.bind(node_rank))
        pes = introduce(self.my_pe, requested, self.gpu, self.exchange)
        self.paths = choice.choose(self, self.my_pe, requested, self.gpu, pes, self._remarks.append)
        self.pes, self.transport, self.reason = self.paths.pes, self.paths.transport.name, self.paths.reason
        self.groups, self.near_pes = self.paths.groups, self.paths.near_pes(self.my_pe)
        constants = self.paths.constants(requested, self.gpu)
        self._step(lambda: window.freeze(constants))

    def _create_memory(self, requested: dict[str, Any], teams_size: int, heap_size: int) -> None:
        """Create this PE's slot and state page, and connect them to those of the others, by mappings and by the NIC."""
        transport, remark = self.paths.transport, self._remarks.append
        timeline = self.timeline.base if self.timeline else ""
        where = {"own_address": self.bootstrap.own_address, "timeline": timeline}
        setting = registry.Setting(
            requested,
            self.paths.choice,
            self.gpu is not None,
            lambda cpu: card.SoftwareCard(requested, self.gpu, self.pes, self.my_pe, remark, rung_by_cpu=cpu, **where),
            remark,
        )
        own = (heap_segment(teams_size, heap_size),)
        segments = own + self._step(lambda: transport.segments(self.n_pes, window.constants(), setting))
        self.memory: Memory = self._step(self._open_memory)

        def create() -> list[int]:
            self.memory.create_private(window.STATE_SIZE + (window.TRAFFIC_SIZE if window.constants().counts else 0))
            if self.timeline is not None:
                self.timeline.map(self.memory)
            device_state.setup(self.memory, self.my_pe, self.n_pes, heap_size, self.timeout_s, self.near_pes)
            return [self.memory.create(window.slot(self.my_pe) + s.offset, s) for s in segments]

        fds = everywhere(self.exchange, create, HeapError)[self.my_pe]
        part = Part(self.memory, self.my_pe, self.n_pes, segments, fds, self.exchange, window.constants(), self.near_pes)
        self.nic: NIC | None = transport.connect(part, setting)
        if self.nic is not None:
            self._ending.callback(self.nic.close)
        self._step(self._learn)
        self.local = LocalMemory(self.nic)

    def _learn(self) -> None:
        """Make known to kernels what only an open NIC reveals."""
        nic = self.nic
        window.learn(big_endian=nic is not None and nic.big_endian, rung_by_cpu=nic is not None and nic.rung_by_cpu)

    def _open_memory(self) -> Memory:
        memory = platform.memory(self.gpu)
        self._ending.callback(memory.close)
        return memory

    def _listen(self, form: str) -> None:
        """Start answering requests for hang reports."""
        here = {pe: pid for pe in range(self.n_pes) if pe != self.my_pe and (pid := self._pid(pe)) is not None}
        recorded = (lambda: []) if self.timeline is None else self.timeline.last_calls
        subject = hang.Subject(self.my_pe, self.n_pes, self.transport, self.memory, self.places, self.nic, self.timeout_s, here, recorded)
        self.hang = self._step(lambda: hang.Reporter(subject, form))
        self._ending.callback(self.hang.stop)
        addresses = self.exchange(self.hang.address)
        self._step(lambda: self.hang.start({pe: addresses[pe] for pe in here}))

    def _simulate(self, requested: dict[str, Any]) -> None:
        """Install the hooks that end kernels of the simulator early, and the simulator's modes."""
        from pgas.job import simulation

        weak = requested["PGAS_SIM_WEAK"]
        self._ending.enter_context(simulation.of(self.my_pe, self.memory, self.nic, self.health, weak, self.hang, self._check))
        if "strict" in requested["PGAS_DEBUG"]:
            from pgas.job import strict

            self._ending.enter_context(strict.as_on_gpus())

    # -------------------------------------------------------------------------------------------------------------- collectives

    def meet(self, call: str) -> None:
        """Complete this PE's work, and wait until every PE has. Collective. Raises like agree(), and the errors of kernels."""
        self.together(call, lambda: self.complete(call.partition("(")[0]))

    def exchange(self, value: Any) -> list[Any]:
        self.health.exit_status = None  # The program continues, so it has caught its SystemExit.
        return super().exchange(value)

    def _earlier_failure(self) -> Exception | None:
        """Return the first error of this PE's kernels and NIC."""
        return self.health.failure and again(self.health.failure)

    def _shown(self, call: str) -> str:
        """Name the array in a call of free. This is possible because blocks have the same offset on every PE."""
        return re.sub(r"array at heap offset (\d+)", lambda found: f"{self.heap.find(int(found[1])) or 'array'}, {found[0]}", call)

    def _interrupt(self) -> None:
        self.health.interrupt()

    def note_end_of_program(self, status: int) -> None:
        self._remark, self._is_failing = " because its program ended", bool(status)
        if status:
            self._remark += f" with exit status {status}"
            self.health.limit(GRACE_S, f"the program ended with exit status {status}, and the job did not within {GRACE_S:g} s")

    # ------------------------------------------------------------------------------------------------------------------- memory

    def allocate(
        self, shape: Any, dtype: Any, call: str, fill: Callable[[SymmetricArray], None] | None, alignment: int = ALIGNMENT
    ) -> SymmetricArray:
        """Return a new symmetric array; every PE has filled its own before any PE returns. The heap grows if it must. Collective.

        Raises:
            HeapError: on every PE, if the heap is exhausted and cannot grow, or PEs request different arrays. The heap is as before.
        """
        shape, dtype = shape_of(shape), dtype_of(dtype)
        request = f"{call}(shape={shape}, dtype={dtype}, alignment={alignment})"
        with self.making(request):
            return self._allocate(shape, dtype, call, request, fill, alignment)

    def _allocate(
        self, shape: Any, dtype: Any, call: str, request: str, fill: Callable[[SymmetricArray], None] | None, alignment: int
    ) -> SymmetricArray:
        if lacking := self.heap.lacking(shape, dtype, alignment):  # This holds on every PE, if all request the same array.
            self.agree(request, HeapError)
            self._growth.make_room(lacking)
        with about(call):
            block = self.heap.allocate(shape, dtype, alignment, caller())

        def fill_own() -> SymmetricArray:
            array = at(window.slot(self.my_pe) + window.HEAP_OFFSET + block.offset, shape, dtype, block)
            if fill is not None and array.size:
                fill(array)
                self.wait_for_device(None, call)
            return array

        try:
            return self.together(request, fill_own, HeapError)[0]  # type: ignore[no-any-return]
        except BaseException:
            self.heap.release(block)
            raise

    def check_freeable(self, array: Any) -> None:
        check_freeable(array, block_of(array), window.slot(self.my_pe) + window.HEAP_OFFSET)

    def free(self, array: Any) -> None:
        block = block_of(array)

        def check() -> None:
            self.check_freeable(array)
            self.complete("pgas.free")

        call = f"pgas.free(array at heap offset {block.offset})" if block is not None else "pgas.free()"
        with self.making(call):
            self.together(call, check, HeapError)
            if block is not None:
                self.heap.release(block)

    @staticmethod
    def address(array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])

    def peer(self, array: Any, pe: int) -> SymmetricArray | None:
        """Return PE pe's instance of a symmetric array, or None if this PE cannot load from and store to it."""
        self.check_pe("ptr", pe)
        block = block_of(array)
        if block is None:
            raise ValueError("pgas.ptr: not an array on the symmetric heap")
        mine = self.address(array) - window.slot(self.my_pe)
        if pe not in self.near_pes:
            return None
        return at(window.slot(pe) + mine, tuple(array.shape), array.dtype, block, tuple(array.strides))

    def stores_to(self, pe: int, *, adds: bool = False) -> bool:
        """Whether a put to PE pe is by stores. adds: a put with a signal that adds."""
        constants = window.constants()
        return constants.maps_peers and pe in self.near_pes and not (adds and self.nic is not None and not constants.atomics_by_peers)

    def on_another_gpu(self, pe: int) -> bool:
        """Whether PE pe has another GPU than this PE."""
        return self.pes[pe].gpu != self.pes[self.my_pe].gpu

    def check_pe(self, function: str, pe: Any, name: str = "pe") -> None:
        """Reject a value that is not a PE's number. function, name: names of the call and of its argument, for the message."""
        shown = pe if isinstance(pe, (int, float, np.number)) else type(pe).__name__  # An array would show all its elements.
        if not is_integer(pe) or not 0 <= pe < self.n_pes:
            raise ValueError(f"pgas.{function}: {name} must be an integer from 0 to {self.n_pes - 1}, not {shown}")

    # ------------------------------------------------------------------------------------------------------------------ waiting

    def synchronize(self, stream: Any, call: str = "pgas.synchronize") -> None:
        """Wait for the kernels of a stream (None: of the device), and raise their error if there is one. call: the call, for messages."""
        if platform.capturing(stream):
            raise PgasError(f"{call}: work is being captured into a graph and has not run yet; launch the graph first, then wait for it")
        self.wait_for_device(stream, call)
        self._check()
        self.ended(stream)

    def ended(self, stream: Any) -> None:
        """Note that the kernels of a stream (None: of the device) have ended."""
        self.hang.synchronized(None if stream is None else platform.handle_of(stream))
        if stream is None and self.traffic is not None and threading.current_thread() is threading.main_thread():
            self.traffic.end_interval()
        if stream is None and self._deferred is not None:  # Numba's frees wait for all kernels of the device.
            self._deferred.close()
            self._deferred = None

    def _check(self) -> None:
        """Raise the error of kernels if there is one, after which the job is broken."""
        if self.nic is None and not device_state.alarmed(self.memory) and self.health.failure is None:
            return  # What follows would find nothing.
        with self.health.first_error(self.hang.waiting):
            device_state.check(self.memory, self.places, self.my_pe, self.nic, self.health.given_up)

    def complete(self, call: str) -> None:
        """Wait for this PE's kernels, and for their outstanding requests on the NIC. call: user's call, for messages."""
        self.synchronize(None, call)
        if self.nic is not None:
            with self.health.first_error(self.hang.waiting):
                self.nic.quiet(self.timeout_s, self.health.interrupt)

    def wait_for_device(self, stream: Any, call: str) -> None:
        """Wait by polling, so that Ctrl-C and a peer's death end the wait for a kernel that never ends."""
        platform.wait(stream, call, self.health.interrupt, self._guarded)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Make the context of a wait for the GPU. After an error, the job is broken, and kernels must not wait any more."""
        try:
            with self.health.deaths_first():
                yield
        except BaseException as error:
            if isinstance(error, Exception) and streams.failed_in_driver(error):
                self.health.broken = self.health.broken or not streams.interrupts_capture(error)
                raise
            self.health.broken = True
            self.health.give_up(type(error).__name__)
            with contextlib.suppress(PgasError):  # If a process has died, the context may be lost.
                device_state.poison(self.memory)
            raise

    def launching(self, kernel: str = "", stream: Any = 0) -> None:
        """Before a launch, defer Numba's frees until the next synchronize, because they would wait for running kernels.

        Args:
            kernel: name and grid of the kernel, for hang reports.
            stream: handle of the stream on which it is launched.

        Raises:
            PgasError: if a process of the job died.
        """
        if self.health.lost is not None:
            self.health.interrupt()
        if self.health.failure is not None or self.health.given_up:
            self._check()
        if kernel:
            self.hang.launching(kernel, stream)
            if self.timeline is not None:
                self.timeline.launching(kernel, stream)
            if self.traffic is not None:
                self.traffic.launching(kernel)
        if self._deferred is None:
            self._deferred = contextlib.ExitStack()
            self._deferred.enter_context(backend.deferred_frees())

    # -------------------------------------------------------------------------------------------------------------------- ending

    def _process_lost(self, death: str) -> None:
        """Called in the watching thread when a peer has ended before its finalize, or the software NIC or mpirun before its PEs."""
        self.health.lose(death)
        forget_shared_files(every=True)
        timer = threading.Timer(GRACE_S, self._abort)  # Needed if CUDA calls hang, because the context may be lost.
        timer.daemon = True
        timer.start()
        if self._formed and self.gpu is not None:  # In the simulator, Health.interrupt() ends kernels.
            with contextlib.suppress(PgasError):
                self.memory.enter()
                device_state.poison(self.memory)

    def _abort(self) -> None:
        if not self._released:
            ending.end_all(self.bootstrap, lambda: say(f"PE {self.my_pe}: {self.health.lost}"), after=True, grace_s=0)

    def close(self, *, report_leaks: bool) -> None:
        """Complete all work, wait for all PEs, and release everything. Collective."""
        try:
            left = threads.awaited(self.timeout_s, self.health.interrupt)  # Before the call, because they may be in collective calls.
            late = f"pgas.finalize: {', '.join(left)}: all calls must return within {self.timeout_s:g} s (PGAS_TIMEOUT)" if left else ""
            try:
                with self.making("pgas.finalize()"):
                    leaks = self._end(late)
            except PgasError as error:
                if late and late not in str(error):
                    raise PgasError(late) from error
                raise
        except BaseException as error:
            self._made = "pgas.finalize()"
            self._leave(error)  # Otherwise, the others would wait for this PE.
            raise
        finally:
            self.release()
        if report_leaks and leaks:  # This comes last, so that the job has ended even if warnings are errors.
            warnings.warn(leaks, PgasWarning, stacklevel=stacklevel())

    def _end(self, late: str) -> str:
        """Take the steps of close() among the PEs, and return a text with the arrays and teams that were not freed. Collective.

        late: message about threads that are still in calls, "" if there are none.
        """

        def finish() -> None:
            if late:
                raise PgasError(late)
            self.complete("pgas.finalize")

        self.together("pgas.finalize()", finish)
        if self.timeline is not None:
            self.timeline.measure_clocks(self.exchange)
        if self.traffic is not None:
            self.traffic.report(self.exchange)
        leaks = "\n".join(filter(None, ("" if self.my_pe else self.heap.unfreed(), self.teams.unfreed())))
        self.local.clear()
        self.health.detector.end()
        self.exchange(None)  # So that no PE ends while another still watches it, and the software NIC not while one uses it.
        if self.nic is not None and self.nic.process:
            self.nic.end_process()
            self.exchange(None)  # PE 0 waits for the software NIC's process, which would compete with the ends of all other PEs.
        return leaks

    def release(self) -> None:
        """Release everything, without the other PEs; memory only when no other thread is in a call of pgas."""
        global _job
        self._released, _job = True, None
        self.health.detector.end()
        for block in list(self.heap.blocks):
            self.heap.release(block)
        self.health.limit(0, "pgas.finalize() has ended the job")
        threads.close(self._ending, lambda: device_state.poison(self.memory) if self._formed else None)
        self.bootstrap.close()

    def abandon(self) -> None:
        """Let a job of one PE end without finalize() after an error. The NIC must not use memory that the process releases."""
        if self.nic is not None:
            self.nic.stop()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Finalize, which frees remaining arrays. After an exception, do nothing, because the exception ends the job on every PE."""
        if self is _of_parent:  # This is a forked child.
            return
        if kind is None or (isinstance(error, SystemExit) and not ending.status_of(error.code)):
            finalize(report_leaks=window.constants().check)
        elif self.n_pes == 1:
            self.release()
        elif isinstance(error, SystemExit):
            self.health.exit_status = error.code
        else:
            self.health.broken = True


def _forked() -> None:
    """In a forked child, disable the parent's job: the child is not a PE, but shares the parent's heap, software NIC, and MPI."""
    global _job, _of_parent, _no_job
    if _job is None:
        return
    _no_job = (
        f"this process was forked from PE {_job.my_pe} after pgas.init() and is not part of the job, so it must not use pgas and its "
        "arrays; use them in the PE itself, and give such a process copies made by copy_to_host()"
    )
    _of_parent, _job = _job, None
    parameters.around = None
    for block in _of_parent.heap.blocks:
        block.freed, block.foreign = True, _no_job
    _of_parent.hang.forked()
    platform.forbid(_no_job)


os.register_at_fork(after_in_child=_forked)


def init(comm: Any = None, given: rendezvous.Given | None = None) -> Job:
    """Start pgas on this process. Collective over the job's PEs. See pgas.init."""
    global _job
    if _of_parent is not None:
        raise PgasError(_no_job)
    if _job is not None:
        if comm is not None and not _job.bootstrap.is_of(comm):
            raise ValueError(
                "pgas.init: a job with different processes is already active, and comm is not its communicator; call pgas.finalize() first"
            )
        _job.depth += 1
        return _job
    with alone("pgas.init()"):
        threads.close_kept()
        open_standard_files()
        say_where()
        _job = Job(comm, given)
    return _job


def finalize(*, report_leaks: bool = True) -> None:
    """End pgas on this process. Collective over the job's PEs. See pgas.finalize."""
    job = current()
    job.depth -= 1
    if job.depth == 0:
        job.close(report_leaks=report_leaks)
