"""Two machines inside the guest: UTS, PID, IPC and mount namespaces on the two ends of a veth pair.

With Soft-RoCE devices, both ends stay in one network namespace, as rxe of that kernel knows no other. Packets between the two addresses
take the pair, because rxe looks up routes with its own interface, where the other's local address does not count; the receiver accepts a
local source address. Machines for the software NIC have no devices, and a network namespace each.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rxe.link import ip

__all__ = ["NODES", "Job", "Node", "apart", "connected", "run"]

MASTER = "10.78.0.1:29400"

#: The interpreter itself: a fork of rxe.forks would be outside the namespaces.
BIN = Path(sys.prefix) / "bin"

START = ("unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
INIT = 'hostname "$0" && mount -t tmpfs shm /dev/shm && exec sleep infinity'


@dataclass
class Node:
    """A machine."""

    rank: int
    device: str
    interface: str
    address: str
    init: int = 0  # its process 1, as the guest numbers it

    @property
    def name(self) -> str:
        return f"node{self.rank}"

    @contextlib.contextmanager
    def up(self, *, apart: bool) -> Iterator[None]:
        start = [START[0], "--net", *START[1:]] if apart else START
        with subprocess.Popen([*start, INIT, self.name]) as machine:
            children = Path(f"/proc/{machine.pid}/task/{machine.pid}/children")
            while not (self.init and Path(f"/proc/{self.init}/comm").read_text() == "sleep\n"):
                time.sleep(0.1)
                self.init = int(children.read_text() or 0)
            try:
                yield
            finally:
                os.kill(self.init, signal.SIGKILL)
                self.init = 0

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a command on the machine."""
        return ["nsenter", "--target", str(self.init), "--uts", "--ipc", "--pid", "--mount", "--net", "--root", "--wd", *command]

    def network(self, *command: str) -> None:
        """Run a command on the machine that changes its network."""
        subprocess.run(self.command(*command), check=True, stdin=subprocess.DEVNULL)

    def netem(self) -> str:
        """Return what tc counts of the packets that the machine has sent."""
        shown = self.command("tc", "-s", "qdisc", "show", "dev", self.interface)
        return subprocess.run(shown, capture_output=True, text=True, check=True).stdout

    def left(self) -> list[str]:
        """Return what jobs have left on the machine: commands, and names of shared memory."""
        look = "ls /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        found = subprocess.run(self.command("sh", "-c", look), capture_output=True, text=True, check=True).stdout
        return re.findall(r"\S*pgas\S*|\S*python\S*", found)


NODES = (Node(0, "rxe2", "veth0", "10.78.0.1"), Node(1, "rxe3", "veth1", "10.78.0.2"))


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Start the two machines, with their network and their devices."""
    ip("link", "add", NODES[0].interface, "type", "veth", "peer", "name", NODES[1].interface)
    try:
        for node in NODES:
            settings = Path("/proc/sys/net/ipv4/conf")
            for name, value in (("accept_local", "1"), ("rp_filter", "0")):
                (settings / node.interface / name).write_text(value)
            (settings / "all" / "rp_filter").write_text("0")
            ip("address", "add", f"{node.address}/24", "dev", node.interface)
            ip("link", "set", node.interface, "up")
        for node in NODES:
            subprocess.run(["rdma", "link", "add", node.device, "type", "rxe", "netdev", node.interface], check=True)
        with contextlib.ExitStack() as started:
            for node in NODES:
                started.enter_context(node.up(apart=False))
            yield
    finally:
        ip("link", "delete", NODES[0].interface)  # and the other end, and the devices on both


@contextlib.contextmanager
def apart(netem: str = "") -> Iterator[None]:
    """Start the two machines with a network namespace each, and no devices.

    Args:
        netem: arguments of tc's netem for each direction, as "loss 1%".
    """
    with contextlib.ExitStack() as started:
        for node in NODES:
            started.enter_context(node.up(apart=True))
        ends = [("name", node.interface, "netns", str(node.init)) for node in NODES]
        ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for node in NODES:
            node.network("ip", "link", "set", "lo", "up")
            node.network("ip", "address", "add", f"{node.address}/24", "dev", node.interface)
            node.network("ip", "link", "set", node.interface, "up")
            if netem:
                node.network("tc", "qdisc", "add", "dev", node.interface, "root", "netem", *netem.split())
        yield


def pgas_run(outs: Sequence[IO[bytes]], program: Sequence[str], environment: dict[str, str], n: int = 2) -> list[subprocess.Popen[bytes]]:
    """Start a job of n + n PEs with pgas.run on each machine; each writes to its file."""
    launchers = []
    for node, out in zip(NODES, outs, strict=True):
        options = ["-n", str(n), "--nnodes", "2", "--node-rank", str(node.rank), "--master", MASTER]
        command = node.command(str(BIN / "python"), "-m", "pgas.run", *options, *program)
        settings = {"PGAS_HCA": node.device, "PGAS_SECRET": "of the two machines", **environment}
        launchers.append(subprocess.Popen(command, env=settings, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
    return launchers


def mpirun(folder: Path, out: IO[bytes], program: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a job of 2 + 2 PEs with Hydra's mpirun on the first machine, which enters the machines where it would use ssh."""
    ssh = folder / "ssh"  # ssh -x HOST COMMAND...
    cases = "".join(f'{node.name}) exec {" ".join(node.command("sh", "-c"))} "$*";;\n' for node in NODES)
    ssh.write_text(f"#!/bin/sh\nhost=$2; shift 2\ncase $host in\n{cases}esac\n")
    ssh.chmod(0o755)
    device = f'case $(hostname) in {" ".join(f"{node.name}) PGAS_HCA={node.device};;" for node in NODES)} esac; export PGAS_HCA; exec "$@"'
    options = [
        "-launcher",
        "ssh",
        "-launcher-exec",
        str(ssh),
        "-iface",
        "lo",
        "-hosts",
        ",".join(node.name for node in NODES),
        "-ppn",
        "2",
        "-n",
        "4",
    ]
    command = [str(BIN / "mpirun"), *options, "sh", "-c", device, "sh", str(BIN / "python"), *program]
    settings = {**environment, "UCX_TLS": "self,sm,tcp"}
    return subprocess.Popen(command, env=settings, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


@dataclass
class Job:
    statuses: list[int]
    outs: list[str]  # of each launcher
    ended: list[float]

    @property
    def out(self) -> str:
        return "".join(self.outs)

    def __repr__(self) -> str:
        return f"{self.statuses} {self.ended}\n{self.out[-4000:]}"


def run(
    folder: Path, program: Sequence[str], environment: dict[str, str], *, launcher: str = "pgas.run", n: int = 2, limit: float = 1000
) -> Job:
    """Run a job of n + n PEs to its end. Nothing of it is left on the machines."""
    files = [folder / node.name for node in NODES[: 2 if launcher == "pgas.run" else 1]]
    with contextlib.ExitStack() as opened:
        outs = [opened.enter_context(file.open("wb")) for file in files]
        launchers = pgas_run(outs, program, environment, n) if launcher == "pgas.run" else [mpirun(folder, outs[0], program, environment)]
        ended: dict[int, float] = {}
        deadline = time.monotonic() + limit
        try:
            while len(ended) < len(launchers):
                assert time.monotonic() < deadline, [file.read_text()[-3000:] for file in files]
                for number, process in enumerate(launchers):
                    if number not in ended and process.poll() is not None:
                        ended[number] = time.time()
                time.sleep(0.1)
        finally:
            for process in launchers:
                process.kill()
                process.wait()
    assert [node.left() for node in NODES] == [[], []]
    return Job([process.returncode for process in launchers], [file.read_text() for file in files], list(ended.values()))
