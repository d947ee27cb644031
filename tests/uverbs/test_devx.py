"""devx.py over the real pyverbs, libibverbs and libmlx5, down to the software card: what works, and the messages of failures."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import rig
from poster import Poster, make, write

from pgas.base.errors import PgasError, TransportError
from pgas.base.remedies import mend
from pgas.transports import devices, selection
from pgas.transports.ibgda import devx
from pgas.transports.mlx5 import cqe, wqe
from pgas.transports.mlx5.commands import Command, CommandError, Status
from pgas.transports.mlx5.contexts import Access, QpState
from pgas.transports.nic import adapter, indirect_key
from pgas.transports.nic.indirect_key import Piece
from pgas.transports.nic.queue_pair import check_caps
from pgas.transports.softhca.process import client
from uverbs import devices as played

CARD = os.environ.get("UVERBS_CARD")

pytestmark = pytest.mark.skipif(
    CARD is None, reason="capability missing: the devices of tests/uverbs (python -m uverbs; tests/tools/test_uverbs.py)"
)

GID = {"mlx5_0": 0, "mlx5_1": 3}


def port_of(name):
    found = devices.devices(Path(os.environ["SYSFS_PATH"]).parent)
    return next(device for device in found if device.name == name).ports[0]


def opened(name="mlx5_0", **options):
    port = port_of(name)
    return devx.DevX(name, port, selection.choose_gid(port), **options)


class PE(rig.PE):
    """A PE of the rig with a device as its adapter."""

    def __init__(self, number, name="mlx5_0", **options):
        self.options = options
        try:
            super().__init__(name, number)
        except BaseException:
            self.memory.close()
            raise

    def open(self, name, shared):
        options = dict(self.options)
        if "gpu" in options:
            options["gpu"] = options["gpu"](self, shared)
        return opened(name, **options)


class GPU:
    """A GPU with memory of the host; memfds are its dma-bufs."""

    def __init__(self, pe, shared, *, exports=True, maps=True):
        self.shared, self.exports, self.maps, self.mapped = shared, exports, maps, []

    def on_gpu(self, address):
        return any(start <= address < start + nbytes for start, nbytes, _ in self.shared)

    def dmabuf(self, address, nbytes):
        if not self.exports:
            raise PgasError("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED")
        return next(
            (os.dup(fd), address - start) for start, size, fd in self.shared if start <= address and address + nbytes <= start + size
        )

    def map_register(self, address):
        if not self.maps:
            raise TransportError("the GPU may not store to a doorbell register")
        self.mapped.append(address)
        return address

    def unmap_register(self, address):
        self.mapped.remove(address)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """The machine, with all capabilities when a test begins."""
    machine = played.Machine()
    for module in ("devices", "process", "verbs", "devx"):
        __import__(f"uverbs.{module}")
    import uverbs.devx
    import uverbs.verbs

    for module in (played, uverbs.verbs, uverbs.devx):
        monkeypatch.setattr(module, "machine", machine)
    return machine


@pytest.fixture
def pes():
    yield from pair_of("mlx5_0")


def pair_of(name, **options):
    both = []
    try:
        both.extend(PE(number, name, **options) for number in (0, 1))
        yield both
    finally:
        for pe in both:
            pe.close()


@pytest.fixture
def observer():
    observer = client.Observer(CARD)
    yield observer
    observer.close()


def connected(pes, path=None):
    ports = [pe.hca.query_port() for pe in pes]
    a, b = (make(pe, path=path) for pe in pes)
    a.connect(b.qpn, ports[0], ports[1])
    b.connect(a.qpn, ports[1], ports[0])
    return a, b


def said(call, *arguments, **options):
    with pytest.raises(TransportError) as caught:
        call(*arguments, **options)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------------------- traffic


def traffic(pes, path=None):
    """One WRITE there and one back."""
    a, b = connected(pes, path)
    pes[0].write(pes[0].heap, b"hello world, hello card!")
    done = Poster(pes[0], a).run(*write(pes))
    assert pes[1].read(pes[1].heap + 60, 32) == bytes(4) + b"hello world, hello card!" + bytes(4)
    assert (done.opcode, done.s_wqe_opcode, done.qpn) == (cqe.CqeOpcode.REQ, wqe.Opcode.RDMA_WRITE, a.qpn)
    pes[1].write(pes[1].heap, b"and back from PE 1 to 0.")
    Poster(pes[1], b).run(*write(pes, 1, 0))
    assert pes[0].read(pes[0].heap + 64, 24) == b"and back from PE 1 to 0."
    return a, b


def test_two_pes_write(pes):
    check_caps(pes[0].hca, 2, 2, 1024)
    a, b = traffic(pes)
    assert (a.query(), b.query()) == (QpState.RTS, QpState.RTS)
    path = pes[0].command(Command.QUERY_QP, qpn=a.qpn)["qpc"]["primary_address_path"]
    assert {name: value for name, value in path.items() if value} == {"vhca_port_num": 1, "rlid": 1}


def test_an_atomic_and_a_wrong_key(pes):
    a, _ = connected(pes)
    poster = Poster(pes[0], a)
    pes[1].word(0, 40)
    poster.run(wqe.fetch_add, pes[1].heap, pes[1].key, pes[0].heap + 8, pes[0].key, 2)
    assert (pes[1].word(0), pes[0].word(8)) == (42, 40)
    syndrome, _ = poster.fail(wqe.write, pes[1].heap, pes[1].key ^ 0x100, pes[0].heap, pes[0].key, 8)
    assert syndrome == cqe.Syndrome.REMOTE_ACCESS_ERR
    assert a.query() == QpState.ERR
    assert pes[0].hca.diagnose(a.qpn) is None
    a.reset()
    assert a.query() == QpState.RST


def test_a_key_of_several_pieces(pes):
    """DESTROY_MKEY goes through the key's DevX object; the pieces are regions of libibverbs."""
    access = Access.LOCAL_WRITE | Access.REMOTE_WRITE
    pieces = [Piece(at, 4096, pes[1].hca.register_mr(at, 4096, pes[1].pdn, access)[0]) for at in (pes[1].heap, pes[1].heap + 4096)]
    key = indirect_key.over(pes[1].hca, pes[1].pdn, access, pieces)
    a, _ = connected(pes)
    pes[0].write(pes[0].heap, b"across the boundary")
    Poster(pes[0], a).run(wqe.write, pes[1].heap + 4090, key, pes[0].heap, pes[0].key, 19)
    assert pes[1].read(pes[1].heap + 4090, 19) == b"across the boundary"
    indirect_key.destroy(pes[1].hca, key)
    for piece in pieces:
        pes[1].hca.deregister_mr(piece.lkey)


# ---------------------------------------------------------------------------------------------------------------------------- port


def test_the_port_of_infiniband():
    hca = opened()
    gid = played.DEVICES[0].gids[0].gid
    assert hca.query_port() == adapter.PortAddress(1, "InfiniBand", 5, 1, gid, 100.0)
    hca.close()


def test_the_port_of_roce():
    """The GID is the card's own (QUERY_ROCE_ADDRESS); RoCE v2 over IPv4 is the fourth entry."""
    hca = opened("mlx5_1")
    gid = bytes(10) + b"\xff\xff" + bytes([192, 168, 7, 2])
    assert hca.query_port() == adapter.PortAddress(1, "Ethernet", 5, 0, gid, 100.0)
    hca.close()


def test_the_address_path_of_roce():
    for pes in pair_of("mlx5_1"):
        a, _ = traffic(pes, adapter.AddressPath(GID["mlx5_1"], sl=3, traffic_class=0x68, timeout=12, retry_count=5))
        qpc = pes[0].command(Command.QUERY_QP, qpn=a.qpn)["qpc"]
        path = {name: value for name, value in qpc["primary_address_path"].items() if value}
        gid = int.from_bytes(bytes(10) + b"\xff\xff" + bytes([192, 168, 7, 2]), "big")
        assert path == {
            "vhca_port_num": 1, "src_addr_index": 3, "rgid_rip": gid, "rmac_47_32": 0x0200, "rmac_31_0": 2, "hop_limit": 255,
            "udp_sport": 0xC000, "eth_prio": 3, "dscp": 0x1A,
        }  # fmt: skip
        assert qpc["retry_count"] == 5


def test_a_peer_behind_a_router(machine):
    """Packets go to the router's MAC, which the kernel returns with an address handle; the GID is still the peer's."""
    machine.gateway = bytes.fromhex("02aabbccddee")
    for pes in pair_of("mlx5_1"):
        a, _ = connected(pes, adapter.AddressPath(GID["mlx5_1"]))
        path = pes[0].command(Command.QUERY_QP, qpn=a.qpn)["qpc"]["primary_address_path"]
        assert (path["rmac_47_32"], path["rmac_31_0"]) == (0x02AA, 0xBBCCDDEE)
        assert path["rgid_rip"] == int.from_bytes(bytes(10) + b"\xff\xff" + bytes([192, 168, 7, 2]), "big")


def test_a_peer_without_a_route(machine):
    machine.routed = False
    for pes in pair_of("mlx5_1"):
        text = said(connected, pes, adapter.AddressPath(GID["mlx5_1"]))
        assert text.startswith("mlx5_1: the kernel finds no route from GID 3 to GID 0000:0000:0000:0000:0000:ffff:c0a8:0702: ")
        assert "Network is unreachable" in text


def test_a_gid_that_the_card_does_not_have():
    port = port_of("mlx5_1")
    hca = devx.DevX("mlx5_1", port, devices.Gid(9, bytes(16), "RoCE v2", ""))
    with pytest.raises(CommandError) as caught:
        hca.query_port()
    assert (caught.value.opcode, caught.value.status) == (Command.QUERY_ROCE_ADDRESS, Status.BAD_PARAM)
    hca.close()


def test_a_port_that_went_down(machine):
    hca = opened()
    machine.port_active = False
    assert said(hca.query_port) == "mlx5_0: port 1 is not active (rdma link and ibstat show it)"
    hca.close()


# ------------------------------------------------------------------------------------------------------------------------- opening


def test_devx_that_is_not_permitted(machine):
    machine.devx = False
    text = said(opened)
    assert text.startswith("mlx5_0: no DevX context opens: ")
    assert "whose firmware permits DevX, and read and write access to /dev/infiniband/uverbs*" in text
    assert devx.why_not(devices.Device("mlx5_0", "", None, -1, (), "uverbs0", ""), port_of("mlx5_0")) == text


def test_a_device_file_that_may_not_be_opened(machine):
    machine.access = False
    assert "no DevX context opens" in said(opened)


def test_a_device_that_is_not_there():
    port = port_of("mlx5_0")
    assert said(devx.DevX, "mlx5_7", port, port.gids[0]).startswith("mlx5_7: no DevX context opens: ")


def test_a_device_that_suits():
    found = devices.devices(Path(os.environ["SYSFS_PATH"]).parent)
    assert [device.name for device in found] == ["mlx5_0", "mlx5_1"]
    assert [devx.why_not(device, device.ports[0]) for device in found] == [None, None]


# ------------------------------------------------------------------------------------------------------------------------ commands


def test_the_status_and_syndrome_of_a_refused_command(pes):
    """For each kind of command: one that creates an object, one that modifies it, a general one."""
    qp = make(pes[0])
    words = {"cc": 1, "oi": 1, "uar_page": qp.uar.page_id, "c_eqn": pes[0].hca.query_eqn(), "dbr_umem_valid": 1, "dbr_umem_id": 0xFFFF}
    status, why = pes[0].refused(Command.CREATE_CQ, cqc=words, cq_umem_id=pes[0].umem, cq_umem_valid=1)
    assert (status, why) == (Status.BAD_RES, "UMEM")
    status, why = pes[0].refused(Command.RTR2RTS_QP, qpn=qp.qpn, qpc={})
    assert (status, why) == (Status.BAD_QP_STATE, "TRANSITION")
    status, why = pes[0].refused(Command.QUERY_HCA_CAP, op_mod=0x7F)
    assert (status, why) == (Status.BAD_PARAM, "OP_MOD")
    assert qp.query() == QpState.RST


def test_a_syndrome_of_the_firmware(machine, pes):
    """The error has the number, whose meaning only the firmware knows."""
    machine.refused = {Command.CREATE_QP: (Status.BAD_RES, 0x5DEAD1)}
    with pytest.raises(CommandError) as caught:
        make(pes[0])
    assert str(caught.value) == "CREATE_QP failed: BAD_RES (bad resource), syndrome 0x5dead1"


def test_a_kernel_that_keeps_the_status(machine, pes):
    machine.refused = {Command.CREATE_QP: (Status.LIM, 0x5DEAD1)}
    machine.old_kernel = True
    assert said(make, pes[0]) == (
        "mlx5_0: CREATE_QP failed: Cannot allocate memory (errno 12); the kernel returns no status and syndrome of the NIC"
    )


def test_commands_that_name_no_object_of_this_process(pes):
    qp = make(pes[0])
    for pe, command, name in ((pes[1], Command.QUERY_QP, "qpn"), (pes[0], Command.DESTROY_CQ, "cqn"), (pes[1], Command.TO_ERR_QP, "qpn")):
        text = said(pe.command, command, **{name: qp.qpn ^ 0x20_0000 if name == "cqn" else qp.qpn})
        assert "which is not an object of this process" in text


def test_a_command_that_the_kernel_does_not_pass_on(pes):
    assert "ALLOC_PD failed: Invalid argument (errno 22)" in said(pes[0].command, Command.ALLOC_PD)


# ------------------------------------------------------------------------------------------------------------- registers and memory


def test_every_queue_pair_has_a_page_of_its_own():
    """libmlx5 44 has no dedicated UARs, so BlueFlame pages are used, one register of each."""
    hca = opened()
    uars = [hca.alloc_uar() for _ in range(5)]
    assert len({uar.page_id for uar in uars}) == 5
    assert len({uar.register_address // 4096 for uar in uars}) == 5
    for uar in uars:
        hca.dealloc_uar(uar.page_id)
    hca.close()


def test_if_only_the_context_has_a_uar(machine):
    machine.blueflame = False
    hca = opened()
    uar = hca.alloc_uar()
    assert uar.register_address % 4096 == 0x800
    assert said(hca.alloc_uar) == (
        "mlx5_0 does not provide a UAR: NC_DEDICATED: Failed to allocate UAR. Errno: 95, Operation not supported; "
        "BF: Failed to allocate UAR. Errno: 95, Operation not supported; NC: a second queue pair would share the UAR of the context"
    )
    hca.close()


def test_memory_that_is_refused(machine, pes):
    machine.umem = False
    pe = pes[0]
    text = said(pe.hca.register_umem, pe.slot, rig.QUEUES)
    where = f"queues ({rig.QUEUES} bytes at {pe.slot:#x}) of the host"
    assert text.startswith(f"mlx5_0 refuses {where} (mlx5dv_devx_umem_reg_ex; ulimit -l shows how much may be locked): ")
    assert "Bad address" in text
    assert "Bad address" in said(pe.hca.register_mr, id(pe), 4096, pe.pdn, rig.ALL)  # no memory that the card reaches


@pytest.mark.parametrize("gpu", [None, GPU, lambda pe, shared: GPU(pe, shared, exports=False)], ids=["host", "dma-buf", "address"])
@pytest.mark.parametrize("pages", [devx._UMEM_PAGES, 0], ids=["chosen", "left to the kernel"])
def test_queues_of_one_umem(monkeypatch, gpu, pages):
    """By default the kernel takes the largest page size that fits, and then the card refuses every offset but 0."""
    monkeypatch.setattr(devx, "_UMEM_PAGES", pages)
    for pes in pair_of("mlx5_0", **({} if gpu is None else {"gpu": gpu})):
        if pages:
            traffic(pes)
            continue
        with pytest.raises(CommandError) as caught:
            make(pes[0])
        assert (caught.value.opcode, caught.value.status, caught.value.syndrome) == (Command.CREATE_CQ, Status.BAD_PARAM, 0x357275)


def test_gpu_memory_as_dma_bufs():
    for pes in pair_of("mlx5_0", gpu=GPU):
        traffic(pes)
        assert [pe.hca._way for pe in pes] == ["as a dma-buf"] * 2
        assert len(pes[0].hca._gpu.mapped) == 1  # the one QP's


def test_a_piece_of_gpu_memory_as_a_dma_buf(machine, monkeypatch):
    """For pgas.register: any start and end; the region has these bounds and the memory's addresses."""
    for pes in pair_of("mlx5_0", gpu=GPU):
        a, _ = connected(pes)
        poster = Poster(pes[0], a)
        offset, nbytes = 8192 + 520, 5000
        piece = pes[0].heap + offset
        key, _ = pes[0].hca.register_mr(piece, nbytes, pes[0].pdn, rig.Access.LOCAL_WRITE)
        assert machine.regions[-1] == played.Region(offset, nbytes, piece)
        pes[0].write(piece, bytes(range(250)) * 20)
        poster.run(wqe.write, pes[1].heap + 64, pes[1].key, piece, key, nbytes)
        assert pes[1].read(pes[1].heap + 64, nbytes) == bytes(range(250)) * 20
        poster.run(wqe.write, pes[1].heap, pes[1].key, piece + nbytes - 8, key, 8)
        syndrome, _ = poster.fail(wqe.write, pes[1].heap, pes[1].key, piece + nbytes - 7, key, 8)
        assert syndrome == cqe.Syndrome.LOCAL_PROT_ERR
        with monkeypatch.context() as patch:
            patch.setattr(pes[0].hca._library, "dereg_mr", lambda mr: errno.EBUSY)
            text = said(pes[0].hca.deregister_mr, key)
            assert text == f"mlx5_0 refuses to release memory region {key:#x}: Device or resource busy"
        pes[0].hca.deregister_mr(key)


def test_a_piece_of_gpu_memory_by_pyverbs(machine, monkeypatch):
    """As ibrc does it: the region's addresses count from the beginning of the dma-buf."""
    from pgas.transports.memory import gpudirect
    from pgas.transports.verbs import memory

    for pes in pair_of("mlx5_0", gpu=GPU):
        pe = pes[0]
        monkeypatch.setattr(gpudirect, "dmabuf", pe.hca._gpu.dmabuf)
        device = SimpleNamespace(pd=pe.hca._pds[pe.pdn])
        with pytest.raises(Exception, match="dma-buf MR"):  # the software NIC has no addresses but the process's own
            memory._as_dma_buf(device, pe.heap + 520, 5000, rig.Access.LOCAL_WRITE)
        assert machine.regions[-1] == played.Region(520, 5000, 520)


def test_gpu_memory_by_its_address(machine):
    """With the module nvidia-peermem, if the kernel or the driver has no dma-bufs."""
    machine.dmabuf = False
    for pes in pair_of("mlx5_0", gpu=GPU):
        traffic(pes)
        assert [pe.hca._way for pe in pes] == ["by address"] * 2
    machine.dmabuf = True
    for pes in pair_of("mlx5_0", gpu=lambda pe, shared: GPU(pe, shared, exports=False)):
        traffic(pes)


def test_gpu_memory_in_neither_way(machine):
    machine.dmabuf = machine.umem = False
    text = said(PE, 0, gpu=GPU)
    assert text.startswith("mlx5_0 cannot use queues (2097152 bytes at ")
    assert "of the GPU: as a dma-buf (mlx5dv_devx_umem_reg_ex): " in text
    assert "; by address (mlx5dv_devx_umem_reg_ex): " in text
    assert text.endswith(f"({mend('peer memory')})")


@pytest.mark.parametrize(
    ("handler", "maps", "by_cpu"), [("auto", True, False), ("auto", False, True), ("cpu", True, True), ("gpu", True, False)]
)
def test_whether_gpu_or_cpu_rings(handler, maps, by_cpu):
    gpu = GPU(None, [], maps=maps)
    hca = opened(gpu=gpu, handler=handler)
    assert hca.rung_by_cpu == by_cpu
    assert hca.why_by_cpu == ("" if maps else "the GPU may not store to a doorbell register")
    uars = [hca.alloc_uar(), hca.alloc_uar()]
    assert len(gpu.mapped) == (0 if by_cpu else 2)
    assert len({uar.page_id for uar in uars}) == 2
    hca.close()
    assert gpu.mapped == []


def test_a_gpu_that_must_ring_and_may_not():
    assert said(opened, gpu=GPU(None, [], maps=False), handler="gpu") == "the GPU may not store to a doorbell register"


# -------------------------------------------------------------------------------------------------------------------------- ending


def kinds(observer):
    counted = observer.counters()
    return {kind: len(counted[kind]) for kind in ("qps", "cqs", "uars", "keys")}


def test_closing_leaves_nothing(observer):
    before = kinds(observer)
    for pes in pair_of("mlx5_0"):
        connected(pes)
        pes[0].hca.close()
        pes[0].hca.close()
        assert said(pes[0].hca.alloc_uar) == "mlx5_0 is closed"
        with pytest.raises(TransportError, match="mlx5_0 is closed"):
            pes[0].command(Command.QUERY_HCA_CAP, op_mod=1)
    rig.wait_until(lambda: kinds(observer) == before, "objects are left on the card")


def test_objects_in_use_cannot_be_destroyed(pes):
    hca, qp = pes[0].hca, make(pes[0])
    for call, number in ((hca.deregister_umem, pes[0].umem), (hca.dealloc_pd, pes[0].pdn)):  # libmlx5 keeps UARs that are given back
        assert "Device or resource busy" in said(call, number)
    for call, *arguments in (
        (hca.deregister_mr, 0x1234), (hca.dealloc_pd, 0x1234), (hca.deregister_umem, 0x1234), (hca.dealloc_uar, 0x1234),
        (hca.register_mr, pes[0].slot, 4096, 0x1234, rig.ALL), (hca.destination_mac, 0x1234, hca.query_port(), adapter.AddressPath()),
    ):  # fmt: skip
        assert "it has no object of that number" in said(call, *arguments)
    qp.destroy()
    hca.deregister_umem(pes[0].umem)
