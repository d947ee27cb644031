"""perftests/jacobi.py: its results are compared, its line has NVIDIA's columns, and a halo that does not arrive is an error."""

import functools
import json

import pytest
from perf_runs import compiled, perftest

VERSIONS = {"p": [], "put": ["-use_block_comm"], "persistent": ["-persistent"]}

#: Puts that do not arrive.
WITHOUT_PUTS = """
import sys
import pgas
pgas.put_nbi_block = lambda *_: None
from pgas.perftests import jacobi
sys.exit(jacobi.main())
"""


jacobi = functools.partial(perftest, "jacobi")


def test_line_and_json(tmp_path):
    path = tmp_path / "jacobi.json"
    done = jacobi(3, "-nx", "40", "-ny", "30", "-niter", "4", "-nccheck", "2", "-csv", "--json", str(path))
    name, *numbers = done.stdout.strip().split(", ")
    assert (name, numbers[:6]) == ("pgas_p (interpreter)", ["40", "30", "4", "2", "3", "1"])
    assert all(float(seconds) > 0 for seconds in numbers[6:])
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["pes"], row["version"], row["iterations"], row["validated"]) == (3, "p", 4, True)


def test_lines_of_one_pe():
    """They say that nothing ran on a GPU, and that the figures are an interpreter's."""
    done = jacobi(1, "-nx", "8", "-ny", "6", "-niter", "2")
    assert "GPU" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("  # interpreter")


def test_a_halo_that_does_not_arrive():
    done = jacobi(2, "-nx", "40", "-ny", "8", "-niter", "3", "-use_block_comm", program=WITHOUT_PUTS, status=1)
    assert "elements differ from those of one PE" in done.stderr
    assert "speedup" not in done.stdout


@pytest.mark.slow
def test_it_ends_when_nothing_changes(tmp_path):
    jacobi(2, "-nx", "4", "-ny", "6", "-niter", "2000", "-persistent", "--json", str(tmp_path / "j"))
    (row,) = json.loads((tmp_path / "j").read_text())["rows"]
    assert 10 < row["iterations"] < 200


@pytest.mark.slow
@pytest.mark.parametrize("npes", [1, 2, 3])  # three have different neighbors above and below
@pytest.mark.parametrize("transport", ["p2p", "ibgda", "ibrc"])
@pytest.mark.parametrize("version", VERSIONS)
def test_versions(version, transport, npes):
    done = jacobi(npes, "-nx", "67", "-ny", "21", "-niter", "6", "--transport", transport, "-csv", *VERSIONS[version])
    assert done.stdout.startswith(f"pgas_{version} (interpreter), 67, 21, 6, 1, {npes}, 1, ")


@pytest.mark.slow
@pytest.mark.sass
@pytest.mark.parametrize("version", VERSIONS)
def test_kernels_compile_for_a_gpu(version):
    found = compiled("--transport", "ibgda", "perftests/jacobi.py", *VERSIONS[version], "-blocks", "4")
    assert found.keys() == {"_by_p", "_persistent" if version == "persistent" else f"_by_{version}"}
