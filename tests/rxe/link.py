"""Link faults of an RDMA device, inside the guest: the network interface of rxe1 goes down and up again."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DEVICE", "INTERFACE", "ip", "link_down", "port_state"]

#: Made by the script devices. rxe0 is on the loopback interface, which MPI needs.
DEVICE, INTERFACE = "rxe1", "dummy0"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL)


def port_state(device: str = DEVICE) -> str:
    """Return the state of a device's port 1 from sysfs: "ACTIVE" or "DOWN"."""
    return Path(f"/sys/class/infiniband/{device}/ports/1/state").read_text().split(":")[1].strip()


@contextlib.contextmanager
def link_down(interface: str = INTERFACE, device: str = DEVICE) -> Iterator[None]:
    """Take the link down, wait until the port is DOWN, and bring the link up at the end. Called by one PE, as root in the guest."""
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
