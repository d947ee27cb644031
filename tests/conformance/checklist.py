"""What is asked of a library, a chapter at a time. Each test names, by ``@pytest.mark.checklist(chapter, *bullets)``, what it answers."""

#: Chapter: title and bullets. OpenSHMEM 1.5 says what most of them mean; NVSHMEM adds scopes (thread, warp, block), streams and graphs.
CHAPTERS = {
    "A": (
        "Init and finalize",
        (
            "PEs are numbered as the bootstrap numbers them",
            "init twice counts",
            "finalize releases everything",
            "another job in the same process",
            "a job of one PE",
            "finalize implies quiet",
            "global_exit ends all PEs with its code",
            "an init that fails raises",
        ),
    ),
    "B": (
        "Symmetric heap",
        (
            "offsets are equal on all PEs",
            "alignment is honoured",
            "zeroed memory is zero",
            "size 0",
            "free of nothing",
            "loops of allocations leak nothing",
            "out of memory is an error on all PEs",
            "odd sizes and more than 2 GiB",
            "growth past the first heap",
            "ptr: itself, peers, interior",
            "ptr: unreachable PEs, other memory",
            "registration of memory from elsewhere",
            "PEs that disagree get an error, no hang",
            "freed arrays are refused",
            "arrays are arrays of other libraries",
        ),
    ),
    "C": (
        "Remote memory access",
        (
            "every type by every operation",
            "sizes 0, 1, odd, around powers of two",
            "any alignment of dest and source",
            "1 GiB and more than 2 GiB",
            "itself as target",
            "all pairs of PEs",
            "neighbours of dest are untouched",
            "source is free after a blocking put",
            "nbi, then quiet",
            "get after put",
            "more outstanding than queues hold",
            "strided iput and iget",
            "circular shift",
            "threads, warps and blocks at once",
            "local operands off the heap",
            "a PE that does not exist",
            "slices, dimensions, counts, conversions",
        ),
    ),
    "D": (
        "Signals",
        (
            "data is there when its signal is seen",
            "large payloads are whole",
            "set and add",
            "signal to itself",
            "signal_fetch",
            "waits return what satisfies them",
            "many signals to one word",
            "earlier puts need a fence",
            "epochs with rising values",
            "a sum does not say which sender came",
        ),
    ),
    "E": (
        "Atomics",
        (
            "every operation and type",
            "contention counts exactly",
            "fetch_add is a permutation",
            "compare_swap makes a lock",
            "locks exclude each other's holders",
            "a lock hands over what its holder wrote",
            "swap conserves tokens",
            "bits, each set by one PE",
            "fetch sees set",
            "floats add up",
            "neighbouring words are untouched",
            "atomics, fence and puts in order",
            "reads behind an atomic and a fence",
            "callers by different paths on one word",
        ),
    ),
    "F": (
        "Order",
        (
            "fence orders puts, across queues",
            "fence completes nothing",
            "quiet completes what happened before it",
            "quiet with nothing outstanding",
            "quiet in divergent warps",
            "message passing",
            "store buffering",
            "load buffering",
            "independent reads of independent writes",
            "waits acquire what a NIC wrote",
        ),
    ),
    "G": (
        "Wait and test",
        (
            "six comparisons of every type",
            "all, any and some with masks",
            "no elements",
            "vector forms",
            "any is fair",
            "a wait past its deadline",
        ),
    ),
    "H": (
        "Teams",
        (
            "predefined teams",
            "split_strided",
            "split_2d",
            "teams of any PEs",
            "translation of PE numbers",
            "configuration",
            "destroy, and ids again",
            "more teams than there may be",
            "teams one after another and overlapping",
        ),
    ),
    "I": (
        "Collectives",
        (
            "a barrier completes puts, a sync does not",
            "barriers without end",
            "broadcast",
            "fcollect and alltoall",
            "collect of different sizes",
            "alltoallv: counts and displacements on the device",
            "reductions",
            "reducescatter",
            "scans",
            "maxloc and minloc",
            "every type by every collective",
            "every type by every op",
            "sizes around every protocol's border",
            "in place",
            "members combine in their order",
            "all members get the same bits",
            "collectives of teams",
            "collectives of mixed scopes",
            "blocks at once on channels of one team",
            "one after another without barriers",
            "on the host, at once and on streams",
            "what does not fit is refused",
        ),
    ),
    "J": (
        "Streams and graphs",
        (
            "operations on a stream come in the order of its kernels",
            "nbi on two streams",
            "capture into a CUDA graph",
            "the default stream",
        ),
    ),
    "K": (
        "Concurrency",
        (
            "more CTAs than fit at once",
            "diverged warps",
            "a kernel that waits for another PE's",
            "two kernels in flight",
            "several host threads",
        ),
    ),
    "L": (
        "Python",
        (
            "errors of dtype and arity are readable",
            "slices with gaps are refused by name",
            "arrays of two dimensions",
            "bfloat16",
            "float8",
            "any order of garbage collection",
            "fork and atexit",
            "compiled code in other processes",
            "kernels after another init",
            "kinds of calls and launches",
        ),
    ),
}  # fmt: skip

#: Why nothing tests a bullet.
UNTESTED = {
    ("A", "global_exit ends all PEs with its code"): "refused: pgas has no global_exit; sys.exit or an exception on one PE ends the job",
    ("F", "fence completes nothing"): "a permission: programs that rely on more go wrong in weak mode (tests/mpi/test_weak.py)",
    ("J", "capture into a CUDA graph"): "on GPUs alone, with the operations on streams (tests/mpi/test_streams.py)",
}


def why_untested(chapter, bullet):
    """The reason that nothing tests a bullet, None if there is none."""
    return UNTESTED.get((chapter, bullet))


def is_bullet(chapter, bullet):
    """Whether the checklist has it."""
    return chapter in CHAPTERS and bullet in CHAPTERS[chapter][1]
