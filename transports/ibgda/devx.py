"""A ConnectX as an Adapter: DevX through pyverbs (rdma-core 44 and newer).

Never run on a physical ConnectX. Tested with the real libibverbs, libmlx5, and pyverbs over an emulated kernel interface (tests/uverbs).

pyverbs makes the objects that the kernel driver manages itself: context, protection domains, memory regions, and UARs. Commands go directly
to libmlx5 through ctypes, because for a refused command pyverbs raises the errno and discards status and syndrome, which libmlx5 leaves in
the output. The kernel tracks the objects of commands, so that a command that creates, modifies, queries, or destroys an object goes through
the object's handle. All others are general commands.

GPU memory is registered as a dma-buf, or by address if the module nvidia-peermem lets the kernel pin it. The first registration determines
which of the two works.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pgas.base.errors import PgasError, TransportError
from pgas.base.remedies import mend
from pgas.transports import devices
from pgas.transports.ibgda.library import Library
from pgas.transports.memory.protocol import Memory
from pgas.transports.mlx5 import commands, fields
from pgas.transports.mlx5.commands import OUTPUT, Command, Status, command_name
from pgas.transports.mlx5.contexts import Access
from pgas.transports.mlx5.doorbell import UarType
from pgas.transports.nic.adapter import HOP_LIMIT, AddressPath, FirstError, PortAddress, Uar
from pgas.transports.nic.queue_pair import query_roce_address
from pgas.transports.verbs import abi, structs
from pgas.transports.verbs.device import pyverbs, reason

if TYPE_CHECKING:
    from pgas.transports.memory.gpudirect import GPUDirect

_Made = TypeVar("_Made")

#: MLX5DV_CONTEXT_FLAGS_DEVX, MLX5DV_OBJ_PD, MLX5DV_UMEM_MASK_DMABUF (infiniband/mlx5dv.h).
_FLAGS_DEVX, _OBJ_PD, _MASK_DMABUF = 1 << 0, 1 << 6, 1 << 0

#: Offsets of lkey and rkey in struct ibv_mr (infiniband/verbs.h).
_MR_LKEY, _MR_RKEY = 36, 40

#: Bitmap of page sizes for UMEMs: only the NIC's smallest, because offsets of queues in a UMEM must be multiples of its page size, and by
#: default the kernel takes the largest one that fits, up to the whole UMEM (devx_umem_find_best_pgsize of mlx5_ib).
_UMEM_PAGES = 1 << 12

#: Commands that create an object, with the field of its number in their output and in the input of all commands on the object.
_CREATE = {Command.CREATE_CQ: "cqn", Command.CREATE_QP: "qpn", Command.CREATE_MKEY: "mkey_index"}
_DESTROY = {Command.DESTROY_CQ: "cqn", Command.DESTROY_QP: "qpn", Command.DESTROY_MKEY: "mkey_index"}
_QUERY = {Command.QUERY_QP: "qpn"}
_MODIFY = dict.fromkeys((Command.RST2INIT_QP, Command.INIT2RTR_QP, Command.RTR2RTS_QP, Command.TO_ERR_QP, Command.TO_RST_QP), "qpn")

#: Order of destruction, in which no object is destroyed while another one refers to it.
_DESTROY_ORDER = ("qpn", "cqn", "mkey_index")

#: Prerequisites of DevX, for messages.
_NEEDS = (
    "IBGDA needs an mlx5 device (ConnectX-4 or newer, not a VF without it) whose firmware permits DevX, and read and write access to "
    "/dev/infiniband/uverbs*"
)


class DevX:
    """Implements Adapter on an mlx5 device.

    Args:
        name: name of the device, as rdma link lists it.
        port: a port of the device.
        gid: the GID of the port that addresses QPs.
        gpu: access to the memory of this process's GPU; None if heap and queues are in host memory.
        handler: what stores to doorbell registers (PGAS_IBGDA_NIC_HANDLER). gpu: kernels, or an error if they cannot; cpu: a host thread;
            auto: kernels if they can, otherwise a host thread.

    Raises:
        TransportError: the device cannot be opened for DevX, its port is not active, or handler is gpu and the GPU cannot reach registers.
    """

    def __init__(self, name: str, port: devices.Port, gid: devices.Gid, *, gpu: "GPUDirect | None" = None, handler: str = "auto") -> None:
        self.name = name
        self.engine: str | None = None
        self._gpu, self._port, self._gid = gpu, port, gid
        self._way: str | None = None  # whichever of the two methods to register GPU memory works
        self._objects: dict[tuple[str, int], int] = {}
        self._pds: dict[int, Any] = {}
        self._umems: dict[int, Any] = {}
        self._mrs: dict[int, Callable[[], object]] = {}
        self._uars: dict[int, Any] = {}
        self._spare: list[Any] = []  # second UARs of pages, which are not used
        self._offered: Uar | None = None  # the UAR of _try_mapping, for the next alloc_uar
        #: Reason why a CPU must ring the doorbells, if handler is auto; otherwise "".
        self.why_by_cpu = ""
        self._context = _open(name)
        try:
            self._library = Library()
            device = self._library.device(name)
            self._pointer = structs.behind(self._context, lambda at: structs.word(at) == device != 0)  # struct ibv_context begins with it
            self._eqn = int(self._context.devx_query_eqn(0))
            self.rung_by_cpu = handler == "cpu"
            if gpu is not None and not self.rung_by_cpu:
                self._try_mapping(must=handler == "gpu")
        except BaseException as error:
            self.close()
            if isinstance(error, _errors()):
                raise TransportError(f"{name}: {reason(error)}") from error
            raise

    def _try_mapping(self, *, must: bool) -> None:
        try:
            self._offered = self.alloc_uar()
        except TransportError as error:
            if must:
                raise
            self.rung_by_cpu, self.why_by_cpu = True, str(error)

    # --------------------------------------------------------------------------------------------------------------- commands

    def command(self, inbox: bytes, outlen: int) -> bytes:
        """Execute a command.

        Raises:
            TransportError: the kernel refuses it, or returns an errno without the NIC's status, as old kernels do.
        """
        self._check_open()
        opcode = int.from_bytes(inbox[:2], "big")
        inbox, outbox = bytes(inbox), ctypes.create_string_buffer(outlen)
        boxes = inbox, len(inbox), outbox, outlen
        if opcode in _CREATE:
            return self._create(Command(opcode), boxes)
        if opcode in _DESTROY:
            key = self._key(inbox, _DESTROY[Command(opcode)])
            self._check(opcode, self._library.obj_destroy(self._objects[key]), outbox)
            del self._objects[key]
        elif opcode in _MODIFY:
            self._check(opcode, self._library.obj_modify(self._objects[self._key(inbox, _MODIFY[Command(opcode)])], *boxes), outbox)
        elif opcode in _QUERY:
            self._check(opcode, self._library.obj_query(self._objects[self._key(inbox, _QUERY[Command(opcode)])], *boxes), outbox)
        else:
            self._check(opcode, self._library.general_cmd(self._pointer, *boxes), outbox)
        return outbox.raw

    def _create(self, command: Command, boxes: tuple[bytes, int, Any, int]) -> bytes:
        made = self._library.obj_create(self._pointer, *boxes)
        outbox = boxes[2]
        if made is None:
            self._check(command, ctypes.get_errno(), outbox)
        else:
            name = _CREATE[command]
            self._objects[name, commands.parse_output(command, outbox.raw)[name]] = made
        return bytes(outbox.raw)

    def _check(self, opcode: int, error: int, outbox: Any) -> None:
        """Raise the kernel's own errors. The caller finds the NIC's errors in the output's status."""
        status = fields.decode(OUTPUT, outbox.raw)["status"] if len(outbox.raw) >= OUTPUT.size else Status.OK
        if error and status == Status.OK:
            raise TransportError(
                f"{self.name}: {command_name(opcode)} failed: {os.strerror(abs(error))} (errno {abs(error)}); the kernel returns no status "
                "and syndrome of the NIC"
            )

    def _key(self, inbox: bytes, name: str) -> tuple[str, int]:
        command, values = commands.parse(inbox)
        key = name, values[name]
        if key not in self._objects:
            raise TransportError(
                f"{self.name}: {command_name(command)} names {name} {values[name]:#x}, which is not an object of this process"
            )
        return key

    # ----------------------------------------------------------------------------------------------------------------- memory

    def alloc_pd(self) -> int:
        self._check_open()
        with self._refusals("a protection domain"):
            pd = pyverbs("pd").PD(self._context)
            number = int(pyverbs("providers.mlx5.mlx5dv_objects").Mlx5DvObj(_OBJ_PD, pd=pd).dvpd.pdn)
        self._pds[number] = pd
        return number

    def dealloc_pd(self, pdn: int) -> None:
        self._check_open()
        with self._refusals(f"the release of protection domain {pdn:#x}"):
            self._pds[pdn].close()
        del self._pds[pdn]

    def register_umem(self, address: int, nbytes: int) -> int:
        self._check_open()
        make = pyverbs("providers.mlx5.mlx5dv").Mlx5UMEM
        options = {"access": int(Access.LOCAL_WRITE), "pgsz_bitmap": _UMEM_PAGES}
        umem = self._register(
            f"queues ({nbytes} bytes at {address:#x})",
            address,
            nbytes,
            lambda: make(self._context, nbytes, addr=address, **options),
            lambda fd, offset: make(self._context, nbytes, addr=offset, comp_mask=_MASK_DMABUF, dmabuf_fd=fd, **options),
            ("mlx5dv_devx_umem_reg_ex", "mlx5dv_devx_umem_reg_ex"),
        )
        self._umems[umem.umem_id] = umem
        return int(umem.umem_id)

    def deregister_umem(self, umem_id: int) -> None:
        self._check_open()
        with self._refusals(f"the release of UMEM {umem_id:#x}"):
            self._umems[umem_id].close()
        del self._umems[umem_id]

    def register_mr(self, address: int, nbytes: int, pdn: int, access: int) -> tuple[int, int]:
        self._check_open()
        with self._refusals(f"memory in protection domain {pdn:#x}"):
            pd = self._pds[pdn]

        def by_address() -> tuple[int, int]:
            mr = pyverbs("mr").MR(pd, nbytes, int(access), address=address)
            self._mrs[mr.lkey] = mr.close
            return mr.lkey, mr.rkey

        def as_dmabuf(fd: int, offset: int) -> tuple[int, int]:
            # Do not use pyverbs's DmaBufMR, because its WQEs address the region by offsets, not by this process's addresses. The region
            # has the bounds of the memory. The kernel requires offset and address to be equal modulo the page size (uverbs_std_types_mr.c).
            owner = structs.behind(pd, lambda at: structs.word(at) == self._pointer)  # struct ibv_pd begins with its context
            mr = self._library.reg_dmabuf_mr(owner, offset, nbytes, address, fd, int(access))
            if mr is None:
                raise TransportError(os.strerror(ctypes.get_errno()))
            lkey, rkey = (int.from_bytes(ctypes.string_at(mr + at, 4), "little") for at in (_MR_LKEY, _MR_RKEY))
            self._mrs[lkey] = lambda: self._deregister_dmabuf(mr, lkey)
            return lkey, rkey

        functions = ("ibv_reg_mr", "ibv_reg_dmabuf_mr")
        return self._register(f"memory ({nbytes} bytes at {address:#x})", address, nbytes, by_address, as_dmabuf, functions)

    def deregister_mr(self, lkey: int) -> None:
        self._check_open()
        with self._refusals(f"the release of memory region {lkey:#x}"):
            self._mrs[lkey]()
        del self._mrs[lkey]

    def _deregister_dmabuf(self, mr: int, lkey: int) -> None:
        if error := self._library.dereg_mr(mr):
            raise TransportError(f"{self.name} refuses to release memory region {lkey:#x}: {os.strerror(error)}")

    def _register(
        self,
        what: str,
        address: int,
        nbytes: int,
        by_address: Callable[[], _Made],
        as_dmabuf: Callable[[int, int], _Made],
        functions: tuple[str, str],
    ) -> _Made:
        """Register memory; GPU memory by the method that works. functions: those called by address and as a dma-buf, for messages."""
        if self._gpu is None or not self._gpu.on_gpu(address):
            with self._refusals(f"{what} of the host ({functions[0]}; ulimit -l shows how much may be locked)"):
                return by_address()
        gpu, refused = self._gpu, []

        def exported() -> _Made:
            fd, offset = gpu.dmabuf(address, nbytes)
            try:
                return as_dmabuf(fd, offset)
            finally:
                os.close(fd)

        for way, function, register in (("as a dma-buf", functions[1], exported), ("by address", functions[0], by_address)):
            if self._way in (None, way):
                try:
                    made = register()
                except (PgasError, _errors()) as error:
                    refused.append(f"{way} ({function}): {reason(error)}")
                else:
                    self._way = way
                    return made
        raise TransportError(f"{self.name} cannot use {what} of the GPU: {'; '.join(refused)} ({mend('peer memory')})")

    # -------------------------------------------------------------------------------------------------------------- registers

    def alloc_uar(self) -> Uar:
        """Return a new UAR on a separate page, because CUDA maps a page only once.

        Attempts, in this order: a dedicated UAR (NC_DEDICATED), a page of two registers of which one is used (BF), and the only UAR of the
        context (NC), which serves only one QP.
        """
        self._check_open()
        if self._offered is not None:
            offered, self._offered = self._offered, None
            return offered
        refused = []
        for kind in (UarType.NC_DEDICATED, UarType.BF, UarType.NC):
            try:
                uar = self._uar(kind)
            except (TransportError, _errors()) as error:
                refused.append(f"{kind.name}: {reason(error)}")
                continue
            address = int(uar.reg_addr)
            if self._gpu is not None and not self.rung_by_cpu:
                try:
                    address = self._gpu.map_register(address)
                except TransportError:
                    uar.close()
                    raise
            self._uars[uar.page_id] = uar
            return Uar(int(uar.page_id), address)
        raise TransportError(f"{self.name} does not provide a UAR: {'; '.join(refused)}")

    def _uar(self, kind: UarType) -> Any:
        make = pyverbs("providers.mlx5.mlx5dv").Mlx5UAR
        while (uar := make(self._context, int(kind))).page_id in self._uars:
            if kind == UarType.NC:
                uar.close()
                raise TransportError("a second queue pair would share the UAR of the context")
            self._spare.append(uar)
        return uar

    def dealloc_uar(self, page_id: int) -> None:
        self._check_open()
        self._release_uar(page_id)

    def _release_uar(self, page_id: int) -> None:
        with self._refusals(f"the release of UAR {page_id}"):
            uar = self._uars[page_id]
            if self._gpu is not None and not self.rung_by_cpu:
                self._gpu.unmap_register(int(uar.reg_addr))
            uar.close()
        del self._uars[page_id]

    # -------------------------------------------------------------------------------------------------------------------- port

    def query_eqn(self) -> int:
        return self._eqn

    def query_port(self) -> PortAddress:
        """Return the port. The GID of an Ethernet port comes from the NIC's own table (QUERY_ROCE_ADDRESS)."""
        self._check_open()
        number = self._port.number
        with self._refusals(f"port {number}"):
            port = self._context.query_port(number)
        if port.state != abi.PORT_ACTIVE:
            raise TransportError(f"{self.name}: port {number} is not active (rdma link and ibstat show it)")
        if port.link_layer != abi.LINK_LAYER_ETHERNET:
            gid, link_layer = self._gid.raw, "InfiniBand"
        else:
            entry = query_roce_address(self, number, self._gid.index)
            gid, link_layer = entry["source_l3_address"].to_bytes(16, "big"), "Ethernet"
        return PortAddress(number, link_layer, int(port.active_mtu), int(port.lid), gid, self._port.rate_gbps)

    def path_mtus(self, gids: Iterable[bytes]) -> dict[bytes, int]:
        """Return nothing, because devices do not receive routers' reports."""
        return {}

    def destination_mac(self, pdn: int, remote: PortAddress, path: AddressPath) -> bytes:
        """Return the MAC that libmlx5 and the kernel resolve for an address handle, like NVSHMEM and DOCA."""
        self._check_open()
        with self._refusals(f"an address handle in protection domain {pdn:#x}"):
            pd = self._pds[pdn]
        addr = pyverbs("addr")
        text = remote.gid.hex(":", 2)
        route = addr.GlobalRoute(dgid=addr.GID(text), sgid_index=path.gid_index, hop_limit=HOP_LIMIT, traffic_class=path.traffic_class)
        try:
            handle = addr.AH(pd, attr=addr.AHAttr(port_num=self._port.number, is_global=1, gr=route, sl=path.sl))
        except _errors() as error:
            raise TransportError(
                f"{self.name}: the kernel finds no route from GID {path.gid_index} to GID {text}: {reason(error)} (does ping reach that "
                "address from this port's network interface? ip route get and ip neigh show the route)"
            ) from error
        try:
            address = structs.behind(handle, lambda at: structs.word(at) == self._pointer)  # struct ibv_ah begins with its context
            return self._library.mac_of(address)
        finally:
            handle.close()

    def syndrome_words(self, syndrome: int) -> str:
        """Return "", because syndromes of refused commands are the firmware's own and not published."""
        return ""

    def diagnose(self, qpn: int) -> FirstError | None:
        """Return None, because QUERY_QP reports a QP's state and indices, not the WQE that failed."""
        return None

    # ------------------------------------------------------------------------------- only for an adapter that is another process

    def share(self, address: int, nbytes: int, fd: int) -> None:
        """Do nothing, because a device needs only the registration."""

    def unshare(self, address: int, nbytes: int) -> None:
        """Do nothing; see share()."""

    def lend(self, address: int, nbytes: int, memory: Memory) -> None:
        """Do nothing; see share()."""

    def take_back(self, address: int, memory: Memory) -> None:
        """Do nothing; see share()."""

    def counts(self) -> dict[str, int]:
        """Return {}, because a device has no counters per QP."""
        return {}

    def inspect(self, timeout_s: float) -> None:
        """Return None, because QUERY_QP reports nothing that is not also in memory."""

    def set_index(self, qpn: int, index: int) -> None:
        raise TransportError(f"{self.name}: QP {qpn:#x} begins at index 0, like every QP of a device")

    # ------------------------------------------------------------------------------------------------------------------ ending

    def _check_open(self) -> None:
        if self._context is None:
            raise TransportError(f"{self.name} is closed")

    @contextlib.contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        """Turn an error of pyverbs into a TransportError that names the operation."""
        try:
            yield
        except _errors() as error:
            raise TransportError(f"{self.name} refuses {what}: {reason(error)}") from error
        except KeyError as error:
            raise TransportError(f"{self.name} refuses {what}: it has no object of that number") from error

    def close(self) -> None:
        """Destroy the remaining objects in this order: QPs, CQs, keys, UARs, memory, protection domains, context."""
        context, self._context = self._context, None
        if context is None:
            return
        for name in _DESTROY_ORDER:
            for key in [key for key in self._objects if key[0] == name]:
                self._library.obj_destroy(self._objects.pop(key))
        steps: list[Callable[[], object]] = [lambda page=page: self._release_uar(page) for page in list(self._uars)]  # type: ignore[misc]
        steps += [thing.close for thing in (*self._spare, *self._umems.values())]
        steps += [*self._mrs.values(), *(pd.close for pd in self._pds.values()), context.close]
        for step in steps:
            with contextlib.suppress(TransportError, _errors()):  # the end of the process destroys the rest
                step()
        for left in (self._spare, self._umems, self._mrs, self._pds):
            left.clear()


def _errors() -> type[Exception]:
    error: type[Exception] = pyverbs("pyverbs_error").PyverbsError
    return error


def _open(name: str) -> Any:
    mlx5 = pyverbs("providers.mlx5.mlx5dv")
    try:
        return mlx5.Mlx5Context(mlx5.Mlx5DVContextAttr(flags=_FLAGS_DEVX), name)
    except _errors() as error:
        raise TransportError(f"{name}: no DevX context opens: {reason(error)} ({_NEEDS})") from error


def why_not(device: devices.Device, port: devices.Port) -> str | None:
    """Return why a device and port do not support ibgda, None if they do (transports.selection.Suits)."""
    try:
        _open(device.name).close()
    except TransportError as error:
        return str(error)
    return None
