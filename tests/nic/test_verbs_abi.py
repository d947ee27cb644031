"""The binary interface of libibverbs compared with ``infiniband/verbs.h`` (libibverbs-dev): a C program prints the header's values."""

import shutil
import subprocess

import pytest

from pgas.transports.mlx5 import contexts
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.verbs import abi

#: C expression -> our value.
VALUES = {
    "offsetof(struct ibv_context, ops.poll_cq)": abi.CONTEXT_POLL_CQ,
    "offsetof(struct ibv_context, ops.post_send)": abi.CONTEXT_POST_SEND,
    "offsetof(struct ibv_qp, context)": abi.QP_CONTEXT,
    "offsetof(struct ibv_qp, send_cq)": abi.QP_SEND_CQ,
    "offsetof(struct ibv_qp, recv_cq)": abi.QP_RECV_CQ,
    "offsetof(struct ibv_qp, qp_num)": abi.QP_NUM,
    "offsetof(struct ibv_qp, qp_type)": abi.QP_TYPE,
    "offsetof(struct ibv_qp, qp_type) + sizeof(enum ibv_qp_type)": abi.QP_END,
    "offsetof(struct ibv_send_wr, wr_id)": abi.WR_ID,
    "offsetof(struct ibv_send_wr, next)": abi.WR_NEXT,
    "offsetof(struct ibv_send_wr, sg_list)": abi.WR_SG_LIST,
    "offsetof(struct ibv_send_wr, num_sge)": abi.WR_NUM_SGE,
    "offsetof(struct ibv_send_wr, opcode)": abi.WR_OPCODE,
    "offsetof(struct ibv_send_wr, send_flags)": abi.WR_SEND_FLAGS,
    "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)": abi.WR_REMOTE_ADDR,
    "offsetof(struct ibv_send_wr, wr.atomic.remote_addr)": abi.WR_REMOTE_ADDR,
    "offsetof(struct ibv_send_wr, wr.rdma.rkey)": abi.WR_RDMA_RKEY,
    "offsetof(struct ibv_send_wr, wr.atomic.compare_add)": abi.WR_COMPARE_ADD,
    "offsetof(struct ibv_send_wr, wr.atomic.swap)": abi.WR_SWAP,
    "offsetof(struct ibv_send_wr, wr.atomic.rkey)": abi.WR_ATOMIC_RKEY,
    "sizeof(struct ibv_send_wr)": abi.SEND_WR_SIZE,
    "offsetof(struct ibv_sge, addr)": abi.SGE_ADDR,
    "offsetof(struct ibv_sge, length)": abi.SGE_LENGTH,
    "offsetof(struct ibv_sge, lkey)": abi.SGE_LKEY,
    "sizeof(struct ibv_sge)": abi.SGE_SIZE,
    "offsetof(struct ibv_wc, wr_id)": abi.WC_WR_ID,
    "offsetof(struct ibv_wc, status)": abi.WC_STATUS,
    "offsetof(struct ibv_wc, vendor_err)": abi.WC_VENDOR_ERR,
    "sizeof(struct ibv_wc)": abi.WC_SIZE,
    **{f"IBV_WR_{opcode.name}": opcode for opcode in abi.WrOpcode},
    **{f"IBV_SEND_{flag.name}": flag for flag in abi.SendFlags},
    **{f"IBV_WC_{status.name}": status for status in abi.WcStatus},
    **{f"IBV_QP_{flag.name}": flag for flag in abi.QpAttrMask},
    **{f"IBV_QPS_{state.name}": state for state in (contexts.QpState.INIT, contexts.QpState.RTR, contexts.QpState.RTS)},
    **{f"IBV_ACCESS_{flag.name}": flag for flag in contexts.Access},
    "IBV_QPT_RC": abi.QPT_RC,
    "IBV_ATOMIC_NONE": abi.ATOMIC_NONE,
    "IBV_PORT_ACTIVE": abi.PORT_ACTIVE,
    "IBV_LINK_LAYER_ETHERNET": abi.LINK_LAYER_ETHERNET,
}


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("capability missing: gcc")
    folder = tmp_path_factory.mktemp("probe")
    prints = "".join(f'    printf("%ld\\n", (long)({expression}));\n' for expression in VALUES)
    (folder / "probe.c").write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\nint main(void) {{\n{prints}}}\n"
    )
    made = subprocess.run(["gcc", "-o", "probe", "probe.c"], cwd=folder, text=True, capture_output=True, check=False)
    if "infiniband/verbs.h: No such file" in made.stderr:
        pytest.skip("capability missing: infiniband/verbs.h (libibverbs-dev)")
    assert made.returncode == 0, made.stderr
    lines = subprocess.run([folder / "probe"], text=True, capture_output=True, check=True).stdout.split()
    return dict(zip(VALUES, map(int, lines), strict=True))


@pytest.mark.parametrize("expression", VALUES)
def test_value(header, expression):
    assert header[expression] == VALUES[expression]


def test_statuses_have_libmlx5s_syndromes():
    """Each syndrome occurs once (mlx5_handle_error_cqe)."""
    assert set(abi.SYNDROMES.values()) == set(Syndrome)
    assert len(abi.SYNDROMES) == len(Syndrome)
