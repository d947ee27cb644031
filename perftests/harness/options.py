"""The command line of the perf tests: NVSHMEM's flags, defaults, and size suffixes, checked before pgas.init()."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pgas.base.arguments import Parser, one_of, size_flag, within
from pgas.base.config import parse_size
from pgas.perftests.harness.payload import GUARD_BYTES
from pgas.perftests.harness.workload import ATOMIC_OPS, DATATYPES, REDUCE_OPS, WARP
from pgas.transports import registry

TRANSPORTS = (*registry.names(), *registry.pairs())

_LARGEST = 2**31 - 1
_LARGEST_SIZE = 1 << 40
#: Flags that tests of latency do not have.
OF_ONE_CTA = ("ctas", "stride", "bidir")
#: Flags that tests of collectives do not have, because their messages are contiguous and all PEs send.
OF_COLLECTIVES = ("stride", "bidir", "plot")
#: Value of a flag that requests all of NVSHMEM's tables: data types, operations of reductions, scopes.
ALL = "all"

#: Default size of the symmetric heap, and number of bytes needed in addition to a row's two arrays.
_DEFAULT_HEAP = 1 << 30
_SPARE_HEAP = 64 << 20


@dataclass(frozen=True)
class Defaults:
    """Default values of a test's flags; the field names are the long flags."""

    datatype: str
    min_size: int = 4
    max_size: int = 4 << 20
    step: int = 2
    iters: int = 10
    warmup_iters: int = 5
    ctas: int = 32
    threads_per_cta: int = 256
    atomic_op: str | None = None
    reduce_op: str | None = None
    captures: bool = False
    """Whether the test has --cudagraph."""
    lends: bool = False
    """Whether the test has --smem."""
    fixed: tuple[str, ...] = ()
    """Flags that the test does not have; their values are fixed (stride: 1)."""


@dataclass(frozen=True)
class Options:
    """A parsed command line. Sizes are in bytes, stride is in elements; atomic_op and reduce_op are None in tests without them."""

    min_size: int
    max_size: int
    step: int
    iters: int
    warmup_iters: int
    ctas: int
    threads_per_cta: int
    datatype: str
    scope: str
    stride: int
    atomic_op: str | None
    reduce_op: str | None
    bidir: bool
    cudagraph: bool
    smem: bool
    transport: str | None
    json: str | None
    plot: str | None
    seed: int

    def sizes(self) -> Iterator[int]:
        """Yield the message size of each row: min_size, times step, up to max_size."""
        size = self.min_size
        while size <= self.max_size:
            yield size
            size *= self.step

    def row_bytes(self) -> int:
        """Return the number of bytes of symmetric heap that the largest row needs: source, and destination between guards."""
        return 2 * (self.max_size * self.stride + GUARD_BYTES)

    def heap_bytes(self) -> int:
        """Return the size of the symmetric heap for a run, unless the user has set one."""
        return self.row_bytes() + _SPARE_HEAP

    def checking_bytes(self) -> int:
        """Return the number of bytes of host memory that a PE needs to check the largest row: elements, image, copy, and comparison."""
        return 2 * self.row_bytes()

    def set_environment(self, row_bytes: int | None = None) -> None:
        """Set the variables for transport and heap size; a heap size set by the user stays.

        Args:
            row_bytes: bytes of symmetric heap for the largest row. Default: row_bytes().
        """
        if self.transport is not None:
            os.environ["PGAS_TRANSPORT"] = self.transport
        needed = self.heap_bytes() if row_bytes is None else row_bytes + _SPARE_HEAP
        if needed > _DEFAULT_HEAP:
            os.environ.setdefault("PGAS_SYMMETRIC_SIZE", str(needed))


def parse(prog: str, description: str, defaults: Defaults, scopes: Sequence[str], argv: Sequence[str]) -> Options:
    """Return the options of a command line.

    Args:
        description: first sentence of --help.
        defaults: values of missing flags.
        scopes: scopes of the test, the default first; ``-s`` exists if there are several.

    Raises:
        SystemExit: status 2 for a bad value, 0 for --help; PE 0 prints the one sentence, the others nothing.
    """
    parser = Parser(prog=prog, description=description, allow_abbrev=False, epilog=f"Two PEs: mpirun -n 2 {prog}")
    size, count = within(1, _LARGEST_SIZE, parse_size), within(1, _LARGEST)

    def add(short: str, name: str, convert: Callable[[str], object], meaning: str, default: object = None) -> None:
        if name in defaults.fixed:
            return
        default = getattr(defaults, name) if default is None else default
        shown = size_flag(default) if convert is size and isinstance(default, int) else default
        metavar = "SIZE" if convert is size else "NAME" if isinstance(default, str) else "N"
        text = f"{meaning} [{shown}]"
        parser.add_argument(short, f"--{name}", type=convert, default=default, metavar=metavar, help=text)

    add("-b", "min_size", size, "smallest message in bytes (suffixes k, m, g, t)")
    add("-e", "max_size", size, "largest message in bytes (suffixes k, m, g, t)")
    add("-f", "step", within(2, _LARGEST), "factor from one size to the next")
    add("-n", "iters", count, "timed iterations")
    add("-w", "warmup_iters", within(0, _LARGEST), "iterations before the clock starts")
    add("-c", "ctas", count, "CTAs (blocks) of the kernel")
    add("-t", "threads_per_cta", within(1, 1024), "threads of each CTA")
    types = (*DATATYPES, ALL) if defaults.datatype == ALL else tuple(DATATYPES)
    add("-d", "datatype", one_of(types), f"element type: {', '.join(types)}")
    if defaults.atomic_op is not None:
        add("-a", "atomic_op", one_of(ATOMIC_OPS), f"operation: {', '.join(ATOMIC_OPS)}")
    if defaults.reduce_op is not None:
        add("-o", "reduce_op", one_of((*REDUCE_OPS, ALL)), f"operation: {', '.join((*REDUCE_OPS, ALL))}")
    if len(scopes) > 1:
        add("-s", "scope", one_of(scopes), f"threads that call the operation together: {', '.join(scopes)}", scopes[0])
    else:
        add("-i", "stride", count, "distance between neighboring elements, in elements", 1)
    if "bidir" not in defaults.fixed:
        parser.add_argument("--bidir", action="store_true", help="both PEs send; the rates are summed")
        parser.add_argument("--report_msgrate", action="store_true", help="accepted; the message rate is always printed")
    transports = f"{'; '.join(TRANSPORTS)} [pgas chooses]"
    parser.add_argument("--transport", type=one_of(TRANSPORTS), metavar="NAME", help=transports)
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    if "plot" not in defaults.fixed:
        parser.add_argument("--plot", metavar="FILE", help="draw the results against message size into a PNG")
    if defaults.captures:
        parser.add_argument("--cudagraph", action="store_true", help="capture all iterations into a CUDA graph and launch that")
    if defaults.lends:
        parser.add_argument("--smem", action="store_true", help="lend shared memory to the calls (give_smem), which are then blocking")
    parser.add_argument("--seed", type=within(0, 2**63 - 1), default=1, metavar="N", help="seed of the payload [1]")

    unchanged = asdict(defaults) | {"scope": scopes[0], "stride": 1, "bidir": False, "plot": None, "cudagraph": False, "smem": False}
    found: dict[str, Any] = unchanged | vars(parser.parse_args(argv))
    found.pop("report_msgrate", None)
    del found["fixed"], found["captures"], found["lends"]
    options = Options(**found)
    if options.max_size < options.min_size:
        parser.error(
            f"argument -e/--max_size: {size_flag(options.max_size)} is less than --min_size; "
            f"it must be {size_flag(options.min_size)} to {size_flag(_LARGEST_SIZE)}"
        )
    if options.scope == "warp" and options.threads_per_cta % WARP and "ctas" not in defaults.fixed:
        parser.error(
            f"argument -t/--threads_per_cta: {options.threads_per_cta} is not a whole number of warps; "
            f"with --scope warp it must be a multiple of {WARP}, {WARP} to 1024"
        )
    return options
