"""Runs NVIDIA's tests and examples of nvshmem4py on pgas: ``python tests/tools/nvidia_tests.py CLONE [--transport p2p]``.

CLONE is a copy of NVIDIA's repository, which is not part of pgas: ``git clone --depth 1 https://github.com/NVIDIA/nvshmem``. Its Numba
device tests and its host tests run one by one, each in a job of two PEs, because a failed one leaves its collective calls incomplete.
Examples are programs. A test that fails is repeated; if it then passes, PEs race in it. With --together, in the simulator, each file of
device tests is one job, in which PEs wait for each other before every launch: then none races, and all take a minute.

With --theirs, they run on the nvshmem4py that is installed, on GPUs, without pgas: results can then be compared (``--json``).
"""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgas.base.arguments import Parser, output_file, within
from pgas.perftests.harness.jobs import mpirun

__all__ = ["Case", "cases", "main", "run"]

#: Seconds for a test, of which waits that never end take most.
LIMIT = 90

#: A plugin of pytest for the host tests, which are programs: they start and end NVSHMEM once.
_SESSION = """
import pytest

@pytest.fixture(scope="session", autouse=True)
def session():
    import nvshmem.core
    from utils import uid_init
    uid_init()
    yield
    nvshmem.core.barrier_all(stream=__import__("cuda.core").core.Device().create_stream())
    nvshmem.core.finalize()
"""

#: A plugin for --together: kernels of a test start when all PEs have initialized its arrays.
_ALIGNED = """
from mpi4py import MPI
from pgas.sim import frontend

frontend.before_launch = lambda kernel, arguments: MPI.COMM_WORLD.Barrier()
"""


@dataclass(frozen=True)
class Case:
    """A test or an example."""

    group: str  #: device, host, or examples
    name: str  #: pytest's, or a file
    folder: Path
    arguments: tuple[str, ...]  #: of Python


def _pytest(folder: Path, group: str, *more: str) -> tuple[str, ...]:
    plugin = ("-p", "nvidia_session") if group == "host" and "init_test" not in " ".join(more) else ()
    return "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-o", "addopts=", *plugin, *more


def cases(clone: Path, prefix: Sequence[str], groups: Sequence[str]) -> list[Case]:
    """Return the cases of a clone in some groups. prefix: the command that runs Python's arguments."""
    top = clone / "nvshmem4py"
    found = []
    for group, folder, pattern in (("device", top / "test/device/numba", "test_*.py"), ("host", top / "test", "*_test.py")):
        for path in sorted(folder.glob(pattern)) if group in groups else ():
            command = [*prefix, *_pytest(folder, "device", "--collect-only", path.name)]
            listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
            names = re.findall(rf"^{path.name}::.*$", listed, re.MULTILINE) or [path.name]
            found += [Case(group, name, folder, _pytest(folder, group, name)) for name in names]
    examples = (*sorted((top / "examples").glob("*.py")), *sorted((top / "examples/device/numba").glob("*.py")))
    return found + [Case("examples", path.name, path.parent, (path.name,)) for path in examples if "examples" in groups]


def run_together(chosen: list[Case], prefix: Sequence[str], variables: dict[str, str]) -> dict[Case, tuple[str, str]]:
    """Run device tests, each file in one job. Returns the results of run(), read from the reports of both PEs."""
    results: dict[Case, tuple[str, str]] = {}
    for name in dict.fromkeys(case.name.partition("::")[0] for case in chosen):
        cases_of_file = [case for case in chosen if case.name.partition("::")[0] == name]
        names, reports = [case.name for case in cases_of_file], Path("build").resolve()
        for old in reports.glob("nvidia-*.xml"):
            old.unlink()
        pe = f'exec {" ".join(prefix)} "$@" --junit-xml={reports}/nvidia-$$.xml'
        arguments = _pytest(cases_of_file[0].folder, "device", "-p", "nvidia_aligned", "-o", "junit_family=xunit1", *names)
        subprocess.run(
            [*mpirun(2), "sh", "-c", pe, "sh", *arguments],
            cwd=cases_of_file[0].folder, env=os.environ | variables, capture_output=True, timeout=20 * LIMIT, check=False,
        )  # fmt: skip
        found: dict[str, set[tuple[str, str]]] = {}
        for report in reports.glob("nvidia-*.xml"):
            for test in ElementTree.parse(report).iter("testcase"):
                outcome = next(((child.tag, child.get("message", "")) for child in test if child.tag != "system-out"), ("passed", ""))
                found.setdefault(f"{name}::{test.get('name')}", set()).add(outcome)
        words = {"failure": "failed", "error": "failed", "skipped": "skipped", "passed": "passed"}
        for case in cases_of_file:
            worst = sorted(found.get(case.name, {("error", "no report")}))[0]
            results[case] = words[worst[0]], worst[1]
    return results


def run(case: Case, prefix: Sequence[str], times: int, variables: dict[str, str]) -> tuple[str, str]:
    """Run a case. Returns passed, skipped, failed, or raced, and the end of the output of the last failure."""
    last = ""
    for _ in range(times):
        try:
            done = subprocess.run(
                [*mpirun(2), *prefix, *case.arguments],
                cwd=case.folder, env=os.environ | variables, capture_output=True, text=True, timeout=LIMIT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            last = f"no end after {LIMIT} s\n{(error.stdout or b'').decode(errors='replace')}"
            continue
        text = done.stdout + done.stderr
        if done.returncode == 0:
            if last:
                return "raced", last
            return ("skipped" if re.search(r"\b[1-9]\d* skipped", text) and " passed" not in text else "passed"), ""
        last = text
    return "failed", last


def _reason(text: str) -> str:
    """Return the line that says why a case failed."""
    errors = [line for line in text.splitlines() if re.match(r"(E  +)?\S*(Error|Exception|Invalid)\b|no end after", line)]
    return (errors or text.splitlines()[-1:] or [""])[0].strip()


def main() -> int:
    """Run the command line."""
    parser = Parser("python tests/tools/nvidia_tests.py", description=__doc__, unread={"PGAS_TRANSPORT"})
    parser.add_argument("clone", type=Path)
    parser.add_argument(
        "--transport", default="p2p", help="[p2p]; p2p,ibgda has a PE on each of two nodes, where tests of broadcast are wrong"
    )
    parser.add_argument("--theirs", action="store_true", help="use the installed nvshmem4py instead of pgas")
    parser.add_argument("--group", choices=("device", "host", "examples"), action="append", help="[all]")
    parser.add_argument("--times", type=within(1, 100), default=3, help="attempts [3]")
    parser.add_argument("--at-once", type=within(1, 64), default=1, help="concurrent jobs [1]")
    parser.add_argument("--together", action="store_true", help="each file of device tests in one job; no other groups")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results")
    parser.add_argument("-k", default="", metavar="PATTERN", help="only cases whose names match")
    asked = parser.parse_args()
    prefix = [sys.executable] if asked.theirs else [sys.executable, "-m", "pgas.nvshmem"]
    build = Path("build").resolve()
    build.mkdir(exist_ok=True)
    (build / "nvidia_session.py").write_text(_SESSION, encoding="utf-8")
    (build / "nvidia_aligned.py").write_text(_ALIGNED, encoding="utf-8")
    paths = os.pathsep.join((str(build), *filter(None, [os.environ.get("PYTHONPATH")])))
    variables = {"PGAS_TRANSPORT": asked.transport, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    if "," in asked.transport:
        variables["PGAS_PES_PER_NODE"] = "1"
    groups = ("device",) if asked.together else asked.group or ("device", "host", "examples")
    chosen = [c for c in cases(asked.clone.resolve(), prefix, groups) if re.search(asked.k, c.name)]
    results: dict[str, tuple[str, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(asked.at_once) as pool:
        if asked.together:
            outcomes: Any = run_together(chosen, prefix, variables).items()
        else:
            outcomes = zip(chosen, pool.map(lambda c: run(c, prefix, asked.times, variables), chosen), strict=True)
        for case, result in outcomes:
            results[f"{case.group} {case.name}"] = result
            if result[0] != "passed":
                print(f"{result[0]:8} {case.group:8} {case.name}: {_reason(result[1])}", flush=True)
    for group in dict.fromkeys(name.split()[0] for name in results):
        count = Counter(result for name, (result, _) in results.items() if name.split()[0] == group)
        print(f"{group:8} {sum(count.values()):4} cases: " + ", ".join(f"{n} {result}" for result, n in sorted(count.items())))
    if asked.json:
        Path(asked.json).write_text(json.dumps({name: result for name, (result, _) in results.items()}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
