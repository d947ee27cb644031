"""Runs NVIDIA's tests and examples of nvshmem4py on pgas: ``python tests/tools/nvidia_tests.py CLONE [--transport p2p]``.

CLONE is a copy of NVIDIA's repository, which is not part of pgas: ``git clone --depth 1 https://github.com/NVIDIA/nvshmem``. Its Numba
device tests and its host tests run one by one, each in a job of two PEs, because a failed one leaves its collective calls incomplete.
Examples are programs. A test that fails is repeated; if it then passes, PEs race in it. With --together, a job runs several device tests of
a file, which takes much less time. In the simulator, its PEs wait for each other before every launch, so that none races.

With --theirs, they run on the nvshmem4py that is installed, on GPUs, without pgas: results can then be compared (``--json``).
"""

import concurrent.futures
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgas.base.arguments import Parser, output_file, within
from pgas.base.backend import SIMULATOR
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
        files = [path.name for path in sorted(folder.glob(pattern))] if group in groups else []
        command = [*prefix, *_pytest(folder, "device", "--collect-only", "--continue-on-collection-errors", *files)]
        listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout if files else ""
        for file in files:
            names = re.findall(rf"^{file}::.*$", listed, re.MULTILINE) or [file]
            found += [Case(group, name, folder, _pytest(folder, group, name)) for name in names]
    examples = (*sorted((top / "examples").glob("*.py")), *sorted((top / "examples/device/numba").glob("*.py")))
    return found + [Case("examples", path.name, path.parent, (path.name,)) for path in examples if "examples" in groups]


def run_together(chosen: list[Case], prefix: Sequence[str], variables: dict[str, str]) -> dict[Case, tuple[str, str]]:
    """Run device tests of one file in one job. Returns the results of run(), read from the reports of both PEs."""
    folder, name = chosen[0].folder, chosen[0].name.partition("::")[0]
    aligned = ("-p", "nvidia_aligned") if SIMULATOR else ()
    with tempfile.TemporaryDirectory() as reports:
        pe = f'exec {" ".join(prefix)} "$@" --junit-xml={reports}/$$.xml'
        arguments = _pytest(folder, "device", *aligned, "-o", "junit_family=xunit1", *[case.name for case in chosen])
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*mpirun(2), "sh", "-c", pe, "sh", *arguments],
                cwd=folder, env=os.environ | variables, capture_output=True, timeout=LIMIT * len(chosen), check=False,
            )  # fmt: skip
        found: dict[str, set[tuple[str, str]]] = {}
        for report in Path(reports).glob("*.xml"):
            for test in ElementTree.parse(report).iter("testcase"):
                outcome = next(((child.tag, child.get("message", "")) for child in test if child.tag != "system-out"), ("passed", ""))
                found.setdefault(f"{name}::{test.get('name')}", set()).add(outcome)
    words = {"failure": "failed", "error": "failed", "skipped": "skipped", "passed": "passed"}
    worst = {case: sorted(found.get(case.name, {("error", "no report")}))[0] for case in chosen}
    return {case: (words[tag], message) for case, (tag, message) in worst.items()}


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
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    errors = [line for line in lines if re.match(r"(E  +)?\S*(Error|Exception|Invalid)\b|no end after", line)]
    return (errors or lines[-1:] or [""])[0].strip()


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
    parser.add_argument(
        "--together",
        type=within(1, 1000),
        nargs="?",
        const=1000,
        metavar="N",
        help="device tests only, N of a file per job; without N: all",
    )
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
            files = [list(group) for _, group in itertools.groupby(chosen, lambda case: case.name.partition("::")[0])]
            jobs = [file[at : at + asked.together] for file in files for at in range(0, len(file), asked.together)]
            started = [pool.submit(run_together, job, prefix, variables) for job in jobs]
        else:
            started = [pool.submit(lambda case: {case: run(case, prefix, asked.times, variables)}, case) for case in chosen]
        for done in concurrent.futures.as_completed(started):
            for case, result in done.result().items():
                results[f"{case.group} {case.name}"] = result
                if result[0] != "passed":
                    print(f"{result[0]:8} {case.group:8} {case.name}: {_reason(result[1])}", flush=True)
            if asked.json:  # After each job, so that a run that is cut off leaves its results.
                Path(asked.json).write_text(json.dumps({name: r for name, (r, _) in results.items()}, indent=1), encoding="utf-8")
    for group in dict.fromkeys(name.split()[0] for name in results):
        count = Counter(result for name, (result, _) in results.items() if name.split()[0] == group)
        print(f"{group:8} {sum(count.values()):4} cases: " + ", ".join(f"{n} {result}" for result, n in sorted(count.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
