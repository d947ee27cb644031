"""``python -m pgas topo``: distances of GPUs and NICs, peer access, the NIC of each GPU and why, the transport of each pair of PEs."""

import argparse
from collections.abc import Callable, Sequence

from pgas.base.errors import PgasError
from pgas.base.launcher import launched_rank
from pgas.doctor.checks import Finding, examine
from pgas.doctor.info import table
from pgas.doctor.machine import Gpu, Machine
from pgas.doctor.probe import observe
from pgas.doctor.report import judge, nic_of
from pgas.job import runtime
from pgas.transports import registry
from pgas.transports.devices import Device, distance, numa_node

#: Names that nvidia-smi topo -m uses, each with the path that it stands for.
NAMES = (
    ("X", "nothing: itself"),
    ("NV#", "# NVLinks"),
    ("PIX", "at most one PCIe bridge"),
    ("PXB", "several PCIe bridges, but not the host bridge"),
    ("PHB", "a PCIe host bridge (the CPU)"),
    ("NODE", "the interconnect of host bridges within a NUMA node"),
    ("SYS", "the interconnect between NUMA nodes"),
)


def matrix(rows: Sequence[str], columns: Sequence[str], cell: Callable[[int, int], str]) -> list[str]:
    """Return a table as lines; its first column names the rows."""
    cells = [("", *columns), *((name, *(cell(i, j) for j in range(len(columns)))) for i, name in enumerate(rows))]
    return [f"  {line.rstrip()}" for line in table(cells).splitlines()]


def report(machine: Machine, findings: Sequence[Finding]) -> list[str]:
    """Return the report on the machine, as lines."""
    nics = [device for device in machine.devices if device.pci is not None]
    software = [device.name for device in machine.devices if device.pci is None]
    gpus = [(gpu.label, gpu.pci) for gpu in machine.gpus] or [(f"GPU{i}", pci) for i, pci in enumerate(machine.pci_gpus)]
    lines = [f"GPUs and NICs of {machine.host}"]
    if not gpus and not nics:
        lines += [f"  no GPU and no NIC on the PCI bus: kernels run in the simulator, on CPUs {machine.cpus}"]
        lines += ["  ibgda and ibrc run over the software NIC"]
    else:
        lines += _near(machine, gpus, nics)
        lines += [f"  NIC{i}: {device.name} ({_ports(device)})" for i, device in enumerate(nics)]
        lines += [] if machine.gpus or not gpus else [f"  CUDA shows none of these GPUs: {machine.cuda_error}"]
        lines += [f"  NVLinks are unknown: {machine.nvml_error}"] if machine.nvml_error else []
        lines += ["", "Names of distances", *(f"  {name:<4}  {meaning}" for name, meaning in NAMES)]
    lines += [f"  not PCI devices, so not close to any GPU: {', '.join(software)}"] if software else []
    if len(machine.gpus) > 1:
        labels = [gpu.label for gpu in machine.gpus]
        lines += ["", "Peer access: whether the GPU in the row can access the memory of the GPU in the column (cuDeviceCanAccessPeer)"]
        lines += matrix(labels, labels, lambda a, b: "X" if a == b else "yes" if machine.access[a][b] else "no")
    lines += ["", "NIC of a PE, and why", *_chosen(machine, findings)]
    return lines


def _near(machine: Machine, gpus: list[tuple[str, str]], nics: list[Device]) -> list[str]:
    places = [*gpus, *((f"NIC{i}", device.pci or "") for i, device in enumerate(nics))]

    def cell(row: int, column: int) -> str:
        if column < len(places):
            linked = machine.nvlinks[row][column] if max(row, column) < len(machine.nvlinks) else 0
            return f"NV{linked}" if linked else str(distance(places[row][1], places[column][1], machine.root))
        if column == len(places):
            return machine.text(f"sys/bus/pci/devices/{places[row][1]}/local_cpulist")
        node = numa_node(places[row][1], machine.root)
        return str(node) if node >= 0 else "-"

    names = [name for name, _ in places]
    return matrix(names, [*names, "CPUs", "NUMA node"], cell)


def _ports(device: Device) -> str:
    return ", ".join(f"port {p.number}: {p.link_layer}, {f'{p.rate_gbps:g} Gb/s' if p.active else p.down}" for p in device.ports)


def _chosen(machine: Machine, findings: Sequence[Finding]) -> list[str]:
    pes: list[tuple[str, Gpu | None]] = [(gpu.label, gpu) for gpu in machine.gpus] if not machine.simulator else []
    rows: dict[tuple[str, str], list[str]] = {}  # Because transports with the same choice share a line.
    for label, gpu in pes or [("simulator", None)]:
        for path in registry.through_nics():
            try:
                choice = str(nic_of(machine, findings, path, gpu))
            except PgasError as error:
                choice = f"none: {error}"
            rows.setdefault((label, choice), []).append(path)
    return [f"  {label:<9}  {', '.join(paths):<11}  {choice}" for (label, choice), paths in rows.items()]


def _without_a_job(machine: Machine, findings: Sequence[Finding]) -> list[str]:
    """Return lines about the transport of a job with one PE per GPU, or with some in the simulator."""
    said = {verdict.path: verdict for verdict in judge(machine, findings)}
    where = "one PE per GPU" if machine.gpus and not machine.simulator else "PEs in the simulator"
    p2p = said["simulator" if machine.simulator else registry.get("auto").name]
    lines = ["", f"Transport of {where} (python -m pgas.run -n N -m pgas topo shows that of a job)"]
    apart = [(a, b) for a, row in enumerate(machine.access) for b, reached in enumerate(row) if not reached]
    if p2p.can and not (apart and not machine.simulator):
        return [*lines, "  p2p: all PEs map each other's memory; set PGAS_TRANSPORT=ibgda or ibrc to use the NIC"]
    why = f"GPU{apart[0][0]} cannot access the memory of GPU{apart[0][1]}" if apart else p2p.text
    others = [name for name in registry.through_nics() if said[name].can]
    if not others and said["softhca"].can:
        others = ["ibgda or ibrc over the software NIC"]
    return [*lines, f"  p2p is not possible: {why}; available instead: {', '.join(others) or 'nothing (run python -m pgas doctor)'}"]


def run(_: argparse.Namespace) -> None:
    """Print the report. Under a launcher, PE 0 prints it, with the transport of each pair of PEs."""
    if launched_rank() is None:
        machine = observe()
        findings = examine(machine)
        print("\n".join([*report(machine, findings), *_without_a_job(machine, findings)]))
        return
    with runtime.init() as job:  # This must come first, because observe() loads MPI without starting it.
        if job.my_pe == 0:
            machine = observe()
            print("\n".join([*report(machine, examine(machine)), *_of_the_job(machine, job)]), flush=True)


def _of_the_job(machine: Machine, job: runtime.Job) -> list[str]:
    labels = {gpu.uuid: gpu.label for gpu in machine.gpus}
    names = [f"PE{pe.number}" for pe in job.pes]
    rows = [f"{name} ({'simulator' if pe.gpu is None else labels.get(pe.gpu, pe.gpu)})" for name, pe in zip(names, job.pes, strict=True)]
    lines = ["", f"Transport of this job: {job.transport} ({job.reason})"]
    lines += matrix(rows, names, lambda a, b: "X" if a == b else job.paths.between(a, b))
    lines += [f"  {line}" for line in job.paths.reasons()] if job.paths.two else []
    if job.nic is not None:
        lines += [f"  {name}'s NIC is {pe.nic}: {pe.nic_reason}" for name, pe in zip(names, job.pes, strict=True)]
    return lines
