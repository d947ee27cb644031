"""The number of blocks of a collective that the host calls: the table, and rows of PGAS_HOST_BLOCKS, which replace it."""

import itertools

import pytest

from pgas.base.config import COLLECTIVES, VARIABLES, Tracing
from pgas.job.blocks import OF_TWO, TABLE, Blocks, engine_bytes


def rows(text):
    return VARIABLES["PGAS_HOST_BLOCKS"].parse(text)


def test_the_table_has_every_collective():
    """Its rows begin at 0 bytes and ascend, so that every size has a row."""
    assert TABLE.keys() == set(COLLECTIVES)
    for name, table in [*TABLE.items(), *OF_TWO.items()]:
        sizes = [nbytes for nbytes, _ in table]
        assert (table[0], sizes) == ((0, 1), sorted(set(sizes))), name


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_row_begins_after_its_size(name, members):
    blocks, table = Blocks(()), (TABLE | OF_TWO if members == 2 else TABLE)[name]
    assert blocks.of(name, 0, members) == 1
    for (_, before), (nbytes, count) in itertools.pairwise(table):
        assert (blocks.of(name, nbytes, members), blocks.of(name, nbytes + 1, members)) == (before, count)
    assert blocks.of(name, 1 << 40, members) == table[-1][1]


def test_one_number_is_for_everything():
    blocks = Blocks(rows("5"))
    assert {blocks.of(name, nbytes, 2) for name in COLLECTIVES for nbytes in (1, 100, 1 << 30)} == {5}


def test_rows_replace_all_of_their_collective():
    """In any order; below the first row, there is one block. Other collectives keep the table."""
    blocks = Blocks(rows("reduce=64K:16,reduce=1K:4"))
    assert [blocks.of("reduce", nbytes, 2) for nbytes in (1 << 10, (1 << 10) + 1, 64 << 10, (64 << 10) + 1, 1 << 30)] == [1, 4, 4, 16, 16]
    assert [blocks.of("reducescatter", nbytes, 2) for nbytes, _ in TABLE["reducescatter"]] == [
        Blocks(()).of("reducescatter", nbytes, 2) for nbytes, _ in TABLE["reducescatter"]
    ]


def test_no_bytes():
    assert Blocks(rows("8")).of("fcollect", 0, 2) == 1


def test_a_gpu_holds_the_blocks_of_all_its_pes():
    assert [Blocks([("reduce", 0, 64)], sharing).of("reduce", 1, 2) for sharing in (1, 2, 4, 200)] == [64, 64, 32, 1]


@pytest.mark.parametrize(
    ("given", "trace", "on_gpu", "expected"),
    [
        (None, "", True, 16 << 20),
        ("4K", "", True, 4096),
        ("4K", "wqe", True, 4096),
        ("4K", "timeline", True, 0),
        ("4K", "traffic:/tmp/x", True, 0),
        ("0", "", True, 0),
        ("4K", "", False, 0),
    ],
)
def test_what_the_copy_engine_performs(given, trace, on_gpu, expected):
    """Not what the simulator's tools and traces follow, which know only kernels."""
    copies = VARIABLES["PGAS_COPY_ENGINE_BYTES"]
    requested = {"PGAS_COPY_ENGINE_BYTES": copies.parse(copies.default if given is None else given), "PGAS_TRACE": Tracing.parse(trace)}
    assert engine_bytes(requested, on_gpu=on_gpu) == expected
