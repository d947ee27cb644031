"""``make check-gpu``: the tests and measurements that need GPUs, on this machine, with the Python that is active.

A list of commands, each under a name: pytest, or a perf test. Two PEs, for some tests three and four, have a GPU each if there are enough;
otherwise they share one under MPS, which is started here unless it runs. build/check-gpu/ has what each command said, perftests/baselines
the rows of the perf tests and, if all has passed, what the conformance suite has shown, conformance-<gpus>.txt.

``--quick`` leaves the tests out, ``--tests`` the measurements. ``--only REGEX`` performs the steps in whose name it is found (``ibrc 3``,
``soak``). ``--at-once 4`` performs four tests at once on each GPU, all PEs of one on the same: compiling kernels takes most of their time.
``--seconds`` ends after that time, and says what is left.
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

from pgas.perftests import compare, jobs
from pgas.perftests.jobs import BASELINES, ROOT, Step, gpus, machine_name, mpirun, mps
from pgas.perftests.report import commit, now

#: Through the NIC that a kernel plays: scattered and neighbouring p, block puts; a queue pair a CTA.
NIC_MEASUREMENTS = {
    "shmem_p_bw-ibgda-8x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 8 -t 1024 -i 2 -b 64K -e 512K",
    "shmem_p_bw-ibgda-64x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -i 2 -b 512K -e 4M",
    "shmem_p_bw-ibgda-64x1024": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -b 512K -e 4M",
    "shmem_put_bw-ibgda-32x1024": "shmem_put_bw --transport ibgda -n 20 -w 5 -c 32 -t 1024 -b 1K -e 32M",
}

#: Of the soak test through that NIC: a queue pair performs its atomics one at a time.
SOAK_QUEUES = {"PGAS_IBGDA_NUM_RC_PER_PE": "16", "PGAS_QP_DEPTH": "4096"}

#: What of tests/mpi runs through the NIC.
NIC_TESTS = tuple(f"tests/mpi/test_{name}.py" for name in ("nic", "requests", "register", "reset", "streams", "heap_growth"))

#: What of tests/mpi needs a NIC or the simulator.
NOT_OF_P2P = ("nic", "requests", "weak")

#: What runs at three and four PEs, by the name of its step.
OF_3 = {"d to g": ("d_", "e_programs", "f_", "g_"), "atomics": ("e_atomics",)}

#: Parts of the chapters that would end last by far: each test compiles kernels.
PARTS = {"b_heap": 2, "c_rma": 6, "c_strided": 4, "e_atomics": 4, "l_python": 2, "streams": 3}

#: Variables of most chapters, as many PEs share a GPU; and of chapters that need a larger heap or more time.
SMALL = {"PGAS_SYMMETRIC_SIZE": "512M"}
OWN_VARIABLES = {"b_heap": {}, "c_rma": {}, "heap_growth": {}, "programs": {**SMALL, "TEST_TIMEOUT": "600"}}

#: What the conformance suite has shown on this machine.
REPORT = ROOT / "build" / "conformance-gpu.json"

#: Tests of the software card on a GPU; they print a hash of its machine code.
CARD_TESTS = [f"tests/test_softhca_{name}.py" for name in ("rig", "wqes", "errors", "atomics", "states", "faults", "replay")]

#: The flags of NVSHMEM's figures that ours are compared with (compare.py), both ways, and plain stores.
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

#: Latencies through that NIC.
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

#: How tests are run: arguments of Python, the report of the conformance suite, variables.
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
REPORTED = ["--conformance-report", str(REPORT)]
ON_GPUS = {"NUMBA_ENABLE_CUDASIM": "0"}

#: What each step said.
LOGS = ROOT / "build" / "check-gpu"

#: Lines shown of what a step said that failed beside others.
_SHOWN = 40

#: Variables of steps that share a GPU: each software card takes a part of it, not a third.
_SHARING = {"PGAS_SOFTHCA_SMS": "8", "PGAS_SOFTHCA_DEVICE": ""}


def _on(n: int) -> list[str]:
    return [*mpirun(n), sys.executable]


def _chapters(transport: str) -> Iterator[Step]:
    """The conformance suite and tests/mpi: at two PEs a file or part of one a step; at three and four PEs; messages of gigabytes."""
    variables = {**ON_GPUS, "PGAS_TRANSPORT": transport}
    files = sorted(str(path.relative_to(ROOT)) for folder in ("conformance", "mpi") for path in (ROOT / "tests" / folder).glob("test_*.py"))
    for file in files:
        chapter = Path(file).stem.removeprefix("test_")
        if file.startswith("tests/mpi") and (chapter in NOT_OF_P2P if transport == "p2p" else file not in NIC_TESTS):
            continue
        own = OWN_VARIABLES.get(chapter, SMALL)
        reported = REPORTED if file.startswith("tests/conformance") else []
        parts = PARTS.get(chapter, 1)
        for part in (f"{number}/{parts}" for number in range(1, parts + 1)):
            name, chosen = f"{transport} 2 {chapter}", ["--part", part] if parts > 1 else []
            yield Step(f"{name} {part}" if chosen else name, [*_on(2), *PYTEST, *reported, *chosen, file], 900, {**variables, **own})
    for n in (3, 4):
        for name, chapters in OF_3.items():
            chosen = [file for file in files if Path(file).name.startswith(tuple(f"test_{chapter}" for chapter in chapters))]
            yield Step(f"{transport} {n} {name}", [*_on(n), *PYTEST, *REPORTED, *chosen], 900, {**variables, **SMALL})
    of_gigabytes = [*_on(2), *PYTEST, *REPORTED, "tests/conformance/test_c_rma.py", "-k", "gigabytes"]
    yield Step(f"{transport} 2 gigabytes", of_gigabytes, 300, {**variables, "PGAS_SYMMETRIC_SIZE": "5G"})


def _tests() -> Iterator[Step]:
    yield from _chapters("p2p")
    operands = [*_on(2), *PYTEST, *REPORTED, "tests/conformance/test_c_operands.py"]
    yield Step("checks in kernels", operands, 600, {**ON_GPUS, "PGAS_DEBUG": "check"})


def _nic_tests() -> Iterator[Step]:
    for transport in ("ibgda", "ibrc"):
        yield from _chapters(transport)


def _alone() -> Iterator[Step]:
    """Tests that need the GPU for themselves. Deaths last: a client may take the MPS server with it."""
    yield from (
        Step(name, [sys.executable, *PYTEST, "-s", *files], 900, ON_GPUS)
        for name, files in (
            ("the card's checks", CARD_TESTS),
            ("hang reports", ["tests/test_hang_report.py"]),
            ("deaths", ["tests/test_faults_nic.py"]),
        )
    )


def _measurements(machine: str) -> Iterator[Step]:
    """Measurements without a NIC."""
    output = str(BASELINES / f"compile_time-{machine}.json")
    yield from compare.steps(MEASUREMENTS, machine, 200)
    yield Step("programs", [*_on(2), "-m", "pgas.perftests.programs", "--transport", "p2p"], 300)
    yield Step("compile_time", [sys.executable, "-m", "pgas.perftests.compile_time", "--json", output], 100)
    yield Step("demo", [*_on(2), "-m", "pgas.perftests.demo"], 100)


def _nic_measurements(machine: str) -> Iterator[Step]:
    """Measurements through a NIC; each CTA has a queue pair of its own."""
    yield from compare.steps(NIC_LATENCIES, machine, 200)
    for step in compare.steps(NIC_MEASUREMENTS, machine, 200):
        ctas = NIC_MEASUREMENTS[step.name].partition("-c ")[2].split()[0]
        yield Step(step.name, step.command, step.seconds, {"PGAS_IBGDA_NUM_RC_PER_PE": ctas, "PGAS_QP_DEPTH": "8192"})
    yield Step("soak", [*_on(2), "-m", "pgas.perftests.programs", "--soak", "60", "--transport", "ibgda"], 300, SOAK_QUEUES)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError(text)
    return number


def _perform(steps: Sequence[Step], places: Sequence[Mapping[str, str]], end: float) -> dict[str, str]:
    """Perform steps, as many at once as there are places, each with the variables of its place; return what became of each."""
    became: dict[str, str] = {}
    free: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def work(step: Step) -> None:
        place, began = free.get(), time.monotonic()
        try:
            if began < end:
                became[step.name] = _performed(step, place, end)
        finally:
            free.put(place)

    # An interrupted Thread.join() takes its thread for ended in Python 3.11 and 3.12 (bpo-45274): only the executor joins.
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


def _performed(step: Step, variables: Mapping[str, str], end: float) -> str:
    """Run a step; print and return what became of it."""
    began, path = time.monotonic(), LOGS / f"{re.sub('[ /]', '-', step.name)}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        passed = jobs.run(step.command, min(step.seconds, end - began), {**step.variables, **variables}, file)
    became = "passed" if passed else "left" if time.monotonic() >= end else "failed"
    said = path.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = " ".join(said[-1:]) if passed else "\n".join([str(path), *said[-_SHOWN:]])
    print(f"{step.name}: {became} after {time.monotonic() - began:.0f} s: {shown}", flush=True)
    return became


def _share(steps: Sequence[Step], uuids: Sequence[str], at_once: int, end: float) -> dict[str, str]:
    """Perform steps, so many at once on each GPU under MPS, and those that fail once more, one by one.

    Under MPS the fault of one client ends all that share its server.
    """
    with contextlib.ExitStack() as daemons:
        became = _perform(steps, [{**daemons.enter_context(mps(uuid)), **_SHARING} for uuid in uuids] * at_once, end)
    if failed := [step for step in steps if became[step.name] == "failed"]:
        with mps(uuids[0]) as variables:
            became |= _perform(failed, [{**variables, **_SHARING}], end)
    return became


def main() -> int:
    """Run what is chosen; the exit status is 1 if something failed, 3 if only time was too short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measurements only")
    parser.add_argument("--tests", action="store_true", help="tests only")
    parser.add_argument("--only", type=_pattern, default="", metavar="REGEX", help="the steps in whose name this is found")
    parser.add_argument("--at-once", type=_count, default=0, metavar="N", help="tests at once on each GPU, under MPS")
    parser.add_argument("--seconds", type=float, help="end after this time")
    options = parser.parse_args()
    names, uuids = gpus(), gpus("uuid")
    if not names or len(uuids) < len(names) or shutil.which("mpirun") is None:
        print("check-gpu needs a GPU and an mpirun", file=sys.stderr)
        return 2
    machine, only = machine_name(names), options.only.pattern
    plan = [(places, [step for step in steps if options.only.search(step.name)]) for places, steps in _plan(machine, options)]
    plan = [(places, steps) for places, steps in plan if steps]
    if not plan:
        print(f"check-gpu: --only {only!r} is found in the name of no step", file=sys.stderr)
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
    """What is chosen, in order: places that its PEs and the NIC's kernel take, 0 for what runs side by side, and steps."""
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
    """Print what the conformance suite has shown, and keep it in a file if one is named."""
    shown = [sys.executable, "-m", "conformance.report", str(REPORT)], 60, {"PYTHONPATH": str(ROOT / "tests")}
    jobs.run(*shown)
    if path is not None:
        with path.open("wb") as file:
            file.write(f"# {shlex.join(['check_gpu', *sys.argv[1:]])}; commit {commit() or 'unknown'}; {now()}\n".encode())
            file.flush()  # what follows is another process's
            jobs.run(*shown, file)


if __name__ == "__main__":
    sys.exit(main())
