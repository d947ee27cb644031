"""What jobs of many PEs need: the table of docs/launch.md, computed from the code and measured with a few PEs."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgas import run
from pgas.base import config
from pgas.base.backend import SIMULATOR
from pgas.job.memory.teams import Plan
from pgas.kernels import window
from pgas.transports import registry
from pgas.transports.ibgda.nic import DirectNIC

PAGE = Path(__file__).parents[2] / "docs" / "launch.md"

#: Rows of the table of settings and needs, without the "|" at both ends.
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().partition("## Many PEs")[2].partition("\n## ")[0].splitlines()
    if re.match(r"\| [0-9,]+ \|", line)
]


def descriptors(pes):
    """The peak of PE 0 over p2p: a descriptor of each PE's process, one of each PE's pipe or memory, and some others."""
    return 2 * pes + 27


def requested(monkeypatch, settings):
    for name, value in re.findall(r"(PGAS_\w+)=(\w+)", settings):
        monkeypatch.setenv(name, value)
    return {name: config.read(name) for name in config.VARIABLES}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_the_table_of_needs(row, monkeypatch):
    values = requested(monkeypatch, row[1])
    pes, *given = (int(re.match("[0-9,]+", row[i])[0].replace(",", "")) for i in (0, 2, 3, 4, 5))
    plan = Plan.of(pes, values)
    constants = dataclasses.replace(window.Constants(0, 0, "", "", maps_peers=False, check=False), **registry.of_queues(values))
    queues = DirectNIC.segment(pes, constants).size >> 20
    assert given == [descriptors(pes), run._OWN_FILES + run._PE_FILES * pes, plan.nbytes >> 20, queues], row
    assert row[4].endswith(f" MiB, {plan.max_teams} teams"), row


def test_every_number_of_pes_has_a_row():
    assert [row[0] for row in ROWS] == ["8", "100", "500", "500", "1,000"]


@pytest.mark.skipif(not SIMULATOR, reason="CUDA opens files of its own")
@pytest.mark.parametrize(("pes", "less"), [(3, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((3, 6), (7, 0), (7, 6)))])
def test_descriptors_of_a_job(pes, less, tmp_path):
    """A PE needs as many as the table says, or a few less."""
    program = tmp_path / "program.py"
    program.write_text(
        "import resource, sys\nimport pgas\nresource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)\n"
        "pgas.init()\npgas.finalize()\n"
    )
    command = [sys.executable, "-m", "pgas.run", "-n", str(pes), str(program), str(descriptors(pes) - less)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert bool(ended.returncode) is bool(less), ended.stderr
    assert ("too many open files" in ended.stderr.lower()) is bool(less), ended.stderr
