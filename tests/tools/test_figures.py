"""``make figures``: the flags of its plan, runs, its pictures."""

import figures

from pgas.perftests import coll_latency
from pgas.perftests.harness import jobs, options
from pgas.perftests.harness.collectives import COLLECTIVES, messages

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_recorded_figures_are_drawn",)


def test_flags_are_accepted():
    of_alltoall = [run["command"].split()[2:] for run in figures.plan(gpu=True) if run["curve"] == figures.ALLTOALL]
    test = coll_latency.TESTS["alltoall_latency"]
    for flags in of_alltoall:
        found = options.parse(test.name, test.description, test.defaults, test.scopes, flags)
        assert [message.size for message in next(messages(COLLECTIVES["alltoall"], found, 2, test.scopes))] == [8 << k for k in range(19)]


def test_recorded_figures_are_drawn(tmp_path):
    path = tmp_path / "figures-1xH100-80GB-HBM3.json"
    path.write_text((jobs.BASELINES / path.name).read_text())
    assert figures.main([str(path)]) == 0
    assert (tmp_path / "put_bandwidth-1xH100-80GB-HBM3.png").stat().st_size > 20_000


def test_wrong_rows_are_not_drawn():
    row = {"pes": 2, "nx": 4, "ny": 3, "iterations": 1, "nccheck": 1, "time_ms": 2.0, "one_pe_ms": 1.0, "validated": True}
    runs = [
        {"curve": curve, "transport": "ibrc", "rows": [row | {"time_ms": ms}, row | {"pes": 3, "time_ms": 100 * ms, "validated": ms > 5}]}
        for curve, ms in ((figures.JACOBI_P, 6.0), (figures.JACOBI_PUT, 2.0))
    ]
    _, (panel,) = figures._jacobi(runs)
    assert [(curve.label, curve.points) for curve in panel.curves if curve.points] == [
        ("ibrc, p", [(2, 0.006), (3, 0.6)]),
        ("ibrc, put", [(2, 0.002)]),
    ]
    assert panel.title.splitlines()[1] == "ibrc: p takes 3 times as long as put"
