"""QPs of the driver (transports/nic/queue_pair.py) in the rig's memory, and calls that record commands."""

import rig

from pgas.transports.mlx5 import commands, wqe
from pgas.transports.nic.adapter import PortAddress
from pgas.transports.nic.queue_pair import QueuePair, Queues

OBJECTS = ("qps", "cqs", "uars")
PORT = PortAddress(1, "InfiniBand", 5, 0x11, bytes(range(16)), 400.0)


def make(pe, depth=128, adapter=None, user_index=0, **wrong):
    """Return a QP of the driver in prepared memory, in RST."""
    queues = Queues(pe.queue_memory(depth * 64), pe.queue_memory(64), pe.queue_memory(64, 64))
    pe.write(pe.slot + queues.cq, rig.EMPTY)
    arguments = {"umem_id": pe.umem, "pdn": pe.pdn, "queues": queues, "depth": depth, "user_index": user_index, **wrong}
    return QueuePair(adapter or pe.hca, **arguments)


class Poster(rig.QP):
    """Posts to, rings and polls a QP of the driver, as an SM or a proxy thread does."""

    def __init__(self, pe, qp):
        self.pe, self.depth, self.uar, self.qpn, self.cqn = pe, qp.depth, qp.uar, qp.qpn, qp.cqn
        self.sq, self.cq, self.dbr = qp.queues.wq, qp.queues.cq, qp.queues.dbr
        self.posted, self.log = 0, []


def join(a, b):
    a.connect(b.qpn, PORT, PORT)
    b.connect(a.qpn, PORT, PORT)
    return a, b


def write(pes, source=0, target=1):
    return wqe.write, pes[target].heap + 64, pes[target].key, pes[source].heap, pes[source].key, 24


def objects(observer):
    counted = observer.counters()
    return {kind: counted[kind] for kind in OBJECTS}


class Wrapped:
    """An adapter that records commands and passes them on; a test can edit their outputs, or make it fail."""

    def __init__(self, hca, edit=None):
        self._hca, self._edit, self.sent = hca, edit, []

    def __getattr__(self, name):
        return getattr(self._hca, name)

    def command(self, inbox, outlen):
        command, values = commands.parse(inbox)
        self.sent.append(command)
        outbox = self._hca.command(inbox, outlen)
        return self._edit(command, values, outbox) if self._edit else outbox
