"""What the conformance suite shares, and, of these tests alone, the NIC that was asked for and what looks into the software card."""

import functools
import os

import pytest
from conformance.checks import *  # noqa: F403

from pgas.job import runtime
from pgas.transports.softhca.process import client

#: The NIC asked for; and the software card behind it if it is one of the devices of tests/uverbs.
DEVICE = os.environ.get("PGAS_HCA", "auto")
CARD = os.environ.get("UVERBS_CARD") if DEVICE not in ("auto", "softhca") else None

#: Over a real device (PGAS_HCA=rxe0) there is nobody who counts, pauses and delays.
needs_card = pytest.mark.skipif(
    DEVICE not in ("auto", "softhca") and CARD is None, reason="capability missing: the software card, which can be asked and paused"
)


@functools.cache
def _behind_a_device(name):
    return client.Observer(name)


def observer():
    """What looks into the software card: this PE's adapter, or one for the card behind it."""
    return _behind_a_device(CARD) if CARD else runtime.current().nic.adapter


def own_queue_pairs():
    """What the card knows of this PE's queue pairs; its number of the PE is its own where there is a device in between."""
    own = {qp.qpn for qp in runtime.current().nic.qps}
    return [qp for qp in observer().counters()["qps"] if qp["qpn"] in own]
