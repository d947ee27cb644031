"""The compiled code of the NIC transports' functions: no spills, golden WQEs by 16-byte stores, releases and acquires.

perftests/baselines/sass-ibgda.json has the numbers, from ``python tests/tools/sass.py --transport ibgda --json``.
"""

import contextlib
import functools
import json
import os
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import posting
import ptx_machine
import pytest
from compiled import LIMIT, OF_A_QUEUE, OF_A_WAIT, ON_A100, TOOLS, compiled

pytestmark = [pytest.mark.sass, pytest.mark.timeout(2 * LIMIT)]

BASELINE = Path(__file__).resolve().parents[2] / "perftests" / "baselines" / "sass-ibgda.json"

#: Number of 16-byte stores of WQEs, on all branches together. put, get: ctrl, raddr, data. Atomics: the atomic segment too; float atomics
#: after a READ. p: for a single lane ctrl, raddr and inline (2 for 16 bytes); for several ctrl, raddr and the NOP. A signal: FA (4), or
#: masked CS (4 with its mask segment, 1 of data) and NOP (1), behind a WRITE (3); put_signal of more than a GiB posts WRITEs before (3).
#: atomic_set and atomic_fetch_or of 8 bytes: a masked CS and a NOP, too.
WQE_STORES = {
    "p": 6, "p_int8": 6, "p_int16": 6, "p_float64": 6, "p_complex128": 7, "g": 3, "put": 3, "put_warp": 3, "put_block": 3,
    "put_nbi_block": 3, "get": 3, "get_warp": 3, "get_block": 3, "get_nbi_block": 3, "iput": 3,
    "iput_block": 3, "iget_warp": 3, "quiet_pe": 0, "flush": 0, "put_signal": 3 + 3 + 6, "put_signal_warp": 3 + 3 + 6,
    "put_signal_block": 3 + 3 + 4, "signal_op": 6, "atomic_add": 4, "atomic_add_int32": 4, "atomic_add_float32": 7, "atomic_add_float64": 7,
    "atomic_fetch_add": 4, "atomic_fetch_add_int32": 4, "atomic_set": 6, "atomic_compare_swap": 4, "atomic_and_int32": 4,
    "atomic_xor_int32": 4, "atomic_fetch_or": 6, "atomic_fetch_xor": 4, "atomic_fetch_float32": 4, "test": 0, "wait_until_all": 0,
    "wait_until_any": 0, "wait_until_some_vector": 0, "barrier_all": 3, "sync_all": 3, "quiet": 0, "fence": 0, "signal_wait_until": 0,
}  # fmt: skip

#: Functions that post or poll, and how often each submits WQEs: a float addition a READ and a compare-and-swap; put_signal also the WRITEs
#: of long data.
SUBMITS = {
    name: 0 if not stores else 2 if "add_float" in name or name.startswith("put_signal") else 1
    for name, stores in WQE_STORES.items()
    if "wait" not in name and name != "test"
}


#: Functions that write a request, each at one place in the code.
REQUESTING = ("p", "g", "put", "put_warp", "put_block", "put_nbi_block", "get_block", "put_signal_block", "signal_op", "atomic_add",
           "atomic_fetch_add", "barrier_all")  # fmt: skip


@functools.cache
def outcome(*arguments):
    """Compile once, even if that fails: every test here would try again."""
    try:
        return compiled(*arguments), None
    except AssertionError as error:
        return None, error


def found(*arguments):
    result, error = outcome(*arguments)
    if error is not None:
        raise error
    return result


def built(*arguments):
    return found(*arguments)["kernels"]


@pytest.mark.parametrize("transport", ["ibgda", "ibrc"])
def test_nothing_spills(transport):
    assert {name: (b["spills"], b["stack"]) for name, b in built(transport).items() if b["spills"] or b["stack"]} == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "functions"),
    [
        (["--map-by", "sm"], ["p"]),
        (["--map-by", "warp"], ["p"]),
        (["--check"], ["p", "put_block", "put_signal", "atomic_fetch_add"]),
        (["--settles", "--cc", "8.0"], ["g", "signal_wait_until"]),
    ],
)
def test_nothing_spills_in_other_configurations(options, functions):
    command = [sys.executable, f"{TOOLS.partition(os.pathsep)[0]}/sass.py", "--transport", "ibgda", *options, "--json", *functions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    numbers = json.loads(done.stdout)
    assert numbers.keys() == set(functions)
    assert {name: (b["spills"], b["stack"]) for name, b in numbers.items() if b["spills"] or b["stack"]} == {}
    default = built("ibgda")
    assert all(b != {key: default[name][key] for key in b} for name, b in numbers.items()), "compiled as by default"


# -------------------------------------------------------------------------------------------------------------------- two paths

TWO = ["p2p,ibgda", pytest.param("p2p,ibrc", marks=pytest.mark.slow)]

SOME = """
import json, sys
from pgas import sass
from sass import KERNELS

sass.configure(sys.argv[1])
built = sass.build_all({name: KERNELS[name] for name in ("p_float64", "put_signal_block")})
json.dump({name: {"spills": b.spills, "stack": b.stack, "sass": b.instructions} for name, b in built.items()}, sys.stdout)
"""


@functools.cache
def some(transport):
    """Compile a few functions only."""
    done = subprocess.run(
        [sys.executable, "-c", SOME, transport],
        env={**os.environ, "PYTHONPATH": TOOLS},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def near_side(sass):
    """Return the opcodes that p executes for a near PE: those up to the branch, and the shortest block that ends with the store and EXIT.

    ibrc's other one publishes a request.
    """
    split = [re.match(r"(@!?U?P\w+ +)?(\S+)", i).groups() for i in sass]
    jumps = [i for i, (_, opcode) in enumerate(split) if opcode in ("BRA", "EXIT")]
    stored = ("", "STG.E.64.STRONG.SYS")
    ends = [i for i in jumps if sass[i] == "EXIT" and (split[i - 1][0] or "", split[i - 1][1]) == stored]
    block = min((split[max(i for i in jumps if i < end) + 1 : end + 1] for end in ends), key=len)
    return [opcode for _, opcode in split[: jumps[0] + 1] + block]


@pytest.mark.parametrize("transport", TWO)
def test_p_to_a_near_pe_is_six_instructions_more_than_over_p2p(transport):
    """A load of read-only words with its address, a comparison and a branch. Over p2p alone there is none of it.

    Of 8 bytes: a value of 4 bytes and the PE are parameters that one instruction loads, but only if no branch is between them.
    """
    near, alone = near_side(some(transport)["p_float64"]["sass"]), [i.split()[0] for i in some("p2p")["p_float64"]["sass"]]
    assert len(near) <= len(alone) + 6
    kinds = ("LDG", "BRA", "STG")
    assert [opcode for opcode in near if opcode.startswith(kinds)] == ["LDG.E.64.CONSTANT", "BRA", "STG.E.64.STRONG.SYS"]
    assert [opcode for opcode in alone if opcode.startswith(kinds)] == ["STG.E.64.STRONG.SYS"]


@pytest.mark.parametrize("transport", TWO)
def test_nothing_spills_in_jobs_with_two_paths(transport):
    assert {name: (b["spills"], b["stack"]) for name, b in some(transport).items() if b["spills"] or b["stack"]} == {}


# ------------------------------------------------------------------------------------------------------------- contents of WQEs


def array(address):
    """Return the kernel parameters of an array of 8 elements."""
    return (0, 0, 8, 0, address, 8, 0)


DEST, SOURCE, WORD = array(posting.DEST), array(posting.SOURCE), array(posting.WORD)
F64 = [int.from_bytes(struct.pack("<d", value), "little") for value in (1.5, -2.0)]
RMA, PUT_SIGNAL = (*DEST, *SOURCE, posting.PE), (*DEST, *SOURCE, *WORD, posting.PE)

#: By function, and number of lanes if more than one: the operation in the golden file, and the arguments of its kernel.
WRITES = {
    **dict.fromkeys(("put", "put_warp", "put_block", "put_nbi_block"), ("put", RMA)),
    **dict.fromkeys(("get", "get_warp", "get_block", "get_nbi_block"), ("get", (*SOURCE, *DEST, posting.PE))),
    "g": ("g", RMA),
    "p": ("p", (*DEST, 0x3FC00000, posting.PE)),
    "p_int8": ("p_int8", (*DEST, 0x5A, posting.PE)),
    "p_int16": ("p_int16", (*DEST, 0x5A5B, posting.PE)),
    "p_float64": ("p_float64", (*DEST, F64[0], posting.PE)),
    "p_complex128": ("p_complex128", (*DEST, *F64, posting.PE)),
    "p by 3 lanes": ("p_by_3_lanes", (*DEST, 0x3FC00000, posting.PE)),
    "p_complex128 by 3 lanes": ("p_complex128_by_3_lanes", (*DEST, *F64, posting.PE)),
    "atomic_set by 3 lanes": ("atomic_set_by_3_lanes", (*DEST, posting.PE)),
    **{name: (name, (*DEST, posting.PE)) for name in WQE_STORES if name.startswith(("atomic", "signal_op"))},
    **dict.fromkeys(("put_signal", "put_signal_warp"), ("put_signal", PUT_SIGNAL)),
    "put_signal_block": ("put_signal_block", PUT_SIGNAL),
    **dict.fromkeys(("barrier_all", "sync_all"), ("sync_all", ())),
}


def posted(ptx, operation, arguments, lanes=1):
    """Run a compiled kernel; return the job with its WQEs."""
    job = posting.Job(operation)
    ptx_machine.run(ptx, arguments, job.memory, lanes)
    return job


def test_every_function_that_posts_is_run():
    strided = {"iput", "iput_block", "iget_warp"}  # many WQEs of put or get: tested by traffic through the card
    assert {name.removesuffix(" by 3 lanes") for name in WRITES} | strided == {name for name, stores in WQE_STORES.items() if stores}


@pytest.mark.parametrize("case", WRITES)
def test_compiled_functions_write_the_golden_bytes(case):
    """Every byte; the PTX is executed."""
    name, lanes = case.removesuffix(" by 3 lanes"), 3 if "lanes" in case else 1
    operation, arguments = WRITES[case]
    posted(built("ibgda")[name]["ptx"], operation, arguments, lanes).check(posting.golden(operation))


@pytest.mark.parametrize("field", [None, *posting.WRONG_IN_SHORT])
def test_one_wrong_bit_of_a_compiled_builder_is_seen(field):
    kernel = found("ibgda")["wrong"]["put" if field is None else f"put: {field}"]
    job = posted(kernel["ptx"], "put", (posting.DEST, posting.SOURCE, posting.NBYTES, posting.PE))
    with pytest.raises(AssertionError) if field else contextlib.nullcontext():
        job.check(posting.golden("put"))


@pytest.mark.parametrize("name", WQE_STORES)
def test_wqes_are_stored_by_octowords(name):
    assert built("ibgda")[name]["memory"].get("STG.E.NA.128", 0) == WQE_STORES[name]


# --------------------------------------------------------------------------------------------------------- order of bytes

FETCHING = """
import json, sys
from pgas import sass
from sass import KERNELS

sass.configure("ibgda", big_endian=True)
built = sass.build_all({name: KERNELS[name] for name in json.loads(sys.argv[1])})
json.dump({name: b.ptx for name, b in built.items()}, sys.stdout)
"""


def test_old_values_of_a_card_that_returns_them_big_endian():
    """4 bytes are big-endian from every card, 8 from this one."""
    kernels = ("atomic_fetch_add", "atomic_fetch_add_int32")
    command, environment = [sys.executable, "-c", FETCHING, json.dumps(kernels)], {**os.environ, "PYTHONPATH": TOOLS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    usual = {name: built("ibgda")[name]["ptx"] for name in kernels}
    for name, nbytes in zip(kernels, (8, 4), strict=True):
        for ptx, order in ((usual[name], "little" if nbytes == 8 else "big"), (json.loads(done.stdout)[name], "big")):
            job = posting.Job(name)
            job.cells[:nbytes] = old = bytes(range(1, 1 + nbytes))
            ptx_machine.run(ptx, (*DEST, posting.PE), job.memory, 1)
            assert job.memory.load(posting.DEST + nbytes, nbytes) == int.from_bytes(old, order)


# ------------------------------------------------------------------------------------------------------------------------- A100

#: Octowords of the DUMPs of functions that settle, one place in the code each; of the others the WQEs are as on other GPUs.
DUMPS = {
    **dict.fromkeys(("g", "get", "get_block", "iget_warp", "atomic_fetch_add", "atomic_fetch_or", "quiet", "quiet_pe"), 2),
    **dict.fromkeys(("signal_wait_until", "test", "wait_until_any"), 2),
    "barrier_all": 3 * 2,  # of quiet, and of two waits, as there are two forms of a barrier
}

#: By function: the operation in the golden file, the arguments of its kernel. Waits end at once.
SETTLED = {
    **{name: (f"{WRITES[name][0]}_settled", WRITES[name][1]) for name in ("get", "get_block", "g", "atomic_fetch_add", "atomic_fetch_or")},
    "quiet": ("settle", ()),
    "quiet_pe": ("settle", (posting.PE,)),
    **dict.fromkeys(("signal_wait_until", "test"), ("settle", (*DEST, 1))),
    "wait_until_any": ("settle", (*DEST, *SOURCE, 1)),
}


@pytest.mark.parametrize("transport", ["ibgda", *(pytest.param(name, marks=pytest.mark.slow) for name in ("p2p", "ibrc"))])
def test_kernels_compile_for_an_a100(transport):
    kernels = built(transport, "A100")
    assert kernels.keys() == {*ON_A100, "put_lent"}
    assert all(".target sm_80" in b["ptx"] for b in kernels.values())
    assert {name: (b["spills"], b["stack"]) for name, b in kernels.items() if b["spills"] or b["stack"]} == {}


@pytest.mark.parametrize("name", SETTLED)
def test_a_dump_comes_behind_what_a_nic_writes(name):
    """The golden bytes: behind READ or atomic; or alone, behind a wait, on a queue pair to this PE."""
    operation, arguments = SETTLED[name]
    posted(built("ibgda", "A100")[name]["ptx"], operation, arguments).check(posting.golden(operation))


@pytest.mark.parametrize("name", ON_A100)
def test_who_posts_a_dump(name):
    assert built("ibgda", "A100")[name]["memory"].get("STG.E.NA.128", 0) == WQE_STORES[name] + DUMPS.get(name, 0)


def test_ibrc_settles_by_a_request():
    """A READ of own memory; g and atomics fetch into the host's memory, where they need none."""
    settling = DUMPS.keys() - {"g", "atomic_fetch_add", "atomic_fetch_or"}
    stores = {name: b["memory"].get("STG.E.NA.128", 0) for name, b in built("ibrc", "A100").items()}
    usual = {name: b["memory"].get("STG.E.NA.128", 0) for name, b in built("ibrc").items()}
    assert {name: (n - usual[name]) // 3 for name, n in stores.items() if name in usual and n != usual[name]} == {
        name: 3 if name == "barrier_all" else 1 for name in settling
    }


# ---------------------------------------------------------------------------------------------------------------- converged lanes


@pytest.mark.parametrize("transport", ["ibgda", "ibrc"])
def test_a_lane_adds_only_for_converged_lanes(transport):
    """ptxas may let one lane add for all active lanes (UPOPC). It may do so only for the 1 of a landing cell's ticket.

    It would be wrong for the size of a reservation or the address of a cell, which can differ between lanes (lanes.py).
    """
    for name, b in built(transport).items():
        for i, instruction in enumerate(b["sass"]):
            if counted := re.match(r"UPOPC (UR\d+),", instruction):
                added = rf"UIMAD\.WIDE\.U32 UR\d+, {counted[1]}, 0x1,"
                assert re.search(added, " ".join(b["sass"][i : i + 6])), (name, b["sass"][i : i + 20])


# ------------------------------------------------------------------------------------------------------------------------ order


RECORD, REGISTER, LOOK, CAS = "STG.E.STRONG.SYS", "STG.E.64.STRONG.SYS", "LDG.E.64.STRONG.SYS", "ATOMG.E.CAS.64.STRONG.GPU"
LOAD, STORE, MAX, ACQUIRE = "LDG.E.64.STRONG.GPU", "STG.E.64.STRONG.GPU", "REDG.E.MAX.64.STRONG.GPU", "CCTL.IVALL"
PAIR, TURN = "LDG.E.128.STRONG.GPU", "STG.E.128.STRONG.GPU"  #: ptxas merges accesses to adjacent words if it knows their alignment
GIVEN_BACK = "REDG.E.ADD.64.STRONG.GPU"  #: releases a landing cell
FENCE = ["MEMBAR.ALL.GPU", ACQUIRE]  #: fence.acq_rel.gpu
BRANCHES = ("BSYNC", "BRA")


def accesses(sass):
    """Return (predicate, opcode) of fences, memory accesses and branches, without the parts of a MEMBAR.

    Loads of constants that the host wrote at init are left out, too, as they need no order.
    """
    split = [re.match(r"(@!?U?P\w+ )?(\S+)", i).groups() for i in sass]
    kinds = ("LDG", "STG", "ATOM", "RED", "MEMBAR", "CCTL", "BRA", "BSYNC", "EXIT", "WARPSYNC", "BREAK", "BAR")
    found = [(predicate, opcode.rstrip(";")) for predicate, opcode in split if opcode.startswith(kinds)]
    return [("", "")] * 3 + [access for access in found if not access[1].endswith("CONSTANT")]


class Order:
    """The accesses of a function, and its missing releases and acquires."""

    def __init__(self, sass):
        self.code = accesses(sass)
        self.opcodes = [opcode for _, opcode in self.code]
        self.missing = []

    def places(self, opcode):
        return [i for i, found in enumerate(self.opcodes) if found == opcode]

    def released(self, i, scope):
        return self.code[i - 1] == (self.code[i][0], f"MEMBAR.ALL.{scope}")

    def acquired(self, i):
        """Whether an access follows a fence, which a branch may skip."""
        while self.opcodes[i - 1] in BRANCHES:
            i -= 1
        return self.opcodes[i - 2 : i] == FENCE

    def since(self, i, opcode, others):
        """Whether an opcode comes before an access, with only others in between."""
        while self.opcodes[i - 1] in others:
            i -= 1
        return self.opcodes[i - 1] == opcode

    def expect(self, what, found, expected):
        if found != expected:
            self.missing.append(f"{what}: {found}, not {expected}")


def disorder(sass, submits, flags=0, quiets=0):
    """Return the missing releases and acquires of queue.py in a function that submits and is quiet so often; [] if none is missing."""
    order = Order(sass)
    places, opcodes, released, expect = order.places, order.opcodes, order.released, order.expect
    polls = len(places(MAX))
    cells = max(0, sum(found.startswith("ATOMG.E.ADD.64") for found in opcodes) - submits)  # other ADDs reserve WQEBBs

    # In this order: ready_head with the rung index, resv_head; some a second time, for diverged lanes. Where WQEBBs are reserved, an atomic
    # follows instead of the last load.
    turns = [i for i in range(len(opcodes)) if opcodes[i : i + 2] == [PAIR, LOAD] or opcodes[i : i + 3] == [LOAD] * 3]
    turns = [i for i in turns if not any(found.startswith("ATOMG.E.ADD") for found in opcodes[i + 2 : i + 6])]
    expect("turns looked for", len(turns) in (submits, 2 * submits), True)
    expect("turns looked for behind a fence", sum(map(order.acquired, turns)), len(turns))
    expect("turns, marks and landing cells taken", len(places(CAS)), 2 * submits + cells)
    # One of each for idle queues, one for others.
    records = places(RECORD)
    expect("doorbell records", len(records), 2 * submits)
    expect("doorbell records behind a fence", sum(map(order.acquired, records)), 2 * submits)
    registers = [i + 3 for i in records if opcodes[i + 1 : i + 4] == [*FENCE, REGISTER]]
    expect("registers behind a record and a fence", len(registers), 2 * submits)
    turns = [i for i in (*places(TURN), *places(STORE)) if order.since(i, REGISTER, ("MEMBAR.ALL.GPU", STORE)) and released(i, "GPU")]
    marks = [i for i in places(CAS) if opcodes[i - 3 : i - 1] == [REGISTER, STORE] and released(i, "GPU")]
    expect("turns of idle queues ended behind a register and a fence", len(turns), submits)
    expect("marks taken away behind a register and a fence", len(marks), submits)
    expect("landing cells given back behind a fence", sum(released(i, "GPU") for i in places(GIVEN_BACK)), cells)
    expect("cursors raised behind a fence", sum(released(i, "GPU") for i in places(MAX)), polls)
    behind = Counter(opcodes[i - 1] for i in places(ACQUIRE))
    behind.pop(FENCE[0], 0), behind.pop("MEMBAR.ALL.SYS", 0)
    expect("acquires of a cursor", behind.pop(LOAD, 0), polls + quiets)
    expect("acquires of a turn and of a landing cell", behind.pop(CAS, 0), submits + cells)
    # ptxas drops the load itself, whose value is unused: the loop that saw the CQE ends with CCTL.
    expect("acquires at the end of a poll", behind.total(), polls + flags)
    return order.missing


def disorder_of_waits(sass, waits):
    """The same for ring.wait, in a function that waits so often and takes no landing cell."""
    order = Order(sass)
    places, opcodes, released, expect = order.places, order.opcodes, order.released, order.expect
    looks = [i for i in places(LOOK) if STORE in opcodes[i : i + 4]]
    expect("looks", len(looks), waits)
    expect("looks that acquire", sum(opcodes[i + 1] == ACQUIRE for i in looks), waits)
    stores = places(STORE)
    expect("what was seen, and the right to look", len(stores), 2 * waits)
    expect("what was seen, behind a fence", sum(released(i, "GPU") for i in stores[::2]), waits)
    expect("the right to look, behind a fence", sum(released(i, "GPU") for i in stores[1::2]), waits)
    behind = Counter(opcodes[i - 1] for i in places(ACQUIRE))
    behind.pop(LOOK, 0)
    expect("acquires of the right to look", behind.pop(CAS, 0), waits)
    expect("acquires at the end of a wait", behind.total(), waits)
    return order.missing


@pytest.mark.parametrize("name", SUBMITS)
def test_releases_and_acquires(name):
    flags = 4 if name in ("barrier_all", "sync_all") else 0  # awaited in one round or in several, each by a first look and a loop
    quiets = name in ("quiet", "quiet_pe", "flush", "fence", "barrier_all")
    assert disorder(built("ibgda")[name]["sass"], SUBMITS[name], flags, quiets) == []


def disorder_of(name):
    """Of a kernel of compiled.wrong()."""
    kind = name.partition(":")[0]
    if kind == "wait":
        return disorder_of_waits(found("ibrc")["wrong"][name]["sass"], 1)
    return disorder(found("ibgda")["wrong"][name]["sass"], int(kind == "submit"), quiets=int(kind == "quiet"))


@pytest.mark.parametrize("name", ["submit", "poll", "quiet"])
def test_releases_and_acquires_of_a_queue(name):
    assert disorder_of(name) == []


@pytest.mark.parametrize(
    ("name", "waits"), [("quiet", 1), ("fence", 1), ("signal_op", 1), ("put", 2), ("put_nbi_block", 1), ("get_block", 2)]
)
def test_releases_and_acquires_of_waits(name, waits):
    """One wait for the operation, one for room in the ring."""
    assert disorder_of_waits(built("ibrc")[name]["sass"], waits) == []


LOST = {
    "submit: fence before the doorbell of an idle queue": ["doorbell records behind a fence: 1, not 2"],
    "submit: fence before the turn": ["turns looked for behind a fence: 0, not 2"],
    # Without that fence the rung index is unused, and its load is dropped.
    "submit: fence of the one who rings": ["turns looked for: False, not True", "doorbell records behind a fence: 1, not 2"],
    "submit: release of the register": ["registers behind a record and a fence: 0, not 2"],
    "submit: release of the turn": ["turns of idle queues ended behind a register and a fence: 0, not 1"],
    "submit: acquire of the mark": ["acquires of a turn and of a landing cell: 0, not 1"],
    "submit: release of the mark": ["marks taken away behind a register and a fence: 0, not 1"],
    "poll: acquire of the cursor": ["acquires of a cursor: 0, not 1"],
    "poll: acquire at the end": ["acquires at the end of a poll: 0, not 1"],
    "quiet: acquire of the cursor": ["acquires of a cursor: 1, not 2"],
    "wait: acquire of the look": ["looks that acquire: 0, not 1"],
    "wait: acquire of LOOKING": ["acquires of the right to look: 0, not 1"],
    "wait: release of SEEN": ["what was seen, behind a fence: 0, not 1"],
    "wait: release of LOOKING": ["the right to look, behind a fence: 0, not 1"],
    "wait: acquire at the end": ["acquires at the end of a wait: 0, not 1"],
}


def test_every_error_of_the_order_is_tested():
    assert LOST.keys() == OF_A_QUEUE.keys() | OF_A_WAIT.keys()


@pytest.mark.parametrize("name", LOST)
def test_a_missing_order_is_seen(name):
    """Compiled from a source with the planted error."""
    assert disorder_of(name) == LOST[name]


def test_a_wait_keeps_its_order():
    assert disorder_of("wait") == []


@pytest.mark.parametrize("name", [name for name, submits in SUBMITS.items() if submits])
def test_one_thread_reserves_by_a_gpu_scope_atomic(name):
    assert built("ibgda")[name]["memory"]["ATOMG.E.ADD.64.STRONG.GPU"] >= SUBMITS[name]


@pytest.mark.parametrize("name", ["put", "get_block", "g", "quiet", "atomic_fetch_add"])
def test_polling_reads_past_the_caches(name):
    assert built("ibgda")[name]["memory"]["LDG.E.64.STRONG.SYS"] >= 1  # the CQE


def test_instructions_are_those_on_record():
    """After a change: ``python tests/tools/sass.py --transport ibgda --json > <baseline>``, so the review sees the difference."""
    recorded = json.loads(BASELINE.read_text())
    assert recorded.keys() == built("ibgda").keys()
    grown = {
        name: (recorded[name]["instructions"], b["instructions"])
        for name, b in built("ibgda").items()
        if not 0.9 <= b["instructions"] / recorded[name]["instructions"] <= 1.1
    }
    assert grown == {}


@pytest.mark.parametrize("name", REQUESTING)
def test_scopes_of_requests(name):
    """Tickets have gpu scope; the request is three stores, and its sequence word is released at system scope."""
    memory = built("ibrc")[name]["memory"]
    assert memory["ATOMG.E.ADD.64.STRONG.GPU"] == (2 if name in ("g", "atomic_fetch_add") else 1)  # a landing cell's, too
    assert memory["STG.E.NA.128"] == 3
    assert memory["STG.E.64.STRONG.SYS"] >= 1
    assert memory["MEMBAR.ALL.SYS"] >= 1


@pytest.mark.parametrize("name", ["put", "get_block", "g", "quiet", "fence", "atomic_fetch_add"])
def test_waiting_reads_past_the_caches(name):
    memory = built("ibrc")[name]["memory"]
    assert memory["LDG.E.64.STRONG.SYS"] >= 1  # completed
    assert memory["CCTL.IVALL"] >= 1  # the acquire at the end
