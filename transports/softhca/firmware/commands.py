"""The firmware, which executes commands, bytes in and bytes out; failures have a status and a syndrome, as on a ConnectX.

Checks are made in this order: known command, both lengths, op_mod, then those of the command's handler: values, objects (which must exist
and belong to the calling PE), and states. A refused command does not change anything.
"""

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any

from pgas.transports.mlx5 import commands, fields
from pgas.transports.mlx5.capabilities import AtomicOperations, AtomicSize, CapType, PortType, TsFormatCap, cap_op_mod
from pgas.transports.mlx5.commands import INPUT, LAYOUTS, OUTPUT, Command, Status, command_name
from pgas.transports.mlx5.contexts import ANY_QPN, KLM_MAX, Access, AccessMode
from pgas.transports.mlx5.doorbell import UAR_LOG_BF_REG_SIZE
from pgas.transports.mlx5.fields import Field, Table
from pgas.transports.mlx5.wqe import DS_MAX, OCTOWORD
from pgas.transports.softhca import layout
from pgas.transports.softhca.firmware.objects import Key, Objects, Owned
from pgas.transports.softhca.firmware.queue_pairs import TRANSITIONS, QueuePairs, Refused, owned, require
from pgas.transports.softhca.syndromes import CommandSyndrome as Why
from pgas.transports.softhca.tables import LOCAL_READ, Tables
from pgas.transports.softhca.wire.port import WirePort

#: Capabilities that QUERY_HCA_CAP reports, both current and maximum. Capabilities that are not named are 0. A kind of capabilities is not
#: available if its bit in the general ones (hca_cap_2, pg, roce) is 0.
CAPABILITIES: dict[int, dict[str, int]] = {
    CapType.GENERAL: {
        "log_max_qp_sz": layout.LOG_MAX_QP_SZ,
        "log_max_qp": layout.LOG_MAX_QP,
        "log_max_cq_sz": layout.LOG_MAX_CQ_SZ,
        "log_max_mkey": layout.LOG_MAX_MKEY,
        "log_max_ra_req_qp": layout.LOG_MAX_RA,
        "log_max_ra_res_qp": layout.LOG_MAX_RA,
        "port_type": PortType.IB,
        "num_ports": 1,
        "log_max_msg": layout.LOG_MAX_MSG,
        "cqe_version": 1,
        "atomic": 1,
        "cq_oi": 1,
        "uar_4k": 1,
        "bf": 1,
        "log_bf_reg_size": UAR_LOG_BF_REG_SIZE,
        "max_wqe_sz_sq": DS_MAX * OCTOWORD,
        "max_wqe_sz_rq": layout.MAX_WQE_SZ_RQ,
        "sq_ts_format": TsFormatCap.FREE_RUNNING,
        "log_uar_page_sz": 0,
        "num_of_uars_per_page": 1,
    },
    CapType.ATOMIC: {
        "atomic_req_8B_endianness_mode": 1,
        "supported_atomic_req_8B_endianness_mode_1": 1,
        "atomic_operations": sum(AtomicOperations),
        "atomic_size_qp": sum(AtomicSize),
        "atomic_size_dc": 0,
    },
}

#: Capabilities that the fault atomics=big_endian changes.
_BIG_ENDIAN = {"atomic_req_8B_endianness_mode": 0, "supported_atomic_req_8B_endianness_mode_1": 0}

#: Capabilities of a software NIC with a wire.
_ETHERNET = {"port_type": int(PortType.ETHERNET)}
_ROCE_V2, _L3_IPV4, _L3_IPV6 = 2, 0, 1

#: Output of QUERY_QP with qpc_ext, as in Linux's mlx5_ifc.h: after the context, the syndromes of the CQE that moved the QP to ERR.
QUERY_QP_EXT_OUT = Table(
    "query_qp_ext_out",
    0x1D0,
    *LAYOUTS[Command.QUERY_QP].output.fields.values(),
    Field("hw_error_syndrome", 0x8E0, 8),
    Field("hw_syndrome_type", 0x8E8, 4),
    Field("vendor_error_syndrome", 0x8F0, 8),
    Field("cqe_syndrome", 0x8F8, 8),
)


class Firmware:
    """The command interface of one software NIC."""

    def __init__(self, tables: Tables, objects: Objects, port: WirePort | None = None) -> None:
        self.tables, self.objects, self._port = tables, objects, port
        self.queues = QueuePairs(tables, objects, port)
        self.big_endian = False  #: whether atomics return 8 bytes in big-endian order, like a NIC without mode 1; a fault sets it
        #: Function called with (pe, opcode, inbox, outbox, input table, output table) after every command.
        self.observe: Callable[[int, int, bytes, bytes, Table | None, Table | None], None] | None = None
        self._handlers: dict[int, Callable[[int, dict[str, Any]], dict[str, Any] | None]] = {
            Command.QUERY_HCA_CAP: self._query_hca_cap,
            Command.QUERY_HCA_VPORT_CONTEXT: self._query_hca_vport_context,
            Command.CREATE_MKEY: self._create_mkey,
            Command.DESTROY_MKEY: self._destroy_mkey,
            Command.CREATE_CQ: self.queues.create_cq,
            Command.DESTROY_CQ: lambda pe, values: self.queues.destroy_cq(pe, values["cqn"]),
            Command.CREATE_QP: self.queues.create_qp,
            Command.DESTROY_QP: self._destroy_qp,
            Command.QUERY_QP: self._query_qp,
        }
        if port is not None:
            self._handlers[Command.QUERY_ROCE_ADDRESS] = self._query_roce_address
        for opcode in TRANSITIONS:
            self._handlers[opcode] = functools.partial(self._transition, opcode)

    def execute(self, pe: int, inbox: bytes, outlen: int) -> bytes:
        """Execute a command of a PE and return outlen bytes."""
        opcode = int.from_bytes(inbox[:2], "big")
        known = LAYOUTS[Command(opcode)] if opcode in self._handlers else None
        source, target = (known.input, known.output) if known else (None, None)
        try:
            if known is None or source is None or target is None:
                raise Refused(Status.BAD_OP, Why.OPCODE)
            require(len(inbox) >= source.size, Status.BAD_INP_LEN, Why.INPUT_LENGTH)
            values = fields.decode(source, inbox)
            if opcode == Command.CREATE_MKEY:
                values["klms"] = commands.parse_klms(inbox)
            if opcode == Command.QUERY_HCA_CAP:
                target = self._cap_output(values["op_mod"])
            elif opcode == Command.QUERY_QP and values["qpc_ext"]:
                target = QUERY_QP_EXT_OUT
            require(opcode == Command.QUERY_HCA_CAP or values["op_mod"] == 0, Status.BAD_PARAM, Why.OP_MOD)
            # Truncate capabilities to the output's length, like a ConnectX, because rdma-core's tests read only the first 2 KiB.
            needed = OUTPUT.size if opcode == Command.QUERY_HCA_CAP else target.size
            require(outlen >= needed, Status.BAD_OUTP_LEN, Why.OUTPUT_LENGTH)
            outbox = fields.fill(target, self._handlers[opcode](pe, values) or {})
        except Refused as refused:
            outbox = fields.fill(OUTPUT, {"status": refused.status, "syndrome": refused.why})
        except TimeoutError:
            outbox = fields.fill(OUTPUT, {"status": Status.INT_ERR, "syndrome": Why.ENGINE})
        outbox = outbox.ljust(outlen, b"\0")[:outlen]
        if self.observe is not None:
            self.observe(pe, opcode, inbox, outbox, source, target)
        return outbox

    def leave(self, pes: Set[int]) -> None:
        """Destroy all objects of some PEs; afterwards the engine does not access their memory."""
        self.queues.leave(pes)
        self.objects.leave(pes)

    # ------------------------------------------------------------------------------------------------------------ capabilities

    @staticmethod
    def _cap_output(op_mod: int) -> Table:
        kind = op_mod >> 1  # the lowest bit selects current or maximum
        require(kind in CAPABILITIES, Status.BAD_PARAM, Why.OP_MOD)
        return commands.output_table(Command.QUERY_HCA_CAP, cap_op_mod(kind))

    def _query_hca_cap(self, pe: int, values: dict[str, Any]) -> dict[str, Any]:
        kind = values["op_mod"] >> 1
        changed = _BIG_ENDIAN if kind == CapType.ATOMIC and self.big_endian else {}
        if kind == CapType.GENERAL and self._port is not None:
            changed = _ETHERNET
        return {"capability": CAPABILITIES[kind] | changed}

    def _query_roce_address(self, pe: int, values: dict[str, Any]) -> dict[str, Any]:
        """QUERY_ROCE_ADDRESS: the GID table has one entry."""
        require(values["roce_address_index"] == 0, Status.BAD_PARAM, Why.GID_INDEX)
        if self._port is None:
            raise Refused(Status.BAD_OP, Why.OPCODE)
        l3_type = _L3_IPV4 if self._port.v4 else _L3_IPV6
        address = {"source_l3_address": int.from_bytes(self._port.gid, "big"), "roce_version": _ROCE_V2, "roce_l3_type": l3_type}
        return {"roce_address": address}

    @staticmethod
    def _query_hca_vport_context(pe: int, values: dict[str, Any]) -> dict[str, Any]:
        require(values["port_num"] in (0, 1) and not values["other_vport"], Status.BAD_PARAM, Why.PORT)
        return {"hca_vport_context": {"lid": layout.LID}}

    # -------------------------------------------------------------------------------------------------------------------- keys

    def _create_mkey(self, pe: int, values: dict[str, Any]) -> dict[str, Any]:
        """CREATE_MKEY over a UMEM: addresses start_addr .. start_addr + len are the UMEM's bytes from mkey_umem_offset."""
        mkc = values["mkc"]
        require(mkc["access_mode_1_0"] in (AccessMode.MTT, AccessMode.KLM) and not mkc["access_mode_4_2"], Status.BAD_PARAM, Why.MKEY_MODE)
        require(mkc["qpn"] == ANY_QPN and not mkc["length64"], Status.BAD_PARAM, Why.MKEY_MODE)
        if mkc["access_mode_1_0"] == AccessMode.KLM:
            return self._create_indirect_mkey(pe, mkc, values)
        require(values["mkey_umem_valid"], Status.BAD_PARAM, Why.UMEM_INVALID)
        umem = owned(self.objects.umems, pe, values["mkey_umem_id"], Why.UMEM)
        pd = self.queues.pd(pe, mkc["pd"])
        require(mkc["len"] and mkc["start_addr"] + mkc["len"] <= 1 << 64, Status.BAD_PARAM, Why.MKEY_LENGTH)
        require(values["mkey_umem_offset"] + mkc["len"] <= umem.nbytes, Status.BAD_PARAM, Why.UMEM_BOUNDS)
        require(values["mkey_umem_offset"] % umem.page_size == 0, Status.BAD_PARAM, Why.UMEM_PAGE)
        require(mkc["lw"] or not (mkc["rw"] or mkc["a"]), Status.BAD_PARAM, Why.MKEY_ACCESS)
        access = _access(mkc)
        address = umem.address + values["mkey_umem_offset"]
        return self._mkey(pe, pd, mkc, access, address, umem)

    def _create_indirect_mkey(self, pe: int, mkc: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """CREATE_MKEY over pieces of other keys: addresses start_addr .. start_addr + len are the pieces' bytes, one piece after the other.

        The engine translates an address by one row of the table, so the software NIC requires the pieces to be adjacent in memory.
        """
        klms, pd = values["klms"], self.queues.pd(pe, mkc["pd"])
        require(mkc["len"] and mkc["start_addr"] + mkc["len"] <= 1 << 64, Status.BAD_PARAM, Why.MKEY_LENGTH)
        room = min(mkc["translations_octword_size"], values["translations_octword_actual_size"])
        require(0 < len(klms) <= room, Status.BAD_PARAM, Why.KLM_COUNT)
        require(sum(klm["byte_count"] for klm in klms) == mkc["len"], Status.BAD_PARAM, Why.KLM_LENGTH)
        require(mkc["lw"] or not (mkc["rw"] or mkc["a"]), Status.BAD_PARAM, Why.MKEY_ACCESS)
        access, begins, parts = _access(mkc), [], []
        for klm in klms:
            part = self.objects.keys.get(klm["mkey"])
            if part is None or part.pe != pe or part.pd is not pd:
                raise Refused(Status.BAD_RES, Why.MKEY)
            row = self.tables.mkeys[part.row]
            offset = klm["address"] - int(row["start"]) % (1 << 64)
            inside = 0 <= offset <= int(row["nbytes"]) - klm["byte_count"] and klm["byte_count"] <= KLM_MAX
            require(inside, Status.BAD_PARAM, Why.KLM_BOUNDS)
            begins.append(int(row["address"]) + offset)
            access &= int(row["access"])
            parts.append(part)
        ends = [begin + klm["byte_count"] for begin, klm in zip(begins, klms, strict=True)]
        require(begins[1:] == ends[:-1], Status.BAD_PARAM, Why.KLM_APART)
        return self._mkey(pe, pd, mkc, access, begins[0], None, parts)

    def _mkey(
        self, pe: int, pd: Owned, mkc: dict[str, Any], access: int, address: int, umem: Owned | None, parts: Sequence[Key] = ()
    ) -> dict[str, Any]:
        """Add a key and return the output of CREATE_MKEY."""
        key = self.objects.add_key(pe, pd, mkc["pd"], access, mkc["start_addr"], mkc["len"], address, umem, mkc["mkey_7_0"], parts)
        if key is None:
            raise Refused(Status.LIM, Why.NO_MKEY)
        return {"mkey_index": key >> 8}

    def _destroy_mkey(self, pe: int, values: dict[str, Any]) -> None:
        for key, entry in self.objects.keys.items():
            if key >> 8 == values["mkey_index"] and entry.pe == pe:
                require(not entry.users, Status.RES_BUSY, Why.MKEY_BUSY)
                self.objects.remove_keys([key])
                return
        raise Refused(Status.BAD_RES, Why.MKEY)

    # ------------------------------------------------------------------------------------------------------------------- queues

    def _destroy_qp(self, pe: int, values: dict[str, Any]) -> None:
        self.queues.qp(pe, values["qpn"])
        self.queues.destroy_qps([values["qpn"]])

    def _transition(self, opcode: int, pe: int, values: dict[str, Any]) -> None:
        self.queues.transition(pe, opcode, values)

    def _query_qp(self, pe: int, values: dict[str, Any]) -> dict[str, Any]:
        answer = self.queues.query_qp(pe, values["qpn"])
        if values["qpc_ext"]:
            record = self.tables.qps[self.queues.qp(pe, values["qpn"]).row]
            answer |= {"cqe_syndrome": int(record["error_syndrome"]), "vendor_error_syndrome": int(record["error_vendor"])}
        return answer


def _access(mkc: dict[str, Any]) -> int:
    access = Access.LOCAL_WRITE * mkc["lw"] | Access.REMOTE_WRITE * mkc["rw"] | Access.REMOTE_READ * mkc["rr"]
    return access | Access.REMOTE_ATOMIC * mkc["a"] | LOCAL_READ * mkc["lr"]


def describe(pe: int, opcode: int, inbox: bytes, outbox: bytes, source: Table | None, target: Table | None) -> str:
    """Return a command as text: name, status, and both boxes as hexdump and fields: the trace of kind cmd."""
    output = fields.decode(OUTPUT, outbox.ljust(OUTPUT.size, b"\0"))
    line = f"cmd PE {pe} {command_name(opcode)}: {commands.status_words(output['status'])}"
    if output["status"]:
        return f"{line}, syndrome {output['syndrome']:#x} {Why(output['syndrome']).name}\n{_box(source or INPUT, inbox)}"
    return f"{line}\n{_box(source or INPUT, inbox)}\n{_box(target or OUTPUT, outbox)}"


def _box(table: Table, data: bytes) -> str:
    if len(data) < table.size:
        return fields.hexdump(data)
    text = fields.pretty(table, data).splitlines()
    zeros = ": " + " ".join(["00000000"] * 4)
    return "\n".join(line for line in text if not line.endswith(zeros))
