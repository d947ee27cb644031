"""The data sheet compared with ``infiniband/mlx5dv.h`` (libibverbs-dev): a C program prints the header's sizes, offsets and values."""

import shutil
import subprocess

import pytest

from pgas.transports.mlx5 import contexts, cqe, doorbell, wqe
from pgas.transports.mlx5.fields import fill

HEADER = "infiniband/mlx5dv.h"

#: Header name -> our value.
VALUES = {
    **{f"MLX5_OPCODE_{op.name}": op for op in wqe.Opcode if op.name not in ("WAIT", "DUMP")},
    **{f"MLX5_CQE_{op.name}": op for op in cqe.CqeOpcode},
    **{f"MLX5_CQE_SYNDROME_{syndrome.name}": syndrome for syndrome in cqe.Syndrome},
    "MLX5_CQE_OWNER_MASK": cqe.OP_OWN_OWNER_MASK,
    "MLX5_WQE_CTRL_CQ_UPDATE": wqe.Ce.ALWAYS,
    "MLX5_WQE_CTRL_FENCE": wqe.Fm.FENCE_AND_INITIATOR_SMALL_FENCE,
    "MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE": wqe.Fm.INITIATOR_SMALL_FENCE,
    "MLX5_SEND_WQE_BB": wqe.WQEBB,
    "MLX5_SEND_WQE_SHIFT": wqe.WQEBB_SHIFT,
    "MLX5_INLINE_SEG": wqe.INLINE_SEG,
    "MLX5_INVALID_LKEY": wqe.INVALID_LKEY,
    "MLX5_RCV_DBR": doorbell.RCV_DBR,
    "MLX5_SND_DBR": doorbell.SND_DBR,
    "MLX5DV_UAR_ALLOC_TYPE_BF": doorbell.UarType.BF,
    "MLX5DV_UAR_ALLOC_TYPE_NC": doorbell.UarType.NC,
    "IBV_QPS_RESET": contexts.QpState.RST,
    **{f"IBV_QPS_{state.name}": state for state in contexts.QpState if state != contexts.QpState.RST},
    **{f"IBV_{mtu.name}": mtu for mtu in contexts.Mtu},
    **{f"IBV_ACCESS_{flag.name}": flag for flag in contexts.Access},
}

#: The access byte of an mkc, by the names of UMR's segment.
ACCESS_BITS = {"lr": "LOCAL_READ", "lw": "LOCAL_WRITE", "rr": "REMOTE_READ", "rw": "REMOTE_WRITE", "a": "ATOMIC"}
VALUES |= {
    f"MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_{word}": fill(contexts.MKC, {name: 1})[contexts.MKC.byte(name)]
    for name, word in ACCESS_BITS.items()
}

#: Header structure -> our table, and header field -> our field where the names differ.
STRUCTURES = {
    "mlx5_wqe_ctrl_seg": (wqe.CTRL, {"opmod_idx_opcode": "opmod", "qpn_ds": "qpn"}),
    "mlx5_wqe_raddr_seg": (wqe.RADDR, {}),
    "mlx5_wqe_data_seg": (wqe.DATA, {}),
    "mlx5_wqe_inl_data_seg": (wqe.INLINE, {"byte_count": "inline_seg"}),
    "mlx5_wqe_atomic_seg": (wqe.ATOMIC, {}),
    "mlx5_cqe64": (cqe.CQE64, {"sop_drop_qpn": "s_wqe_opcode", "op_own": "opcode"}),
    "mlx5_err_cqe": (cqe.ERR_CQE, {"s_wqe_opcode_qpn": "s_wqe_opcode", "op_own": "opcode"}),
    "mlx5_wqe_mkey_context_seg": (contexts.MKC, {"access_flags": "umr_en", "qpn_mkey": "qpn"}),
}

#: Our fields that are parts of a header field, or reserved there.
PARTS = {
    wqe.CTRL: {"wqe_idx", "opcode", "ds"},
    wqe.INLINE: {"byte_count"},
    cqe.CQE64: {"qpn", "format", "se", "owner"},
    cqe.ERR_CQE: {"qpn", "format", "se", "owner", "hw_err_synd", "hw_synd_type"},
    contexts.MKC: {
        *("access_mode_4_2", "relaxed_ordering_write", "a", "rw", "rr", "lw", "lr", "access_mode_1_0", "mkey_7_0", "length64", "pd"),
        "relaxed_ordering_read",
    },
}


def fields_of(structure):
    """Return (header field, our field) of a structure."""
    table, names = STRUCTURES[structure]
    ours = [name for name in table.fields if name not in PARTS.get(table, ()) and name not in names.values()]
    return [*names.items(), *((name, name) for name in ours)]


def program():
    lines = [f'printf("{name} %llu\\n", (unsigned long long)(unsigned)({name}));' for name in VALUES]
    for structure in STRUCTURES:
        lines.append(f'printf("{structure} %zu\\n", sizeof(struct {structure}));')
        for name, _ in fields_of(structure):
            lines.append(f'printf("{structure}.{name} %zu\\n", offsetof(struct {structure}, {name}));')
    ctrl = "mlx5dv_set_ctrl_seg(&ctrl, 0x1234, MLX5_OPCODE_ATOMIC_MASKED_FA, 8, 0xabcdef, MLX5_WQE_CTRL_CQ_UPDATE, 4, 0x5a, htobe32(7));"
    data = "mlx5dv_set_data_seg(&data, 0x12345678, 0x0a0b0c0d, 0x600000002000);"
    return f"""
        #include <stddef.h>
        #include <stdio.h>
        #include <string.h>
        #include <{HEADER}>
        static void dump(const char *name, const void *bytes, size_t size)
        {{
            printf("%s 0x", name);
            for (size_t i = 0; i < size; i++)
                printf("%02x", ((const unsigned char *)bytes)[i]);
            printf("\\n");
        }}
        int main(void)
        {{
            struct mlx5_wqe_ctrl_seg ctrl = {{0}};
            struct mlx5_wqe_data_seg data = {{0}};
            struct mlx5_cqe64 cqe = {{.op_own = 0xde}};
            {" ".join(lines)}
            {ctrl}
            {data}
            dump("ctrl", &ctrl, sizeof ctrl);
            dump("data", &data, sizeof data);
            printf("owner %d\\n", mlx5dv_get_cqe_owner(&cqe));
            printf("se %d\\n", mlx5dv_get_cqe_se(&cqe));
            printf("format %d\\n", mlx5dv_get_cqe_format(&cqe));
            printf("opcode %d\\n", mlx5dv_get_cqe_opcode(&cqe));
            return 0;
        }}"""


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing")
    seen = subprocess.run(["gcc", "-E", "-x", "c", "-"], input=f"#include <{HEADER}>", text=True, capture_output=True, check=False)
    if seen.returncode and f"{HEADER}: No such file" in seen.stderr:
        pytest.skip(f"{HEADER} (libibverbs-dev) is missing")
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.c").write_text(program())
    made = subprocess.run(["gcc", "-O1", "-o", "probe", "probe.c"], cwd=folder, text=True, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    lines = subprocess.run([folder / "probe"], text=True, capture_output=True, check=True).stdout.splitlines()
    return {name: int(value, 0) for name, value in (line.split() for line in lines)}


@pytest.mark.parametrize("name", VALUES)
def test_value(header, name):
    assert header[name] == VALUES[name]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_structure(header, structure):
    table, _ = STRUCTURES[structure]
    assert header[structure] == table.size
    theirs = {name: header[f"{structure}.{name}"] for name, _ in fields_of(structure)}
    assert theirs == {name: table.byte(ours) for name, ours in fields_of(structure)}


def test_segments_that_the_header_fills(header):
    values = {"opmod": 8, "wqe_idx": 0x1234, "opcode": 0x15, "qpn": 0xABCDEF, "ds": 4, "signature": 0x5A, "fm_ce_se": 8, "imm": 7}
    assert fill(wqe.CTRL, values) == header["ctrl"].to_bytes(16, "big")
    values = {"byte_count": 0x12345678, "lkey": 0x0A0B0C0D, "addr": 0x6000_0000_2000}
    assert fill(wqe.DATA, values) == header["data"].to_bytes(16, "big")


def test_op_own(header):
    values = {name: header[name] for name in ("opcode", "format", "se", "owner")}
    assert fill(cqe.CQE64, values)[cqe.CQE_OP_OWN] == 0xDE
