"""The perf tests of collectives: fresh data, whole runs, and what a wrong collective is caught by."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from jobs import also
from ml_dtypes import bfloat16
from perf_runs import mpirun, with_mpirun
from point_to_point import NAMES

from pgas.perftests import coll_latency, coll_on_stream, rma_on_stream
from pgas.perftests.harness.collectives import COLLECTIVES, VARIANTS, CollectiveMessage

MODULES = coll_latency, coll_on_stream, rma_on_stream
TESTS = {name: test for module in MODULES for name, test in module.TESTS.items()}


def test_console_scripts_are_nvshmems_programs():
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    modules = {name: module.__name__ for module in MODULES for name in module.TESTS}
    assert scripts.pop("pgas") == "pgas.__main__:main"
    assert scripts == {name: f"pgas.perftests.{name}:main" for name in NAMES} | {name: f"{module}:main" for name, module in modules.items()}


def message(collective, nelems, dtype="int32", op="", ctas=1, npes=2):
    return CollectiveMessage(COLLECTIVES[collective], nelems, np.dtype(dtype), op, "block", ctas, 32, npes)


def test_sources_differ_between_pes_and_variants():
    for each in (message("reduce", 40, bfloat16, "sum"), message("alltoall", 40), message("maxloc", 40, "float64")):
        sources = [source for variant in range(VARIANTS) for source in each.sources(1, variant)]
        assert len({source.tobytes() for source in sources}) == 2 * VARIANTS
        assert len({each.result(each.sources(1, variant), 0).tobytes() for variant in range(VARIANTS)}) == VARIANTS


# ------------------------------------------------------------------------------------------------------------------ whole runs

#: Flags that make a run short, use several channels, and reach remainders and messages that staging is too small for.
LINES = """
alltoall_latency -b 24 -e 30K -f 1000 -n 2 -w 4 -t 32 -c 2 -d float
bcast_latency -b 6 -e 6 -n 2 -w 4 -t 32 -c 2 -d bf16
fcollect_latency -b 24 -e 24 -n 2 -w 4 -t 32 -c 3 -s warp
reduction_latency -b 200 -e 200 -n 2 -w 4 -t 32 -c 2 -d half -o sum
reducescatter_latency -b 200 -e 200 -n 2 -w 4 -t 32 -d uint8 -o max -s block
redmaxloc_latency -b 112 -e 112 -n 2 -w 4 -t 32
barrier_latency -n 2 -w 3 -t 32 -c 2
sync_latency -n 2 -w 3 -t 32 -c 2
alltoall_on_stream -b 24 -e 24 -n 2 -w 2 --cudagraph
broadcast_on_stream -b 24 -e 24 -n 2 -w 2
fcollect_on_stream -b 24 -e 24 -n 2 -w 2
reduction_on_stream -b 24 -e 24 -n 2 -w 2 -o min -d double
reducescatter_on_stream -b 24 -e 24 -n 2 -w 2
barrier_on_stream -n 2 -w 2
barrier_all_on_stream -n 2 -w 2
sync_on_stream -n 2 -w 2
sync_all_on_stream -n 2 -w 2
put_on_stream -b 24 -e 24 -n 2 -w 2
get_on_stream -b 24 -e 24 -n 2 -w 2 --cudagraph
"""

PROGRAM = """
import sys
import pgas
from pgas.perftests import coll_latency, coll_on_stream, rma_on_stream

with pgas.init():
    for line in {lines!r}.strip().splitlines():
        name, *flags = line.split()
        test = {{**coll_latency.TESTS, **coll_on_stream.TESTS, **rma_on_stream.TESTS}}[name]
        if status := test.run([*flags, "--json", {folder!r} + "/" + name]):
            sys.exit(status)
"""


@with_mpirun
@pytest.mark.parametrize(("npes", "transport"), [(3, "p2p"), also(2, "ibgda"), also(2, "ibrc")])
def test_every_test_is_validated(npes, transport, tmp_path):
    (tmp_path / "all.py").write_text(PROGRAM.format(lines=LINES, folder=str(tmp_path)))
    done = mpirun(npes, tmp_path / "all.py", PGAS_TRANSPORT=transport)
    found = {name: json.loads((tmp_path / name).read_text()) for name in TESTS}
    for name, run in found.items():
        assert run["rows"], name
        for row in run["rows"]:
            assert row["validated"], (name, row)
            assert row["latency_us"] > 0
            assert (row["wqes"] is None) == (transport == "p2p")
            assert (row["busbw_gbps"] is None) == ("barrier" in name or "sync" in name)
    tables = {row["table"] for run in found.values() for row in run["rows"]}
    assert tables >= {"alltoall_device", "device_reduction", "barrier_all_device", "sync_device", "reduction_on_stream"}
    assert [row["scope"] for row in found["alltoall_latency"]["rows"]] == ["thread", "warp", "warp", "block", "block"]
    assert all(f"\n#{table}\n" in done.stdout for table in tables)
    assert f"{'size(B)':12}{'count':10}{'type':10}{'redop':8}{'scope':8}latency(us)" in done.stdout


SKIPPING = """
import sys
from numba import cuda
import pgas
from pgas.perftests import coll_latency

@cuda.jit(device=True)
def call(team, dest, source, channel):
    if {condition}:
        pgas.alltoall(team, dest, source, channel)

coll_latency._call = lambda collective, op, scope: call
sys.exit(coll_latency.TESTS["alltoall_latency"].run("-b 32 -e 32 -d int -s thread -n 2 -w 3".split()))
"""


@with_mpirun
@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("source[0] != 0x5A5A", None),
        ("dest[0] == 0", "16 elements were wrong after their iteration, in the warm-up"),
        ("False", "24 elements were wrong after their iteration, in the warm-up"),
    ],
)
def test_a_call_that_leaves_an_iteration_out(condition, said, tmp_path):
    """What the iteration before left in dest does not pass for the data of this one."""
    (tmp_path / "skipping.py").write_text(SKIPPING.format(condition=condition))
    done = mpirun(1, tmp_path / "skipping.py", status=0 if said is None else 1)
    assert said is None or f"alltoall_latency: error: alltoall_device of 32: PE 0: {said}" in done.stderr
