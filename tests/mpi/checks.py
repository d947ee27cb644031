"""The conformance suite's checks; the requested NIC, and access to the software card's counters and controls."""

import functools
import os

import pytest
from conformance.checks import *  # noqa: F403

from pgas.job import runtime
from pgas.transports.softhca.process import client

#: The requested NIC, and the software card behind it if it is a device of tests/uverbs.
DEVICE = os.environ.get("PGAS_HCA", "auto")
CARD = os.environ.get("UVERBS_CARD") if DEVICE not in ("auto", "softhca") else None

#: A real device (PGAS_HCA=rxe0) cannot be paused or delayed, and has no such counters.
needs_card = pytest.mark.skipif(
    DEVICE not in ("auto", "softhca") and CARD is None, reason="capability missing: the software NIC, which has counters and can be paused"
)


@functools.cache
def _behind_a_device(name):
    return client.Observer(name)


def observer():
    """Return an object with access to the software card: this PE's adapter, or one for the card behind it."""
    return _behind_a_device(CARD) if CARD else runtime.current().nic.adapter


def own_queue_pairs():
    """Return the card's records of this PE's queue pairs. With a device in between, the card numbers PEs differently."""
    own = {qp.qpn for qp in runtime.current().nic.qps}
    return [qp for qp in observer().counters()["qps"] if qp["qpn"] in own]
