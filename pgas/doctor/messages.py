"""Explanations of pgas's own messages by their kind, for ``python -m pgas doctor --explain``.

A message gives what is wrong in this job. Its kind determines what such messages mean, and where to look. Failures of machines, which have
one remedy each, are in pgas/base/remedies.py. A test takes every message from the sources and looks for its explanation here.
"""

import re

from pgas.base.remedies import Remedy, explain

#: Kinds of messages, from the most to the least special. The first one that matches explains a message.
_KINDS = (
    Remedy("order",
        (r"accesses are not ordered", r"; missing: ", r"\(made in line \d+\)", r"nobody waited for this signal|waits for .*; it was ",
         r"at the same place in the order of calls", r"^report \d+ (does not|cannot be|with )",
         r"(of|in) line \d+ (does not|goes to|may arrive|knows)|^line \d+ (does not order it|goes to|tells the other)",
         r"(block does|blocks do|threads of the block do) not meet", r"(^no .*|nothing) orders? (them|these)",
         r"may be (re)?used after (flush|quiet)|; a fence must follow|^the store is not before a fence",
         r"^operations of one PE on an element|^the operation is complete after quiet",
         r"the parts of other threads only after|^the other PE knows that it was issued|^one put carries data and flag",
         r"^a signal word must be changed|^while others change an element by atomics"),
        "the order checker found two accesses to the same memory that nothing orders, or a wait, signal, or collective without its "
        "counterpart",
        "the report has both lines of the program, and after \"missing\" what must come between them; docs/order.md explains the reports, "
        "and docs/memory-model.md what each call orders"),
    Remedy("hang",
        (r"waited .* s (\(PGAS_TIMEOUT\)|for its turn)", r"is still waiting$", r"hang report",
         r"^PE \d+: ? (process|host|kernels that may|threads|first error|and \d+ more groups|no thread is waiting|.* waits for)",
         r"^PE \d+: ? (last calls of block|and of \d+ more block)",
         r"is stopped$", r"did not reach|has not connected to|nothing came from|no answer within|no completion in", r"\bdeadlock\b",
         r"made no progress for|does not answer|^timed out$"),
        "a PE waited longer than PGAS_TIMEOUT for something that another PE, or the NIC, had to do",
        "the message names what was awaited and who had to write it: look for a PE that took another branch, ended, or waits for this one; "
        "docs/hangs.md explains each line of a hang report. Work that takes longer needs a larger PGAS_TIMEOUT"),
    Remedy("disagreement",
        (r"PEs disagree in a collective call", r"PEs differ in", r"must make the same calls|but this PE calls",
         r"passed different members", r"another PE failed|PE \d+ failed$",
         r"out of step", r"a job with different processes is already active", r"is already in a collective on this team",
         r"at a different barrier|threads of the .* have returned|must pass the same arguments",
         r"only one thread of a PE at a time may make collective calls"),
        "not all PEs (or threads) made the same collective calls, in the same order, with the same arguments",
        "compare the calls that the message names, on the PEs (or threads) that it names: an if around a collective, a loop of different "
        "lengths, an exception on one PE"),
    Remedy("wire",
        (r"UDP port 4791", r"PGAS_SOFTHCA_NET", r"RoCE v2 over UDP", r"software NIC.* (has no wire|needs an MTU|connects only PEs on one)"),
        "the software NIC cannot reach those of other machines: it needs an address of this machine, UDP port 4791 there, and a cpu or dma "
        "engine",
        "set PGAS_SOFTHCA_NET to an address or interface of this machine that the others reach; open UDP port 4791 "
        "between them; python -m pgas hca shows what its port has sent and dropped; docs/rdma.md describes the wire. On GPUs, unset "
        "PGAS_ENGINE, or set it to dma"),
    Remedy("ended",
        (r"the job cannot continue", r"ending the job", r"the program is ending after an error",
         r"given up|a kernel found an error but ended", r"cannot be made usable again", r"proxy thread of PE",
         r"(software NIC|engine of the software NIC) (has ended|did not start)|no software NIC at|has ended"),
        "a process of the job ended, or a kernel failed, so the others cannot continue",
        "the first message of any PE is the cause, the rest follow from it; signal 9 is often the machine's out-of-memory killer (dmesg). "
        "After a DeviceError or CompletionError, pgas.reset() makes the job usable again"),
    Remedy("launch",
        (r"\bstore\b", r"\bsecret\b|does not contain a key|owned or readable by other users",
         r"torchrun|SLURM_|contradict|COMM_NULL|intracommunicator|\bunique_id\b",
         r"this is rank|there are \d+ PEs|\brank \d+|rank must be|--node-rank|--nnodes", r"at most one of comm, unique_id",
         r"sends \d+ bytes to the other PEs", r"nodes start \d+ PEs|PE \d+ cannot be started|is not a host: |is not HOST:PORT",
         r"numba\.cuda was imported before pgas|in this process with a different configuration",
         r"pgas\.init\(\) (must run|has not been called)", r"PGAS_PES_PER_NODE|a process that a PE started|needs no second launcher"),
        "the PEs of a job did not find each other, or the arguments of pgas.init() do not fit the launcher",
        "docs/launch.md says how each launcher starts a job, and has a table of these messages; python -m pgas info, started in the same "
        "way, shows the job"),
    Remedy("trace",
        (r"^PGAS_TRACE(: |=.*: cannot write )", r"\bthere is no room for\b", r"mapping of a file", r"^cannot (read|write) .*: ",
         r"is not a file of PGAS_TRACE|no trace file of a PE|the trace files are of|the job did not begin|from which there is no timeline",
         r"no kernel .* in the trace"),
        "a file of PGAS_TRACE cannot be written or read, or lacks what the command needs; the message gives the reason",
        "docs/trace.md describes the files and the command: pass it all files of one job and no others. If there is no room, set a "
        "smaller PGAS_TRACE_EVENTS"),
    Remedy("variable",
        (r"\bPGAS_\w+=|^unknown environment variables", r"is not a size \(|^unknown: "),
        "an environment variable has a value that this job cannot use; the message gives the value and what is allowed",
        "python -m pgas info lists the variables, their values and meanings; docs/variables.md describes them"),
    Remedy("cuda",
        (r"\bcu[A-Z]\w+: ", r"CUDA_ERROR_\w+", r"\bcuda(Error)?[A-Z]\w+", r"\bCUDA error"),
        "a CUDA call failed with an error that doctor does not know",
        "python -m pgas doctor checks GPU and driver; sudo dmesg | grep -i xid shows errors of the GPU; CUDA's driver API names all errors "
        "(CUresult)"),
    Remedy("captured", (r"captured",),
        "a call was made while work was being captured into a CUDA graph",
        "make it before or after the capture"),
    Remedy("team",
        (r"\bteams? (\d+|memory|of(?! \d+$)|must)", r"\bteam\b(?! of \d+$)", r"\bchannels?\b must|channel must"),
        "a team was used by a PE that is not a member or after it was destroyed, or there is no memory for another team",
        "docs/api/teams.md; team_split_* and team_create return None on PEs that are not members; destroy teams that are no longer used, "
        "or set PGAS_MAX_TEAMS"),
    Remedy("array on the heap",
        (r"symmetric (heap|array)|on this heap|the heap\b", r"use after free|already freed|never freed|cannot allocate \S+( \S+)? of",
         r"DLPack|__dlpack__", r"dtype|elements of type|shape must be|alignment must be",
         r"must be contiguous|neither on the symmetric heap", r"axes must be a permutation|truth value of"),
        "the call does not accept the array, because it was freed, is not symmetric, or has another dtype or layout; or the symmetric heap "
        "is full",
        "docs/api/memory.md lists the arrays and dtypes; PGAS_SYMMETRIC_SIZE and PGAS_MAX_MEMORY_PER_GPU limit the size of the heap; "
        "finalize() prints arrays that were not freed"),
    Remedy("kernel",
        (r"@?pgas\.jit\b|pgas\.launch|launch configuration|cuda\.(jit|grid)|numba\.cuda has no|module 'numba\.cuda'|forall",
         r"inside a kernel|a kernel that calls|kernels? (cannot|is compiled)|device function|a function of the host",
         r"arguments of a kernel|the kernel takes|blocks? of|a grid|the grid|shared memory|is compiled for blocks|^unsupported type: ",
         r"the simulator|weak memory|memory model|the observer|order checker",
         r"on GPUs symmetric arrays|host array cannot be bound|Numba's cache|free variables|stub and typing function",
         r"^tid=\[\d+, \d+, \d+\] ctaid=", r"an integer or up to three|larger than .* which CUDA allows|lane \d+ called|atomics are on",
         r"needs a copy"),
        "a kernel was defined, compiled or launched in a way that the compiler, CUDA or the simulator does not allow",
        "docs/api/kernels.md; docs/refusals.md lists what kernels may not do; python -m pgas compile prog.py compiles the kernels for a "
        "GPU without one"),
    Remedy("argument",
        (r"pgas\.\w+|nvshmem\.core", r"\bmust (be|have|hold|not)\b", r"^PE \d+, block", r"does not exist", r"elements (wanted|are)",
         r"copy_to_device: the source ", r"\bop \w+ takes|copy_to_device: .*contiguous", r"range of|can hold|^doctor \S+: one of",
         r"cuda array interface"),
        "a call has an argument that the function does not accept; the message names the argument, its value and what is allowed",
        "help(pgas.NAME) or docs/api/README.md for the function; docs/refusals.md has a table of what device operations accept. "
        "PGAS_DEBUG=check makes kernels on GPUs check their operands, as the simulator does"),
    Remedy("software NIC",
        (r"software NIC|softhca", r"\bUAR\b", r"CQE syndrome|unknown fault|(delay|late) must|late: |on a GPU, the software NIC does",
         r"not a message of"),
        "the software NIC, which replaces a NIC, did not start, does not answer, or cannot do what was asked",
        "python -m pgas hca shows the software NICs of this machine; docs/variables.md describes PGAS_ENGINE; if one was left, start the "
        "job again"),
    Remedy("paths",
        (r"cannot (map|exchange|reach)|is not mapped|is already in use in this process|cannot be shared",
         r"\btransport\b|different (machines|link layers)|machine only", r"share pages with|plain memory|given up$|socket of process"),
        "two PEs cannot access each other's memory in the way that the transport needs",
        "python -m pgas topo shows which GPUs can access each other's memory, python -m pgas info the transport of each pair and why; "
        "docs/launch.md, Several nodes"),
    Remedy("device",
        (r"RDMA device|\bibv_|mlx5|pyverbs|\bDevX\b|\bGID\b",
         r"\bQPs?\b|queue pairs?|\bport\b|capabilities|doorbell|memory region|PCI (bus|device)",
         r"refuses|is refused as a whole|is closed|syndrome|vendor_err_synd|not an object of this process|completed, but memory holds"),
        "the RDMA device, its driver or its port does not do what ibgda or ibrc needs",
        "python -m pgas doctor ibgda ibrc checks the devices; docs/rdma.md"),
    Remedy("files",
        (r"cannot be written, so code is compiled|was not loaded, so the code is being recompiled|it is broken \(|another user owns",
         r"not found: pip install|is missing, which pip install"),
        "compiled code cannot be kept on disk or loaded from there, or a tool is missing; the program runs without",
        "docs/machine.md, Files, memory, and sockets; set NUMBA_CACHE_DIR to a directory that only you can write to"),
    Remedy("command line", (r"' is not |\d is not |is out of range; |' cannot be read: ",),
        "an argument of a command has a value that the command does not accept; the message gives the value and what is allowed",
        "the command's --help"),
    Remedy("inside pgas",
        (r"WQE|octoword|not defined in pgas|does not fit in|has bits outside|\bbits \d|whole bytes|of fields|no field|field name|inline",
         r"a UAR page|masked atomics|^\w+\.\w+: ",
         r"nbytes must be 1 to|must be (a power of two|a multiple|4 or 8)|must have 1 to|a multiple of|not 2\^n|cannot be executed",
         r"of that number|at offset \d|: an integer of \d+ bits", r"answer is not JSON|^\S+ failed \(|^plain value: "),
        "a check inside pgas failed that no program should reach",
        "report it with the whole message, the command, and the output of python -m pgas doctor --json"),
)  # fmt: skip


#: Text before a message in the output of a job: labels of pgas.run, mpirun, and srun for a process, and the name of pgas.
_LABELS = re.compile(r"^((\[(PE )?\d+(,\d+)?\](<std(out|err)>)?:?|\d+:|pgas:) *)+(?=\S)")

#: The class of an error, after the place of a warning.
_CLASS = re.compile(r"^(\S+:\d+: )?(\w+\.)*[A-Z]\w*(Error|Warning): ")


def explained(message: str) -> list[Remedy]:
    """Return the explanations of a message: the known failures that it names, or its kind. There are none if pgas has no such message."""
    text = " ".join(message.split())
    bare = _LABELS.sub("", text)
    return explain(bare) or _of_its_kind(_CLASS.sub("", bare)) or explain(text) or _of_its_kind(text)


def _of_its_kind(text: str) -> list[Remedy]:
    return next(([kind] for kind in _KINDS if any(re.search(pattern, text) for pattern in kind.messages)), [])
