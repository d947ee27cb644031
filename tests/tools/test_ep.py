"""perftests/ep.py: rows and sums are compared, a row that does not arrive is an error, and a peer that cannot run is one line."""

import json
import re

import pytest
from perf_runs import compiled, perftest

#: Rows that do not arrive.
WITHOUT_ROWS = """
import sys
import pgas
pgas.put_nbi_warp = lambda *_: None
from pgas.perftests import ep
sys.exit(ep.main())
"""

#: What ep uses of PyTorch, by NumPy: every graph takes 12 ms, and all_to_all_single adds {wrong} to what it moves.
STAND_IN = """
import sys
from unittest.mock import MagicMock
import ml_dtypes, numpy as np, pgas
from pgas.perftests import ep

class Tensor(np.ndarray):
    t, float, fill_ = np.ndarray.transpose, lambda self: self.astype(np.float32), np.ndarray.fill
    cpu = contiguous = np.ndarray.copy
    to, zero_, index_add_ = lambda self, device: self, lambda self: self.fill(0), lambda self, axis, index, of: np.add.at(self, index, of)
    sum, numpy = lambda self, dim: np.sum(np.asarray(self), dim).view(Tensor), lambda self: np.asarray(self)
    nonzero = lambda self: np.argwhere(np.asarray(self)).view(Tensor)

def all_to_all_single(dest, source, come=None, to=None):
    ends = np.cumsum([0, *(to or [1] * pgas.n_pes())])
    parts = pgas.allgather_object([np.array(source[a:b]) for a, b in zip(ends, ends[1:])])
    found = [part[pgas.my_pe()] for part in parts]
    assert come is None or come == [len(part) for part in found]
    dest[...] = np.concatenate(found) + ({wrong} if dest.dtype == np.int32 else 0)

torch = MagicMock(from_numpy=lambda a: a.view(Tensor), stack=np.stack, int32=np.int32, int64=np.int64, bfloat16=ml_dtypes.bfloat16)
torch.empty = lambda shape, dtype, device: np.full(shape, 99, dtype).view(Tensor)
torch.index_select = lambda a, axis, index, out: np.take(a, index, axis, out)
torch.cuda.Stream.return_value, torch.cuda.Event.return_value.elapsed_time.return_value = 0, 12.0
ep.torch_with_nccl = lambda job: (torch, 0, MagicMock(all_to_all_single=all_to_all_single), "")
sys.exit(ep.main())
"""


def ep(npes, *flags, **options):
    return perftest("ep", npes, "--iters", "1", *flags, **options)


def test_table_and_json(tmp_path):
    """With 9 blocks of 4 tokens, the last block counts 32 tokens before its own, which are all bits of a ballot."""
    path = tmp_path / "ep.json"
    flags = ["--tokens", "36", "--blocks", "9", "--dtype", "all", "--experts", "6", "--top-k", "2", "--peer"]
    done = ep(2, *flags, "--json", str(path))
    lines = [line for line in done.stdout.splitlines() if line.endswith("# interpreter")]
    told = [re.match(r"(\d+) +(\w+) +pgas +9 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +yes", line).groups() for line in lines]
    assert told == [("36", "bf16"), ("36", "fp8")]
    assert re.findall(r"^# not measured: (.*)", done.stdout, re.MULTILINE) == ["NCCL: there is no GPU"]
    written = json.loads(path.read_text())
    assert written["not_measured"] == ["NCCL: there is no GPU"]
    assert [(str(row["tokens"]), row["dtype"], row["validated"]) for row in written["rows"]] == [(*each, True) for each in told]
    assert all(row["dispatch_us"] > 0 and row["combine_us"] > 0 and row["both_us"] > 0 for row in written["rows"])


@pytest.mark.slow
def test_rows_that_do_not_arrive():
    done = ep(2, "--tokens", "4", program=WITHOUT_ROWS, status=1)
    assert re.search(r"ep: error: 4 tokens, bf16, pgas: PE 0: \d+ wrong rows from PE 0, the first is row 0", done.stderr)
    assert re.search(r"^4 +bf16 +pgas +2 +- +- +- +- +- +NO", done.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0, 1])
def test_nccl(wrong):
    """Rows of NCCL are checked like those of pgas, and have no number of blocks."""
    program = STAND_IN.replace("{wrong}", str(wrong))
    done = ep(2, "--tokens", "7", "--dtype", "fp8", "--peer", program=program, status=wrong)
    known, counts = [line for line in done.stdout.splitlines() if "NCCL" in line]
    if wrong:
        assert "ep: error: 7 tokens, fp8, NCCL, splits known: PE 1: rows are wrong" in done.stderr
        assert re.match(r"7 +fp8 +NCCL, splits known +- +- +- +- +- +- +NO", known)
    else:
        assert re.match(r"7 +fp8 +NCCL, splits known +- +12000.00 +\d\.\d\d +12000.00 +\d\.\d\d +12000.00 +yes", known)
        assert re.match(r"7 +fp8 +NCCL, with counts +- +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +yes", counts)


def test_experts_that_cannot_be_spread():
    done = ep(2, "--experts", "7", status=2)
    assert "ep: error: 7 experts cannot be spread evenly, over 2 PEs" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["p2p", "ibgda", "ibrc", "p2p,ibgda"])
def test_transports_in_weak_mode(transport):
    variables = {"PGAS_SIM_WEAK": "1"} | ({"PGAS_PES_PER_NODE": "2,1"} if "," in transport else {})
    flags = ["--tokens", "19", "--hidden", "256", "--blocks", "3", "--dtype", "all", "--transport", transport]
    ep(3, *flags, **variables)


@pytest.mark.slow
def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    ep(1, "--dtype", "all", "--plot", str(tmp_path / "ep.png"))
    assert (tmp_path / "ep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.sass
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_kernels_have_no_spills(dtype):
    """A block of 512 threads has 128 registers for each, which must suffice over p2p."""
    found = compiled("perftests/ep.py", "--dtype", dtype, "--tokens", "128")
    assert {name: kernel["spills"] for name, kernel in found.items()} == {"lead_in": 0, "dispatch": 0, "combine": 0}
