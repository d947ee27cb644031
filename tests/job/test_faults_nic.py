"""Processes that die or stop while kernels use a NIC: every PE names the process within seconds, and nothing is left behind.

The programs run in the simulator, or on GPUs under NUMBA_ENABLE_CUDASIM=0 (make check-gpu; on one GPU under MPS, where the death of one
process causes CUDA errors in the others). PGAS_ENGINE chooses the engine of the software card.
"""

import os
import re
import signal
import time

import jobs
import pytest
from jobs import ON_GPUS, also, holds

over_both = pytest.mark.parametrize("transport", ["ibgda", also("ibrc")])

#: Seconds until a job's kernels run. On a GPU its processes start CUDA and compile; the first card also compiles its engine.
START = 120

#: Seconds until every PE has printed its error (4 to 8 on an idle machine), and until the job has ended.
TOLD, OVER = 25, 60

#: A shell around each PE hides its death from the launcher, which would end the other PEs, until these have printed their errors. pgas.run
#: needs the exit status then; mpirun ends the job when one of the others fails.
IN_THE_DARK = ("/bin/sh", "-c", f'"$0" "$@"; status=$?; sleep {8 if jobs.BY_RUN else 60}; exit $status')

#: Blocks of the load put and call quiet; store and call a fetching atomic; wait for a signal that never comes.
INIT = """
from pgas.job import runtime

pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
nic = runtime.current().nic
right = (me + 1) % n
dest, source, word = pgas.zeros(4096, np.int32), pgas.zeros(4096, np.int32), pgas.zeros(2, np.uint64)

@pgas.jit
def load(dest, source, word, pe, rounds):
    for _ in range(rounds):
        if cuda.blockIdx.x == 0:
            pgas.put_nbi_block(dest, source, pe)
            pgas.quiet()
        elif cuda.blockIdx.x == 1:
            pgas.p(dest, 2 * cuda.threadIdx.x, 1, pe)
            pgas.atomic_fetch_add(word, 0, 1, pe)
        else:
            pgas.signal_wait_until(word, 1, pgas.GE, 1)

@pgas.jit
def put(dest, source, pe):
    pgas.put_nbi_block(dest, source, pe)

def run(blocks, rounds):
    load[blocks, 32](dest, source, word, right, rounds)
    pgas.synchronize()

run(2, 1)
pgas.barrier_all()
"""

#: Both PEs run endless kernels, and each has time to print the error that ended its own.
ENDLESS = "here()\nattempt(run, 3, 1 << 40)\ntime.sleep(2)\nsys.exit(1)\n"


class NICJobs(jobs.Jobs):
    """Jobs whose programs begin with INIT."""

    def start(self, text, npes=2, **options):
        options = {"PGAS_TRANSPORT": "ibgda", "PGAS_ENGINE": os.environ.get("PGAS_ENGINE", "auto"), **options}
        return super().start(INIT + text, npes, **options)

    def __call__(self, text, npes=2, seconds=START + OVER, **options):
        return super().__call__(text, npes, seconds, **options)

    def strike(self, text, number, victim, **options):
        """When all PEs are ready, send a signal to a PE (by number), the card or mpirun. Return the ended job, the time, and the pid."""
        running = self.start(text, **options)
        pes, card = running.wait(START)
        time.sleep(1)
        pid = {"card": card, "mpirun": running.process.pid}[victim] if isinstance(victim, str) else pes[victim]
        seconds = running.seconds()
        os.kill(pid, number)
        ended = running.end(OVER + START)
        return ended, ended.seconds - seconds, pid


@pytest.fixture
def job(tmp_path):
    return NICJobs(tmp_path, ON_GPUS)


mps_server = jobs.mps_server


# ------------------------------------------------------------------------------------------------------------------------- deaths


def killed(number):
    """Return the text about a process killed by a signal, whose parent may have reaped it already."""
    return rf"(was killed by signal {number:d}|ended without pgas.finalize\(\)): the job cannot continue"


@pytest.mark.parametrize(("transport", "number"), [("ibgda", signal.SIGKILL), also("ibgda", signal.SIGTERM), also("ibrc", signal.SIGKILL)])
def test_card_that_dies(job, transport, number):
    ended, seconds, pid = job.strike(ENDLESS, number, "card", PGAS_TRANSPORT=transport)
    for pe in (0, 1):
        said = ended.only_line(pe)
        assert said.startswith("PgasError: "), ended
        assert re.search(rf"the software NIC \(process {pid}\) {killed(number)}", said), ended
    assert ended.status != 0, ended
    assert seconds < TOLD, ended


@pytest.mark.parametrize(
    ("transport", "victim"), [("ibgda", 0), *(also(*case) for case in (("p2p", 0), ("p2p", 1), ("ibgda", 1), ("ibrc", 0), ("ibrc", 1)))]
)
def test_pe_that_dies(job, transport, victim):
    """The error names the dead PE; it is neither the NIC's, whose peer no longer answers, nor CUDA's. PE 0's death ends the card, too."""
    ended, seconds, pid = job.strike(ENDLESS, signal.SIGKILL, victim, PGAS_TRANSPORT=transport, wrapper=IN_THE_DARK)
    died = rf"PE {victim} \(process {pid}\) {killed(signal.SIGKILL)}"
    if transport == "p2p":  # stores never wait, so the kernel cannot be interrupted; it soon ends with its process
        assert re.search(died, ended.err), ended
    else:
        said = ended.only_line(1 - victim)
        assert said.startswith("PgasError: "), ended
        assert re.search(died, said), ended
    assert ended.status != 0, ended
    assert seconds < TOLD, ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "number"),
    [("ibgda", signal.SIGKILL), ("ibgda", signal.SIGTERM), ("ibgda", signal.SIGINT), ("ibrc", signal.SIGKILL), ("p2p", signal.SIGKILL)],
)
def test_mpirun_that_is_ended(job, transport, number):
    """SIGINT is Ctrl-C at the terminal. Nobody reads the PEs' output after that."""
    ended, seconds, _ = job.strike(ENDLESS, number, "mpirun", PGAS_TRANSPORT=transport)
    assert ended.status != 0, ended
    assert seconds < TOLD, ended


@pytest.mark.slow
def test_proxy_thread_that_ends(job):
    """Its PE prints the error after the waiting kernel has ended, and the job ends."""
    text = """
from pgas.transports.ibrc import tables
here()
if me == 0:
    later(1, nic._own.__setitem__, tables.STOP // 8, 1)
    attempt(run, 3, 1)
    say("told at", time.time())
    sys.exit(1)
run(3, 1)
"""
    ended = job(text, PGAS_TRANSPORT="ibrc")
    what = "the proxy thread of PE 0 ended (it was not stopped): requests of kernels are no longer sent"
    assert what in ended.only_line(0), ended
    assert ended.status != 0, ended
    assert time.time() - float(re.search(r"told at (\S+)", ended.out)[1]) < TOLD, ended


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise RuntimeError('boom')", "pgas: PE 1 failed (RuntimeError), ending the job"),
        ("sys.exit(3)", "pgas: PE 1: the program ended with exit status 3, and the job did not within 3 s"),
    ],
)
def test_pe_that_ends_while_another_is_in_a_kernel(job, end, said):
    text = f"here()\nif me == 0:\n    run(3, 1 << 40)\ntime.sleep(1)\nsay('ends at', time.time())\n{end}\n"
    ended = job(text)
    holds(ended, said)
    assert time.time() - float(re.search(r"ends at (\S+)", ended.out)[1]) < TOLD, ended


# -------------------------------------------------------------------------------------------------------------------- standing still


PAUSE = "if me == 0:\n    nic.adapter.pause()\npgas.barrier_all()\n"


@pytest.mark.slow
@over_both
def test_engine_that_is_paused(job, transport):
    """Waits of kernels end after PGAS_TIMEOUT."""
    text = "attempt(run, 1, 1)\nattempt(pgas.barrier_all)\nsys.exit(1)\n"
    ended = job(PAUSE + text, PGAS_TRANSPORT=transport, PGAS_TIMEOUT="2")
    what = {"ibgda": r"queue pair \d to PE {} \(QP 0x[0-9a-f]+\)", "ibrc": "the proxy thread's ring"}[transport]
    for pe in (0, 1):
        said = ended.lines(pe)
        assert said[0].startswith("DeviceError: "), ended
        waited = rf"PE {pe}, block 0, thread \d+: quiet waited 2 s \(PGAS_TIMEOUT\) for index \d+ of {what.format(1 - pe)}"
        assert re.search(waited, said[0]), ended
    assert ended.status != 0, ended


@pytest.mark.slow
@over_both
def test_engine_that_is_paused_before_a_barrier(job, transport):
    """Waits of the host end after PGAS_TIMEOUT, too."""
    text = "put[1, 32](dest, source, right)\nattempt(pgas.barrier_all)\nsys.exit(1)\n"
    ended = job(PAUSE + text, PGAS_TRANSPORT=transport, PGAS_TIMEOUT="2")
    what = {"ibgda": r"queue pair 1 to PE \d \(QP 0x[0-9a-f]+\)", "ibrc": "the proxy thread"}[transport]
    assert re.search(rf"PE \d: TransportError: {what} completed \d+ of \d+ \w+ in 2 s \(PGAS_TIMEOUT\)", ended.out), ended
    assert ended.status != 0, ended


@pytest.mark.slow
def test_engine_that_stops_under_load(job):
    ended = job("attempt(run, 2, 3000)\ntime.sleep(4)\nsys.exit(1)\n", PGAS_TIMEOUT="2", PGAS_SOFTHCA_FAULTS="stop=200")
    for pe in (0, 1):
        said = ended.only_line(pe)
        waited = rf"PE {pe}, block [01], thread \d+: \w+ waited 2 s \(PGAS_TIMEOUT\) for index \d+ of queue pair \d to PE {1 - pe}"
        assert re.search(waited, said), ended
    assert ended.status != 0, ended


# -------------------------------------------------------------------------------------------------------------------------- two jobs

SIDE_BY_SIDE = """
import pathlib

folder = pathlib.Path(sys.argv[0]).parent

def with_the_other_job(step):
    (folder.parent / f"{step}-{folder.name}-{me}").touch()
    while len(list(folder.parent.glob(f"{step}-*"))) < 4:
        time.sleep(0.01)

wrong = 0
with_the_other_job("begin")
for i in range(20):
    source.copy_to_device(np.full(4096, ord(folder.name) * 1000 + me * 100 + i, np.int32))
    put[1, 64](dest, source, right)
    pgas.barrier_all()
    wrong += np.count_nonzero(dest.copy_to_host() != ord(folder.name) * 1000 + right * 100 + i)
    pgas.barrier_all()
with_the_other_job("end")
say("wrong", wrong, "wqes", nic.counts()["wqes"])
for array in (word, source, dest):
    pgas.free(array)
pgas.finalize()
"""


@pytest.mark.slow
def test_two_jobs_at_the_same_time(tmp_path):
    """The same PEs, sizes and addresses; each job has its own card, and sees only its own data."""
    running = []
    for name, transport in (("a", "ibgda"), ("b", "ibrc")):
        (tmp_path / name).mkdir()
        running.append(NICJobs(tmp_path / name, ON_GPUS).start(SIDE_BY_SIDE, PGAS_TRANSPORT=transport))
    ended = [one.end(2 * START) for one in running]
    for one in ended:
        assert (one.status, one.out.count("wrong 0 wqes ")) == (0, 2), one
        assert len(set(re.findall(r"wqes \d+", one.out))) == 1, one
    assert running[0].card() != running[1].card()


@pytest.mark.skipif(not ON_GPUS, reason="capability missing: a GPU")
def test_pe_and_engine_on_one_gpu_without_mps(job, tmp_path):
    """The job works, slowly, and prints a warning."""
    text = "run(2, 3)\npgas.barrier_all()\nfor array in (word, source, dest):\n    pgas.free(array)\npgas.finalize()\nsay('done')\n"
    ended = job(text, npes=1, CUDA_VISIBLE_DEVICES="0", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "none"))
    assert (ended.status, ended.out) == (0, "done\n"), ended
    assert ended.err.count("PgasWarning: PE 0 and the engine of the software NIC share one GPU") == 1, ended
    assert "nvidia-cuda-mps-control -d" in ended.err, ended
