"""Contexts, keys, access, and the states of a QP."""

from itertools import product

import pytest
from hypothesis import strategies as st

from pgas.transports.mlx5 import contexts
from pgas.transports.mlx5.commands import Command, command_name
from pgas.transports.mlx5.contexts import FORBIDDEN, LEGAL, MKC, QPC, Access, QpState, mkc_access, mkey, transition
from pgas.transports.mlx5.fields import decode, fill

MOVES = {"RST2INIT_QP", "INIT2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP", "RTS2RTS_QP", "2ERR_QP", "2RST_QP"}


def test_sizes():
    assert (contexts.CQC.size, QPC.size, contexts.ADS.size, MKC.size) == (0x40, 0xE8, 0x2C, 0x40)
    assert (contexts.UMEM.size, contexts.ROCE_ADDR_LAYOUT.size) == (0x20, 0x20)


def test_every_pair_of_states_is_legal_or_forbidden():
    pairs = set(product(QpState, QpState))
    assert LEGAL.keys() | FORBIDDEN.keys() == pairs
    assert not LEGAL.keys() & FORBIDDEN.keys()


def test_commands_of_the_state_transitions():
    assert set(LEGAL.values()) == MOVES
    assert {command_name(command) for command in Command} >= MOVES


@pytest.mark.parametrize(
    ("command", "state"), [(c, s) for c in sorted(MOVES) for s in QpState if (s, c) not in {(p[0], v) for p, v in LEGAL.items()}]
)
def test_no_other_transition(command, state):
    with pytest.raises(ValueError, match=f"^{command} of a QP in {state.name}: .*(come (first|before)|RST|already|from {state.name})"):
        transition(command, state)


def test_texts():
    with pytest.raises(
        ValueError, match="INIT2RTR_QP of a QP in RST: a QP in RST has no port and no access rights; RST2INIT_QP must come first"
    ):
        transition("INIT2RTR_QP", QpState.RST)
    with pytest.raises(ValueError, match="RTS2RTS_QP of a QP in RTR: the command from RTR to RTS is RTR2RTS_QP"):
        transition("RTS2RTS_QP", QpState.RTR)
    with pytest.raises(ValueError, match="CREATE_QP does not change the state of a QP"):
        transition("CREATE_QP", QpState.RST)


def test_rnr_timer():
    """The table of the InfiniBand specification, in us."""
    us = [655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10240, 15360, 20480]
    us += [30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520]
    assert [contexts.rnr_timer_ns(code) for code in range(32)] == [1000 * t for t in us]
    with pytest.raises(ValueError, match="min_rnr_nak: 32 does not fit in 5 bits"):
        contexts.rnr_timer_ns(32)


def test_mkey():
    assert mkey(0x123456, 0x78) == 0x12345678
    with pytest.raises(ValueError, match="mkey_index: 0x1000000 does not fit in 24 bits"):
        mkey(1 << 24)
    with pytest.raises(ValueError, match="mkey_7_0: 0x100 does not fit in 8 bits"):
        mkey(0, 256)


def test_golden_mkc():
    """The access bits are byte 2 of an mkc: umr_en, a, rw, rr, lw, lr, access_mode_1_0."""
    everything = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
    values = mkc_access(everything) | {"access_mode_1_0": contexts.AccessMode.MTT, "qpn": contexts.ANY_QPN, "pd": 0x12, "mkey_7_0": 0x78}
    data = fill(MKC, values | {"start_addr": 0x6000_0020_0000, "len": 0x40000000})
    words = data[:0x20].hex(" ", -4)
    assert words == "00007d00 ffffff78 00000000 00000012 00006000 00200000 00000000 40000000"
    assert decode(MKC, data)["lr"] == 1


@pytest.mark.parametrize(
    ("access", "bits"),
    [
        (0, {"lr"}),
        (Access.LOCAL_WRITE, {"lr", "lw"}),
        (Access.REMOTE_WRITE, {"lr", "rw"}),
        (Access.REMOTE_READ, {"lr", "rr"}),
        (Access.REMOTE_ATOMIC, {"lr", "a"}),
        (Access.RELAXED_ORDERING, {"lr", "relaxed_ordering_write", "relaxed_ordering_read"}),
    ],
)
def test_access(access, bits):
    assert {name for name, bit in mkc_access(access).items() if bit} == bits
    assert fill(MKC, mkc_access(access))


def test_bad_access():
    with pytest.raises(ValueError, match="access: 0x10 has bits outside 0x10000f"):
        mkc_access(0x10)


def table_values(table):
    """A strategy for values of every field of a table."""
    return st.fixed_dictionaries(
        {
            name: table_values(field.table) if field.table is not None else st.integers(0, (1 << field.width) - 1)
            for name, field in table.fields.items()
        }
    )
