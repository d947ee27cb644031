"""The NIC that init chooses, and its arguments, on fake machines; the messages on machines without one."""

import os
import re
from dataclasses import replace
from types import SimpleNamespace

import jobs
import pytest

from pgas.base.errors import TransportError
from pgas.job.paths import hca
from pgas.job.paths.topology import PE, Neighbors, choose_transport
from pgas.transports import registry
from pgas.transports.devices import Device, Gid, Port
from pgas.transports.ibgda.nic import DirectNIC
from pgas.transports.ibgda.transport import IBGDA
from pgas.transports.ibrc.nic import ProxiedNIC
from pgas.transports.ibrc.transport import IBRC
from pgas.transports.ibrc.verbs import VerbsNIC
from pgas.transports.nic.adapter import AddressPath, path_of
from pgas.transports.selection import Choice

job = jobs.job

GIDS = (
    Gid(0, b"\xfe\x80" + bytes(13) + b"\x01", "RoCE v2", "eth0"),
    Gid(3, bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7]), "RoCE v2", "eth0"),
)
PORT = Port(1, "ACTIVE", "LinkUp", "Ethernet", 100.0, 0, GIDS)
DEVICE = Device("mlx5_0", "mlx5_core", "0000:3b:00.0", 0, (PORT,), "uverbs0", "28.39.1002")
VARIABLES = {
    "PGAS_TRANSPORT": "ibrc", "PGAS_HCA": "auto", "PGAS_HCA_LIST": "", "PGAS_IB_GID_INDEX": -1, "PGAS_IB_SL": 3,
    "PGAS_IB_TRAFFIC_CLASS": 104, "PGAS_IB_TIMEOUT": 14, "PGAS_IB_RETRY_COUNT": 5,
}  # fmt: skip


@pytest.fixture
def machine(monkeypatch):
    """A machine with one device that can carry ibrc."""
    monkeypatch.setattr(hca.devices, "devices", lambda: [DEVICE])
    monkeypatch.setattr(IBRC, "why_not", lambda self, device, port: None)


def choose(transport="ibrc", **asked):
    """Return the NIC of a machine's first PE."""
    return hca.choose(transport, {**VARIABLES, **asked}, None, 0)


@pytest.mark.usefixtures("machine")
def test_choices():
    assert choose().name == "softhca"
    choice = choose(PGAS_HCA="mlx5_0")
    assert (choice.name, choice.port) == ("mlx5_0:1", PORT)


@pytest.mark.parametrize(
    ("wanted", "in_order", "device", "ordering"),
    [
        ("auto", False, DEVICE, "none"),
        ("auto", True, DEVICE, "owner"),
        ("auto", None, DEVICE, "owner"),  # the simulator
        ("auto", False, None, "owner"),  # the software NIC
        ("owner", False, DEVICE, "owner"),
        ("none", True, None, "none"),
    ],
)
def test_whether_kernels_settle(wanted, in_order, device, ordering):
    gpu = None if in_order is None else SimpleNamespace(in_order=in_order)
    requested = {"PGAS_NIC_ORDERING": wanted}
    assert hca.ordering(requested, gpu, Choice(device, None, "asked for")) == ordering
    assert hca.ordering({"PGAS_NIC_ORDERING": "auto"}, gpu, None) == "owner"  # no NIC


@pytest.mark.usefixtures("machine")
def test_a_missing_nic_that_is_not_used():
    assert hca.unused({"PGAS_HCA": "mlx5_9:1"}) == "PGAS_HCA=mlx5_9:1: this machine has mlx5_0"
    assert [hca.unused({"PGAS_HCA": name}) for name in ("auto", "softhca", "mlx5_0:1")] == [None] * 3


@pytest.mark.usefixtures("machine")
def test_a_device_for_ibrc_but_not_ibgda(monkeypatch):
    monkeypatch.setattr(IBGDA, "why_not", lambda self, device, port: "has no DevX")
    with pytest.raises(TransportError, match="PGAS_HCA=mlx5_0: port 1 has no DevX"):
        choose("ibgda", PGAS_HCA="mlx5_0")


def setting(choice, **asked):
    """Return the Setting of a job in the simulator."""
    opened = []
    offered = registry.Setting({**VARIABLES, **asked}, choice, False, lambda by_cpu: opened.append(by_cpu) or "a card", print)
    return offered, opened


REAL, CARD = Choice(DEVICE, PORT, "asked for"), Choice(None, None, "asked for")


@pytest.fixture
def made(monkeypatch):
    """Record the arguments of NICs instead of making them."""
    found = []
    for nic in (DirectNIC, ProxiedNIC, VerbsNIC):
        monkeypatch.setattr(nic, "__init__", lambda self, part, **options: found.append((type(self), options)))
    return found


@pytest.mark.parametrize("handler", ["auto", "cpu"])
def test_whether_gpu_or_cpu_rings_the_software_card(made, handler):
    offered, opened = setting(CARD, PGAS_IBGDA_NIC_HANDLER=handler)
    for transport in ("ibgda", "ibrc"):
        registry.get(transport).connect(None, offered)
    options = {"opener": "a card", "packets": path_of(offered.requested)}
    assert made == [(DirectNIC, options), (ProxiedNIC, options)]
    assert opened == [handler == "cpu", True]


def test_ibrc_over_a_device(made):
    connect = registry.get("ibrc").connect
    connect(None, setting(REAL)[0])
    assert made.pop() == (VerbsNIC, {"device": "mlx5_0", "port": 1, "gid": GIDS[1], "path": AddressPath(3, 3, 104, 14, 5)})
    connect(None, setting(REAL, PGAS_IB_GID_INDEX=0)[0])
    options = made.pop()[1]
    assert (options["gid"], options["path"].gid_index) == (GIDS[0], 0)
    wanted = "mlx5_0:1: PGAS_IB_GID_INDEX=1: no such GID; GIDs in use on port 1: 0 (fe80::1, RoCE v2), 3 (10.0.0.7, RoCE v2)"
    with pytest.raises(TransportError, match=re.escape(wanted)):
        connect(None, setting(REAL, PGAS_IB_GID_INDEX=1)[0])
    without = replace(PORT, gids=())
    with pytest.raises(TransportError, match="GIDs in use on port 1: none; give the interface of the port an IPv4 address"):
        connect(None, setting(replace(REAL, port=without))[0])
    connect(None, setting(replace(REAL, port=replace(without, link_layer="InfiniBand", lid=7)))[0])
    assert made.pop()[1]["gid"] is None


def pe(number, nic, why="asked for", node="alpha/boot/pid:[1]"):
    return PE(number, node, 1000 + number, "0.1", None, "", False, 0, (), nic, why)


def over_devices(pes):
    return choose_transport("ibrc", Neighbors(pes, [[None] * 2] * 2), lambda name: pes)


def test_jobs_over_devices():
    """Of several machines, with whatever names they have there."""
    both = [pe(0, "mlx5_0:1"), pe(1, "mlx5_0:1", node="beta/boot/pid:[1]")]
    assert over_devices(both) == ("ibrc", "asked for; over mlx5_0:1 (asked for)")
    different = [pe(0, "mlx5_0:1", "near"), pe(1, "mlx5_3:2")]
    assert over_devices(different)[1] == "asked for; over mlx5_0:1 (near; PE 0), mlx5_3:2 (asked for; PE 1)"
    mixed = [pe(0, "mlx5_0:1"), pe(1, "softhca", "this machine has no RDMA device")]
    with pytest.raises(TransportError, match=r"PE 1 uses the software NIC \(this machine has no RDMA device\), PE 0 mlx5_0:1"):
        over_devices(mixed)


@pytest.mark.skipif(bool(hca.devices.devices()), reason="capability missing: a machine without RDMA devices")
def test_a_machine_without_devices(job):
    ended = job("attempt(pgas.init)\n", PGAS_TRANSPORT="ibrc", PGAS_HCA="mlx5_0")
    wanted = "TransportError: PGAS_HCA=mlx5_0: this machine has no such device; RDMA devices here: none"
    assert ended.out.count(wanted) == 2, ended


def test_a_refusal_is_one_message(monkeypatch):
    """For ENOMEM at registration it has the limit, the needed size and the remedy."""
    from pgas.transports.verbs import memory

    class PyverbsError(Exception):
        error_code = 12

    def refuse(*args, **kwargs):
        raise PyverbsError("Failed to register a MR. Errno: 12, Cannot allocate memory")

    modules = {"mr": SimpleNamespace(MR=refuse, DmaBufMR=refuse), "pyverbs_error": SimpleNamespace(PyverbsError=PyverbsError)}
    monkeypatch.setattr(memory, "pyverbs", modules.__getitem__)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (1 << 20, 8 << 20))
    device = SimpleNamespace(pd=None, __str__=lambda self: "rxe0:1")
    with pytest.raises(TransportError) as refused:
        memory.register(device, 0x6000_0000_0000, 64 << 20, memory.Access.LOCAL_WRITE, what="the symmetric heap", on_gpu=False)
    assert "67108864 bytes of the symmetric heap by address: Failed to register a MR" in str(refused.value)
    assert "this process may lock 1024 KiB of memory, this alone takes 65536 KiB: ulimit -l 131072 or more" in str(refused.value)
    assert "where 8192 KiB is allowed" in str(refused.value)
    monkeypatch.setattr(memory, "_as_dma_buf", lambda *args: refuse())
    with pytest.raises(TransportError, match=r"as a dma-buf: .*; by address \(GPU memory needs the kernel module nvidia-peermem\): Failed"):
        memory.register(device, 0x6000_0000_0000, 64 << 20, memory.Access.LOCAL_WRITE, what="the symmetric heap", on_gpu=True)


def test_a_piece_of_gpu_memory_as_a_dma_buf(monkeypatch):
    """A piece that starts within a page: CUDA exports whole pages, and work requests use the offset in these."""
    pytest.importorskip("cuda.bindings", reason="capability missing: cuda.bindings")
    from pgas.transports.memory import gpudirect
    from pgas.transports.verbs import memory

    opened, asked = os.open(os.devnull, os.O_RDONLY), []

    def register(*arguments):
        os.fstat(arguments[3])  # is open
        asked.append(arguments)
        return SimpleNamespace(lkey=7, rkey=9)

    modules = {"mr": SimpleNamespace(DmaBufMR=register), "pyverbs_error": SimpleNamespace(PyverbsError=RuntimeError)}
    monkeypatch.setattr(memory, "pyverbs", modules.__getitem__)
    monkeypatch.setattr(gpudirect, "dmabuf", lambda address, nbytes: (opened, address % 4096))
    device, address = SimpleNamespace(pd="pd"), 0x7F00_0000_1208
    region = memory.register(device, address, 5000, memory.Access.LOCAL_WRITE, what="an array", on_gpu=True)
    assert asked == [("pd", 5000, 1, opened, 0x208)]
    assert (region.lkey, region.rkey, address - region.shift) == (7, 9, 0x208)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened)


# ------------------------------------------------------------------------------------------------------ number of queue pairs


@pytest.mark.parametrize(
    ("wanted", "n_pes", "nic", "expected"),
    [
        ("auto", 2, "softhca", 2),
        ("auto", 45, "softhca", 2),
        ("auto", 46, "softhca", 1),
        ("auto", 64, "softhca", 1),
        ("auto", 65, "softhca", 1),  # refused later, with the card's number
        ("auto", 400, "mlx5_0:1", 2),
        (8, 32, "softhca", 8),
    ],
)
def test_queue_pairs_follow_the_number_of_pes(wanted, n_pes, nic, expected):
    pes = [pe(number, nic) for number in range(n_pes)]
    assert hca.queue_pairs({"PGAS_IBGDA_NUM_RC_PER_PE": wanted}, pes) == expected
