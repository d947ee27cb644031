"""``make check-gpu``: the tests and measurements that need GPUs, on this machine, with the Python that is active.

Two GPUs: one PE on each. One GPU: two PEs under MPS, which is started here and ended again if it does not run. Writes
perftests/baselines/<test>-<gpus>.json. ``--quick`` leaves the tests out, ``--tests`` the measurements.
"""

import argparse
import contextlib
import shutil
import sys

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
NIC_TESTS = ["tests/conformance", *(f"tests/mpi/test_{name}.py" for name in ("nic", "register", "streams"))]

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
    count = min(len(names), 2)
    machine = machine_name(names)
    BASELINES.mkdir(exist_ok=True)
    failed = []
    shared = count == 1 or len(names) > 2  # a GPU that the NIC's kernel may use: PE 0's under MPS, or a spare one
    if not shared:
        print("left out: all that needs a NIC, as its kernel needs a spare GPU, or one GPU alone under MPS", flush=True)
    with mps() if count == 1 else contextlib.nullcontext():
        two = [*mpirun(2), sys.executable]
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
        reported = ["--conformance-report", str(REPORT)]
        REPORT.unlink(missing_ok=True)
        if not options.quick:
            if not run([*two, *pytest, *reported, "tests/conformance", "tests/mpi"], 900, NUMBA_ENABLE_CUDASIM="0"):
                failed.append("conformance")
            big = [*two, *pytest, *reported, "tests/conformance/test_c_rma.py", "-k", "gigabytes"]
            if not run(big, 300, NUMBA_ENABLE_CUDASIM="0", PGAS_SYMMETRIC_SIZE="5G"):
                failed.append("messages of gigabytes")
            operands = [*two, *pytest, *reported, "tests/conformance/test_c_operands.py"]
            if not run(operands, 300, NUMBA_ENABLE_CUDASIM="0", PGAS_DEBUG="check"):
                failed.append("checks in kernels")
            for transport in ("ibgda", "ibrc") if shared else ():
                if not run([*two, *pytest, *reported, *NIC_TESTS], 900, NUMBA_ENABLE_CUDASIM="0", PGAS_TRANSPORT=transport):
                    failed.append(f"conformance over {transport}")
            if not run([sys.executable, *pytest, "-s", *CARD_TESTS], 300, NUMBA_ENABLE_CUDASIM="0"):
                failed.append("the card's checks")
        if not options.tests:
            failed += compare.measure({**MEASUREMENTS, **(NIC_LATENCIES if shared else {})}, machine, 200)
            for name, line in NIC_MEASUREMENTS.items() if shared else ():
                test, *flags = line.split()
                output = str(BASELINES / f"{name}-{machine}.json")
                queues = {"PGAS_IBGDA_NUM_RC_PER_PE": flags[flags.index("-c") + 1], "PGAS_QP_DEPTH": "8192"}
                if not run([*two, f"perftests/{test}.py", *flags, "--json", output], 200, **queues):
                    failed.append(name)
            if shared and not run([*two, "-m", "pgas.perftests.soak", "--ops", "1e8", "--transport", "ibgda"], 300, **SOAK_QUEUES):
                failed.append("soak")
            if not run([*two, "-m", "pgas.perftests.programs", "--transport", "p2p"], 300):
                failed.append("programs")
            output = str(BASELINES / f"compile_time-{machine}.json")
            if not run([sys.executable, "-m", "pgas.perftests.compile_time", "--json", output], 100):
                failed.append("compile_time")
            if not run([*two, "-m", "pgas.perftests.demo"], 100):
                failed.append("demo")
        if shared and not options.quick:  # last: under MPS the death of a client may take the server with it
            if not run([sys.executable, *pytest, "tests/test_faults_nic.py"], 900, NUMBA_ENABLE_CUDASIM="0"):
                failed.append("deaths")
    if REPORT.exists():
        run([sys.executable, "-m", "conformance.report", str(REPORT)], 60, PYTHONPATH=str(ROOT / "tests"))
    print(f"check-gpu on {machine}:", f"FAILED: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
