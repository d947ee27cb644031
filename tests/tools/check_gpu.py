"""``make check-gpu``: the tests and measurements that need GPUs, on this machine, with the active Python.

A step is a named command, pytest or a perf test. Its PEs have a GPU each if there are enough, otherwise they share one under MPS, which
is started unless it runs. The output of each step goes to build/check-gpu/, the rows of perf tests to perftests/baselines. If all steps
pass, the report of the conformance suite goes there too, as conformance-<gpus>.txt.

``--quick`` runs the measurements only, ``--tests`` the tests only, ``--only REGEX`` the steps whose name matches (``ibrc 3``, ``soak``).
``--at-once 4`` runs four tests at once on each GPU, as most of their time is compilation. ``--seconds`` stops after that time and lists the
steps that are left.
"""

import argparse
import contextlib
import queue
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path

from pgas.base.arguments import Parser, pattern, positive, within
from pgas.base.output import outlive_reader
from pgas.perftests import compare
from pgas.perftests.harness import jobs
from pgas.perftests.harness.jobs import BASELINES, ROOT, Step, gpus, machine_name, mpirun, mps
from pgas.perftests.harness.report import commit, now
from pgas.transports import registry

#: Over the software card: scattered and neighboring p, block puts; each CTA has a queue pair.
NIC_MEASUREMENTS = {
    "shmem_p_bw-ibgda-8x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 8 -t 1024 -i 2 -b 64K -e 512K",
    "shmem_p_bw-ibgda-64x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -i 2 -b 512K -e 4M",
    "shmem_p_bw-ibgda-64x1024": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -b 512K -e 4M",
    "shmem_put_bw-ibgda-32x1024": "shmem_put_bw --transport ibgda -n 20 -w 5 -c 32 -t 1024 -b 1K -e 32M",
}

#: Variables of the soak test over the software card, which executes the atomics of a queue pair one at a time.
SOAK_QUEUES = {"PGAS_IBGDA_NUM_RC_PER_PE": "16", "PGAS_QP_DEPTH": "4096"}

#: Machines of jobs with two paths: PGAS_PES_PER_NODE, and the number of PEs.
MACHINES = {"2+2": ("2", 4), "2+1": ("2,1", 3), "1+1+1": ("1", 3)}

#: Files of tests/mpi that run over NIC transports.
NIC_TESTS = tuple(f"tests/mpi/test_{name}.py" for name in ("nic", "requests", "register", "reset", "streams", "heap_growth"))

#: Tests of tests/mpi that need a NIC or the simulator.
NOT_OVER_P2P = ("nic", "nic_order", "requests", "two_paths", "weak")

#: Chapters that run at three and four PEs, and those with two paths, by the name of their step.
MORE_PES = {"order": ("senders", "signals", "atomic_programs", "litmus", "order", "wait"), "every atomic": ("atomics",)}
TWO_PATHS = {
    **MORE_PES,
    "copies": ("rma", "strided"),
    "groups": ("teams", "collectives", "wrong_collectives"),
    "kernels": ("kernel_streams", "concurrency", "python"),
    "two paths": ("two_paths",),
}

#: Long chapters, and the number of steps that each is divided into.
PARTS = {"heap": 2, "rma": 6, "strided": 4, "atomics": 4, "collectives": 4, "python": 2, "streams": 3, "copies": 3, "groups": 6}

#: Variables of most chapters: small heaps, as many PEs share a GPU. And of chapters that need a larger heap or more time.
SMALL = {"PGAS_SYMMETRIC_SIZE": "512M"}
OWN_VARIABLES = {"heap": {}, "rma": {}, "heap_growth": {}, "programs": {**SMALL, "TEST_TIMEOUT": "600"}}

#: The report of the conformance suite.
REPORT = ROOT / "build" / "conformance-gpu.json"

#: Tests of the software card on a GPU; they print a hash of its machine code.
CARD_TESTS = [f"tests/softhca/test_softhca_{name}.py" for name in ("rig", "wqes", "errors", "atomics", "states", "faults")]

#: Over p2p: the flags of NVSHMEM's figures (compare.py), a bidirectional run, and plain stores.
MEASUREMENTS = {
    "shmem_put_bw-32x1024": "shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1024 -e 64M",
    "shmem_put_bw-4x1024": "shmem_put_bw -n 200 -w 20 -c 4 -t 1024 -b 4 -e 32M",
    "shmem_put_bw-32x1024-bidir": "shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1024 -e 64M --bidir",
    "shmem_p_bw-32x1024": "shmem_p_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M",
    "shmem_p_bw-4x1024": "shmem_p_bw -n 10 -w 10 -c 4 -t 1024 -b 1024 -e 64K",
    "shmem_get_bw-32x1024": "shmem_get_bw -n 200 -w 20 -c 32 -t 1024 -e 64M",
    "shmem_g_bw-32x1024": "shmem_g_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M",
    "shmem_st_bw-32x1024": "shmem_st_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M",
    "shmem_atomic_bw-32x256": "shmem_atomic_bw -n 100 -w 10",
    "shmem_atomic_bw-fetch_add-32x256": "shmem_atomic_bw -n 100 -w 10 -a fetch_add",
    **compare.LATENCIES,
}

#: Latencies over the software card.
NIC_LATENCIES = {
    f"{name}-ibgda": f"{line} --transport ibgda"
    for name, line in {
        "shmem_put_latency": "shmem_put_latency -n 100 -w 10 -e 64K -f 16",
        "shmem_p_latency": "shmem_p_latency -n 100 -w 10 -e 1K -f 16",
        "shmem_atomic_latency-fetch_add": "shmem_atomic_latency -n 100 -w 10 -a fetch_add",
        "shmem_put_signal_ping_pong_latency": "shmem_put_signal_ping_pong_latency -n 100 -w 10 -e 64K -f 16",
        "shmem_signal_ping_pong_latency": "shmem_signal_ping_pong_latency -n 100 -w 10",
    }.items()
}

#: Arguments and variables of tests.
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
REPORTED = ["--conformance-report", str(REPORT)]
ON_GPUS = {"NUMBA_ENABLE_CUDASIM": "0"}

#: The output of each step.
LOGS = ROOT / "build" / "check-gpu"

#: Lines of output that are shown of a failed step.
_SHOWN = 40

#: Variables of steps that share a GPU: a software card takes 8 SMs, instead of a quarter of the GPU.
_SHARING = {"PGAS_SOFTHCA_SMS": "8", "PGAS_SOFTHCA_DEVICE": ""}


def _on(n: int) -> list[str]:
    return [*mpirun(n), sys.executable]


def _files(*chapters: str) -> list[str]:
    """Return the files of the conformance suite and tests/mpi with these names; without any, all."""
    patterns = [f"{folder}/test_{chapter}.py" for folder in ("conformance", "mpi") for chapter in chapters or ("*",)]
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in (ROOT / "tests").glob(pattern))


def _pytest(n: int, files: Sequence[str], *options: str) -> list[str]:
    """Return the command that runs test files on n PEs. The conformance suite adds to its report; tests/mpi alone has none."""
    reported = REPORTED if files[0].startswith("tests/conformance") else []
    return [*_on(n), *PYTEST, *reported, *options, *files]


def _two_paths(pair: str) -> Iterator[Step]:
    """Yield steps of a job with two paths: each two PEs, or one, count as a machine."""
    for machines, (per_node, n) in MACHINES.items():
        variables = {**ON_GPUS, **SMALL, "PGAS_TRANSPORT": pair, "PGAS_PES_PER_NODE": per_node}
        for name, chapters in TWO_PATHS.items():
            for part, chosen in _parts(name):
                command = _pytest(n, _files(*chapters), "-m", "not slow", *chosen)
                yield Step(f"{pair} {machines} {name}{part}", command, 900, variables)


def _parts(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a chapter: the end of the step's name, and arguments of pytest."""
    parts = PARTS.get(name, 1)
    for part in (f"{number}/{parts}" for number in range(1, parts + 1)):
        yield (f" {part}", ["--part", part]) if parts > 1 else ("", [])


def _chapters(transport: str) -> Iterator[Step]:
    """Yield the steps of the conformance suite and tests/mpi: files at two PEs, some at three and four; messages of gigabytes."""
    variables = {**ON_GPUS, "PGAS_TRANSPORT": transport}
    files = _files()
    for file in files:
        chapter = Path(file).stem.removeprefix("test_")
        if file.startswith("tests/mpi") and (chapter in NOT_OVER_P2P if registry.get(transport).maps_peers else file not in NIC_TESTS):
            continue
        own = OWN_VARIABLES.get(chapter, SMALL)
        for part, chosen in _parts(chapter):
            yield Step(f"{transport} 2 {chapter}{part}", _pytest(2, [file], *chosen), 900, {**variables, **own})
    for n in (3, 4):
        for name, chapters in MORE_PES.items():
            yield Step(f"{transport} {n} {name}", _pytest(n, _files(*chapters)), 900, {**variables, **SMALL})
    gigabytes = _pytest(2, ["tests/conformance/test_rma.py"], "-k", "gigabytes")
    yield Step(f"{transport} 2 gigabytes", gigabytes, 300, {**variables, "PGAS_SYMMETRIC_SIZE": "5G"})


def _tests() -> Iterator[Step]:
    yield from _chapters("p2p")
    operands = _pytest(2, ["tests/conformance/test_operands.py"])
    yield Step("checks in kernels", operands, 600, {**ON_GPUS, "PGAS_DEBUG": "check"})


def _nic_tests() -> Iterator[Step]:
    for transport in registry.through_nics():
        yield from _chapters(transport)
    for pair in registry.pairs():
        yield from _two_paths(pair)


def _alone() -> Iterator[Step]:
    """Yield tests that need the GPU for themselves. Deaths come last: a dying client may end the MPS server."""
    yield from (
        Step(name, [sys.executable, *PYTEST, "-s", *files], 900, {**ON_GPUS, **variables})
        for name, files, variables in (
            ("the card's checks", CARD_TESTS, {}),
            ("the card's checks by DMA", CARD_TESTS[1:4], {"PGAS_ENGINE": "dma"}),
            ("hang reports", ["tests/job/test_hang_report.py"], {}),
            ("deaths", ["tests/job/test_faults_nic.py"], {}),
        )
    )


def _measurements(machine: str) -> Iterator[Step]:
    """Yield measurements without a NIC."""
    output = str(BASELINES / f"compile_time-{machine}.json")
    yield from compare.steps(MEASUREMENTS, machine, 200)
    # Six kernels are compiled, those with collectives in more than a minute each.
    yield Step("programs", [*_on(2), "-m", "pgas.perftests.programs", "--transport", "p2p"], 600)
    yield Step("compile_time", [sys.executable, str(Path(__file__).with_name("compile_time.py")), "--json", output], 100)
    yield Step("demo", [*_on(2), "-m", "pgas.perftests.demo"], 100)


def _nic_measurements(machine: str) -> Iterator[Step]:
    """Yield measurements over the software card; each CTA has a queue pair of its own."""
    yield from compare.steps(NIC_LATENCIES, machine, 200)
    for step in compare.steps(NIC_MEASUREMENTS, machine, 200):
        ctas = NIC_MEASUREMENTS[step.name].partition("-c ")[2].split()[0]
        yield Step(step.name, step.command, step.seconds, {"PGAS_IBGDA_NUM_RC_PER_PE": ctas, "PGAS_QP_DEPTH": "8192"})
    yield Step("soak", [*_on(2), "-m", "pgas.perftests.programs", "--soak", "60", "--transport", "ibgda"], 300, SOAK_QUEUES)


def _perform(steps: Sequence[Step], places: Sequence[Mapping[str, str]], end: float) -> dict[str, str]:
    """Run steps, one at a time in each place, with the variables of the place. Return passed, failed or left by name of step."""
    became: dict[str, str] = {}
    free: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def work(step: Step) -> None:
        place, began = free.get(), time.monotonic()
        try:
            if began < end:
                became[step.name] = _run(step, place, end)
        finally:
            free.put(place)

    # Only the executor joins threads: in Python 3.11 and 3.12 an interrupted Thread.join() marks its thread as ended (bpo-45274).
    with futures.ThreadPoolExecutor(len(places)) as executor:
        submitted = [executor.submit(work, step) for step in steps]
        try:
            for each in submitted:
                each.result()
        except BaseException:  # a signal
            executor.shutdown(wait=False, cancel_futures=True)
            while not all(each.done() for each in submitted):
                jobs.end_running()
                time.sleep(0.01)
            raise
    return {step.name: became.get(step.name, "left") for step in steps}


def _run(step: Step, variables: Mapping[str, str], end: float) -> str:
    """Run a step; print and return passed, failed or left."""
    began, path = time.monotonic(), LOGS / f"{re.sub('[ /]', '-', step.name)}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        passed = jobs.run(step.command, min(step.seconds, end - began), {**step.variables, **variables}, file, ROOT)
    became = "passed" if passed else "left" if time.monotonic() >= end else "failed"
    said = path.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = " ".join(said[-1:]) if passed else "\n".join([str(path), *said[-_SHOWN:]])
    print(f"{step.name}: {became} after {time.monotonic() - began:.0f} s: {shown}", flush=True)
    return became


def _share(steps: Sequence[Step], uuids: Sequence[str], at_once: int, end: float) -> dict[str, str]:
    """Run steps under MPS, at_once on each GPU. Then run failed ones again, alone: a client's fault ends all clients of its MPS server."""
    with contextlib.ExitStack() as daemons:
        became = _perform(steps, [{**daemons.enter_context(mps(uuid)), **_SHARING} for uuid in uuids] * at_once, end)
    if failed := [step for step in steps if became[step.name] == "failed"]:
        with mps(uuids[0]) as variables:
            became |= _perform(failed, [{**variables, **_SHARING}], end)
    return became


def main() -> int:
    """Run the chosen steps. Exit status: 1 if a step failed, 3 if none failed but time ran out."""
    outlive_reader()
    parser = Parser("check_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measurements only")
    parser.add_argument("--tests", action="store_true", help="tests only")
    parser.add_argument("--only", type=pattern, default="", metavar="REGEX", help="only steps whose name matches")
    parser.add_argument("--at-once", type=within(0, 64), default=0, metavar="N", help="number of tests at once on each GPU, under MPS")
    parser.add_argument("--seconds", type=positive, metavar="S", help="stop after this time")
    options = parser.parse_args()
    names, uuids = gpus(), gpus("uuid")
    if not names or len(uuids) < len(names) or shutil.which("mpirun") is None:
        print("check-gpu needs a GPU and an mpirun", file=sys.stderr)
        return 2
    machine, only = machine_name(names), options.only.pattern
    plan = [(places, [step for step in steps if options.only.search(step.name)]) for places, steps in _plan(machine, options)]
    plan = [(places, steps) for places, steps in plan if steps]
    if not plan:
        print(f"check-gpu: no step matches --only {only!r}", file=sys.stderr)
        return 2
    BASELINES.mkdir(exist_ok=True)
    if not only:
        shutil.rmtree(LOGS, ignore_errors=True)
    REPORT.unlink(missing_ok=True)
    end = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    became: dict[str, str] = {}
    with jobs.ended_by_signals():
        for places, steps in plan:
            if places == 0:
                became |= _share(steps, uuids, options.at_once, end)
            else:
                with mps() if len(names) < places else contextlib.nullcontext():
                    became |= _perform(steps, [{}], end)
    found = {kind: [name for name in became if became[name] == kind] for kind in ("passed", "failed", "left")}
    if REPORT.exists():
        complete = not (only or options.quick or found["failed"] or found["left"])
        _show_report(BASELINES / f"conformance-{machine}.txt" if complete else None)
    print(f"check-gpu on {machine}: " + ", ".join(f"{len(steps)} {kind}" for kind, steps in found.items()))
    for kind in ("failed", "left"):
        print(*(f"{kind}: {name}" for name in found[kind]), sep="\n", end="\n" if found[kind] else "")
    return 1 if found["failed"] else 3 if found["left"] else 0


def _plan(machine: str, options: argparse.Namespace) -> Iterator[tuple[int, Iterable[Step]]]:
    """Yield groups of chosen steps, each with the number of GPUs it needs without MPS (PEs and software card); 0: run them side by side."""
    if not options.tests:
        yield 2, _measurements(machine)
        yield 3, _nic_measurements(machine)
    if not options.quick:
        if options.at_once:
            yield 0, [*_tests(), *_nic_tests()]
        else:
            yield 4, _tests()
            yield 5, _nic_tests()
        yield 4, _alone()


def _show_report(path: Path | None) -> None:
    """Print the report of the conformance suite, and write it to a file if one is named."""
    shown = [sys.executable, "-m", "conformance.report", str(REPORT)], 60, {"PYTHONPATH": str(ROOT / "tests")}
    jobs.run(*shown, folder=ROOT)
    if path is not None:
        with path.open("wb") as file:
            file.write(f"# {shlex.join(['check_gpu', *sys.argv[1:]])}; commit {commit() or 'unknown'}; {now()}\n".encode())
            file.flush()  # another process writes the rest
            jobs.run(*shown, file, ROOT)


if __name__ == "__main__":
    sys.exit(main())
