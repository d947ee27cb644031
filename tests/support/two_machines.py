"""Two machines on one: two network namespaces, joined by a bridge in a third one that can lose, repeat, and damage RoCE packets."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Addresses of the machines, over IPv4 and IPv6.
ADDRESSES = {4: ("10.0.0.1", "10.0.0.2"), 6: ("fd00::1", "fd00::2")}

#: Script of the namespace of the bridge; the machines are those of two processes that sleep.
_SCRIPT = """
set -eu
machine() {
  unshare --net sleep 1000 & pid=$!
  until [ $(readlink /proc/$pid/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.05; done
}
machine; a=$pid; machine; b=$pid
bridge= first= second=
trap 'kill $a $b $bridge $first $second 2> /dev/null' EXIT
enter() { ip link add end$1 mtu MTU type veth peer name wire mtu MTU netns $2; ip link set end$1 up; nsenter --target $2 --net sh -c "
  ip link set lo up; ip address add $3/24 dev wire ${4-}; ip link set wire up"; }
enter 1 $a FIRST_ADDRESS OPTIONS
enter 2 $b SECOND_ADDRESS OPTIONS
BRIDGE > bridge 2>&1 & bridge=$!
until grep -q ready bridge; do sleep 0.05; done
nsenter --target $a --net sh -c FIRST_COMMAND > first 2>&1 & first=$!
nsenter --target $b --net sh -c SECOND_COMMAND > second 2>&1 & second=$!
HOOK
set +e
wait $first; echo $? > status; first=
wait $second; echo $? >> status; second=
kill $bridge; wait $bridge; bridge=
"""

#: In place of the bridge, a router between interfaces with an MTU of 9,000, whose route to the second machine has a smaller one.
_ROUTER = """
set -eu
ip link set lo up
ip address add 192.168.0.1/32 dev lo
ip route add 10.0.0.1 dev end1
ip route add 10.0.0.2 dev end2 mtu lock ROUTE
for name in ip_forward conf/all/proxy_arp conf/end1/proxy_arp_pvlan conf/end2/proxy_arp_pvlan; do echo 1 > /proc/sys/net/ipv4/$name; done
nsenter --target $1 --net ip route add default dev wire
nsenter --target $2 --net ip route add default dev wire
echo ready
exec sleep 1000
"""


class Outcome(NamedTuple):
    """What two launchers did."""

    statuses: list[int]
    outputs: tuple[str, str]
    bridge: dict[str, int]  #: packets, lost, repeated, reordered, damaged


def run(folder, *program, n=1, faults="", hook="true", timeout_s=600, version=4, route_mtu=0, **variables):
    """Run a job of n PEs on each of two machines, and return its outcome.

    Args:
        folder: an empty folder.
        program: arguments of pgas.run.
        faults: arguments of lossy_bridge.py.
        hook: commands of the shell between the start of the launchers and their end; $bridge is the bridge's process.
        version: version of IP.
        route_mtu: if not 0, the MTU of the route to the second machine, through a router instead of the bridge.
        variables: environment variables of both launchers.
    """
    if subprocess.run(["unshare", "--map-root-user", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("capability missing: network namespaces")
    first, second = ADDRESSES[version]
    master = f"{first}:29400" if version == 4 else f"[{first}]:29400"
    shared = [sys.executable, "-m", "pgas.run", "-n", str(n), "--nnodes", "2", "--master", master, "--node-rank"]
    commands = [shlex.quote(shlex.join([*shared, rank, *map(str, program)])) for rank in "01"]
    bridge = shlex.join([sys.executable, str(ROOT / "tests/support/lossy_bridge.py"), "end1", "end2", *faults.split()])
    if route_mtu:
        bridge = f"bash -c {shlex.quote(_ROUTER.replace('ROUTE', str(route_mtu)))} router $a $b"
    script = _SCRIPT.replace("OPTIONS", "nodad" if version == 6 else "").replace("MTU", "9000" if route_mtu else "1500")
    for name, text in {
        "FIRST_ADDRESS": first, "SECOND_ADDRESS": second, "BRIDGE": bridge, "FIRST_COMMAND": commands[0], "SECOND_COMMAND": commands[1],
        "HOOK": hook,
    }.items():  # fmt: skip
        script = script.replace(name, text, 1)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM", "PGAS"))}
    job = {"PGAS_SECRET": "of the two machines", "PGAS_SYMMETRIC_SIZE": "64M", "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    command = ["unshare", "--map-root-user", "--net", "bash", "-c", script]
    subprocess.run(command, cwd=folder, env={**inherited, **job, **variables}, timeout=timeout_s, check=False)
    *outputs, bridged = ((Path(folder) / name).read_text() for name in ("first", "second", "bridge"))
    statuses = [int(status) for status in (Path(folder) / "status").read_text().split()]
    counted = (word.partition("=") for word in bridged.split() if "=" in word)
    return Outcome(statuses, (outputs[0], outputs[1]), {name: int(number) for name, _, number in counted})
