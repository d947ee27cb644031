"""The software NIC, which replaces a NIC. The first PE of each node starts one, and every PE of the node opens it.

This is the only module that imports transports/softhca. It does so only for a software NIC, because the rest works without that package.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgas.job.paths import topology
from pgas.transports.memory.protocol import Memory, Segment

if TYPE_CHECKING:
    from pgas.job.paths.gpu import GPU
    from pgas.transports.softhca.process.client import Observer, SoftHCA, SoftHCAProcess


def find() -> list[str]:
    """Return the names of the software NICs on this node (in this network namespace)."""
    from pgas.transports.softhca.process import client

    return client.find()


def observe(name: str, timeout_s: float) -> "Observer":
    """Return an observer of a software NIC; the caller closes it. Raises TransportError."""
    from pgas.transports.softhca.process import client

    return client.Observer(name, timeout_s)


def queue_pairs() -> int:
    """Return the number of queue pairs of a software NIC."""
    from pgas.transports.softhca import layout

    return 1 << layout.LOG_MAX_QP


class SoftwareCard:
    """Opens this PE's side of the software NIC (adapter.Opener).

    In weak mode, the software NIC delays the start and the completion of WQEs by the time of several operations in the simulator. This
    exposes a source that is reused too early, or a flag on another queue pair that should have waited.

    Args:
        warn: function that shows the user a warning.
        rung_by_cpu: whether a CPU stores to its registers.
        own_address: IP address by which other nodes reach this one.
        timeline: beginning of the names of trace files; "" for no timeline.
    """

    def __init__(
        self, requested: Mapping[str, Any], gpu: "GPU | None", pes: Sequence[topology.PE], me: int, warn: Callable[[str], None], *,
        rung_by_cpu: bool, own_address: str, timeline: str = "",
    ) -> None:  # fmt: skip
        self._timeline, self._own_address = timeline, own_address
        self.sharing = [pe.number for pe in pes if pe.node == pes[me].node]
        self._requested, self._gpu, self._pes, self._me, self._warn, self._rung_by_cpu = requested, gpu, pes, me, warn, rung_by_cpu
        self._several = len(self.sharing) != len(pes)  # whether there are several nodes
        self._process: SoftHCAProcess | None = None

    def _net(self, engine: str) -> str:
        """The address or interface of the port: PGAS_SOFTHCA_NET; if that is not set, there is a port if there are several nodes."""
        if engine == "cuda" and not self._several:
            return ""
        return str(self._requested["PGAS_SOFTHCA_NET"]) or (self._own_address if self._several else "")

    def begin(self) -> tuple[str, int]:
        """Start the software NIC with the engine and on the GPU that the variables request. Raises TransportError."""
        from pgas.transports.softhca.process import client

        requested, gpu = self._requested, self._gpu
        engine = topology.choose_engine(requested["PGAS_ENGINE"], gpu is not None, self._several)
        faults = requested["PGAS_SOFTHCA_FAULTS"]
        if requested["PGAS_SIM_WEAK"] is not None and not faults:
            # A pass of a thread takes less than a microsecond, a pass of the cuda engine in the simulator more than a thousand.
            faults = f"seed={requested['PGAS_SIM_WEAK']},delay=0.1,hold={64 if engine == 'cuda' else 4096}"
        options: dict[str, Any] = {
            "trace": ",".join(sorted(requested["PGAS_TRACE"].printed)),
            "faults": faults,
            "engine": engine,
            "on_host": self._rung_by_cpu,
            "mops": requested["PGAS_SOFTHCA_MOPS"],
            "gbps": requested["PGAS_SOFTHCA_GBPS"],
            "net": self._net(engine),
        }
        if self._timeline:
            options["timeline"] = f"{self._timeline}.nic{self._me}", requested["PGAS_TRACE_EVENTS"] * 16
        if gpu is not None:
            from pgas.job.paths.gpu import place_engine, uuid

            gpus = {pe.gpu for pe in self._pes}
            needed = 1 if engine == "dma" else requested["PGAS_SOFTHCA_SMS"]
            device, sms, percent = place_engine(gpu, gpus, requested["PGAS_SOFTHCA_DEVICE"], needed)
            if (slow := topology.slow_engine(self._pes, uuid(device))) is not None:
                self._warn(slow)
            options |= {"device": device, "sms": sms, "percent": percent}
        self._process = client.start(len(self.sharing), **options)
        return self._process.name, self._process.pid

    def open(self, name: str, memory: Memory, shared: list[tuple[int, int, int]]) -> "SoftHCA":
        """Connect to the software NIC. On GPUs, all its registers are mapped, because a GPU's pages have 2 MiB."""
        from pgas.transports.softhca import layout
        from pgas.transports.softhca.process import client

        def map_registers(fd: int) -> None:
            memory.attach(layout.BAR, Segment(0, layout.BAR_SIZE, self._rung_by_cpu), fd)

        return client.SoftHCA(name, self._me, shared, None if self._gpu is None else map_registers, rung_by_cpu=self._rung_by_cpu)

    def end(self) -> None:
        if self._process is not None:
            self._process.end()
