"""perftests/overlap.py: every variant is checked, data that does not arrive is an error, and its kernels compile for a GPU."""

import functools
import json

import pytest
from perf_runs import compiled, perftest

GATHER, SCATTER = "all-gather + matmul", "matmul + reduce-scatter"
CHUNKS = ("communication, pgas chunks", "overlapped, collectives")
TILES = ("communication, pgas tiles", "communication, pgas copies", "overlapped, tiles", "overlapped, copies")
ROWS = [
    (GATHER, "communication, pgas"),
    (GATHER, "communication, pgas chunks"),
    (GATHER, "communication, pgas tiles"),
    (GATHER, "communication, pgas copies"),
    (GATHER, "matmul"),
    (GATHER, "matmul in chunks"),
    (GATHER, "matmul in tiles"),
    (GATHER, "in sequence, pgas"),
    (GATHER, "overlapped, collectives"),
    (GATHER, "overlapped, tiles"),
    (GATHER, "overlapped, copies"),
    (SCATTER, "communication, pgas"),
    (SCATTER, "communication, pgas chunks"),
    (SCATTER, "matmul"),
    (SCATTER, "matmul in chunks"),
    (SCATTER, "in sequence, pgas"),
    (SCATTER, "overlapped, collectives"),
]

#: Signals without their data.
WITHOUT_DATA = """
import sys
import types
import pgas
from pgas import cuda
def put_signal_block(dest, source, *signal):
    if cuda.threadIdx.x == 0:
        pgas.signal_op(*signal)
pgas.put_signal_block = put_signal_block
pgas.put_signal = types.SimpleNamespace(bind=lambda dest, source, *signal, stream: pgas.signal_op.bind(*signal, stream=stream))
from pgas.perftests import overlap
sys.exit(overlap.main())
"""

#: A collective that leaves out every second chunk. Without chunks, it has 8 rows.
WITHOUT_A_CHUNK = """
import sys
import types
import pgas
collective, calls = pgas.{name}, []
def bind(team, dest, source, *op, stream):
    bound = collective.bind(team, dest, source, *op, stream=stream)
    if max(len(dest), len(source)) == 8:
        return bound
    calls.append(bound)
    return bound if len(calls) % 2 else lambda: None
pgas.{name} = types.SimpleNamespace(bind=bind)
from pgas.perftests import overlap
sys.exit(overlap.main())
"""

#: Kernels for a GPU, without PyTorch.
COMPILED = """
import sys
from pgas.perftests import overlap
overlap.importlib.util.find_spec = lambda name: True
overlap._Torch = overlap._NumPy
overlap.nccl_group = lambda job, empty: (None, "")
sys.exit(overlap.main(["--m", "64", "--n", "64", "--k", "64", "--iters", "1"]))
"""


overlap = functools.partial(perftest, "overlap")


def test_table_json_and_picture(tmp_path):
    pytest.importorskip("matplotlib")
    result, image = tmp_path / "overlap.json", tmp_path / "overlap.png"
    flags = "--m", "18", "--n", "9", "--k", "5", "--chunks", "3", "--blocks", "2", "--iters", "1", "--rounds", "2"
    done = overlap(3, *flags, "--json", str(result), "--plot", str(image))
    assert "# NCCL was not measured: there is no GPU" in done.stdout
    data = json.loads(result.read_text())
    assert [(row["pattern"], row["variant"]) for row in data["rows"]] == ROWS
    assert all(row["validated"] and row["us"] > 0 for row in data["rows"])
    assert (data["npes"], data["args"]["chunks"], data["products"]) == (3, 3, "NumPy")
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_tiles_that_do_not_arrive(tmp_path):
    result = tmp_path / "overlap.json"
    done = overlap(2, "--m", "16", "--n", "4", "--k", "4", "--json", str(result), program=WITHOUT_DATA, status=1)
    wrong = [(row["pattern"], row["variant"]) for row in json.loads(result.read_text())["rows"] if not row["validated"]]
    assert wrong == [(GATHER, variant) for variant in TILES]
    assert "# all-gather + matmul, overlapped, collectives: " in done.stdout
    assert "overlapped, tiles: " not in done.stdout
    assert "overlapped, copies: " not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pattern"), [("fcollect", GATHER), ("reducescatter", SCATTER)])
def test_a_chunk_that_is_left_out(tmp_path, name, pattern):
    result, program = tmp_path / "overlap.json", WITHOUT_A_CHUNK.format(name=name)
    done = overlap(2, "--m", "8", "--n", "4", "--k", "4", "--chunks", "2", "--json", str(result), program=program, status=1)
    wrong = [(row["pattern"], row["variant"]) for row in json.loads(result.read_text())["rows"] if not row["validated"]]
    assert wrong == [(pattern, variant) for variant in CHUNKS]
    assert f"# {pattern}, overlapped, collectives: " not in done.stdout


@pytest.mark.parametrize(
    ("npes", "flags"), [(2, ("--m", "6", "--chunks", "2")), (2, ("--n", "3")), (1, ())], ids=["chunks", "columns", "one PE"]
)
def test_shapes_that_cannot_be_divided(npes, flags):
    assert "overlap: error: " in overlap(npes, *flags, status=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("npes", [2, 3, 4])
@pytest.mark.parametrize("transport", ["p2p", "ibgda", "ibrc"])
def test_transports(transport, npes):
    flags = "--m", str(npes * 6), "--n", str(npes * 2), "--k", "7", "--chunks", "2", "--blocks", "4"  # a block has no row of a chunk
    overlap(npes, *flags, "--transport", transport, PGAS_SIM_WEAK="1")


@pytest.mark.slow
@pytest.mark.sass
def test_kernels_compile_for_a_gpu(tmp_path):
    (tmp_path / "program.py").write_text(COMPILED)
    assert compiled("--transport", "ibgda", str(tmp_path / "program.py")).keys() == {"_begin", "_send_tiles", "_await"}
