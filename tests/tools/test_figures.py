"""``make figures``: its pictures are drawn from a recorded file."""

import figures

from pgas.perftests.harness import jobs


def test_recorded_figures_are_drawn(tmp_path):
    path = tmp_path / "figures-1xH100-80GB-HBM3.json"
    path.write_text((jobs.BASELINES / path.name).read_text())
    assert figures.main([str(path)]) == 0
    assert (tmp_path / "put_bandwidth-1xH100-80GB-HBM3.png").stat().st_size > 20_000
