"""The engine's primitives on a GPU: PTX with generic addresses, for tables, heaps, WQEs in shared memory, and records in local memory."""

from collections.abc import Iterable
from typing import Any

from pgas.kernels.compiler import backend, primitive

device = backend.integer_device  # also where the engine runs on a CPU, for the kernel that copies its data

#: Number of calls of idle() that do not wait.
YIELDS = 1000

RECEIVES = DELAYS_DATA = ORDERED_UPDATES = False
THREADS = 256
#: Number of registers per thread with which two CTAs of 256 threads fit on a multiprocessor.
COMPILED = {"max_registers": 128}
#: The same for the kernel of the dma engine, of which there is one CTA.
DMA_THREADS, DMA_COMPILED = 1024, {"max_registers": 64}

_SWAP32 = "{ .reg .u32 t; cvt.u32.u64 t, $1; prmt.b32 t, t, 0, 0x0123; cvt.u64.u32 $0, t; }"
_SWAP64 = "{ .reg .u32 l, h; mov.b64 {l, h}, VALUE; prmt.b32 l, l, 0, 0x0123; prmt.b32 h, h, 0, 0x0123; mov.b64 $0, {h, l}; }"


def _load(name: str, instruction: str) -> Any:
    return primitive(name, "i64(i64)", f"{instruction} $0, [$1];", None)


def _load_be32(name: str, instruction: str) -> Any:
    text = f"{{ .reg .u32 t; {instruction} t, [$1]; prmt.b32 t, t, 0, 0x0123; cvt.u64.u32 $0, t; }}"
    return primitive(name, "i64(i64)", text, None)


def _store(name: str, instruction: str) -> Any:
    store = primitive(name, "void(i64, i64)", f"{instruction} [$0], $1;", None)

    @device
    def stored(address: int, value: int) -> int:
        store(address, value)
        return 0

    return stored


load, load_u8, load_u16, load_u32 = (_load(f"load_{n}", f"ld.u{n}") for n in (64, 8, 16, 32))
store, store_u32 = (_store(f"store_{n}", f"st.u{n}") for n in (64, 32))
store_data, store_data_u8, store_data_u16, store_data_u32 = (_store(f"store_data_{n}", f"st.relaxed.sys.u{n}") for n in (64, 8, 16, 32))
_data, _data_u8, _data_u16, _data_u32 = (_load(f"data_{n}", f"ld.relaxed.sys.u{n}") for n in (64, 8, 16, 32))
load_shared, load_shared_u32 = _load("load_shared", "ld.relaxed.sys.u64"), _load("load_shared_u32", "ld.relaxed.sys.u32")
load_acquire, store_release = _load("load_acquire", "ld.acquire.sys.u64"), _store("store_release", "st.release.sys.u64")
load_published = load  # suffices, because visits begin with an acquire, and so does taking a doorbell
load_be32, load_be32_acquire = _load_be32("load_be32", "ld.u32"), _load_be32("load_be32_acquire", "ld.acquire.sys.u32")
load_be64 = primitive("load_be64", "i64(i64)", "{ .reg .u64 v; ld.u64 v, [$1]; " + _SWAP64.replace("VALUE", "v") + " }", None)
swap32 = primitive("swap32", "i64(i64)", _SWAP32, None, pure=True)
swap64 = primitive("swap64", "i64(i64)", _SWAP64.replace("VALUE", "$1"), None, pure=True)

add = primitive("add", "i64(i64, i64)", "atom.acq_rel.sys.add.u64 $0, [$1], $2;", None)
exchange = primitive("exchange", "i64(i64, i64)", "atom.acquire.sys.exch.b64 $0, [$1], $2;", None)
compare_swap = primitive("compare_swap", "i64(i64, i64, i64)", "atom.acq_rel.sys.cas.b64 $0, [$1], $2, $3;", None)
add_relaxed = primitive("add_relaxed", "i64(i64, i64)", "atom.relaxed.sys.add.u64 $0, [$1], $2;", None)
compare_swap_relaxed = primitive("compare_swap_relaxed", "i64(i64, i64, i64)", "atom.relaxed.sys.cas.b64 $0, [$1], $2, $3;", None)
compare_swap_relaxed_u32 = primitive(
    "compare_swap_relaxed_u32", "i64(i64, i64, i64)",
    "{ .reg .u32 c, v, r; cvt.u32.u64 c, $2; cvt.u32.u64 v, $3; atom.relaxed.sys.cas.b32 r, [$1], c, v; cvt.u64.u32 $0, r; }", None,
)  # fmt: skip
# Load that bypasses L1. A weak access suffices, because the doorbell was acquired, and the WQEs do not change until they complete.
_COPY = "{ .reg .u64 t; cvta.to.shared.u64 t, $0; cp.async.cg.shared.global [t], [$1], 16; }"
fetch = primitive("fetch", "void(i64, i64)", _COPY, None)
fetched = primitive("fetched", "void()", "cp.async.wait_all;", None)

clock = primitive("clock", "i64()", "mov.u64 $0, %globaltimer;", None)
_fence = primitive("fence", "void()", "fence.acq_rel.sys;", None)
_nanosleep = primitive("nanosleep", "void(i64)", "{ .reg .u32 t; cvt.u32.u64 t, $0; nanosleep.u32 t; }", None)


@device
def fence() -> int:
    """Order all earlier accesses before all later ones, for every observer."""
    _fence()
    return 0


@device
def load_any_u16(address: int) -> int:
    """Load 2 bytes from any address."""
    if address & 1 == 0:
        return _data_u16(address)
    return _data_u8(address) | _data_u8(address + 1) << 8


@device
def load_any_u32(address: int) -> int:
    """Load 4 bytes from any address."""
    if address & 3 == 0:
        return _data_u32(address)
    return load_any_u16(address) | load_any_u16(address + 2) << 16


@device
def load_any(address: int) -> int:
    """Load 8 bytes from any address."""
    if address & 7 == 0:
        return _data(address)
    return load_any_u32(address) | load_any_u32(address + 4) << 32


@device
def move(dest: int, source: int, nbytes: int) -> int:
    """Copy by one thread; the ranges may overlap."""
    if source < dest < source + nbytes:
        at = nbytes
        while at > 0:
            at -= 1
            store_data_u8(dest + at, load_u8(source + at))
        return 0
    at = 0
    while at < nbytes:
        if (dest + at) & 7 == 0 and nbytes - at >= 8:
            store_data(dest + at, load_any(source + at))
            at += 8
        else:
            store_data_u8(dest + at, load_u8(source + at))
            at += 1
    return 0


@device
def idle(turns: int) -> int:
    """Wait a moment if several calls found no work, to spare the memory system; the kernel's polls take no CPU core."""
    if turns >= YIELDS:
        _nanosleep(100)
    return 0


def for_kernel(primitive: Any) -> Any:
    """Return the primitive itself."""
    return primitive


def of_kernel(function: Any) -> Any:
    """Return a function of the engine, which calls no other one, for kernels, even if the engine runs on a CPU."""
    return device(function.py_func)


def compile_now(functions: Iterable[Any]) -> None:
    """Do nothing, because the kernel contains the functions."""
