"""QEMU's monitor (QMP, docs/interop/qmp-spec): one question at a time."""

import json
import socket
import time
from types import TracebackType
from typing import Any, Self

__all__ = ["Monitor", "MonitorError", "TooLong"]


class MonitorError(Exception):
    """QEMU refused, failed or went away; the text is what it said."""


class TooLong(MonitorError):
    """QEMU is still at it."""


class Monitor:
    """A pair of sockets, of which a QEMU that is started with options and pass_fds gets one."""

    def __init__(self, timeout_s: float = 60) -> None:
        self._timeout_s = timeout_s
        self._ours, self._qemus = socket.socketpair()
        self._lines = self._ours.makefile(encoding="utf-8")
        self.options = ["-chardev", f"socket,id=monitor,fd={self._qemus.fileno()}", "-mon", "chardev=monitor,mode=control"]
        self.pass_fds = (self._qemus.fileno(),)

    def started(self) -> None:
        """Begin the conversation.

        Raises:
            MonitorError: QEMU went away.
        """
        self._qemus.close()
        self._ours.settimeout(self._timeout_s)
        self._deadline = time.monotonic() + self._timeout_s
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: object) -> Any:
        """Return QEMU's answer; its greeting and what it says of events meanwhile is skipped.

        Raises:
            MonitorError: it refused, or went away.
        """
        try:
            self._ours.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            while line := self._lines.readline():
                answer = json.loads(line)
                if "error" in answer:
                    raise MonitorError(f"{command}: {answer['error'].get('desc')}")
                if "return" in answer:
                    return answer["return"]
        except OSError as error:
            raise MonitorError(f"{command}: {error}") from None
        raise MonitorError(f"{command}: QEMU is gone")

    def wait(self, query: str, status: str) -> None:
        """Wait until a query's status is that.

        Raises:
            MonitorError: it failed, or QEMU went away.
            TooLong: neither, in the monitor's time.
        """
        while (now := self.ask(query)).get("status") != status:
            if now.get("status") == "failed":
                raise MonitorError(f"{query}: failed: {now.get('error-desc')}")
            if time.monotonic() > self._deadline:
                raise TooLong(f"{query}: {now.get('status')} after {self._timeout_s:g} s")
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lines.close()
        self._ours.close()
        self._qemus.close()
