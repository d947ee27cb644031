"""The ``PGAS_*`` environment variables, each with type, default and meaning.

``python -m pgas info`` prints the table. pgas.init() reads the values; a bad one is a ValueError that names the variable.
"""

import contextlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgas.base import launcher
from pgas.base.text import printable, real

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``64M`` or ``1.5g`` (binary units, like NVSHMEM's sizes).

    Raises:
        ValueError: if text is not a non-negative number with an optional unit k, m, g, or t.
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"'{printable(text)}' is not a size (a number with an optional unit K, M, G, or T)")
    return int(float(match[1]) * _UNITS[match[2]])


def size_text(nbytes: int) -> str:
    """Return a size as text, rounded down: ``1.5 GiB``, ``512 bytes``."""
    for bits, name in ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << bits:
            return f"{(nbytes * 100 >> bits) / 100:g} {name}"
    return f"{nbytes} bytes"


def _size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError("must be at least 1 byte")
    return size


def _real(text: str, low: float, high: float, otherwise: str) -> float:
    with contextlib.suppress(ValueError):
        if low <= (value := real(text)) <= high:
            return value
    raise ValueError(otherwise)


def _seconds(text: str) -> float:
    return _real(text, math.ulp(0), math.nextafter(1e9, 0), "must be a number of seconds greater than 0 and less than 1e9")


def _limit(text: str) -> float:
    return 0 if text == "" else _real(text, 1e-3, 1e4, "must be a number from 0.001 to 10000, or empty for no limit")


def _words(*allowed: str) -> Callable[[str], frozenset[str]]:
    must = f"one or more of {', '.join(allowed)}" if len(allowed) > 1 else f"{allowed[0]}, or empty"

    def parse(text: str) -> frozenset[str]:
        words = frozenset(word.strip().lower() for word in text.split(",") if word.strip())
        if unknown := words - set(allowed):
            raise ValueError(f"unknown: {printable(', '.join(sorted(unknown)))}; must be {must}")
        return words

    return parse


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return word

    return parse


#: Minimum number of characters of PGAS_SECRET: a process that listens where the store is expected can try guesses.
_SECRET_MIN = 16


def _secret(text: str) -> str:
    if text and len(text) < _SECRET_MIN:
        raise ValueError(f"must have at least {_SECRET_MIN} characters, not {len(text)}; use random ones (openssl rand -hex 32)")
    return text


#: Values of PGAS_TRANSPORT: "auto", and the names of the registered transports (transports/registry.py).
TRANSPORTS = ["auto"]


def _transport(text: str) -> str:
    word = text.replace(" ", "").lower()
    if word not in TRANSPORTS:
        raise ValueError(f"must be one of {'; '.join(TRANSPORTS)}")
    return word


def _counts(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\s*([1-9][0-9]{0,3}\s*(,\s*[1-9][0-9]{0,3}\s*)*)?", text, re.ASCII):
        raise ValueError("must be a number of PEs from 1 to 9999, several of them separated by commas, or empty")
    return tuple(int(part) for part in text.split(",") if part.strip())


def _blocks(text: str) -> tuple[tuple[str, int, int], ...]:
    """Parse numbers of blocks by collective and bytes; one number is that of every collective and size."""
    rows = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(?:(\w+)=([^:=]+):)?([1-9][0-9]{0,2})", part, re.ASCII)
        if found is None or found[1] not in (None, *COLLECTIVES):
            raise ValueError(
                f"must be a number of blocks, or some of COLLECTIVE=BYTES:BLOCKS, separated by commas, such as reduce=64K:16; "
                f"COLLECTIVE is {', '.join(COLLECTIVES[:-1])} or {COLLECTIVES[-1]}, BLOCKS 1 to 999"
            )
        rows += [(name, parse_size(found[2] or "0"), int(found[3])) for name in ([found[1]] if found[1] else COLLECTIVES)]
    return tuple(rows)


#: Collectives whose messages several blocks divide among them, when the host calls.
COLLECTIVES = ("alltoall", "broadcast", "fcollect", "reduce", "reducescatter")


def _seed(text: str) -> int | None:
    if text == "":
        return None
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= 1 << 64:
        raise ValueError("must be a non-negative integer of at most 64 bits, or empty for off")
    return int(text)


def _ordinal(text: str) -> int | None:
    if text == "":
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("must be a CUDA device ordinal, or empty")
    return int(text)


def _integer(low: int, high: int, *, power_of_two: bool = False) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"\s*-?[0-9]{1,30}\s*", text) else low - 1
        if not low <= value <= high or (power_of_two and value & (value - 1)):
            raise ValueError(f"must be {'a power of two' if power_of_two else 'an integer'} from {low} to {high}")
        return value

    return parse


def _integer_or_auto(low: int, high: int) -> Callable[[str], int | str]:
    number = _integer(low, high)

    def parse(text: str) -> int | str:
        if text == "auto":
            return text
        try:
            return number(text)
        except ValueError:
            raise ValueError(f"must be auto or an integer from {low} to {high}") from None

    return parse


def _optional(parse: Callable[[str], int]) -> Callable[[str], int | None]:
    return lambda text: None if text.strip() == "" else parse(text)


def _power_of_two_size(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = parse_size(text)
        if not low <= value <= high or value & (value - 1):
            raise ValueError(f"must be a power of two from {low} to {high} (units K, M)")
        return value

    return parse


def _hca(text: str) -> str:
    """Check the name of a NIC: auto, softhca, or an RDMA device, optionally with a port."""
    word = text.strip()
    if not re.fullmatch(r"[\w.-]+(:[1-9][0-9]{0,2})?", word, re.ASCII):
        raise ValueError(
            "must be auto, softhca, or an RDMA device, optionally with a port, such as mlx5_0 or mlx5_0:1 (rdma link lists them)"
        )
    return word.lower() if word.lower() in ("auto", "softhca") else word


def _hca_list(text: str) -> str:
    """Check a list of RDMA devices, with a leading ^ if they are excluded; return it without blanks."""
    word = re.sub(r"\s", "", text)
    if word and not re.fullmatch(r"\^?[\w.-]+(:[1-9][0-9]{0,2})?(,[\w.-]+(:[1-9][0-9]{0,2})?)*", word, re.ASCII):
        raise ValueError("must be RDMA devices separated by commas, such as mlx5_0,mlx5_3:1; a leading ^ excludes them: ^mlx5_2")
    return word


#: Syndromes of error CQEs: a copy of mlx5.cqe.Syndrome, which this layer cannot import (a test compares them).
CQE_SYNDROMES = (0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22)


@dataclass(frozen=True)
class Faults:
    """Reproducible faults of the software NIC.

    The text form is ``seed=1,delay=0.1,late=0.5,hold=64,fail=17:0x13,fail_qpn=0x400,stop=100,atomics=split,atomics=big_endian,
    refuse=cq_of_one,refuse=mr_of_chunks``: any of these, in any order.
    """

    seed: int = 0
    delay: float = 0.0  #: probability that a WQE, or its CQE, is delayed; long WRITEs then arrive last piece first
    late: float = 0.0  #: probability that the last bytes that a WQE writes become visible only after its CQE (or by a DUMP or READ there)
    hold: int = 64  #: upper bound of a delay, in passes over the QPs; a pass takes some hundred nanoseconds; 0: late data stays late
    fail: int = 0  #: number of the WQE that fails, counted from now on; 0: none
    syndrome: int = 0  #: syndrome of the failing WQE
    fail_qpn: int = 0  #: QP whose WQEs are counted for fail; 0: all
    stop: int = 0  #: number of WQEs after which the engine stops until it is resumed; 0: never
    split_atomics: bool = False  #: whether the NIC's atomics are not atomic with respect to those of the PEs
    big_endian_atomics: bool = False  #: whether old values of 8 bytes are big-endian (atomic_req_8B_endianness_mode is 0)
    refuse_cq_of_one: bool = False  #: whether CREATE_CQ with log_cq_size 0 fails
    refuse_mr_of_chunks: bool = False  #: whether a memory region of several segments, such as a heap that grew, is refused

    @classmethod
    def parse(cls, text: str) -> "Faults":
        """Return the faults of a text.

        Raises:
            ValueError: if a fault is unknown or a value is out of range; the message gives what is allowed.
        """
        values: dict[str, Any] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = word.partition("=")
            try:
                if name == "fail":
                    count, _, syndrome = value.partition(":")
                    values["fail"], values["syndrome"] = _fault_integer("fail", count), _fault_integer("syndrome", syndrome)
                    if values["syndrome"] not in CQE_SYNDROMES:
                        raise ValueError(f"{values['syndrome']:#x} is not a CQE syndrome")
                elif name in _FAULT_INTEGERS:
                    values[name] = _fault_integer(name, value)
                elif name in ("delay", "late"):
                    values[name] = real(value)
                    if not 0 <= values[name] < 1 and (name, values[name]) != ("late", 1):
                        raise ValueError(f"{name} must be at least 0 and {'less than' if name == 'delay' else 'at most'} 1")
                elif word in _FAULT_FLAGS:
                    values[_FAULT_FLAGS[word]] = True
                else:
                    raise ValueError(f"unknown fault '{printable(name)}'")
            except ValueError as error:
                raise ValueError(
                    f"'{printable(word)}' ({error}): seed=<int>, delay=<0..1>, late=<0..1>, hold=<n>, fail=<n>:<CQE syndrome>, "
                    "fail_qpn=<qpn>, stop=<n>, atomics=split, atomics=big_endian, refuse=cq_of_one, refuse=mr_of_chunks"
                ) from None
        return cls(**values)


#: Width in bits of each integer: of the engine's counters, and of a QP number.
_FAULT_INTEGERS = {"seed": 64, "hold": 16, "fail_qpn": 24, "fail": 63, "stop": 63, "syndrome": 8}


_FAULT_FLAGS = {
    "atomics=split": "split_atomics", "atomics=big_endian": "big_endian_atomics", "refuse=cq_of_one": "refuse_cq_of_one",
    "refuse=mr_of_chunks": "refuse_mr_of_chunks",
}  # fmt: skip


def _fault_integer(name: str, text: str) -> int:
    if not re.fullmatch(r"-?(0x[0-9a-f]{1,30}|[0-9]{1,30})", text, re.ASCII | re.IGNORECASE):
        raise ValueError(f"'{printable(text)}' is not an integer")
    value = int(text, 16 if "x" in text.lower() else 10)
    if not 0 <= value < 1 << _FAULT_INTEGERS[name]:
        raise ValueError(f"{name} must be at least 0 and less than 2^{_FAULT_INTEGERS[name]}")
    return value


def _faults(text: str) -> str:
    """Check the faults and return their text, because the software NIC's process parses it again."""
    Faults.parse(text)
    return text


@dataclass(frozen=True)
class Tracing:
    """What is traced, and the file names of traces (PGAS_TRACE)."""

    text: str = ""
    printed: frozenset[str] = frozenset()  #: what the software NIC prints
    timeline: str = ""  #: beginning of the names of trace files; "" for no timeline
    traffic: str = ""  #: beginning of the names of files of traffic; "" for none

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> "Tracing":
        """Return what a text such as ``wqe,timeline:FILE`` requests.

        Raises:
            ValueError: if a word is unknown.
        """
        words = [word.strip() for word in text.split(",") if word.strip()]
        files = {}
        for word in words:
            kind, _, path = word.partition(":")
            if kind.lower() in _TRACE_FILES:
                files[kind.lower()] = os.path.expanduser(path) or _TRACE_FILES[kind.lower()]
        printed = frozenset(word.lower() for word in words if word.partition(":")[0].lower() not in _TRACE_FILES)
        if unknown := printed - set(_PRINTED):
            allowed = ", ".join([*_PRINTED, *(f"{kind}[:FILE]" for kind in _TRACE_FILES)])
            raise ValueError(f"unknown: {printable(', '.join(sorted(unknown)))}; must be one or more of {allowed}")
        return cls(",".join(words), printed, **files)


#: What the software NIC prints.
_PRINTED = ("wqe", "cqe", "cmd")
#: Kinds of traces in files, and the default beginning of the names of their files.
_TRACE_FILES = {"timeline": "pgas-trace", "traffic": "pgas-traffic"}


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    parse: Callable[[str], Any]
    default: str
    meaning: str
    type: str

    def read(self) -> Any:
        """Return the parsed value from the environment, or the default if the variable is not set or empty.

        Raises:
            ValueError: if the value does not parse; the message names the variable, its value, and the allowed values.
        """
        text = os.environ.get(self.name) or self.default
        try:
            return self.parse(text)
        except ValueError as error:
            shown = "(its value is not shown)" if self.name in SECRETS else printable(text)
            raise ValueError(f"{self.name}={shown}: {error}") from None


#: Variables whose values must never be shown.
SECRETS = frozenset({"PGAS_LAUNCHED", "PGAS_SECRET", "PGAS_STARTED_BY"})

VARIABLES: dict[str, Variable] = {
    variable.name: variable
    for variable in (
        Variable("PGAS_SYMMETRIC_SIZE", _size, "1G", "size of the symmetric heap on every PE in bytes (units K, M, G, T)", "size"),
        Variable("PGAS_CUMEM_GRANULARITY", _size, "512M", "an exhausted heap grows by a multiple of this many bytes", "size"),
        Variable("PGAS_MAX_MEMORY_PER_GPU", _optional(_size), "",
            "maximum size of a PE's heap in bytes; if equal to PGAS_SYMMETRIC_SIZE, the heap does not grow; if empty, only available "
            "memory limits it", "size"),
        Variable("PGAS_TRANSPORT", _transport, "auto",
            "transport to other PEs; p2p,ibgda or p2p,ibrc: p2p where memory is mapped, a NIC otherwise; auto: the best transport for each "
            "pair of PEs", "choice"),
        Variable("PGAS_AMO", _choice("nic", "peer"), "nic",
            "with p2p,ibgda or p2p,ibrc, what performs atomics: nic: the NIC performs all of them; peer: the SM performs those on PEs "
            "whose memory is mapped", "choice"),
        Variable("PGAS_PES_PER_NODE", _counts, "",
            "for testing: treat each group of this many consecutive PEs as one node; a list, such as 2,1, gives the number of PEs on each "
            "node", "integers"),
        Variable("PGAS_TIMEOUT", _seconds, "60",
            "timeout in seconds: a longer wait in a kernel, or for the NIC, is an error; a longer wait of the host for other PEs is only "
            "reported, with their numbers", "float"),
        Variable("PGAS_DEBUG", _words("info", "check", "strict", "traceback"), "",
            "info: print what init() chose; check: kernels check PE numbers and addresses, and that the members of a team make the same "
            "calls, and finalize() lists arrays that were not freed; strict: the simulator rejects uses of symmetric arrays on the host, "
            "and kernels, that fail on a GPU; traceback: tracebacks show the frames of pgas", "words"),
        Variable("PGAS_HANG_REPORT", _choice("text", "json", "off"), "text",
            "form of the hang report that every PE prints when a wait reaches PGAS_TIMEOUT and on SIGUSR1: text, json (one line), or "
            "off", "choice"),
        Variable("PGAS_SIM_WEAK", _seed, "", "simulator: delay and reorder remote stores, seeded by this integer", "seed"),
        Variable("PGAS_CHECK", _words("order"), "",
            "simulator: order: at the end of the program, or with pytest of each test, report accesses that nothing orders", "words"),
        Variable("PGAS_CHECK_LOGS", str, "",
            "simulator: with PGAS_CHECK=order, folder into which each PE writes what it does, without a report; python -m pgas.check sets "
            "it", "folder"),
        Variable("PGAS_IBGDA_NUM_RC_PER_PE", _integer_or_auto(1, 64), "auto",
            "number of queue pairs from each PE to each PE (including itself), 1 to 64; auto: 2, or 1 if the software NIC has too few for "
            "2", "integer"),
        Variable("PGAS_IBGDA_RC_MAP_BY", _choice("cta", "sm", "warp"), "cta",
            "group of threads that shares a queue pair by default", "choice"),
        Variable("PGAS_IBGDA_NUM_REQUESTS_IN_BATCH", _integer(1, 64, power_of_two=True), "32",
            "number of WQEBBs after which the doorbell is rung even if more WQEs follow: a power of two from 1 to 64", "integer"),
        Variable("PGAS_QP_DEPTH", _integer(128, 32768, power_of_two=True), "1024",
            "depth of a send queue in WQEBBs of 64 bytes: a power of two from 128 to 32768", "integer"),
        Variable("PGAS_IBRC_RING_SIZE", _integer(64, 65536, power_of_two=True), "4096",
            "number of requests that the proxy thread's ring holds: a power of two from 64 to 65536", "integer"),
        Variable("PGAS_CHANNELS", _integer(1, 256), "16",
            "default number of channels per team, that is, of blocks that can call its collectives concurrently: 1 to 256", "integer"),
        Variable("PGAS_HOST_BLOCKS", _blocks, "",
            "number of blocks of collectives called on the host: a number, or rows COLLECTIVE=BYTES:BLOCKS, such as "
            "reduce=0:1,reduce=64K:16, for more than that many bytes between two PEs; if empty, a measured table", "integer or rows"),
        Variable("PGAS_COPY_ENGINE_BYTES", parse_size, "16M",
            "puts and gets of at least this many bytes that are called on the host are performed by the GPU's copy engine instead of a "
            "kernel, if the other PE has another GPU whose memory is mapped and PGAS_TRACE requests no timeline or traffic; 0: always by a "
            "kernel", "size"),
        Variable("PGAS_LL_BYTES", _power_of_two_size(64, 1 << 20), "4K",
            "collectives that move at most this many bytes per pair of PEs go through staging memory: a power of two from 64 to "
            "1M", "size"),
        Variable("PGAS_MAX_TEAMS", _optional(_integer(5, 120)), "",
            "size of team memory, as the number of all-PE teams it can hold: 5 to 120; smaller teams take less; if empty, 36 teams, 4 of "
            "which are predefined, or as many as fit into 512 MiB, but at least 8", "integer"),
        Variable("PGAS_HCA", _hca, "auto",
            "the NIC: auto, softhca (the software NIC), or an RDMA device and port, such as mlx5_0:1", "name"),
        Variable("PGAS_HCA_LIST", _hca_list, "", "RDMA devices among which PGAS_HCA=auto chooses; ^mlx5_2: all except these", "names"),
        Variable("PGAS_IB_GID_INDEX", _integer(-1, 255), "-1", "RoCE: index of the port's GID; -1: RoCE v2 over IPv4 first", "integer"),
        Variable("PGAS_IB_SL", _integer(0, 15), "0", "service level of packets (RoCE: priority)", "integer"),
        Variable("PGAS_IB_TRAFFIC_CLASS", _integer(0, 255), "0",
            "traffic class of packets with a GRH (RoCE v2: DSCP and ECN bits)", "integer"),
        Variable("PGAS_IB_TIMEOUT", _integer(1, 31), "20", "an unacknowledged packet is sent again after 4.096 us * 2^this", "integer"),
        Variable("PGAS_IB_RETRY_COUNT", _integer(0, 7), "7",
            "number of retransmissions of a packet before the queue pair fails", "integer"),
        Variable("PGAS_IBGDA_NIC_HANDLER", _choice("auto", "gpu", "cpu"), "auto",
            "ibgda on a real NIC: gpu: kernels store to its doorbell register; cpu: a CPU thread does; auto: kernels if CUDA permits "
            "it", "choice"),
        Variable("PGAS_NIC_ORDERING", _choice("auto", "owner", "none"), "auto",
            "owner: a GPU observes NIC writes to its memory in order; none: it does not, so waits, get, g, fetching atomics, and quiet end "
            "with a DUMP (ibrc: a READ); auto: use what CUDA reports for the GPU", "choice"),
        Variable("PGAS_ENGINE", _choice("auto", "cpu", "cuda", "dma"), "auto",
            "software NIC: what executes WQEs: a CPU thread (cpu), a kernel (cuda), or a CPU thread whose kernel reads and writes GPU "
            "memory, as WQEs between nodes require (dma); auto: cpu in the simulator; on GPUs, dma if there are several nodes, otherwise "
            "cuda", "choice"),
        Variable("PGAS_SOFTHCA_DEVICE", _ordinal, "",
            "software NIC: GPU that its kernel runs on; if empty, a GPU that no PE uses, otherwise PE 0's", "integer"),
        Variable("PGAS_SOFTHCA_NET", str, "",
            "software NIC: IP address or network interface of its port, by which it reaches other nodes; if empty, the address that "
            "reaches the store if there are several nodes, otherwise no port", "name"),
        Variable("PGAS_SOFTHCA_SMS", _integer(0, 1024), "0",
            "software NIC: number of SMs for its cuda engine (the dma engine needs one); 0: all, or a quarter of them if PEs use the "
            "same GPU or under MPS", "integer"),
        Variable("PGAS_SECRET", _secret, "",
            "key from which the secrets of torchrun, srun, and multi-node pgas.run jobs are derived: at least 16 characters, the same on "
            "all nodes; if empty, a key file owned by this user is used", "text"),
        Variable("PGAS_LAUNCHED", launcher.read_launched, "",
            "internal: set by python -m pgas.run for its PEs; do not set it yourself", "text"),
        Variable("PGAS_STARTED_BY", str, "",
            "internal: set by pgas.init() for the processes that a PE starts; do not set it yourself", "text"),
        Variable("PGAS_SOFTHCA_MOPS", _limit, "", "software NIC: limit in million WQEs per second (ConnectX-6: 215)", "float"),
        Variable("PGAS_SOFTHCA_GBPS", _limit, "", "software NIC: limit in 10^9 bits per second (ConnectX-6: 200)", "float"),
        Variable("PGAS_TRACE", Tracing.parse, "",
            "timeline:FILE: write what kernels, host, and NIC do into trace files, FILE.0 for PE 0 (default: pgas-trace; docs/trace.md); "
            "traffic:FILE: count operations and bytes between PEs, print a table at the end, and write FILE.0.csv for PE 0 (default: "
            "pgas-traffic); "
            "software NIC: wqe, cqe, cmd: print WQEs, CQEs, and commands, as bytes and decoded", "words"),
        Variable("PGAS_TRACE_EVENTS", _integer(64, 1 << 17, power_of_two=True), "4096",
            "number of events that a timeline holds of each block; later events replace the oldest ones: a power of two from 64 to "
            "131072", "integer"),
        Variable("PGAS_SOFTHCA_FAULTS", _faults, "",
            "software NIC: seeded faults, such as seed=1,delay=0.1,fail=17:0x13,stop=100", "words"),
    )
}  # fmt: skip


def read(name: str) -> Any:
    """Return the parsed value of one declared variable."""
    return VARIABLES[name].read()


def debugging(word: str) -> bool:
    """Whether PGAS_DEBUG has a word; never if its value is not allowed, which pgas.init() reports."""
    try:
        return word in read("PGAS_DEBUG")
    except ValueError:
        return False


def unknown_variables() -> list[str]:
    """Return the PGAS_* variables of the environment that pgas does not know, most likely because they are misspelled."""
    return sorted(name for name in os.environ if name.startswith("PGAS_") and name not in VARIABLES)
