"""Random WQEs, most with one mistake: what the checks of usual WQEs pass, the states pass, too, with the same work record."""

import random

import numpy as np
import pytest

from pgas.base.backend import SIMULATOR
from pgas.transports.mlx5 import wqe
from pgas.transports.mlx5.contexts import Access
from pgas.transports.softhca import tables
from pgas.transports.softhca.engine import batch, pipeline, states, usual_wqes

pytestmark = pytest.mark.skipif(not SIMULATOR, reason="calls what is compiled for the CPU")

QPN, PEER, LKEY, RKEY, HERE, THERE, ROOM = 0x405, 0x409, 0x700, 0xB00, 0x10_0000, 0x20_0000, 4096
RIGHTS = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC) | tables.LOCAL_READ

#: Fields of the work record that executing a WQE reads.
FIELDS = ("OPCODE", "CE", "NBYTES", "WIDTH", "OPERANDS", "SEGMENTS", "REMOTE")


def card():
    """Return tables with two connected QPs and two keys, and their records by name."""
    made = tables.Tables()
    for number, peer in ((QPN, PEER), (PEER, QPN)):
        fields = {"state": tables.RTS, "qpn": number, "remote_qpn": peer, "pd": 3, "log_msg_max": 12, "access": 7}
        for name, value in fields.items():
            made.qps[name][number & tables.QP_ROWS_MASK] = value
    for key, start in ((LKEY, HERE), (RKEY, THERE)):
        fields = {"key": key, "pd": 3, "access": RIGHTS, "start": start, "nbytes": ROOM, "address": start + (1 << 32)}
        for name, value in fields.items():
            made.mkeys[name][key >> 8] = value
    rows = {
        "own": (made.qps, QPN),
        "peer": (made.qps, PEER),
        "here": (made.mkeys, LKEY >> 8),
        "there": (made.mkeys, RKEY >> 8),
        "control": (made.control, 0),
    }
    records = {name: table[(at := number & (len(table) - 1)) : at + 1] for name, (table, number) in rows.items()}
    return made, records


def forms(choose, index):
    """Return a WQE of a random form."""
    nbytes = choose.choice([1, 8, 100, ROOM // 2])
    head, far, near = (index, QPN), (THERE + choose.randrange(0, 64, 8), RKEY), (HERE, LKEY)
    flags = {"fm_ce_se": choose.choice([0, 8, 12])}
    operands = [choose.getrandbits(32) for _ in range(4)]
    return choose.choice([
        lambda: wqe.write(*head, *far, *near, nbytes, **flags),
        lambda: wqe.write_inline(*head, *far, choose.randbytes(choose.randint(1, 28)), **flags),
        lambda: wqe.read(*head, *far, *near, nbytes, **flags),
        lambda: wqe.nop(*head, **flags),
        lambda: wqe.dump(*head, *near, **flags),
        lambda: wqe.fetch_add(*head, *far, *near, operands[0], **flags),
        lambda: wqe.compare_swap(*head, *far, *near, *operands[:2], **flags),
        lambda: wqe.masked_fetch_add(*head, *far, *near, choose.choice([4, 8]), *operands[:2], **flags),
        lambda: wqe.masked_compare_swap(*head, *far, *near, choose.choice([4, 8]), *operands, **flags),
    ])()  # fmt: skip


def by_states(hca, qp, work, _wqe, index):
    batch.begin(work, index)
    return pipeline.check(hca, qp, work, states.CHECK_CONTROL)


def test_usual_wqes_pass_the_states_too():
    """And all of these forms but the DUMP are usual, if there is no mistake."""
    choose = random.Random(5)
    made, records = card()
    buffer, work = np.zeros(24, np.int64), np.zeros(batch.RECORD_WORDS, np.int64)
    hca, qp = made.address, int(records["own"].ctypes.data)
    address, record = int(buffer.ctypes.data), int(work.ctypes.data)
    passed, refused = 0, 0
    for index in range(6000):
        bytes_of, mistake = bytearray(forms(choose, index)), choose.choice(["none", "wqe", "row"])
        kept = {name: row.copy() for name, row in records.items()}
        if mistake == "wqe":  # in a byte, or in a bit, which is a smaller mistake
            bytes_of[choose.randrange(len(bytes_of))] ^= choose.choice([1 << choose.randrange(8), choose.getrandbits(8)])
        elif mistake == "row":
            row, name = records[choose.choice(["own", "peer", "here", "there", "control"])], None
            name = choose.choice(["state", "qpn", "remote_qpn", "pd", "access", "send_psn", "recv_psn", "broken", "log_msg_max"])
            if "key" in row.dtype.names:
                name = choose.choice(["key", "pd", "access", "start", "nbytes"])
            elif "fail_count" in row.dtype.names:
                name = "fail_count"
            row[name] ^= 1 << choose.randrange(5)
        buffer[:] = 0
        buffer.view(np.uint8)[: len(bytes_of)] = bytes_of
        found = []
        for check in (usual_wqes.check_usual, by_states):
            work[:] = 0
            work[tables.WORK_WQE // 8], work[tables.WORK_CAPACITY // 8] = address, batch.SEGMENTS
            state = check(hca, qp, record, address, index)
            fields = {name: work[getattr(tables, f"WORK_{name}") // 8] for name in FIELDS}
            found.append((state, fields, tuple(work[tables.WORK_PAIRS // 8 :][:2])))
        (state, fields, pair), (of_states, all_fields, all_pair) = found
        if state == usual_wqes.UNUSUAL:
            refused += 1
            assert mistake != "none" or bytes_of[3] == wqe.Opcode.DUMP, bytes_of.hex()
        else:
            passed += 1
            assert state == of_states, (mistake, bytes_of.hex())
            if state != states.COMPLETE:
                assert (fields, pair) == (all_fields, all_pair), (mistake, bytes_of.hex())
        for name, row in kept.items():
            records[name][:] = row
    assert passed > 2000
    assert refused > 1000
