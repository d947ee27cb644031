"""Faults of the link under an RDMA device, inside the guest: the interface that rxe1 is on goes down and comes up again."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DEVICE", "INTERFACE", "ip", "link_down", "port_state"]

#: What the script devices made; rxe0 is on the loopback interface, which MPI needs.
DEVICE, INTERFACE = "rxe1", "dummy0"


def ip(*arguments: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL)


def port_state(device: str = DEVICE) -> str:
    """Return the state of a device's port 1 as sysfs tells it: "ACTIVE" or "DOWN"."""
    return Path(f"/sys/class/infiniband/{device}/ports/1/state").read_text().split(":")[1].strip()


@contextlib.contextmanager
def link_down(interface: str = INTERFACE, device: str = DEVICE) -> Iterator[None]:
    """Take the link down, wait until the port says so, and bring it up at the end. For one PE of the job, as root of the guest."""
    ip("link", "set", interface, "down")
    try:
        _wait_for("DOWN", device)
        yield
    finally:
        ip("link", "set", interface, "up")
        _wait_for("ACTIVE", device)


def _wait_for(state: str, device: str) -> None:
    deadline = time.monotonic() + 10
    while port_state(device) != state:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the port of {device} is {port_state(device)} and not {state} after 10 s")
        time.sleep(0.02)
