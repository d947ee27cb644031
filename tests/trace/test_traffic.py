"""The traffic of jobs (PGAS_TRACE=traffic): counters, CSV files, the table at the end, heat maps."""

import csv
import re
from collections import Counter

import numpy as np
import pytest
from jobs import also
from jobs import job as job
from test_timeline import RING

from pgas.base.errors import PgasError
from pgas.job.traffic import table
from pgas.kernels.traffic import FAMILIES
from pgas.trace import matrix
from pgas.trace.command import run

#: By family, operations and bytes of a turn of RING.
TURN = {"put": (5, 320 + 192 + 128 + 48 + 64), "get": (1, 96), "element": (1, 8), "signal": (2, 16), "atomic": (1, 8)}


def rows(tmp_path, npes):
    for pe in range(npes):
        with open(tmp_path / f"f.{pe}.csv", newline="") as file:
            yield from csv.DictReader(file)


@pytest.mark.parametrize(("transport", "npes"), [("p2p", 2), also("ibgda", 2), also("ibrc", 3), also("p2p,ibgda", 3)])
def test_ring(job, tmp_path, transport, npes):
    """Each interval is a turn: one kernel, with its operations, by family, peer, and path."""
    variables = {"PGAS_PES_PER_NODE": "2,1"} if "," in transport else {}
    ended = job(RING, npes=npes, PGAS_TRACE=f"traffic:{tmp_path}/f", PGAS_TRANSPORT=transport, **variables)
    assert ended.status == 0, ended
    found, paths = Counter(), set()
    for row in rows(tmp_path, npes):
        assert row["kernels"] == "around"
        paths.add((row["family"], row["path"]))
        if row["family"] in TURN:
            assert int(row["peer"]) == (int(row["pe"]) + 1) % npes
            found[row["interval"], row["pe"], row["family"], int(row["operations"]), int(row["bytes"])] += 1
    assert found == Counter((str(turn), str(pe), name, *counts) for turn in range(2) for pe in range(npes) for name, counts in TURN.items())
    by = {family: {path for name, path in paths if name == family} for family in ("put", "atomic", "doorbell")}
    parts = transport.split(",")
    assert by == {"put": set(parts), "atomic": {parts[-1]}, "doorbell": {"ibgda"} if "ibgda" in transport else set()}
    total = 2 * npes
    for name, (operations, nbytes) in TURN.items():
        assert re.search(rf"pgas:   {name} +{total * operations} +{re.escape(text(total * nbytes))}", ended.err), ended


def text(nbytes):
    return f"{nbytes * 100 // 1024 / 100:g} KiB" if nbytes >= 1024 else f"{nbytes} bytes"


def test_table_of_many_pes():
    totals = np.zeros((20, len(FAMILIES), 20, 2), np.uint64)
    totals[3, 0, 17] = 5, 1 << 20
    lines = list(table(totals))
    assert lines[1].split() == ["put", "5", "1", "MiB"]
    assert lines[3] == "  PE 3 to PE 17: 1 MiB"


def test_heat_map(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "f.0.csv").write_text("interval,kernels,pe,peer,path,family,operations,bytes\n0,k,0,1,p2p,put,2,64\n1,k,0,1,p2p,put,1,8\n")
    names = [str(tmp_path / "f")]
    assert matrix.of_csv(matrix.csv_files(names)) == {"put": {(0, 1): [3, 72]}}
    picture = tmp_path / "heat.png"
    assert run(arguments(files=names, plot=str(picture))) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{picture}: heat maps of the traffic between PEs"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_wrong_files(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PgasError, match=r"x.csv is not a file of PGAS_TRACE=traffic"):
        matrix.of_csv([str(tmp_path / "x.csv")])
    with pytest.raises(PgasError, match="there is no timeline; run the job with PGAS_TRACE=timeline"):
        run(arguments(files=[str(tmp_path / "x.csv")], output="t.json"))


def arguments(**given):
    from argparse import Namespace

    return Namespace(**{"output": None, "plot": None, "html": None, "why": False, "kernel": "", **given})
