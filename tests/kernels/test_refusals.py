"""The table of refusals: every refusal takes its message from it, and every row is used."""

import ast
from string import Formatter
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from test_architecture import SOURCES, tree

from pgas.api.values import check_value
from pgas.job.health import device_state
from pgas.kernels import operation, refusals, state
from pgas.kernels.collectives.comparison import word_of
from pgas.kernels.refusals import TABLE, When
from pgas.transports import registry

CALLS = {"refuse", "refusals.refuse", "refusals.message", "kind_of", "refusals.kind_of"}


def uses():
    """Yield (module, row, names of values, whether only its kind is meant) of every call of refuse(), message(), and kind_of()."""
    for module in SOURCES:
        for node in ast.walk(tree(module)) if module != "pgas.kernels.refusals" else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS and node.args and isinstance(node.args[0], ast.Constant):
                of_kind = ast.unparse(node.func).endswith("kind_of")
                yield module, ast.literal_eval(node.args[0]), {k.arg for k in node.keywords}, of_kind


def test_every_row_is_used_with_its_values():
    rows, recorded = set(), set()
    for module, row, given, of_kind in uses():
        wanted = {name for _, name, _, _ in Formatter().parse(TABLE[row].message) if name}
        assert of_kind or given == wanted, f"{module}: {row}"
        (recorded if of_kind else rows).add(row)
    assert rows | recorded == set(TABLE)
    assert recorded == {name for name, row in TABLE.items() if row.kind}


def test_kinds_of_error_records_are_unique():
    kinds = [row.kind for row in TABLE.values() if row.kind] + [state.TIMED_OUT, state.NIC_TIMED_OUT, state.COMPLETION]
    assert sorted(kinds) == list(range(1, len(kinds) + 1))


#: What kernels record of each refusal: the words of the record from pe to comparison, in a job of 2 PEs, and the message.
RECORDS = {
    "no such PE": ((2**64 - 1, 0, 8, 0, 0), "put: PE -1 does not exist; pe must be 0 to 1"),
    "not symmetric": (
        (1, 64, 8, 0, 1), "put to PE 1: source, 8 bytes at address 0x40, is not on the symmetric heap; allocate it with "
        "pgas.empty or a similar function"
    ),
    "not registered": (
        (1, 64, 2**64 - 8, 0, 0), "put to PE 1: source, 18446744073709551608 bytes at address 0x40, is neither on the symmetric heap nor "
        "registered, so the NIC cannot access it; call pgas.register()"
    ),
    "too long": ((1, 64, 2**64 - 3, 4, 0), "put to PE 1: -3 elements wanted, but dest has 4 (address 0x40)"),
    "no such element": ((1, 64, 4, 3, 1), "put to PE 1: idx is 4 on axis 1 of source, which has 3 there"),
    "no such code": (
        (1, 64, 6, 6, 0), "put: cmp must be one of pgas.EQ (0), pgas.NE (1), pgas.GT (2), pgas.LE (3), pgas.LT (4), pgas.GE (5), not 6"
    ),
    "no such queue pair": (
        (1, 0, 5, 4, 0), "put to PE 1: qp must be 1 to 4 (PGAS_IBGDA_NUM_RC_PER_PE), or 0 for the one that "
        "PGAS_IBGDA_RC_MAP_BY selects, not 5"
    ),
    "far": ((1, 64, 0, 0, 0), "put: the memory of PE 1 is not mapped here (other machine than 0); use put and get"),
    "gaps": (
        (0, 64, 4, 2**64 - 8, 1 | 2 << 8), "put: source must be contiguous, but its elements on axis 2 are -8 bytes apart instead of 4 "
        "(address 0x40); copy it, or use slices without gaps, unlike a[::2] and a[:, 0]"
    ),
    "different order": ((0, 64, 0, 1, 0), "put: source is in F order, dest in C order; they must be the same"),
    "not set": ((1, 64, 0, 0, 0), "put: the lock, address 0x40, is not set; call set_lock first"),
    "stride": ((1, 64, 0, 0, 0), "put to PE 1: dst_stride and src_stride must be 1 or more, not 0"),
    "no such team": ((0, 0, 9, 0, 0), "put: team 9 does not exist, or this PE is not a member of it"),
    "no shared memory": ((0, 64, 2048, 8, 0), "put: array must be at least 2048 bytes of shared memory, not 8 bytes at address 0x40"),
    "not given": ((0, 64, 0, 0, 0), "put: smem, address 0x40, is not prepared; call give_smem first"),
    "no such channel": ((0, 0, 4, 4, 0), "put: channel must be 0 to 3 (channels= of the team, or PGAS_CHANNELS), not 4"),
    "no such part": ((0, 0, 2**64 - 1, 2, 0), "put: part must be (i, k) with 0 <= i < k, but i is -1 and k is 2"),
    "misfit": ((2, 64, 6, 4, 1), "put: source has 4 elements, 6 are needed for a team of 2"),
    "other call": (
        (1, 64, word_of("reduce", np.dtype("f4"), "MAX", size=5), word_of("broadcast", np.dtype("i2"), root=3, size=1 << 22) | 7 << 48, 0),
        "put: PE 1 calls pgas.broadcast of about 4194304 elements of int16 from root 3, but this PE calls pgas.reduce of 5 elements of "
        "float32 with op MAX; all members of a team must make the same calls in the same order"
    ),
    "no multiple": ((2, 64, 5, 0, 1), "put: source has 5 elements, which is not a multiple of the team size, 2"),
    "in place": ((2, 64, 0, 0, 0), "put: dest must not be source"),
    "no member": ((3, 0, 3, 0, 0), "put: root must be 0 to 2, not 3"),
    "no pairs": ((0, 64, 0, 3, 0), "put: dest must have 2 columns, not 3"),
    "other count": ((1, 64, 5, 4, 0), "put: source_counts sends 5 elements to PE 1, whose dest_counts allows 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.kind])
def test_the_message_has_the_words_of_the_record(name):
    teams = SimpleNamespace(place=lambda address: None)
    paths = SimpleNamespace(why=lambda me, pe: f"other machine than {me}")
    places = device_state.Places(SimpleNamespace(find=lambda offset: None), teams, 0, paths)
    words, said = RECORDS[name]
    record = (TABLE[name].kind, operation.number("put"), *words, 3, 7)
    assert device_state.describe(record, places, 0, 2) == f"PE 0, block 3, thread 7: {said}"


def test_all_compile_time_refusals_are_in_the_table():
    found = [m for m, path in SOURCES.items() if "raise KernelTypeError(" in path.read_text()]
    assert [m for m in found if not m.startswith("pgas.nvshmem.")] == ["pgas.kernels.refusals"]


@pytest.mark.parametrize("name", TABLE)
def test_rows_name_what_they_refuse(name):
    row = TABLE[name]
    assert row.transports
    assert set(row.transports) <= {*registry.names(), *registry.pairs()}
    assert not row.message.endswith(".")
    if row.when is When.COMPILED:
        assert row.message.startswith("pgas.{function}: ")


def test_refusals_are_unique():
    assert len({row.what for row in TABLE.values()}) == len(TABLE)
    assert len({row.message for row in TABLE.values()}) == len(TABLE)


def test_refuse_raises_the_message():
    with pytest.raises(refusals.KernelTypeError, match=r"^pgas\.ptr: transport ibgda does not map other PEs' memory; use put and get$"):
        refusals.refuse("unmapped", function="ptr", transport="ibgda")


def test_an_element_is_a_value_of_its_array():
    """Also an element of ml_dtypes, which is no NumPy number."""
    elements = np.ones(1, ml_dtypes.bfloat16)
    check_value("full", "value", elements[0], elements.dtype)
    with pytest.raises(TypeError, match="value"):
        check_value("full", "value", "1", elements.dtype)
