"""RDMA devices, distances and the choice of a NIC, on fake machines in a folder."""

import pytest
from machines import DOWN, INFINIBAND, ROCE_GIDS, Machine, dgx, ipv4_gid

from pgas.base.errors import TransportError
from pgas.transports.devices import Distance, devices, distance, nearest, numa_node, pci_address
from pgas.transports.selection import choose, choose_gid


def anything(device, port):
    return None


def names(found):
    return [device.name for device in found]


# ------------------------------------------------------------------------------------------------------------- devices


def test_no_infiniband_subsystem(tmp_path):
    assert devices(tmp_path) == []


def test_a_roce_device(tmp_path):
    machine = Machine(tmp_path)
    machine.nic("mlx5_0", "pci0000:00/0000:00:01.0/0000:3b:00.0", numa_node=1)
    (device,) = devices(tmp_path)
    assert (device.name, device.driver, device.pci, device.numa_node) == ("mlx5_0", "mlx5_core", "0000:3b:00.0", 1)
    assert (device.uverbs, device.firmware) == ("uverbs0", "28.39.1002")
    (port,) = device.ports
    assert (port.number, port.state, port.physical_state, port.active, port.down) == (1, "ACTIVE", "LinkUp", True, "")
    assert (port.link_layer, port.rate_gbps, port.lid) == ("Ethernet", 200.0, 0)
    assert [(gid.index, gid.kind, gid.netdev) for gid in port.gids] == [(i, kind, "eth0") for i, (_, kind, _) in enumerate(ROCE_GIDS)]
    assert port.gids[3].raw == bytes(10) + b"\xff\xff" + bytes((192, 168, 1, 7))
    assert (port.gids[3].ipv4, port.gids[0].ipv4, port.gids[0].link_local) == ("192.168.1.7", None, True)
    assert str(port.gids[3]) == "3 (192.168.1.7, RoCE v2)"
    assert (device.port(1), device.port(2)) == (port, None)


def test_an_infiniband_device(tmp_path):
    machine = Machine(tmp_path)
    machine.nic("mlx5_0", "pci0000:00/0000:3b:00.0", (INFINIBAND, {**INFINIBAND, "state": "2: INIT", "phys_state": "5: LinkUp"}))
    first, second = devices(tmp_path)[0].ports
    assert (first.link_layer, first.lid, first.rate_gbps, first.gids[0].netdev) == ("InfiniBand", 0x1A, 400.0, "")
    assert (second.active, second.down) == (False, "INIT (physical state LinkUp)")


def test_soft_roce_is_no_pci_device(tmp_path):
    Machine(tmp_path).nic("rxe0")
    (device,) = devices(tmp_path)
    assert (device.driver, device.pci, device.numa_node, device.firmware) == ("rxe", None, -1, "")


def test_soft_roce_of_an_old_kernel(tmp_path):
    """Before Linux 5.9 the device of an rxe is its network card; it still has no distance to GPUs."""
    machine = Machine(tmp_path)
    machine.nic("rxe0", "pci0000:00/0000:00:03.0", driver="e1000e")
    machine.write("sys/class/infiniband/rxe0/parent", "eth0")
    (device,) = devices(tmp_path)
    assert (device.driver, device.pci) == ("rxe", None)


def test_a_subfunction_is_its_card(tmp_path):
    Machine(tmp_path).nic("mlx5_2", "pci0000:00/0000:3b:00.0", below="/mlx5_core.sf.4")
    (device,) = devices(tmp_path)
    assert (device.driver, device.pci) == ("mlx5_core", "0000:3b:00.0")


def test_devices_come_in_the_order_of_their_numbers(tmp_path):
    machine = Machine(tmp_path)
    for number in (10, 9, 1):
        machine.nic(f"mlx5_{number}", f"pci0000:00/0000:{number:02x}:00.0")
    assert names(devices(tmp_path)) == ["mlx5_1", "mlx5_9", "mlx5_10"]


def test_missing_files(tmp_path):
    """A device with missing or unreadable files is listed, too."""
    (tmp_path / "sys/class/infiniband/odd_0/ports/1").mkdir(parents=True)
    (device,) = devices(tmp_path)
    assert (device.driver, device.pci, device.uverbs) == ("", None, "")
    assert device.ports[0].down == "in an unknown state (physical state unknown)"
    assert (device.ports[0].rate_gbps, device.ports[0].gids) == (0, ())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3B:00", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
    ],
)
def test_pci_addresses(text, address):
    assert pci_address(text) == address


@pytest.mark.parametrize("text", ["", "GPU-1", "0000:3b:00.9", "0000:3b"])
def test_no_pci_addresses(text):
    with pytest.raises(ValueError, match="is not a PCI bus address"):
        pci_address(text)


# ----------------------------------------------------------------------------------------------------------- distances

ROOT_PORT = "pci0000:00/0000:00:01.0"
SWITCH = f"{ROOT_PORT}/0000:01:00.0"
PLACES = {
    "0000:05:00.0": f"{SWITCH}/0000:02:00.0/0000:05:00.0",
    "0000:06:00.0": f"{SWITCH}/0000:02:01.0/0000:06:00.0",
    "0000:06:00.1": f"{SWITCH}/0000:02:01.0/0000:06:00.1",
    "0000:09:00.0": f"{SWITCH}/0000:02:02.0/0000:07:00.0/0000:08:00.0/0000:09:00.0",
    "0000:0a:00.0": "pci0000:00/0000:00:02.0/0000:0a:00.0",
    "0000:00:1f.0": "pci0000:00/0000:00:1f.0",
    "0000:41:00.0": "pci0000:40/0000:40:01.0/0000:41:00.0",
    "0000:81:00.0": "pci0000:80/0000:80:01.0/0000:81:00.0",
    "0001:00:00.0": "LNXSYSTM:00/VMBUS:01/4777/pci0001:00/0001:00:00.0",
}
NODES = {"0000:81:00.0": 1, "0001:00:00.0": -1}


@pytest.fixture
def places(tmp_path):
    machine = Machine(tmp_path, numa_nodes=2)
    for address, path in PLACES.items():
        machine.pci(path, numa_node=NODES.get(address, 0))
    return tmp_path


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("0000:05:00.0", Distance.SELF),
        ("0000:06:00.0", Distance.PIX),  # two ports of one switch
        ("0000:09:00.0", Distance.PXB),  # another switch below the first
        ("0000:0a:00.0", Distance.PHB),  # another root port of the host bridge
        ("0000:00:1f.0", Distance.PHB),  # in the root complex itself
        ("0000:41:00.0", Distance.NODE),  # another host bridge of the NUMA node
        ("0000:81:00.0", Distance.SYS),
        ("0001:00:00.0", Distance.SYS),  # its place is unknown
    ],
)
def test_distances(places, other, expected):
    assert distance("0000:05:00.0", other, places) is expected
    assert distance(other, "0000:05:00.0", places) is expected


def test_functions_of_one_card(places):
    assert distance("0000:06:00.0", "0000:06:00.1", places) is Distance.PIX


def test_unknown_nodes_of_a_machine_that_has_one(tmp_path):
    machine = Machine(tmp_path, numa_nodes=1)
    for path in ("pci0000:00/0000:01:00.0", "pci0001:00/0001:01:00.0"):
        machine.pci(path, numa_node=-1)
    assert distance("0000:01:00.0", "0001:01:00.0", tmp_path) is Distance.NODE


def test_names_of_distances():
    assert [str(d) for d in Distance] == ["X", "PIX", "PXB", "PHB", "NODE", "SYS"]


def test_no_such_pci_device(places):
    with pytest.raises(ValueError, match=r"there is no PCI device 0000:ff:00\.0"):
        distance("0000:05:00.0", "0000:ff:00.0", places)


def test_numa_nodes(places):
    assert [numa_node(a, places) for a in ("0000:05:00.0", "0000:81:00.0", "0001:00:00.0", "0000:ff:00.0")] == [0, 1, -1, -1]


def test_nearest(tmp_path):
    machine, gpus = dgx(tmp_path)
    machine.nic("rxe0")
    found = nearest(gpus[2], devices(tmp_path), tmp_path)
    assert [(str(d), device.name) for d, device in found] == [
        ("PIX", "mlx5_2"), ("PHB", "mlx5_3"), ("SYS", "mlx5_0"), ("SYS", "mlx5_1"), ("SYS", "rxe0"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- choices


def test_every_gpu_gets_the_nic_on_its_switch(tmp_path):
    _, gpus = dgx(tmp_path)
    chosen = [choose("auto", "", devices(tmp_path), gpu, anything, tmp_path) for gpu in gpus]
    assert [choice.name for choice in chosen] == ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"]
    assert chosen[1].reason == f"the nearest device with an active port, PIX from the GPU at {gpus[1]}"


def test_the_simulator_takes_the_software_card(tmp_path):
    dgx(tmp_path)
    choice = choose("auto", "", devices(tmp_path), None, anything, tmp_path)
    assert (choice.device, str(choice)) == (None, "softhca: kernels run in the simulator")


def test_the_software_card_on_request(tmp_path):
    _, gpus = dgx(tmp_path)
    assert str(choose("softhca", "", devices(tmp_path), gpus[0], anything, tmp_path)) == "softhca: asked for"


def test_no_device_at_all(tmp_path):
    gpu = Machine(tmp_path).gpu("pci0000:00/0000:05:00.0")
    assert str(choose("auto", "", [], gpu, anything, tmp_path)) == "softhca: this machine has no RDMA device"


def test_a_link_that_is_down_is_passed_over(tmp_path):
    _, gpus = dgx(tmp_path, (DOWN,))
    (tmp_path / "sys/class/infiniband/mlx5_1/ports/1/state").write_text("4: ACTIVE\n")
    choice = choose("auto", "", devices(tmp_path), gpus[0], anything, tmp_path)
    assert choice.name == "mlx5_1:1"
    assert choice.reason == (
        f"the nearest device with an active port, PHB from the GPU at {gpus[0]}; passed over: mlx5_0:1 is DOWN (physical state Disabled)"
    )


def test_all_links_down(tmp_path):
    _, gpus = dgx(tmp_path, (DOWN,))
    choice = choose("auto", "", devices(tmp_path), gpus[0], anything, tmp_path)
    assert choice.device is None
    assert choice.reason.startswith("no RDMA device can be used: mlx5_0:1 is DOWN (physical state Disabled); mlx5_1:1 is DOWN")


def test_a_device_that_does_not_suit_is_passed_over_and_said(tmp_path):
    _, gpus = dgx(tmp_path)
    asked = []

    def suits(device, port):
        asked.append(device.name)
        return "has no DevX" if device.name == "mlx5_2" else None

    choice = choose("auto", "", devices(tmp_path), gpus[2], suits, tmp_path)
    assert (choice.name, asked) == ("mlx5_3:1", ["mlx5_2", "mlx5_3"])  # devices farther away were not opened
    assert choice.reason.endswith("; passed over: mlx5_2:1 has no DevX")


def test_pes_take_turns_among_equally_near_devices(tmp_path):
    machine = Machine(tmp_path)
    gpu = machine.gpu("pci0000:00/0000:05:00.0")
    machine.nic("mlx5_0", "pci0000:00/0000:06:00.0", ({}, {}))
    machine.nic("mlx5_1", "pci0000:00/0000:07:00.0")
    found = [choose("auto", "", devices(tmp_path), gpu, anything, tmp_path, turn) for turn in range(4)]
    assert [choice.name for choice in found] == ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_0:1"]
    assert "one of 3 equally near" in found[0].reason


def test_a_software_device_serves_the_simulator_alone(tmp_path):
    machine, gpus = dgx(tmp_path, (DOWN,))
    machine.nic("rxe0")
    (tmp_path / "sys/class/infiniband/mlx5_3/ports/1/state").write_text("4: ACTIVE\n")
    choice = choose("auto", "", devices(tmp_path), gpus[0], anything, tmp_path, turn=1)
    assert choice.name == "mlx5_3:1"
    assert "SYS from the GPU" in choice.reason
    (tmp_path / "sys/class/infiniband/mlx5_3/ports/1/state").write_text("1: DOWN\n")
    choice = choose("auto", "", devices(tmp_path), gpus[0], anything, tmp_path)
    assert choice.name == "softhca"
    assert "rxe0:1 belongs to a software device, which cannot access GPU memory" in choice.reason
    with pytest.raises(
        TransportError, match=r"PGAS_HCA=rxe0: port 1 belongs to a software device, which cannot access GPU memory; RDMA devices"
    ):
        choose("rxe0", "", devices(tmp_path), gpus[0], anything, tmp_path)
    assert choose("rxe0", "", devices(tmp_path), None, anything, tmp_path).name == "rxe0:1"


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("mlx5_1,mlx5_2", "mlx5_1:1"),
        (" mlx5_3:1 , mlx5_2:7", "mlx5_3:1"),
        ("^mlx5_0", "mlx5_1:1"),
        ("^mlx5_0,mlx5_1:1,mlx5_2", "mlx5_3:1"),
        ("^", "mlx5_0:1"),
    ],
)
def test_lists(tmp_path, listed, expected):
    _, gpus = dgx(tmp_path)
    assert choose("auto", listed, devices(tmp_path), gpus[0], anything, tmp_path).name == expected


def test_a_list_that_excludes_all(tmp_path):
    machine = Machine(tmp_path)
    gpu = machine.gpu("pci0000:00/0000:05:00.0")
    machine.nic("mlx5_0", "pci0000:00/0000:06:00.0")
    assert (
        str(choose("auto", "^mlx5_0", devices(tmp_path), gpu, anything, tmp_path)) == "softhca: PGAS_HCA_LIST=^mlx5_0 leaves no RDMA device"
    )


def test_a_list_of_devices_that_are_not_there(tmp_path):
    _, gpus = dgx(tmp_path)
    with pytest.raises(
        TransportError, match=r"PGAS_HCA_LIST=mlx5_9: this machine has none of these; RDMA devices here: mlx5_0 \(port 1 ACTIVE\)"
    ):
        choose("auto", "mlx5_9", devices(tmp_path), gpus[0], anything, tmp_path)


@pytest.mark.parametrize(("requested", "expected"), [("mlx5_3", "mlx5_3:1"), ("mlx5_3:1", "mlx5_3:1")])
def test_a_device_asked_for(tmp_path, requested, expected):
    _, gpus = dgx(tmp_path)
    choice = choose(requested, "^mlx5_3", devices(tmp_path), gpus[0], anything, tmp_path)
    assert str(choice) == f"{expected}: asked for"
    assert choose(requested, "", devices(tmp_path), None, anything, tmp_path).name == expected  # the simulator too


def test_the_active_port_of_a_device_asked_for(tmp_path):
    Machine(tmp_path).nic("mlx5_0", "pci0000:00/0000:06:00.0", (DOWN, {}))
    assert choose("mlx5_0", "", devices(tmp_path), None, anything, tmp_path).name == "mlx5_0:2"


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ("mlx5_7", "PGAS_HCA=mlx5_7: this machine has no such device; RDMA devices here: mlx5_0 (port 1 DOWN, port 2 ACTIVE), rxe0 (port"),
        ("mlx5_0:3", "PGAS_HCA=mlx5_0:3: mlx5_0 has no such port; RDMA devices here: mlx5_0"),
        ("mlx5_0:one", "PGAS_HCA=mlx5_0:one: mlx5_0 has no such port"),
        ("mlx5_0:1", "PGAS_HCA=mlx5_0:1: port 1 is DOWN (physical state Disabled); RDMA devices here: mlx5_0"),
        ("rxe0", "PGAS_HCA=rxe0: port 1 is no mlx5 device; RDMA devices here"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(tmp_path, requested, words):
    machine = Machine(tmp_path)
    machine.nic("mlx5_0", "pci0000:00/0000:06:00.0", (DOWN, {}))
    machine.nic("rxe0")
    with pytest.raises(TransportError) as refused:
        choose(requested, "", devices(tmp_path), None, lambda d, p: None if d.driver == "mlx5_core" else "is no mlx5 device", tmp_path)
    assert str(refused.value).startswith(words)


# ---------------------------------------------------------------------------------------------------------------- GIDs

GLOBAL_V2 = ("2001:0db8:0000:0000:0000:0000:0000:0007", "RoCE v2", "eth0")


def port(tmp_path, **fields):
    Machine(tmp_path).nic("mlx5_0", "pci0000:00/0000:06:00.0", (fields,))
    return devices(tmp_path)[0].ports[0]


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        (ROCE_GIDS, 3),
        ([*ROCE_GIDS[:3], GLOBAL_V2], 3),
        (ROCE_GIDS[:2], 1),
        (ROCE_GIDS[:1], 0),
        ([(ipv4_gid((10, 0, 0, 1)), "RoCE v2", ""), ROCE_GIDS[3]], 1),  # the first belongs to another network namespace
        ([("0000:0000:0000:0000:0000:0000:0000:0000", None, None), GLOBAL_V2], 1),
    ],
)
def test_the_gid_chosen(tmp_path, gids, index):
    assert choose_gid(port(tmp_path, gids=gids)).index == index


def test_the_gid_of_infiniband(tmp_path):
    assert choose_gid(port(tmp_path, **INFINIBAND)).index == 0


def test_the_gid_asked_for(tmp_path):
    assert choose_gid(port(tmp_path), 2).kind == "IB/RoCE v1"


def test_a_gid_that_is_not_there(tmp_path):
    with pytest.raises(
        TransportError, match=r"PGAS_IB_GID_INDEX=9: no such GID; GIDs in use on port 1: 0 \(fe80::202:c9ff:fe00:1, IB/RoCE v1\), 1"
    ):
        choose_gid(port(tmp_path), 9)


def test_no_gid_at_all(tmp_path):
    with pytest.raises(TransportError, match=r"GIDs in use on port 1: none; give the interface of the port an IPv4 address"):
        choose_gid(port(tmp_path, gids=[]))
