"""``python -m pgas doctor``: the checks of this machine, a suggested fix for each failure, and the transports that can run.

The exit status is 0 if everything requested can run; otherwise it is the sum of the codes of those that cannot: simulator 4, p2p 8, ibgda
16, ibrc 32, softhca 64 (1 and 2 are Python's own: an error, wrong arguments). Without names, doctor checks what a job started here would
need: without a GPU or with NUMBA_ENABLE_CUDASIM=1, the simulator; otherwise what PGAS_TRANSPORT and PGAS_HCA name. Default: p2p and
softhca, and with an RDMA device on the PCI bus also ibgda and ibrc. A failure that does not affect such a job is printed as a warning.
"""

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from pgas.base.arguments import one_of
from pgas.base.errors import TransportError
from pgas.base.version import __version__
from pgas.doctor.checks import NIC, PATHS, Finding, Status, examine
from pgas.doctor.machine import Gpu, Machine
from pgas.doctor.messages import explained
from pgas.doctor.probe import observe
from pgas.transports import registry
from pgas.transports.devices import Device, Port
from pgas.transports.selection import SOFTHCA, Choice, Suits, choose

#: By path, its bit in the exit status.
BITS = {path: 4 << i for i, path in enumerate(PATHS)}

#: Colors of a terminal (SGR): of the first column, headings, and remedies.
_COLORS = {Status.OK.value: "32", Status.NOTE.value: "2", Status.WARN.value: "33", Status.FAIL.value: "1;31", "no": "2", "sim": "32"}
_BOLD, _CYAN = "1", "36"


@dataclass(frozen=True)
class Verdict:
    """Whether a member of PATHS can run on the machine."""

    path: str
    can: bool
    reason: str  #: how, or why not
    instead: str = ""  #: how programs that ask for it run in the simulator, if it cannot run

    @property
    def simulated(self) -> bool:
        """Whether programs that ask for it run in the simulator."""
        return bool(self.instead)

    @property
    def text(self) -> str:
        """How it runs, also in the simulator, or why not."""
        return f"in the simulator, {self.instead}; {self.reason}" if self.instead else self.reason

    @property
    def failure(self) -> str:
        """Why it cannot run. Printed to a user who asked for it."""
        return f"{self.reason}; programs run in the simulator instead, {self.instead}" if self.instead else self.reason


def suits(path: str, findings: Sequence[Finding]) -> Suits:
    """Return a transport's test of a device: it returns the first finding that blocks the device."""

    def why_not(device: Device, port: Port) -> str | None:
        return next((f.text for f in findings if f.device in (device.name, f"{device.name}:{port.number}") and path in f.blocks), None)

    return why_not


def nic_of(machine: Machine, findings: Sequence[Finding], path: str, gpu: Gpu | None) -> Choice:
    """Return the NIC that the variables give a PE on a GPU (None: in the simulator), with one PE per GPU.

    Raises:
        TransportError: if the requested NIC cannot be used.
    """
    return choose(
        machine.settings.get("PGAS_HCA", "auto"),
        machine.settings.get("PGAS_HCA_LIST", ""),
        machine.devices,
        None if gpu is None else gpu.pci,
        suits(path, findings),
        machine.root,
        0 if gpu is None else gpu.ordinal,
    )


def judge(machine: Machine, findings: Sequence[Finding]) -> list[Verdict]:
    """Return the verdict on each of PATHS."""
    simulator, *others = (_judge(machine, findings, path) for path in PATHS)
    if not simulator.can or not (machine.simulator or "simulator" in asked_of(machine)):
        return [simulator, *others]
    return [simulator, *(verdict if verdict.can else _in_simulator(verdict) for verdict in others)]


def _in_simulator(verdict: Verdict) -> Verdict:
    how, lacking = ("with a CPU thread as the software NIC", "on GPUs") if verdict.path == SOFTHCA else registry.get(verdict.path).simulated
    return Verdict(verdict.path, False, f"not {lacking}: {verdict.reason}", how)


def _judge(machine: Machine, findings: Sequence[Finding], path: str) -> Verdict:
    blockers = [f for f in findings if path in f.blocks and not f.device]
    if blockers:
        return Verdict(path, False, "; and ".join(dict.fromkeys(_reason(f) for f in blockers)))
    if path in NIC:
        return _judge_nic(machine, findings, path)
    count = len(machine.gpus)
    pes = f"at most {count} PEs, one per GPU" if count > 1 else "one PE"
    if any(gpu.mps for gpu in machine.gpus):
        pes = "several PEs per GPU under MPS"
    texts = {
        "simulator": "every transport, kernels on the CPU" + ("" if machine.simulator else " (NUMBA_ENABLE_CUDASIM=1)"),
        "p2p": f"on GPUs, {pes}",
        "softhca": f"ibgda and ibrc over the software NIC, on GPUs, {pes}",
    }
    return Verdict(path, True, texts[path])


def _reason(finding: Finding) -> str:
    """Return the text of a finding. For a note, this is only the part before its colon, which states what is missing."""
    return finding.text.partition(": ")[0] if finding.status is Status.NOTE else finding.text


def _judge_nic(machine: Machine, findings: Sequence[Finding], path: str) -> Verdict:
    on_gpus = bool(machine.gpus) and not machine.simulator
    usable, refused = [], []
    for device in machine.devices:
        reasons = [suits(path, findings)(device, port) for port in device.ports]
        usable += [f"{device.name}:{port.number}" for port, why in zip(device.ports, reasons, strict=True) if port.active and why is None]
        refused += [f"{device.name} {why}" for why in dict.fromkeys(reasons or ["has no port"]) if why is not None]
    try:
        choices = [nic_of(machine, findings, path, gpu) for gpu in machine.gpus] if on_gpus else [nic_of(machine, findings, path, None)]
    except TransportError as error:
        return Verdict(path, False, str(error))
    if not usable:
        return Verdict(path, False, "; ".join(refused))
    if all(choice.device is None for choice in choices):
        why = "by default, the simulator uses the software NIC" if not on_gpus else choices[0].reason
        return Verdict(path, True, f"with PGAS_HCA={' or '.join(usable)} ({why})")
    if not on_gpus:
        return Verdict(path, True, f"over {choices[0].name}, kernels in the simulator")
    return Verdict(
        path, True, "over " + ", ".join(f"{choice.name} ({gpu.label})" for gpu, choice in zip(machine.gpus, choices, strict=True))
    )


def asked_of(machine: Machine) -> list[str]:
    """Return the paths that a job started on this machine, with these variables, would need."""
    requested, hca = machine.settings.get("PGAS_TRANSPORT", "auto"), machine.settings.get("PGAS_HCA", "auto")
    if machine.simulator_asked or not (machine.gpus or machine.pci_gpus):  # The simulator uses an RDMA device only if one is named.
        return ["simulator", *(registry.over_nic(requested) if requested != "auto" and hca not in ("auto", SOFTHCA) else ())]
    real = hca != SOFTHCA and (any(device.pci for device in machine.devices) or machine.pci_nics)
    if requested == "auto":
        return [registry.get("auto").name, *(registry.through_nics() if real else ()), SOFTHCA]
    near, far = registry.parts(registry.get(requested))
    return [name if real or name not in registry.through_nics() else SOFTHCA for name in dict.fromkeys((near.name, far.name))]


def weighed(findings: Sequence[Finding], verdicts: Sequence[Verdict], asked: Sequence[str]) -> list[Finding]:
    """Return the findings, with a warning instead of a failure where nothing that was asked for fails by it."""
    lost = {verdict.path for verdict in verdicts if verdict.path in asked and not verdict.can}
    return [replace(f, status=Status.WARN) if f.status is Status.FAIL and not f.blocks & lost else f for f in findings]


def exit_status(verdicts: Sequence[Verdict], asked: Sequence[str]) -> int:
    """Return the sum of BITS of the paths that were asked for and cannot run."""
    return sum(BITS[verdict.path] for verdict in verdicts if verdict.path in asked and not verdict.can)


# -------------------------------------------------------------------------------------------------------------- report


def _heading(machine: Machine) -> str:
    where = "in the simulator" if machine.simulator else f"on {len(machine.gpus)} GPU(s)"
    return (
        f"pgas {__version__} on {machine.host}: Linux {machine.kernel or 'unknown'}, CPUs {machine.cpus or 'unknown'}; kernels run {where}"
    )


def lines(machine: Machine, findings: Sequence[Finding], verdicts: Sequence[Verdict], asked: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the report: a heading is (text,), a finding (status, check, text), a remedy ("", "", text)."""
    report: list[tuple[str, ...]] = [(_heading(machine),)]
    for section, group in groupby(findings, key=lambda finding: finding.section):
        report.append((section,))
        for finding in group:
            report.append((finding.status.value, finding.check, finding.text))
            report += [("", "", f"-> {finding.remedy}")] if finding.remedy else []
    report.append(("What can run here",))
    for verdict in verdicts:
        otherwise = "sim" if verdict.simulated else "no"
        answer = Status.OK.value if verdict.can else Status.FAIL.value if verdict.path in asked else otherwise
        report.append((answer, verdict.path, verdict.failure if answer == Status.FAIL.value else verdict.text))
    return report


def _print(report: Sequence[tuple[str, ...]]) -> None:
    """Print the report. On a terminal, texts are folded, and have colors if the terminal supports them."""
    terminal = sys.stdout.isatty()
    colors = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = max(len(line[1]) for line in report if len(line) == 3)
    room = max(20, shutil.get_terminal_size().columns - width - 10)

    def colored(text: str, color: str) -> str:
        return f"\033[{color}m{text}\033[m" if colors and color else text

    for i, line in enumerate(report):
        if len(line) == 1:
            print(("\n" if i else "") + colored(line[0], _BOLD))
            continue
        status, check, text = line
        # Remedies are not folded, so that a command can be copied. Lines for files, mail, and grep are not folded either.
        folded = textwrap.wrap(text, room, break_on_hyphens=False) if terminal and status else [text]
        row = f"  {colored(f'{status:<4}', _COLORS.get(status, ''))}  {check:<{width}}  {colored(folded[0], '' if status else _CYAN)}"
        print("\n".join([row.rstrip(), *(" " * (width + 10) + more for more in folded[1:])]))
    sys.stdout.flush()


def _as_json(machine: Machine, findings: Sequence[Finding], verdicts: Sequence[Verdict], asked: Sequence[str], status: int) -> str:
    return json.dumps(
        {
            "host": machine.host,
            "kernel": machine.kernel,
            "simulator": machine.simulator,
            "findings": [asdict(f) | {"status": f.status.name.lower(), "blocks": sorted(f.blocks)} for f in findings],
            "paths": {verdict.path: {"can": verdict.can, "simulated": verdict.simulated, "text": verdict.text} for verdict in verdicts},
            "asked": list(asked),
            "status": status,
        },
        indent=2,
    )


def _explain(message: str) -> int:
    entries = explained(message)
    for entry in entries:
        print(f"{entry.name}: {entry.cause}\n-> {entry.remedy}")
    if not entries:
        print("no explanation for this message; run python -m pgas doctor to check the machine", file=sys.stderr)
    return 0 if entries else 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add doctor's own arguments to its parser."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=one_of((*PATHS, "all")),
        metavar="NAME",
        help=f"transports that must be able to run: {', '.join(PATHS)}, all (default: see above)",
    )
    parser.add_argument("--json", action="store_true", help="print findings and verdicts as JSON")
    parser.add_argument(
        "--explain", metavar="MESSAGE", help="explain an error message and suggest a fix; the exit status is 1 if the message is unknown"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check this machine, print the report and return the exit status."""
    if arguments.explain is not None:
        return _explain(arguments.explain)
    machine = observe()
    findings = examine(machine)
    verdicts = judge(machine, findings)
    asked = list(PATHS) if "all" in arguments.paths else arguments.paths or asked_of(machine)
    findings, status = weighed(findings, verdicts, asked), exit_status(verdicts, asked)
    if arguments.json:
        print(_as_json(machine, findings, verdicts, asked, status))
    else:
        _print(lines(machine, findings, verdicts, asked))
    return status
