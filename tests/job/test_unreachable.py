"""What cannot be reached any more: a machine behind a cut network, and a store whose process is stopped."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pgas.base import liveness

ROOT = Path(__file__).resolve().parents[2]

TIMEOUT_S = 2

#: Seconds within which every PE ends, as docs/launch.md promises, and some more for a busy machine and the launchers' own patience.
LIMIT_S = TIMEOUT_S + 10 + 10

#: The transport moves nothing, so that PEs on two machines need no NIC. PEs with odd numbers compute, the others wait for them.
PROGRAM = """
import os, time
from pgas.job.paths import topology
from pgas.transports import registry

class Mute:
    name, maps_peers, path, needs, simulated = "mute", False, "pgas.kernels.paths.p2p", frozenset(), ("silent", "")
    def constants(self, requested): return {}
    def why_not(self, device, port): return ""
    def segments(self, n_pes, constants, setting): return ()
    def connect(self, part, setting): return None

registry.register(Mute())
topology._over = lambda *_: "nothing"
import pgas

with pgas.init():
    print("begun as process", os.getpid(), flush=True)
    end = time.monotonic() + 100
    while pgas.my_pe() % 2 and time.monotonic() < end:
        sum(range(100_000))
        time.sleep(0.05)
    pgas.allgather_object(None)
"""


#: PEs that have not called pgas.init() yet.
BEFORE = "import time\nprint('begun', flush=True)\ntime.sleep(100)\n"


def command(folder, *options, text=PROGRAM):
    """Return the command that starts two PEs."""
    (folder / "program.py").write_text(text)
    return [sys.executable, "-m", "pgas.run", "-n", "2", *options, str(folder / "program.py")]


def environment():
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM", "PGAS"))}
    job = {"PGAS_TRANSPORT": "mute", "PGAS_TIMEOUT": f"{TIMEOUT_S}", "PGAS_SECRET": "of the two machines", "PGAS_SYMMETRIC_SIZE": "16M"}
    return {**inherited, **job, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1"}


#: Two network namespaces with a link between them. It is cut at the end of the other machine, so this one only misses its answers.
MACHINES = """
set -eu
ip link set lo up
unshare --net sleep 1000 & other=$!
first= second=
trap 'kill $other $first $second 2> /dev/null' EXIT
until [ $(readlink /proc/$other/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.05; done
there="nsenter --target $other --net"
ip link add here type veth peer name there netns $other
ip address add 10.0.0.1/24 dev here; ip link set here up
$there sh -c 'ip link set lo up; ip address add 10.0.0.2/24 dev there; ip link set there up'
FIRST > first 2>&1 & first=$!
$there SECOND > second 2>&1 & second=$!
until [ $(cat first second | grep -c begun) = 4 ]; do sleep 0.1; kill -0 $first $second; done
$there ip link set there down
date +%s > cut
set +e
wait $first; echo $? > status; wait $second; echo $? >> status
date +%s > over
"""


@pytest.mark.parametrize("text", [PROGRAM, pytest.param(BEFORE, marks=pytest.mark.slow)], ids=["in a job", "before init"])
def test_a_cut_network(tmp_path, text):
    """Between two machines: on both, PEs that wait and PEs that compute end, and say who is unreachable, and where."""
    if subprocess.run(["unshare", "--map-root-user", "--net", "true"], check=False).returncode:
        pytest.skip("capability missing: network namespaces")
    shared = ("--nnodes", "2", "--master", "10.0.0.1:29400", "--node-rank")
    first, second = (shlex.join(command(tmp_path, *shared, rank, text=text)) for rank in "01")
    script = MACHINES.replace("FIRST", first).replace("SECOND", second)
    subprocess.run(["unshare", "--map-root-user", "--net", "sh", "-c", script], cwd=tmp_path, env=environment(), timeout=200, check=False)
    here, there = ((tmp_path / name).read_text() for name in ("first", "second"))
    assert (tmp_path / "status").read_text().split() == ["1", "1"], here + there
    assert int((tmp_path / "over").read_text()) - int((tmp_path / "cut").read_text()) < LIMIT_S, here + there
    gone = r"(PE [23]|the launcher of node 1) \(process \d+ on \S+\) is unreachable at 10\.0\.0\.2( \(.+\)|: nothing has come .*)"
    assert re.search(rf"{gone}: the job cannot continue\n", here), here
    assert re.search(r"the store at 10\.0\.0\.1:29400 is unreachable(: nothing has come .*| \(.+\)): the job cannot continue\n", there), (
        there
    )


@pytest.mark.slow
def test_a_store_that_is_stopped(tmp_path):
    """PEs that wait and PEs that compute end, and the launcher passes on the reason when it continues."""
    launcher = subprocess.Popen(command(tmp_path), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        pids = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
        launcher.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        while not all(liveness.state(pid) == "ended" for pid in pids):
            assert time.monotonic() - began < LIMIT_S
            time.sleep(0.1)
        assert time.monotonic() - began > TIMEOUT_S
    finally:
        launcher.send_signal(signal.SIGCONT)
        _, said = launcher.communicate(timeout=60)
    why = rf"nothing has come from it for 2 s \(PGAS_TIMEOUT\); process {launcher.pid} on \S+, which serves it, is stopped"
    assert re.search(rf"the store at 127\.0\.0\.1:\d+ is unreachable: {why}", said), said
    assert launcher.returncode == 1
