"""The order checker finds every race of this folder in one run, with both lines and the missing link, and none in the right twins."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from jobs import mpirun

from pgas.check.log import merged
from pgas.check.order import Order

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("test_races", "together"))

#: By the link that a program lacks, what the checker may call it: some can be mended in two ways.
NAMES = {"wait": {"wait or barrier"}, "barrier": {"wait or barrier", "barrier"}, "fence": {"fence", "put_signal or fence"}}


@cache
def constants(name):
    tree = ast.parse((HERE / f"{name}.py").read_text())
    found = {n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}
    return {key: ast.literal_eval(found[key]) for key in ("MISSING", "PES") if key in found}


def marked(name, mark):
    lines = (HERE / f"{name}.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if f"#: {mark}" in line}


def run_all(folder):
    """Run all programs and their twins, each with a log of its own."""
    for pes in (2, 3):
        runs = [f"{name}{form}" for name in PROGRAMS if constants(name).get("PES", 2) == pes for form in ("", ":right")]
        for run in ("first", *runs):
            (folder / run).mkdir(exist_ok=True)
        command = [*mpirun(pes), sys.executable, HERE / "together.py", folder, *runs]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def findings(folder):
    order = Order()
    order.follow(merged(folder))
    return order.findings.all


def test_every_race_is_found_and_every_twin_is_right(tmp_path):
    """One test, because tests in several processes would each run all programs."""
    run_all(tmp_path)
    wrong = {}
    for name in PROGRAMS:
        first, second, missing = marked(name, "first"), marked(name, "second"), constants(name)["MISSING"]
        lines = [(f.first.line, f.second.line, f.missing) for f in findings(tmp_path / name)]
        links = {link for one, two, link in lines if (one in first and two in second) or (one in second and two in first)}
        twin = [f.text for f in findings(tmp_path / f"{name}:right")]
        if twin or not links & NAMES.get(missing, {missing}):
            wrong[name] = f"{missing} is missing between {first} and {second}; the checker says {lines}, and of the twin {twin}"
    assert wrong == {}


def test_the_command_reports_and_returns_3(tmp_path):
    command = [sys.executable, "-m", "pgas.check", "-n", "2", "--json", tmp_path / "found.json", HERE / "signal_after_put.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stdout + done.stderr
    assert re.search(r"missing: put_signal or fence\n.*signal_after_put.py:\d+: pgas.put\(.*of PE 1 \(made in line \d+\)", done.stdout)
    assert '"missing": "put_signal or fence"' in (tmp_path / "found.json").read_text()
    done = subprocess.run([*command[:5], HERE / "signal_after_put.py", "right"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "pgas:" in done.stdout) == (0, False), done.stdout + done.stderr
