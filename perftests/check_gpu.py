"""``make check-gpu``: the tests and measurements that need GPUs, on this machine, with the Python that is active.

Two PEs, on a GPU each if there are two. What shares a GPU does so under MPS, which is started here and ended again if it does not run:
two PEs on the only one, the NIC's kernel where no third is spare. Writes perftests/baselines/<test>-<gpus>.json. ``--quick`` leaves the
tests out, ``--tests`` the measurements.
"""

import argparse
import contextlib
import shutil
import sys
from collections.abc import Mapping

from pgas.perftests import compare
from pgas.perftests.jobs import BASELINES, ROOT, gpus, machine_name, mpirun, mps, run

#: Through the NIC that a kernel plays: scattered and neighbouring p, block puts; a queue pair a CTA.
NIC_MEASUREMENTS = {
    "shmem_p_bw-ibgda-8x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 8 -t 1024 -i 2 -b 64K -e 512K",
    "shmem_p_bw-ibgda-64x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -i 2 -b 512K -e 4M",
    "shmem_p_bw-ibgda-64x1024": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -b 512K -e 4M",
    "shmem_put_bw-ibgda-32x1024": "shmem_put_bw --transport ibgda -n 20 -w 5 -c 32 -t 1024 -b 1K -e 32M",
}

#: A hundred million random operations through that NIC; a quarter of them are atomics, of which a queue pair performs one at a time.
SOAK_QUEUES = {"PGAS_IBGDA_NUM_RC_PER_PE": "16", "PGAS_QP_DEPTH": "4096"}

#: What runs through the NIC.
NIC_TESTS = ["tests/conformance", *(f"tests/mpi/test_{name}.py" for name in ("nic", "register", "streams", "heap_growth"))]

#: What the conformance suite has shown on this machine.
REPORT = ROOT / "build" / "conformance-gpu.json"

#: What the card executes, checks and refuses, with the machine code that is measured, whose hash they print.
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

#: What tests are run with: arguments of Python, the report of the conformance suite, variables.
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
REPORTED = ["--conformance-report", str(REPORT)]
ON_GPUS = {"NUMBA_ENABLE_CUDASIM": "0"}


def _two() -> list[str]:
    return [*mpirun(2), sys.executable]


def _failing(steps: Mapping[str, tuple[list[str], int, Mapping[str, str]]]) -> list[str]:
    """Run commands, each for so many seconds at most and with variables of its own; return the names of those that failed."""
    return [name for name, (command, seconds, variables) in steps.items() if not run(command, seconds, **variables)]


def _tests() -> list[str]:
    suite = [*_two(), *PYTEST, *REPORTED]
    of_gigabytes = [*suite, "tests/conformance/test_c_rma.py", "-k", "gigabytes"]
    return _failing(
        {
            "conformance": ([*suite, "tests/conformance", "tests/mpi"], 1800, ON_GPUS),
            "messages of gigabytes": (of_gigabytes, 300, {**ON_GPUS, "PGAS_SYMMETRIC_SIZE": "5G"}),
            "checks in kernels": ([*suite, "tests/conformance/test_c_operands.py"], 300, {**ON_GPUS, "PGAS_DEBUG": "check"}),
            "hang reports": ([sys.executable, *PYTEST, "tests/test_hang_report.py"], 600, ON_GPUS),
        }
    )


def _nic_tests() -> list[str]:
    suite = [*_two(), *PYTEST, *REPORTED, *NIC_TESTS]
    chapters = {f"conformance over {t}": (suite, 1800, {**ON_GPUS, "PGAS_TRANSPORT": t}) for t in ("ibgda", "ibrc")}
    return _failing({**chapters, "the card's checks": ([sys.executable, *PYTEST, "-s", *CARD_TESTS], 300, ON_GPUS)})


def _measurements(machine: str) -> list[str]:
    """What needs no NIC."""
    output = str(BASELINES / f"compile_time-{machine}.json")
    return compare.measure(MEASUREMENTS, machine, 200) + _failing(
        {
            "programs": ([*_two(), "-m", "pgas.perftests.programs", "--transport", "p2p"], 300, {}),
            "compile_time": ([sys.executable, "-m", "pgas.perftests.compile_time", "--json", output], 100, {}),
            "demo": ([*_two(), "-m", "pgas.perftests.demo"], 100, {}),
        }
    )


def _nic_measurements(machine: str) -> list[str]:
    """What needs one; each CTA has a queue pair of its own."""
    steps = {}
    for name, line in NIC_MEASUREMENTS.items():
        test, *flags = line.split()
        queues = {"PGAS_IBGDA_NUM_RC_PER_PE": flags[flags.index("-c") + 1], "PGAS_QP_DEPTH": "8192"}
        output = str(BASELINES / f"{name}-{machine}.json")
        steps[name] = [*_two(), f"perftests/{test}.py", *flags, "--json", output], 200, queues
    steps["soak"] = [*_two(), "-m", "pgas.perftests.soak", "--ops", "1e8", "--transport", "ibgda"], 300, SOAK_QUEUES
    return compare.measure(NIC_LATENCIES, machine, 200) + _failing(steps)


def main() -> int:
    """Run everything, report what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measurements only")
    parser.add_argument("--tests", action="store_true", help="tests only")
    options = parser.parse_args()
    names = gpus()
    if not names or shutil.which("mpirun") is None:
        print("check-gpu needs a GPU and an mpirun", file=sys.stderr)
        return 2
    machine = machine_name(names)
    BASELINES.mkdir(exist_ok=True)
    failed = []
    REPORT.unlink(missing_ok=True)
    with mps() if len(names) == 1 else contextlib.nullcontext():
        failed += [] if options.quick else _tests()
        failed += [] if options.tests else _measurements(machine)
    with mps() if len(names) < 3 else contextlib.nullcontext():  # the NIC's kernel takes a spare GPU, or shares PE 0's
        failed += [] if options.quick else _nic_tests()
        failed += [] if options.tests else _nic_measurements(machine)
        if not options.quick:  # last: under MPS the death of a client may take the server with it
            failed += _failing({"deaths": ([sys.executable, *PYTEST, "tests/test_faults_nic.py"], 900, ON_GPUS)})
    if REPORT.exists():
        run([sys.executable, "-m", "conformance.report", str(REPORT)], 60, PYTHONPATH=str(ROOT / "tests"))
    print(f"check-gpu on {machine}:", f"FAILED: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
