"""python -m pgas topo on fake machines in a folder, and on the real one, alone and under mpirun."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forks
import pytest
from machines import Machine, cluster, dgx, sound

from pgas.doctor import topo
from pgas.doctor.checks import examine
from pgas.doctor.machine import Mpi, Nic
from pgas.doctor.probe import count_nvlinks

MPIRUN = Path(sys.executable).with_name("mpirun")


def shown(facts):
    findings = examine(facts)
    return [*topo.report(facts, findings), *topo._without_a_job(facts, findings)]


def rows(lines, title):
    """Return the cells of the table below a title."""
    start = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    end = next((i for i, line in enumerate(lines) if i > start and not line), len(lines))
    return [line.split() for line in lines[start:end]]


def test_a_cluster_node(tmp_path):
    _, facts = cluster(tmp_path)
    lines = shown(facts)
    assert lines[0] == "GPUs and NICs of alpha"
    table = rows(lines, "GPUs and NICs")
    assert table[0] == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1", "NIC2", "NIC3", "CPUs", "NUMA", "node"]
    assert table[1] == ["GPU0", "X", "NV18", "NV18", "NV18", "PIX", "PHB", "SYS", "SYS", "0-31", "0"]
    assert table[4] == ["GPU3", "NV18", "NV18", "NV18", "X", "SYS", "SYS", "PHB", "PIX", "32-63", "1"]
    assert table[5] == ["NIC0", "PIX", "PHB", "SYS", "SYS", "X", "PHB", "SYS", "SYS", "0-31", "0"]
    assert "  NIC2: mlx5_2 (port 1: Ethernet, 200 Gb/s)" in lines
    assert [row[0] for row in rows(lines, "Names of distances")] == ["X", "NV#", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert rows(lines, "Peer access")[2] == ["GPU1", "yes", "X", "yes", "yes"]
    chosen = rows(lines, "NIC of a PE, and why")
    assert [row[:4] for row in chosen] == [[f"GPU{i}", "ibgda,", "ibrc", f"mlx5_{i}:1:"] for i in range(4)]
    assert lines[-1] == "  p2p: all PEs map each other's memory; set PGAS_TRANSPORT=ibgda or ibrc to use the NIC"


def test_the_output_in_the_docs(tmp_path):
    _, facts = cluster(tmp_path, per_node=1)
    page = (Path(__file__).resolve().parents[2] / "docs" / "machine.md").read_text(encoding="utf-8")
    picture = page.partition("it prints the transport between each pair of PEs:\n\n")[2].partition("\n## ")[0]
    lines = [line.removeprefix("  ") for line in picture.splitlines() if line]  # indented by four there, by two here
    assert len(lines) == 8
    assert [line for line in lines if line.removeprefix("  ") not in shown(facts) and line not in shown(facts)] == []


def test_gpus_on_pcie_only(tmp_path):
    """Without NVLink the distance is that of PCIe; missing answers of NVML are noted."""
    _, facts = cluster(tmp_path, nvlinks=(), nvml_error="no NVML here")
    lines = shown(facts)
    assert rows(lines, "GPUs and NICs")[1][1:5] == ["X", "PHB", "SYS", "SYS"]
    assert "  NVLinks are unknown: no NVML here" in lines


def test_two_pairs_of_nvlinks(tmp_path):
    _, facts = cluster(tmp_path, nvlinks=((0, 4, 0, 0), (4, 0, 0, 0), (0, 0, 0, 4), (0, 0, 4, 0)))
    table = rows(shown(facts), "GPUs and NICs")
    assert [row[1:5] for row in table[1:5]] == [
        ["X", "NV4", "SYS", "SYS"], ["NV4", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "NV4"], ["SYS", "SYS", "NV4", "X"],
    ]  # fmt: skip


def test_pairs_without_peer_access(tmp_path):
    _, facts = cluster(tmp_path, access=tuple(tuple((a < 2) == (b < 2) for b in range(4)) for a in range(4)))
    lines = shown(facts)
    assert rows(lines, "Peer access")[1] == ["GPU0", "X", "yes", "no", "no"]
    assert lines[-1] == "  p2p is not possible: GPU0 cannot access the memory of GPU2; available instead: ibgda, ibrc"
    no_nic = replace(facts, nics=dict.fromkeys(facts.nics, Nic(file="Permission denied")))
    assert shown(no_nic)[-1].endswith("available instead: ibgda or ibrc over the software NIC")


def test_transports_that_choose_differently(tmp_path):
    _, facts = cluster(tmp_path)
    facts = replace(facts, nics={**facts.nics, "mlx5_0": Nic(devx="no DevX context opens: x")})
    text = "\n".join(shown(facts))
    assert re.search(r"GPU0 +ibgda +mlx5_1:1: the nearest .* PHB from .*; passed over: mlx5_0:1 no DevX context opens: x", text)
    assert re.search(r"GPU0 +ibrc +mlx5_0:1: the nearest .* PIX from", text)
    assert re.search(r"GPU1 +ibgda, ibrc +mlx5_1:1", text)


def test_a_requested_nic_that_is_missing(tmp_path):
    _, facts = cluster(tmp_path)
    facts = replace(facts, settings={**facts.settings, "PGAS_HCA": "mlx5_9"})
    assert "GPU0       ibgda, ibrc  none: PGAS_HCA=mlx5_9: this machine has no such device" in "\n".join(shown(facts))


def test_gpus_without_a_driver(tmp_path):
    dgx(tmp_path)
    lines = shown(sound(tmp_path, [], cuda_error="no driver"))
    assert rows(lines, "GPUs and NICs")[1][:4] == ["GPU0", "X", "PHB", "SYS"]
    assert "  CUDA shows none of these GPUs: no driver" in lines


def test_soft_roce_only(tmp_path):
    Machine(tmp_path).nic("rxe0")
    lines = shown(sound(tmp_path, []))
    assert lines[1].startswith("  no GPU and no NIC on the PCI bus")
    assert "  not PCI devices, so not close to any GPU: rxe0" in lines


def test_one_gpu(tmp_path):
    Machine(tmp_path).gpu("pci0000:00/0000:05:00.0")
    lines = shown(sound(tmp_path, ["0000:05:00.0"]))
    assert rows(lines, "GPUs and NICs")[:2] == [["GPU0", "CPUs", "NUMA", "node"], ["GPU0", "X", "0"]]
    assert not any(line.startswith("Peer access") for line in lines)
    assert "  GPU0       ibgda, ibrc  softhca: this machine has no RDMA device" in lines


def test_without_an_mpi_library(tmp_path):
    """pgas.run starts jobs over p2p all the same."""
    for facts in (sound(tmp_path, []), cluster(tmp_path)[1]):
        last = shown(replace(facts, mpi=Mpi(error="cannot load MPI library")))[-1]
        assert last == "  p2p: all PEs map each other's memory; set PGAS_TRANSPORT=ibgda or ibrc to use the NIC"


@pytest.mark.parametrize("count", [2, 8, 16])
def test_any_number_of_gpus(tmp_path, count):
    tree = Machine(tmp_path)
    facts = sound(tmp_path, [tree.gpu(f"pci0000:00/0000:{i + 1:02x}:00.0") for i in range(count)])
    table = rows(shown(facts), "GPUs and NICs")
    assert [row[i + 1] for i, row in enumerate(table[1 : count + 1])] == ["X"] * count
    assert len({len(line) for line in topo.matrix(["a" * i for i in range(1, 4)], ["x"], lambda a, b: "yy")}) == 2  # no trailing blanks


# ---------------------------------------------------------------------------------------------------------------- NVML


class Nvml:
    """cuda.bindings.nvml with given links: address -> the end of each link: another address, "switch", or None."""

    class NvmlError(Exception):
        pass

    class IntNvLinkDeviceType:
        GPU, SWITCH = 0, 2

    def __init__(self, links):
        self._links = links

    def device_get_handle_by_pci_bus_id_v2(self, address):
        return address

    def device_get_nvlink_state(self, handle, link):
        if link >= len(self._links[handle]):
            raise self.NvmlError("invalid argument")
        return int(self._links[handle][link] is not None)

    def device_get_nvlink_remote_device_type(self, handle, link):
        return self.IntNvLinkDeviceType.SWITCH if self._links[handle][link] == "switch" else self.IntNvLinkDeviceType.GPU

    def device_get_nvlink_remote_pci_info_v2(self, handle, link):
        class Info:
            bus_id = f"0000{self._links[handle][link].upper()}\0\0"

        return Info


A, B, C = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"


@pytest.mark.parametrize(
    ("links", "counts"),
    [
        ({A: ["switch"] * 18, B: ["switch"] * 18, C: []}, ((0, 18, 0), (18, 0, 0), (0, 0, 0))),
        ({A: [B, B, C, None], B: [A, A], C: [A, "0000:ff:00.0"]}, ((0, 2, 1), (2, 0, 0), (1, 0, 0))),
        ({A: [], B: [], C: []}, ((0,) * 3,) * 3),
    ],
)
def test_nvlinks_are_counted(links, counts):
    assert count_nvlinks(Nvml(links), [A, B, C]) == counts


def test_nvml_has_the_used_names():
    nvml = pytest.importorskip("cuda.bindings.nvml")
    names = {n for n in dir(Nvml) if n.startswith("device_")} | {"NvmlError", "IntNvLinkDeviceType", "init_v2", "shutdown"}
    assert [name for name in names if not hasattr(nvml, name)] == []
    assert nvml.IntNvLinkDeviceType.SWITCH == Nvml.IntNvLinkDeviceType.SWITCH
    assert hasattr(nvml.PciInfo, "bus_id")


# --------------------------------------------------------------------------------------------------------- the command


def run(npes, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))}
    environment |= {"NUMBA_ENABLE_CUDASIM": "1", **variables}
    launcher = [str(MPIRUN), "-n", str(npes)] if npes > 1 else []
    command = [*launcher, forks.python(), "-m", "pgas", "topo"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_on_this_machine():
    done = run(1)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"GPUs and NICs of {os.uname().nodename}\n")
    assert "Transport of PEs in the simulator (python -m pgas.run -n N -m pgas topo shows that of a job)" in done.stdout


@pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
def test_the_pairs_of_a_job():
    done = run(3)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sum(line.startswith("GPUs and NICs") for line in lines) == 1  # PE 0 prints
    assert rows(lines, "Transport of this job: p2p (")[1:] == [
        ["PE0", "(simulator)", "X", "p2p", "p2p"], ["PE1", "(simulator)", "p2p", "X", "p2p"], ["PE2", "(simulator)", "p2p", "p2p", "X"],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
def test_the_nics_of_a_job():
    done = run(2, PGAS_TRANSPORT="ibgda", PGAS_SYMMETRIC_SIZE="16M")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == [f"  PE{pe}'s NIC is softhca: kernels run in the simulator" for pe in range(2)]
