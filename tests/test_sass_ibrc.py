"""What the IBRC functions become on a GPU: no spills, a request by 16-byte stores, and system scope wherever the proxy thread is met."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.sass

#: Functions that write a request, each at one place.
POSTING = ("p", "g", "put", "put_warp", "put_block", "put_nbi_block", "get_block", "put_signal_block", "signal_op", "atomic_add",
           "atomic_fetch_add", "barrier_all")  # fmt: skip


@pytest.fixture(scope="module")
def built():
    command = [sys.executable, "-m", "pgas.perftests.sass", "--transport", "ibrc", "--json"]
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    listing = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True, env=environment).stdout
    return json.loads(listing)


def test_nothing_spills(built):
    assert {name: (b["spills"], b["stack"]) for name, b in built.items() if b["spills"] or b["stack"]} == {}


@pytest.mark.parametrize("name", POSTING)
def test_scopes_of_posting(built, name):
    """Tickets by the GPU's threads alone; the request in three stores, and its sequence word released to the system."""
    memory = built[name]["memory"]
    assert memory["ATOMG.E.ADD.64.STRONG.GPU"] == (2 if name in ("g", "atomic_fetch_add") else 1)  # a landing cell's, too
    assert memory["STG.E.NA.128"] == 3
    assert memory["STG.E.64.STRONG.SYS"] >= 1
    assert memory["MEMBAR.ALL.SYS"] >= 1


@pytest.mark.parametrize("name", ["put", "get_block", "g", "quiet", "fence", "atomic_fetch_add"])
def test_polling_reads_past_the_caches(built, name):
    memory = built[name]["memory"]
    assert memory["LDG.E.64.STRONG.SYS"] >= 1  # completed
    assert memory["CCTL.IVALL"] >= 1  # the acquire at the end
