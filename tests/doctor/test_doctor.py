"""Every failure that doctor knows, on fake machines in a folder; the report, the verdicts, the exit status."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from machines import CLOSED_DRIVER, DOWN, INFINIBAND, ROCE_GIDS, VERSIONS, Machine, cluster, dgx, sound

from pgas.base.remedies import REMEDIES, START_MPS, explain, mend
from pgas.doctor import checks, machine
from pgas.doctor import report as doctor
from pgas.doctor.checks import PATHS, Status, examine
from pgas.doctor.machine import Mpi, Nic, Verbs

HEAP = {"PGAS_SYMMETRIC_SIZE": 64 << 20}


def found(facts, check, *, device=""):
    (finding,) = [f for f in examine(facts) if f.check == check and (not device or f.device == device)]
    return finding


def verdicts(facts):
    return {verdict.path: verdict for verdict in doctor.judge(facts, examine(facts))}


def can(facts):
    return {path for path, verdict in verdicts(facts).items() if verdict.can}


def gpus(facts, **fields):
    return replace(facts, gpus=tuple(replace(gpu, **fields) for gpu in facts.gpus))


def settings(facts, **values):
    return replace(facts, settings={**facts.settings, **values})


@pytest.fixture
def facts(tmp_path):
    """A sound machine with four GPUs and NICs."""
    return cluster(tmp_path)[1]


@pytest.fixture
def laptop(tmp_path):
    """A machine without GPU and NIC."""
    Machine(tmp_path).write("sys/devices/system/cpu/online", "0-7")
    return sound(tmp_path, [])


# ------------------------------------------------------------------------------------------------------- sound machines


def test_a_cluster_node_can_do_everything(facts):
    findings = examine(facts)
    assert {f.status for f in findings} <= {Status.OK, Status.NOTE}
    assert [f.remedy for f in findings if f.remedy] == []
    assert can(facts) == set(PATHS)
    assert verdicts(facts)["ibgda"].text == "over mlx5_0:1 (GPU0), mlx5_1:1 (GPU1), mlx5_2:1 (GPU2), mlx5_3:1 (GPU3)"
    assert doctor.asked_of(facts) == ["p2p", "ibgda", "ibrc", "softhca"]
    assert found(facts, "driver").text == "580.65.06 (open kernel modules), CUDA 13.0"
    assert found(facts, "GPU0").text == "NVIDIA H100 80GB HBM3, 80 GiB, at 0000:12:00.0"


def test_a_laptop_is_fine(laptop):
    assert {f.status for f in examine(laptop)} <= {Status.OK, Status.NOTE}
    assert can(laptop) == {"simulator"}
    assert doctor.asked_of(laptop) == ["simulator"]
    said = verdicts(laptop)
    device = "in the simulator, over the software NIC; not over an RDMA device: no RDMA device"
    assert {path: verdict.text for path, verdict in said.items() if verdict.simulated} == {
        "p2p": "in the simulator, through memory that the PEs share; not on GPUs: no GPU",
        "ibgda": device,
        "ibrc": device,
        "softhca": "in the simulator, with a CPU thread as the software NIC; not on GPUs: no GPU",
    }
    findings = examine(laptop)
    rows = doctor.lines(laptop, findings, doctor.judge(laptop, findings), ["simulator", "ibrc"])[-5:]
    assert [row[0] for row in rows] == ["ok", "sim", "sim", "FAIL", "sim"]  # ibrc was requested on the command line
    reason = "not over an RDMA device: no RDMA device; programs run in the simulator instead, over the software NIC"
    assert rows[3] == ("FAIL", "ibrc", reason)  # the reason of a failure comes first
    assert not any(verdict.simulated for verdict in verdicts(replace(laptop, bad_settings=("PGAS_TIMEOUT=x",))).values())


def test_soft_roce_only(tmp_path):
    Machine(tmp_path).nic("rxe0")
    facts = sound(tmp_path, [], nics={"rxe0": Nic(devx="no DevX context opens: Failed to open mlx5 context on rxe0")})
    assert found(facts, "GID rxe0:1").text == "index 3 (192.168.1.7, RoCE v2) of eth0"
    assert can(facts) == {"simulator", "ibrc"}
    assert verdicts(facts)["ibrc"].text == "with PGAS_HCA=rxe0:1 (by default, the simulator uses the software NIC)"
    assert verdicts(facts)["ibgda"].text == (
        "in the simulator, over the software NIC; not over an RDMA device: "
        "rxe0 no DevX context opens: Failed to open mlx5 context on rxe0 (ibrc can use it)"
    )
    assert verdicts(settings(facts, PGAS_HCA="rxe0"))["ibrc"].text == "over rxe0:1, kernels in the simulator"
    assert doctor.asked_of(facts) == ["simulator"]


def test_soft_roce_does_not_reach_gpus(tmp_path):
    tree, facts = cluster(tmp_path)
    tree.nic("rxe0")
    facts = settings(
        replace(facts, nics={**facts.nics, "rxe0": Nic()}, verbs=Verbs("x", "44.0", names=("mlx5_0", "rxe0"))), PGAS_HCA="rxe0"
    )
    verdict = verdicts(facts)["ibrc"]
    assert not verdict.can
    assert verdict.text.startswith("PGAS_HCA=rxe0: port 1 belongs to a software device, which cannot access GPU memory")


# ------------------------------------------------------------------------------------------------------ GPU and driver


def test_gpus_without_a_driver(tmp_path):
    Machine(tmp_path).gpu("pci0000:00/0000:05:00.0")
    facts = sound(tmp_path, [], cuda_error="libcuda.so.1: cannot open shared object file: No such file or directory")
    finding = found(facts, "driver")
    assert (finding.status, finding.remedy) == (Status.FAIL, mend("no driver"))
    assert "1 GPU(s) on the PCI bus, none usable: libcuda.so.1" in finding.text
    assert can(facts) == {"simulator"}
    assert doctor.exit_status(doctor.judge(facts, examine(facts)), doctor.asked_of(facts)) == 8 + 64  # the machine should run p2p


@pytest.mark.parametrize(
    ("error", "entry"),
    [
        ("cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)", "no driver"),
        ("cuInit: CUDA_ERROR_SYSTEM_NOT_READY (system not yet initialized)", "fabric manager"),
        ("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (system has unsupported display driver / cuda driver combination)", "old driver"),
        ("something new", "no driver"),
    ],
)
def test_cuda_that_does_not_start(tmp_path, error, entry):
    Machine(tmp_path).gpu("pci0000:00/0000:05:00.0")
    assert found(sound(tmp_path, [], cuda_error=error), "driver").remedy == mend(entry)


def test_an_old_driver(tmp_path):
    _, facts = cluster(tmp_path, cuda=12080)
    finding = found(facts, "driver")
    assert (finding.status, finding.remedy) == (Status.FAIL, mend("old driver"))
    assert finding.text.endswith("CUDA 12.8; the packages of this environment need CUDA 13")
    assert can(facts) == {"simulator"}


@pytest.mark.parametrize(("cuda", "status"), [(11080, Status.FAIL), (12080, Status.OK), (13000, Status.OK)])
def test_packages_of_cuda_12(tmp_path, cuda, status):
    _, facts = cluster(tmp_path, cuda=cuda, versions=VERSIONS | {"cuda-bindings": "12.9.10"})
    assert found(facts, "driver").status is status
    assert found(facts, "packages").status is Status.OK


def test_the_simulator_beside_gpus(tmp_path):
    _, facts = cluster(tmp_path, simulator=True)
    assert found(facts, "kernels").status is Status.NOTE
    assert "PGAS_HCA=mlx5_0:1" in verdicts(facts)["ibgda"].text


def test_gpus_that_are_hidden(facts):
    facts = replace(facts, gpus=facts.gpus[:1], visible="0")
    assert found(facts, "others").text == "3 more on the PCI bus are not visible (CUDA_VISIBLE_DEVICES=0)"
    assert found(replace(facts, visible=None), "others").text.endswith("(not given to this container)")


def test_no_virtual_memory_management(facts):
    facts = gpus(facts, vmm=False)
    assert found(facts, "GPU2").remedy == mend("no mapping")
    assert can(facts) == {"simulator"}


@pytest.mark.parametrize(("mode", "status"), [("PROHIBITED", Status.FAIL), ("EXCLUSIVE_PROCESS", Status.WARN)])
def test_compute_mode(facts, mode, status):
    facts = gpus(facts, compute_mode=mode)
    finding = found(facts, "GPU1")
    assert (finding.status, finding.remedy) == (status, mend("compute mode"))
    assert mode in finding.text
    assert ("p2p" in can(facts)) == (status is Status.WARN)
    if status is Status.WARN:
        assert found(gpus(facts, mps=True), "GPU1").status is Status.OK  # the MPS server is the only process


def test_peer_access(facts):
    assert found(facts, "peer access").text == "all 4 GPUs can access each other's memory"
    one_pair = tuple(tuple({a, b} != {1, 3} for b in range(4)) for a in range(4))
    finding = found(replace(facts, access=one_pair), "peer access")
    assert (finding.status, finding.text, finding.remedy) == (Status.WARN, "none between GPU3-GPU1", mend("peer access"))
    none = replace(facts, access=tuple(tuple(a == b for b in range(4)) for a in range(4)))
    assert (found(none, "peer access").status, verdicts(none)["p2p"].text) == (Status.FAIL, "no GPU can access another GPU's memory")
    assert can(none) == set(PATHS) - {"p2p"}


def test_mps(tmp_path):
    tree, facts = cluster(tmp_path, mps_pipes="/run/mps")
    assert found(facts, "MPS").status is Status.NOTE
    assert verdicts(facts)["p2p"].text == "on GPUs, at most 4 PEs, one per GPU"
    one = replace(facts, gpus=facts.gpus[:1], access=((True,),))
    assert (found(one, "MPS").status, found(one, "MPS").remedy) == (Status.WARN, mend("mps"))
    assert verdicts(one)["p2p"].text == "on GPUs, one PE"
    assert found(one, "peer access").text == "one GPU: its PEs share its memory"
    assert verdicts(gpus(one, mps=True))["softhca"].text.endswith("several PEs per GPU under MPS")
    assert found(gpus(one, mps=True), "MPS").status is Status.OK
    tree.write("run/mps/control")
    finding = found(one, "MPS")
    assert (finding.status, START_MPS in finding.remedy) == (Status.WARN, True)
    assert finding.text == "its pipes exist in /run/mps, but this process is not connected to it as a client"


# ------------------------------------------------------------------------------------------------------- NIC, port, GID


def test_network_cards_without_the_rdma_driver(tmp_path):
    Machine(tmp_path).pci("pci0000:00/0000:3b:00.0", "mlx5_core", vendor="0x15b3", **{"class": "0x020000"})
    facts = sound(tmp_path, [])
    finding = found(facts, "NIC")
    assert (finding.status, finding.remedy) == (Status.FAIL, mend("no verbs"))
    assert verdicts(facts)["ibgda"].text.endswith("; not over an RDMA device: the NICs at 0000:3b:00.0 expose no RDMA device")


@pytest.mark.parametrize(
    ("port", "entry", "words"),
    [
        (DOWN, "link down", "port 1 Ethernet DOWN (physical state Disabled)"),
        ({**DOWN, "phys_state": "2: Polling"}, "link down", "DOWN (physical state Polling)"),
        ({**INFINIBAND, "state": "2: INIT"}, "subnet manager", "port 1 InfiniBand INIT (physical state LinkUp)"),
        ({**INFINIBAND, "state": "3: ARMED"}, "subnet manager", "ARMED"),
    ],
)
def test_ports_that_are_not_up(tmp_path, port, entry, words):
    _, bus = dgx(tmp_path, (port,))
    facts = sound(tmp_path, bus)
    finding = found(facts, "mlx5_0", device="mlx5_0")
    assert (finding.status, finding.remedy) == (Status.WARN, mend(entry))
    assert words in finding.text
    verdict = verdicts(facts)["ibrc"]
    assert not verdict.can
    assert all(f"mlx5_{i} " in verdict.text for i in range(4))
    assert can(facts) == {"simulator", "p2p", "softhca"}


def test_one_link_of_four_is_down(facts, tmp_path):
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    assert can(facts) == set(PATHS)
    assert verdicts(facts)["ibgda"].text.startswith("over mlx5_1:1 (GPU0), mlx5_1:1 (GPU1), mlx5_2:1 (GPU2)")
    verdict = verdicts(settings(facts, PGAS_HCA="mlx5_0"))["ibgda"]
    assert (verdict.can, verdict.text.partition(";")[0]) == (False, "PGAS_HCA=mlx5_0: port 1 is DOWN (physical state LinkUp)")


def one_port(tmp_path, **port):
    tree = Machine(tmp_path)
    tree.nic("mlx5_0", "pci0000:00/0000:3b:00.0", (port,))
    return sound(tmp_path, [])


@pytest.mark.parametrize(
    ("gids", "status", "words"),
    [
        (ROCE_GIDS, Status.OK, "index 3 (192.168.1.7, RoCE v2) of eth0"),
        (ROCE_GIDS[:2], Status.WARN, "link-local, reaches peers on the same switch only"),
        (ROCE_GIDS[:1], Status.WARN, "no RoCE v2 GID with an IP address"),
        ([*ROCE_GIDS[:3], (ROCE_GIDS[3][0], "RoCE v2", "")], Status.WARN, "its interface is not in this network namespace"),
        ([], Status.FAIL, "GIDs in use on port 1: none"),
    ],
)
def test_gids(tmp_path, gids, status, words):
    facts = one_port(tmp_path, gids=gids)
    finding = found(facts, "GID mlx5_0:1")
    assert (finding.status, finding.remedy) == (status, "" if status is Status.OK else mend("gid"))
    assert words in finding.text
    assert ("ibrc" in can(facts)) == (status is not Status.FAIL)


def test_a_gid_index_out_of_range(tmp_path):
    facts = settings(one_port(tmp_path), PGAS_IB_GID_INDEX=17)
    finding = found(facts, "GID mlx5_0:1")
    assert (finding.status, finding.remedy) == (Status.FAIL, mend("gid"))
    assert finding.text.startswith("PGAS_IB_GID_INDEX=17: no such GID; GIDs in use on port 1: 0 (fe80::")
    assert "ibgda" not in can(facts)


def test_infiniband_needs_no_ip_address(tmp_path):
    finding = found(one_port(tmp_path, **INFINIBAND), "GID mlx5_0:1")
    assert (finding.status, finding.text) == (Status.OK, "index 0 (fe80::b8ce:f603:aa:bb01, IB/RoCE v1), LID 26")


def test_infiniband_without_a_gid_serves_ibrc(tmp_path):
    """Its queue pairs address an InfiniBand port by LID; ibgda compares the subnets of GIDs."""
    facts = one_port(tmp_path, **INFINIBAND | {"gids": []})
    finding = found(facts, "GID mlx5_0:1")
    assert (finding.status, finding.text.partition(";")[0]) == (Status.FAIL, "GIDs in use on port 1: none")
    assert can(facts) & {"ibgda", "ibrc"} == {"ibrc"}


# ------------------------------------------------------------------------------------------------------ verbs and DevX


@pytest.mark.parametrize(
    ("verbs", "entry"),
    [
        (Verbs(error="No module named 'pyverbs'"), "no pyverbs"),
        (Verbs(error="/usr/lib/libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found (required by device.so)"), "other pyverbs"),
        (Verbs("/opt/venv/pyverbs", "56.0"), "no provider"),  # a wheel with its own libibverbs, which finds no driver
    ],
)
def test_pyverbs(tmp_path, verbs, entry):
    _, facts = cluster(tmp_path, verbs=verbs, nics={})
    finding = found(facts, "pyverbs")
    assert (finding.status, finding.remedy) == (Status.FAIL, mend(entry))
    assert can(facts) == {"simulator", "p2p", "softhca"}


def test_pyverbs_is_not_needed_without_a_nic(laptop):
    finding = found(replace(laptop, verbs=Verbs(error="No module named 'pyverbs'")), "pyverbs")
    assert (finding.status, finding.remedy) == (Status.NOTE, "")


@pytest.mark.parametrize(
    ("nic", "entry", "lost"),
    [
        (Nic(file="Permission denied"), "uverbs permission", {"ibgda", "ibrc"}),
        (Nic(file="No such file or directory"), "uverbs permission", {"ibgda", "ibrc"}),
        (Nic(error="couldn't load driver 'libmlx5-rdmav34.so'"), "no provider", {"ibgda", "ibrc"}),
        (Nic(atomics=False, devx="siw0 is no mlx5 device"), "no atomics", {"ibgda"}),
        (Nic(devx="no DevX context opens: Failed to open mlx5 context on mlx5_0"), "devx", {"ibgda"}),
        (Nic(devx="mlx5_0 does not support all necessary atomic operations"), "pci atomics", {"ibgda"}),
        (Nic(devx="mlx5_0 lacks capabilities: atomic_operations is 3, but must be 15: CAS, FA and both masked"), "pci atomics", {"ibgda"}),
        (Nic(devx="mlx5_0 lacks capabilities: cqe_version is 0, but must be 1: CQEs that carry qpc.user_index"), "cqe version", {"ibgda"}),
        (Nic(devx="hca_cap.cqe_version != 1 is not supported."), "cqe version", {"ibgda"}),
        (Nic(queue_pair="a queue pair is not made: CREATE_CQ failed: BAD_PARAM (bad parameter), syndrome 0x357275"), "refused", {"ibgda"}),
        (Nic(queue_pair="a write fails: no completion in 5 s; QUERY_QP says the queue pair is in RTS"), "refused", {"ibgda"}),
        (Nic(queue_pair="a write fails: transport retry counter exceeded, vendor_err_synd 0x81"), "no answer", {"ibgda"}),
        (Nic(queue_pair="it is not connected to itself: mlx5_2: the kernel finds no route from GID 3 to GID 0:0"), "gid", {"ibgda"}),
    ],
)
def test_a_device_that_cannot_be_used(facts, nic, entry, lost):
    facts = replace(facts, nics=dict.fromkeys(facts.nics, nic))
    (finding,) = [f for f in examine(facts) if f.section == "Verbs and DevX" and f.check == "mlx5_2"]
    assert finding.status is (Status.FAIL if nic.atomics else Status.WARN)
    assert finding.remedy == mend(entry).replace("DEVICE", "mlx5_2")
    assert can(facts) == set(PATHS) - lost


def test_a_device_without_a_file(tmp_path):
    Machine(tmp_path).nic("mlx5_0", "pci0000:00/0000:3b:00.0", uverbs=False)
    facts = sound(tmp_path, [], nics={})
    assert [f.remedy for f in examine(facts) if f.text == "has no device file in /dev/infiniband"] == [mend("no verbs")]
    assert can(facts) == {"simulator"}


def test_atomics_that_only_ibgda_performs(facts):
    """As on a card that returns old values of 8 bytes big-endian, whose atomics the kernel driver does not offer to libibverbs."""
    facts = replace(facts, nics={**facts.nics, "mlx5_1": Nic(atomics=False)})
    (finding,) = [f for f in examine(facts) if f.section == "Verbs and DevX" and f.check == "mlx5_1"]
    assert (finding.status, finding.remedy) == (Status.WARN, "PGAS_TRANSPORT=ibgda, or p2p,ibgda")
    assert "so they and signals raise an error over ibrc" in finding.text
    assert "ibgda" in can(facts)


def test_atomics_that_stay_on_the_card(facts):
    facts = replace(facts, nics={**facts.nics, "mlx5_1": Nic(pci_atomics=False)})
    (finding,) = [f for f in examine(facts) if f.section == "Verbs and DevX" and f.check == "mlx5_1"]
    assert (finding.status, finding.remedy) == (Status.WARN, mend("pci atomics").replace("DEVICE", "mlx5_1"))
    assert "PCI_ATOMIC_MODE=4" in finding.remedy
    assert "ibgda" in can(facts)


# ----------------------------------------------------------------------------------------------- GPU memory for the NIC

PEERMEM = ("sys/module/nvidia_peermem/version", "sys/kernel/mm/memory_peers/nvidia-peermem/version")


@pytest.mark.parametrize(
    ("kernel", "dma_buf", "files", "status", "entry", "lost"),
    [
        ("6.8.0-45-generic", True, (), Status.OK, None, set()),
        ("5.12.0", True, (), Status.OK, None, set()),
        ("5.11.22", True, PEERMEM, Status.OK, None, set()),
        ("6.8.0", False, PEERMEM, Status.OK, None, set()),
        ("4.18.0-553.el8", True, (), Status.FAIL, "old kernel", {"ibgda", "ibrc"}),
        ("6.8.0", False, (), Status.FAIL, "closed modules", {"ibgda", "ibrc"}),
        ("4.18.0", False, (), Status.FAIL, "peer memory", {"ibgda", "ibrc"}),
        ("6.8.0", False, PEERMEM[:1], Status.FAIL, "inbox driver", {"ibgda", "ibrc"}),
        ("6.8.0", False, ("sys/kernel/mm/memory_peers/nv_mem/version",), Status.FAIL, "old peer memory", {"ibgda"}),
        ("6.8.0", False, ("sys/module/nv_peer_mem/version",), Status.FAIL, "old peer memory", {"ibgda"}),
    ],
)
def test_gpu_memory_for_the_nic(tmp_path, kernel, dma_buf, files, status, entry, lost):
    tree, facts = cluster(tmp_path)
    tree.write("proc/sys/kernel/osrelease", kernel)
    for file in files:
        tree.write(file, "1.0")
    facts = gpus(facts, dma_buf=dma_buf)
    finding = found(facts, "registration")
    assert (finding.status, finding.remedy) == (status, mend(entry) if entry else "")
    assert can(facts) == set(PATHS) - lost


def test_a_gpu_that_does_not_order_writes_of_a_nic(facts):
    facts = replace(facts, gpus=(*facts.gpus[:3], replace(facts.gpus[3], writes_ordering=0)))
    finding = found(facts, "ordering")
    assert finding.status is Status.NOTE
    assert finding.text.startswith("GPU3 may observe NIC writes out of order: ")
    assert can(facts) == set(PATHS)
    assert found(gpus(facts, writes_ordering=100), "registration").status is Status.OK
    assert not [f for f in examine(gpus(facts, writes_ordering=100)) if f.check == "ordering"]


@pytest.mark.parametrize(
    ("dwords", "handler", "capabilities", "status", "runs"),
    [
        ('"PeerMappingOverride=1;"', "auto", (), Status.OK, True),
        ('"PeerMappingOverride=1;"', "gpu", (), Status.OK, True),
        ('""', "auto", (), Status.WARN, True),
        ('""', "cpu", (), Status.WARN, True),
        ('""', "gpu", ("SYS_ADMIN",), Status.WARN, True),
        ('""', "gpu", (), Status.FAIL, False),
        ('"RMThing=1"', "gpu", (), Status.FAIL, False),
    ],
)
def test_peer_mapping(tmp_path, dwords, handler, capabilities, status, runs):
    tree, facts = cluster(tmp_path, capabilities=frozenset(capabilities))
    tree.write("proc/driver/nvidia/params", f"EnableStreamMemOPs: 0\nRegistryDwords: {dwords}\n")
    facts = settings(facts, PGAS_IBGDA_NIC_HANDLER=handler)
    finding = found(facts, "doorbell")
    assert (finding.status, finding.remedy) == (status, "" if status is Status.OK else mend("peer mapping"))
    assert ("ibgda" in can(facts), "ibrc" in can(facts)) == (runs, True)


def test_closed_modules_are_named(tmp_path):
    tree, facts = cluster(tmp_path)
    tree.write("proc/driver/nvidia/version", CLOSED_DRIVER)
    assert found(facts, "driver").text == "580.65.06 (closed kernel modules), CUDA 13.0"


# -------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("memlock", "capabilities", "status", "words"),
    [
        (-1, (), Status.OK, "unlimited"),
        (64 << 10, (), Status.FAIL, "at most 64 KiB of memory can be locked (ulimit -l); a PE locks up to 128 MiB for a NIC"),
        (100, (), Status.FAIL, "100 bytes"),
        (64 << 10, ("IPC_LOCK",), Status.OK, "not enforced for this process (CAP_IPC_LOCK)"),
        (128 << 20, (), Status.OK, "128 MiB"),
    ],
)
def test_memlock(tmp_path, memlock, capabilities, status, words):
    facts = settings(one_port(tmp_path), **HEAP)
    facts = replace(facts, memlock=memlock, capabilities=frozenset(capabilities))
    finding = found(facts, "memlock")
    assert (finding.status, finding.remedy) == (status, mend("memlock") if status is Status.FAIL else "")
    assert words in finding.text
    assert ("ibrc" in can(facts)) == (status is Status.OK)


def test_gpu_memory_is_not_locked(tmp_path):
    _, facts = cluster(tmp_path, memlock=64 << 20)
    assert found(facts, "memlock").text.endswith("a PE locks up to 64 MiB for a NIC")
    assert can(facts) == set(PATHS)


def test_the_wire_of_the_software_nic(laptop):
    """It connects several machines in the simulator; an address that was asked for and is not there is a warning."""
    there = replace(laptop, wire="10.0.0.1 (eth0), MTU 1024")
    assert (found(there, "wire").status, found(settings(there, PGAS_SOFTHCA_NET="eth0"), "wire").status) == (Status.OK, Status.OK)
    assert found(there, "wire").text.endswith("UDP from 10.0.0.1 (eth0), MTU 1024; PGAS_SOFTHCA_NET selects another address")
    lacking = replace(laptop, wire_error="PGAS_SOFTHCA_NET=10.0.0.9: this machine does not have this address; it has lo 127.0.0.1")
    asked = settings(lacking, PGAS_SOFTHCA_NET="10.0.0.9")
    assert (found(lacking, "wire").status, found(asked, "wire").status) == (Status.NOTE, Status.WARN)
    assert "in PGAS_SOFTHCA_NET" in found(asked, "wire").remedy


def test_no_wire_on_gpus(facts):
    assert not any(finding.check == "wire" for finding in examine(replace(facts, wire="10.0.0.1 (eth0), MTU 1024")))


def test_memlock_does_not_matter_without_a_nic(laptop):
    assert found(replace(laptop, memlock=64 << 10), "memlock").status is Status.NOTE


# ----------------------------------------------------------------------------------------------------- MPI and versions


@pytest.mark.parametrize(
    ("mpi", "status", "entry"),
    [
        (Mpi("Open MPI v4.1.4, package: Debian", mpirun="/usr/bin/mpirun", launcher="mpirun (Open MPI) 4.1.4"), Status.OK, None),
        (Mpi("Intel(R) MPI Library 2021.11", mpirun="/x/mpirun", launcher="HYDRA build details:"), Status.OK, None),
        (Mpi("MPICH Version: 5.0.2", mpirun="/usr/bin/mpirun", launcher="mpirun (Open MPI) 4.1.4"), Status.WARN, "another mpi"),
        (Mpi("Open MPI v5.0.11", mpirun="/x/mpirun", launcher="HYDRA build details:"), Status.WARN, "another mpi"),
        (Mpi("MPICH Version: 5.0.2"), Status.NOTE, None),
        (Mpi(error="cannot load MPI library", mpirun="/usr/bin/mpirun"), Status.WARN, "no mpi"),
        (Mpi(error="cannot load MPI library"), Status.NOTE, None),
        (Mpi(error="No module named 'mpi4py'"), Status.NOTE, None),
    ],
)
@pytest.mark.parametrize("launcher", ["", "pgas.run", "torchrun", "srun", "mpirun"])
def test_mpi(laptop, mpi, status, entry, launcher):
    """Only mpirun needs MPI: jobs of the other launchers, and of one PE, start without it."""
    facts = replace(laptop, mpi=mpi, launcher=launcher)
    finding = found(facts, "MPI")
    if launcher == "mpirun" and (mpi.error or entry == "another mpi"):
        status, entry = Status.FAIL, "no mpi" if mpi.error else entry
    elif launcher == "mpirun":
        status = Status.OK
    assert (finding.status, finding.remedy) == (status, mend(entry) if entry else "")
    assert ("simulator" in can(facts)) == (status is not Status.FAIL)


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, ["p2p", "ibgda", "ibrc", "softhca"]),
        ({"PGAS_TRANSPORT": "p2p"}, ["p2p"]),
        ({"PGAS_TRANSPORT": "ibrc"}, ["ibrc"]),
        ({"PGAS_TRANSPORT": "p2p,ibgda"}, ["p2p", "ibgda"]),
        ({"PGAS_HCA": "softhca"}, ["p2p", "softhca"]),
        ({"PGAS_TRANSPORT": "ibgda", "PGAS_HCA": "softhca"}, ["softhca"]),
    ],
)
def test_what_a_job_would_need(facts, variables, asked):
    facts = settings(facts, **variables)
    assert doctor.asked_of(facts) == asked
    assert doctor.asked_of(replace(facts, simulator=True, simulator_asked=True)) == ["simulator"]
    in_simulator = settings(replace(facts, simulator=True, simulator_asked=True), PGAS_TRANSPORT="ibrc", PGAS_HCA="rxe0")
    assert doctor.asked_of(in_simulator) == ["simulator", "ibrc"]


def test_what_a_job_does_not_need_is_no_failure(tmp_path):
    """A device that another one can replace, an old driver beside the simulator, and queues that no transport of the job has."""

    def failures(facts, *names):
        findings, judged = examine(facts), doctor.judge(facts, examine(facts))
        asked = names or doctor.asked_of(facts)
        failed = [f.check for f in doctor.weighed(findings, judged, asked) if f.status is Status.FAIL]
        assert bool(failed) == bool(doctor.exit_status(judged, asked)), failed  # the report and the exit status agree
        return failed

    _, facts = cluster(tmp_path)
    one_closed = replace(facts, nics={**facts.nics, "mlx5_0": Nic(file="Permission denied")})
    assert failures(one_closed) == []
    assert failures(replace(facts, nics=dict.fromkeys(facts.nics, Nic(file="Permission denied")))) == [f"mlx5_{i}" for i in range(4)]
    little = replace(facts, memlock=64 << 10)
    assert (failures(little), failures(settings(little, PGAS_TRANSPORT="p2p")), failures(little, "p2p")) == (["memlock"], [], [])
    old = replace(facts, cuda=12080)
    assert (failures(old), failures(replace(old, simulator=True, simulator_asked=True))) == (["driver"], [])


@pytest.mark.parametrize("change", [{"compute_mode": "PROHIBITED"}, {"vmm": False}])
def test_one_gpu_of_four_cannot_be_used(facts, change):
    facts = replace(facts, gpus=(*facts.gpus[:2], replace(facts.gpus[2], **change), facts.gpus[3]))
    finding = found(facts, "GPU2")
    assert (finding.status, finding.remedy.partition("; or leave it out: ")[2]) == (Status.WARN, "CUDA_VISIBLE_DEVICES=0,1,3")
    assert can(facts) == set(PATHS)


@pytest.mark.parametrize(
    ("changed", "entry", "words"),
    [
        ({"numpy": "2.5.0"}, "numpy", "numpy 2.5.0, but <2.5,>=2.2 is required"),
        ({"numpy": "2.1.3"}, "numpy", "numpy 2.1.3"),
        ({"numba": "0.67.1"}, "versions", "numba 0.67.1, but >=0.68,<0.69 is required"),
        ({"numba-cuda": "0.30.5"}, "versions", "numba-cuda 0.30.5, but ==0.30.4 is required"),
        ({"cuda-bindings": "12.9.9"}, "versions", "cuda-bindings 12.9.9, but <14,>=12.9.10 is required"),
        ({"cuda-core": None}, "versions", "cuda-core is missing"),
    ],
)
def test_packages(laptop, changed, entry, words):
    facts = replace(laptop, versions={k: v for k, v in {**VERSIONS, **changed}.items() if v})
    finding = found(facts, "packages")
    assert (finding.status, finding.remedy) == (Status.FAIL, mend(entry))
    assert words in finding.text
    assert can(facts) == set()


@pytest.mark.parametrize(
    ("versions", "status", "lost"),
    [
        ({"libnvvm": "13.4.92", "nvJitLink": "13.5.37", "ptxas": "13.4"}, Status.OK, set()),
        ({"libnvvm": "13.4.92", "nvJitLink": "13.4.92", "ptxas": "13.3"}, Status.WARN, set()),
        ({"libnvvm": "13.5.1", "nvJitLink": "13.4.92"}, Status.FAIL, set(PATHS) - {"simulator"}),
        ({"libnvvm": "13.10.0", "ptxas": "13.9"}, Status.WARN, set()),
        ({}, Status.NOTE, set()),
    ],
)
def test_compiler(facts, versions, status, lost):
    facts = replace(facts, versions={k: v for k, v in VERSIONS.items() if k not in ("libnvvm", "nvJitLink", "ptxas")} | versions)
    finding = found(facts, "compiler")
    remedies = {Status.WARN: "pip install --upgrade 'pgas[cu13]' brings one that is as new as libnvvm", Status.FAIL: mend("ptxas")}
    assert (finding.status, finding.remedy) == (status, remedies.get(status, ""))
    assert can(facts) == set(PATHS) - lost


def test_variables_that_do_not_parse(laptop):
    facts = replace(laptop, bad_settings=("PGAS_TRANSPORT=tcp: must be one of auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc",))
    assert found(facts, "variables").text == "PGAS_TRANSPORT=tcp: must be one of auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc"
    assert can(facts) == set()


# -------------------------------------------------------------------------------------------------------------- report


def test_exit_status(laptop):
    judged = doctor.judge(laptop, examine(laptop))
    assert doctor.BITS == {"simulator": 4, "p2p": 8, "ibgda": 16, "ibrc": 32, "softhca": 64}
    assert doctor.exit_status(judged, ["simulator"]) == 0
    assert doctor.exit_status(judged, ["p2p", "ibrc"]) == 40
    assert doctor.exit_status(judged, PATHS) == 8 + 16 + 32 + 64


def test_every_line_of_the_report_can_be_read_by_grep(tmp_path):
    _, facts = cluster(tmp_path, memlock=64 << 10)
    findings = examine(facts)
    report = doctor.lines(facts, findings, doctor.judge(facts, findings), doctor.asked_of(facts))
    headings = [line[0] for line in report if len(line) == 1]
    assert headings[0] == "pgas 0.1.0 on alpha: Linux 6.8.0-45-generic, CPUs 0-63; kernels run on 4 GPU(s)"
    assert headings[1:] == [
        "GPU and driver",
        "NIC and port",
        "Verbs and DevX",
        "GPU memory for the NIC",
        "Limits",
        "Software",
        "What can run here",
    ]
    row = next(i for i, line in enumerate(report) if line[1:2] == ("memlock",))
    assert report[row][0] == "FAIL"
    assert report[row + 1] == ("", "", f"-> {mend('memlock')}")
    assert [line[:2] for line in report[-5:]] == [
        ("ok", "simulator"),
        ("ok", "p2p"),
        ("FAIL", "ibgda"),
        ("FAIL", "ibrc"),
        ("ok", "softhca"),
    ]


def test_the_report_in_the_docs(tmp_path, capsys):
    _, facts = cluster(tmp_path, memlock=64 << 10)
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "state").write_text("1: DOWN\n")
    (port / "phys_state").write_text("2: Polling\n")
    findings = examine(facts)
    doctor._print(doctor.lines(facts, findings, doctor.judge(facts, findings), doctor.asked_of(facts)))
    printed = capsys.readouterr().out.splitlines()
    page = (Path(__file__).resolve().parents[2] / "docs" / "machine.md").read_text(encoding="utf-8")
    picture = page.partition("machine and the next one exist only in the tests):")[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(picture) == 13
    for line in picture:
        text = line.removeprefix("    ").removesuffix(" ...")
        assert any(shown == text or (line.endswith(" ...") and shown.startswith(text)) for shown in printed), line


@pytest.mark.parametrize("colors", [False, True])
def test_a_report_on_a_terminal(monkeypatch, colors):
    """Texts are folded, remedies are not, and colors can be switched off."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "" if colors else "1")
    doctor._print(
        [("heading",), ("FAIL", "memlock", "is much smaller than it must be"), ("", "", "-> ulimit -l unlimited; and log in again")]
    )
    plain, red = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue()), "\x1b[1;31mFAIL\x1b[m"
    remedy = f"{'':17}-> ulimit -l unlimited; and log in again"
    assert plain.splitlines() == ["heading", "  FAIL  memlock  is much smaller than it", f"{'':17}must be", remedy]
    assert (red in sys.stdout.getvalue()) == colors


def test_json(tmp_path):
    _, facts = cluster(tmp_path, cuda=12080)
    findings = examine(facts)
    data = json.loads(doctor._as_json(facts, findings, doctor.judge(facts, findings), ["p2p"], 8))
    (driver,) = [f for f in data["findings"] if f["check"] == "driver"]
    assert (driver["status"], driver["blocks"]) == ("fail", ["ibgda", "ibrc", "p2p", "softhca"])
    assert data["paths"]["p2p"] == {"can": False, "simulated": False, "text": driver["text"]}
    assert (data["asked"], data["status"]) == (["p2p"], 8)


def run(*arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))}
    command = [sys.executable, "-m", "pgas", "doctor", *arguments]
    environment |= {"NUMBA_ENABLE_CUDASIM": "1", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_on_this_machine():
    """On the machine of the tests: the findings are unknown, but the report is complete."""
    done = run("--json", "simulator")
    assert done.stderr == ""
    data = json.loads(done.stdout)
    assert list(data["paths"]) == list(PATHS)
    assert (done.returncode, data["status"]) == (0, 0)
    assert {f["check"] for f in data["findings"]} >= {"memlock", "MPI", "packages"}
    listed = run("simulator").stdout
    assert re.search(r"^  ok    simulator +every transport, kernels on the CPU", listed, re.M)


def test_a_bad_variable_is_a_finding():
    done = run("simulator", PGAS_TRANSPORT="tcp")
    assert done.returncode == doctor.BITS["simulator"]
    assert "FAIL  variables" in done.stdout


def test_unknown_names_are_refused():
    done = run("ibgd")
    said = "argument NAME: 'ibgd' is unknown; it must be one of simulator, p2p, ibgda, ibrc, softhca, all"
    assert (done.returncode, done.stderr) == (2, f"python -m pgas doctor: error: {said}\n")


# ------------------------------------------------------------------------------------------------------------- remedies


@pytest.mark.parametrize(
    ("message", "entry"),
    [
        # of NVSHMEM, mostly
        ("cudaHostRegister with IoMemory failed with error=800. We may need to use a fallback path.", "peer mapping"),
        ("ibgda_nic_mem_gpu_map failed. We may need to use the CPU fallback path.", "peer mapping"),
        ("GPU cannot map UAR of device mlx5_3. Skipping...", "peer mapping"),
        ("neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.", "peer memory"),
        ("device mlx5_0 cannot allocate buffer on the specified memory type. Skipping...", "peer memory"),
        ("mlx5dv_devx_umem_reg_ex failed: errno 14", "old kernel"),
        ("mlx5dv_devx_umem_reg failed: Bad address", "inbox driver"),
        ("mlx5dv_devx_umem_reg failed with nv_peer_mem", "old peer memory"),
        ("mlx5_0 cannot use queues (4096 bytes at 0x1) of the GPU: by address (mlx5dv_devx_umem_reg_ex): Bad address", "peer memory"),
        ("by address (mlx5dv_devx_umem_reg_ex): Bad address", "inbox driver"),
        ("Unable to create ah.", "gid"),
        ("CREATE_QP failed: BAD_RES (bad resource), syndrome 0x5dead1", "refused"),
        (
            "device mlx5_0 does not support all necessary atomic operations. You may want to check the PCI_ATOMIC_MODE value. Skipping...",
            "pci atomics",
        ),
        ("hca_cap.cqe_version != 1 is not supported.", "cqe version"),
        # of the system and of pgas
        ("Failed to open /dev/infiniband/uverbs0: Permission denied", "uverbs permission"),
        ("ibv_reg_mr of 1073741824 bytes: Cannot allocate memory", "memlock"),
        ("work completion IBV_WC_RETRY_EXC_ERR (12)", "no answer"),
        ("transport retry counter exceeded", "no answer"),
        ("PGAS_IB_GID_INDEX=9: no such GID; GIDs in use on port 1: none", "gid"),
        ("PGAS_HCA=mlx5_0: port 1 is DOWN (physical state Disabled)", "link down"),
        ("PEs 0, 1 share one GPU (NVIDIA H100, GPU-1) without MPS, which would time-slice their kernels", "mps"),
        ("no context on GPU 0 from its MPS server: CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)", "mps server"),
        ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "mps server"),
        ("cannot pass memory between processes (SCM_RIGHTS): PE 0: timed out", "descriptors"),
        ("mpirun started 2 processes, but each is alone in its job, because mpirun and the library", "another mpi"),
        ("ImportError: Numba needs NumPy 2.4 or less. Got NumPy 2.5.", "numpy"),
        ("ptxas x.ptx, line 9; fatal : Unsupported .version 9.4; current version is '9.3'", "ptxas"),
        ("ImportError: libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found", "other pyverbs"),
        ("CUDA_ERROR_SYSTEM_NOT_READY", "fabric manager"),
        ("RDMA devices need pyverbs, which this Python lacks (No module named 'pyverbs'): ", "no pyverbs"),
        ("RDMA device rxe0 cannot be opened: Failed to open device (check that this process may read and write /dev/", "uverbs permission"),
        ("RDMA device rxe0:1 does not register 9 bytes of the heap by address: Errno: 12, Cannot allocate memory", "memlock"),
        ("RDMA device siw0:1 has none (atomic_cap is ATOMIC_NONE): put, get", "no atomics"),
        ("mlx5_0 cannot be opened for DevX: Failed to open mlx5 context", "devx"),
        ("mlx5_0 cannot use queues (2097152 bytes at 0x1) of the GPU: as a dma-buf: x; by address: y", "peer memory"),
        ("may not store to a doorbell register of the NIC (cuMemHostRegister, error 800): x", "peer mapping"),
        ("mlx5_0 lacks capabilities: atomic_size_qp is 8, but must be 12", "pci atomics"),
        ("TRANSPORT_RETRY_EXC_ERR; PE 1 does not answer (PGAS_IB_TIMEOUT, PGAS_IB_RETRY_COUNT)", "no answer"),
    ],
)
def test_messages_are_explained(message, entry, capsys):
    assert [remedy.name for remedy in explain(message)][:1] == [entry]
    assert doctor._explain(message) == 0
    assert f"-> {mend(entry)}\n" in capsys.readouterr().out


def test_an_unknown_message(capsys):
    assert doctor._explain("the sky is green") == 1
    assert "no explanation for this message" in capsys.readouterr().err


def test_every_remedy_is_reached():
    """Each entry explains at least one message."""
    for entry in REMEDIES.values():
        assert entry.messages
        assert entry.cause
        assert entry.remedy
        for pattern in entry.messages:
            re.compile(pattern)


def test_every_check_runs_on_an_empty_machine(tmp_path):
    """Checks yield findings, and no exception."""
    facts = machine.Machine(root=tmp_path)
    assert {f.section for f in examine(facts)} >= {"GPU and driver", "NIC and port", "Limits", "Software"}
    assert [verdict.path for verdict in doctor.judge(facts, examine(facts))] == list(PATHS)
    assert all(check.__doc__ for check in checks.CHECKS)
