"""Trace files that tests write themselves: of two PEs, whose events have known times."""

from pgas.base import events
from pgas.kernels import operation, window

#: Address of the signal on PE 0; on PE 1, the same offset.
SIGNAL = window.BASE + window.HEAP_OFFSET + 64


class WrittenPE:
    """The trace file of a PE, with events at times in µs."""

    def __init__(self, base, pe, n_pes=2, job="a"):
        self.pe, self._tickets = pe, {}
        self.file = events.TraceFile(f"{base}.{pe}", 64)
        job = {"id": job, "pe": pe, "n_pes": n_pes, "transport": "p2p", "reason": "", "gpu": "", "near": [0, 1], "qpns": [],
               "machine": "m", "boot": "b",
               "version": "", "operations": list(operation.NAMES), "collectives": list(operation.COLLECTIVES), "num_qps": 0,
               "window": [window.BASE, window.STRIDE_SHIFT, window.HEAP_OFFSET]}  # fmt: skip
        self.file.tell(job=job)
        self.file.tell(thread=0, text="MainThread")

    def launch(self, kernel, begin, end):
        self.file.add(events.HOST, events.LAUNCHED, _ns(begin), _ns(end), address=self.file.name(kernel))

    def call(
        self, name, begin, end, *, block=0, launch=1, peer=events.NOBODY, address=0, nbytes=0, word=0, value=0, comparison=0, thread=0
    ):
        ring = events.BLOCKS + block
        ticket = self._tickets[ring] = self._tickets.get(ring, -1) + 1
        what = (
            operation.NAMES.index(name)
            | comparison << events.COMPARISON_SHIFT
            | thread << events.THREAD_SHIFT
            | ticket << events.TICKET_SHIFT
        )
        record = (
            what,
            _ns(begin),
            _ns(end),
            block << events.BLOCK_SHIFT | peer,
            address,
            nbytes | launch << events.LAUNCH_SHIFT,
            word,
            value,
        )
        events.EVENT.pack_into(self.file._map, events.RINGS + (ring * 64 + ticket) * events.EVENT_SIZE, *record)


def _ns(us):
    return 10**9 + int(us * 1000)


def late_sender(base):
    """Write the traces of PE 0, which waits for a put_signal, and PE 1, which is launched late, computes, puts, and then sends."""
    zero, one = WrittenPE(base, 0), WrittenPE(base, 1)
    zero.launch("wait[1, 32]", 0, 110)
    zero.call("signal_wait_until", 10, 100, address=SIGNAL, value=7, comparison=5)
    one.launch("send[1, 32]", 30, 110)
    one.call("put", 50, 60, peer=0, address=SIGNAL + 4096, nbytes=1 << 20)
    one.call("put_signal", 75, 95, peer=0, address=SIGNAL + 8192, nbytes=512, word=SIGNAL + (1 << window.STRIDE_SHIFT), value=7)
    for pe in (zero, one):
        pe.file.close()
