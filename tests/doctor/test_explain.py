"""``doctor --explain`` knows the messages that pgas prints, which are collected from the sources, and the common ones of CUDA."""

import ast
import itertools
import re
from pathlib import Path

import pytest
from examples import ROOT

from pgas.base.liveness import long_wait
from pgas.check import report
from pgas.doctor.messages import explained
from pgas.job.health import hang
from pgas.kernels import refusals
from pgas.native.dtypes import ONLY_COPIED

#: Beginning of a message of a kernel.
KERNEL = "PE 0, block 0, thread 0: "

#: Functions that print their first argument, beside the constructors of errors and warnings.
PRINTING = {"say", "warn", "_warn", "_remarks"}

#: What encloses the messages of a module before they are printed.
ENCLOSED = {"pgas/base/config.py": "PGAS_TIMEOUT=7: {}"}


def texts(node):
    """Return samples of an expression's text, with 7 for every value that is not a literal; at most six."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [[v.value] if isinstance(v, ast.Constant) else texts(v.value) or ["7"] for v in node.values]
        return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), 6)]
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in texts(value)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = texts(node.left), texts(node.right)
        return [one + other for one in left or ["7"] for other in right or ["7"]] if left or right else []
    return []


def called(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def messages():
    """Yield place and text of every message in the sources that has words of its own."""
    for folder in ("pgas", "kernels", "transports"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name.startswith(("pgas/kernels/", "pgas/transports/", "pgas/perftests/")):  # links
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                if called(node.func) in PRINTING or called(node.func).endswith(("Error", "Warning")):
                    for text in texts(node.args[0]):
                        if len(re.findall(r"[A-Za-z]{2,}", text)) > 1:
                            yield f"{name}:{node.lineno}", ENCLOSED.get(name, "{}").format(text)


def test_every_message_of_the_sources():
    found = list(messages())
    assert len({place for place, _ in found}) > 200  # the collector has not lost them
    assert [f"{place}: {text}" for place, text in found if not explained(text)] == []


def test_every_refusal_of_a_kernel():
    names = {name for row in refusals.TABLE.values() for name in re.findall(r"{(\w+)}", row.message)}
    values = dict.fromkeys(names, "7") | {"function": "put", "who": "PE 1, block 0, thread 3: put", "peer": "to PE 0"}
    said = [*(refusals.message(row, **values) for row in refusals.TABLE), ONLY_COPIED.format("float8_e5m2")]
    assert [text for text in said if not explained(text)] == []


def test_every_line_of_a_hang_report():
    waiter = {"threads": "block 0, thread 0", "operation": "wait_until", "goal": "sig[0] >= 1, last saw 0", "writer": "any PE"}
    waiters = [waiter | {"waited_s": 61.0}] * 40
    report = {
        "pe": 0, "pid": 7, "machine": "alpha", "transport": "p2p", "reason": "PE 1: wait_until waited 60 s (PGAS_TIMEOUT) for sig[0] >= 1",
        "stopped": ["PE 1 (process 8) is stopped"], "host": ["prog.py:3 main"], "kernels": ["ring"], "threads": "", "error": "failed",
        "waiters": waiters, "last": ["last calls of block 0: put to PE 1, fence", "and of 2 more blocks"], "nic": [],
    }  # fmt: skip
    lines = [line.removeprefix("pgas: ") for more in (waiters, []) for line in hang.text(report | {"waiters": more}).splitlines()]
    assert [line for line in [*lines, long_wait("PE 0", "PE 1", 60)] if not explained(line)] == []


def test_every_link_that_the_order_checker_misses():
    """The functions that find one return it and a sentence."""
    returned = [node.value for node in ast.walk(ast.parse(Path(report.__file__).read_text())) if isinstance(node, ast.Return)]
    said = [text for pair in returned if isinstance(pair, ast.Tuple) for text in texts(pair.elts[1])] + [report._NOTHING]
    assert len(said) > 20
    assert [text for text in said if [found.name for found in explained(text)] != ["order"]] == []


@pytest.mark.parametrize(
    ("message", "entry"),
    [
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "illegal address"),
        ("[700] Call to cuCtxSynchronize results in CUDA_ERROR_ILLEGAL_ADDRESS", "illegal address"),
        ("CUDA_ERROR_MISALIGNED_ADDRESS", "illegal address"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "gpu memory"),
        ("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", "gpu memory"),
        ("CUDA error: invalid device ordinal", "device ordinal"),
        ("803", "old driver"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "old driver"),
        ("CUDA driver version is insufficient for CUDA runtime version", "old driver"),
        ("CUDA error 999", "unknown cuda error"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "unknown cuda error"),
        ("CUDA error: unspecified launch failure", "kernel failed"),
        ("CUDA error: device-side assert triggered", "kernel failed"),
        ("the launch timed out and was terminated", "launch timeout"),
        ("CUDA error: no kernel image is available for execution on the device", "other architecture"),
        ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "grid too large"),
        ("CUDA error: operation not permitted when stream is capturing", "capture"),
        ("CUDA error: invalid resource handle", "cuda arguments"),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "ecc"),
        ("802", "fabric manager"),
        ("CUDA_ERROR_TOO_MANY_PEERS", "cuda"),
    ],
)
def test_messages_of_cuda(message, entry):
    assert [found.name for found in explained(message)] == [entry]


@pytest.mark.parametrize(
    ("message", "entry"),
    [
        ("PE 1 (process 5) ended with status 2, ending the job", "ended"),
        ("pgas: these two accesses are not ordered (2 times); missing: fence", "order"),
        ("pgas: a mistake; missing: wait", "order"),
        ("/a/b.py:18: pgas.p(data, i, 7, 1): data[0] of PE 1 (made in line 29) is written by PE 0, block 0, thread 0", "order"),
        ("pgas: report 9 does not exist: the program has 1", "order"),
        (f"{KERNEL}reduce_block: PE 1 calls pgas.reduce of 64 elements of float64 with op MAX, but this PE calls pgas.reduce of 64 "
         "elements of float64 with op SUM; all members of a team must make the same calls in the same order", "disagreement"),
        (f"{KERNEL}fcollect: dest has 64 elements, 128 are needed for a team of 2", "argument"),
        ("t.csv has traffic, from which there is no timeline; run the job with PGAS_TRACE=timeline:FILE", "trace"),
        ("/a/b.py:2: PgasWarning: unknown environment variables are ignored: PGAS_TRANPORT (did you mean PGAS_TRANSPORT?)", "variable"),
        ("pgas.TransportError: PE 0: the software NIC did not start: PGAS_SOFTHCA_NET=eth9: this machine has no such interface", "wire"),
        ("python -m pgas.run: error: this command was started by mpirun already: prog.py needs no second launcher", "launch"),
        ("TypeError: tid=[0, 0, 0] ctaid=[0, 0, 0]: k() missing 1 required positional argument: 'a'", "kernel"),
        ("PEs disagree in a collective call: PE 0 called pgas.zeros, PE 1 made another call", "disagreement"),
        ("rank 1 of 2 did not reach the store at alpha:29400 in 60 s: Connection refused", "hang"),
        ("rank 1: the store at alpha:29400 refuses: the secrets differ", "launch"),
        ("PGAS_TIMEOUT=x: must be a number of seconds greater than 0 and less than 1e9", "variable"),
        ("PGAS_TRACE: cannot write timeline.0.trace: No space left on device; the timeline stays in memory", "trace"),
        ("PGAS_TRACE=timeline:/no/such: cannot write /no/such.0.trace: No such file or directory", "trace"),
        ("PGAS_TRACE=traffic:t: cannot write t.0.csv: Permission denied", "trace"),
        ("PGAS_TRACE=x: must be one or more of timeline, traffic", "variable"),
        ("t.csv is not a file of PGAS_TRACE=traffic", "trace"),
        ("--plot: pictures need matplotlib: pip install 'pgas[plot]'", "no matplotlib"),
        ("symmetric heap exhausted: 8 bytes requested, 0 of 8 are free", "array on the heap"),
        ("PE 1, block 0, thread 3: put to PE 9: PE 9 does not exist", "argument"),
    ],
)  # fmt: skip
def test_the_kind_of_a_message(message, entry):
    assert [found.name for found in explained(message)] == [entry]


LABELS = ("[PE 2] pgas: ", "[PE 2] ", "pgas: ", "[2] pgas: ", "[2] ", "2: ", "[1,2]<stderr>:", "[1,2]<stderr>: pgas: ",
          "pgas.DeviceError: ", "[PE 2] pgas.DeviceError: ")  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_labels_of_processes_are_no_part_of_a_message(label):
    """[2] is also how cuda.bindings begins its errors, and error 2 is out of memory."""
    for message, entry in (
        ("PE 1, block 0, thread 3: put: PE 9 does not exist; pe must be 0 to 1", "argument"),
        ("PE 1:  process 7 on alpha, p2p", "hang"),
        ("PE 1 (process 8) is stopped", "hang"),
        ("PE 1 (process 5) ended with status 2, ending the job", "ended"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "illegal address"),
    ):
        assert [found.name for found in explained(label + message)] == [entry]


def test_other_messages_are_unknown():
    assert explained("segmentation fault in the coffee machine") == []
