"""The table of primitives: PTX on a GPU, or atomics on raw addresses (pgas.sim) in the simulator.

Addresses are u64. "sys" scope reaches every GPU, the CPU, and NICs; "gpu" only threads of this GPU (PTX ISA, "Memory Consistency Model").
test_sass.py checks the SASS of each line. On sm_90, ``ld.acquire`` costs an L1 invalidation at each poll, so loops on peers' memory poll
relaxed and acquire once; ``st.release`` is a fence and a store.
"""

import time
from typing import Any

from pgas.kernels.compiler import constant, cpu, device, element_primitive, element_size, primitive, types

# Scalar loads and stores ------------------------------------------------------------------------------------------------------


def _ld(order: str, bits: int) -> Any:
    """Make a load of a word. order: PTX's memory order and scope."""
    read = "load_acquire" if order.startswith("acquire") else "load"
    text = f"ld.{order}.global.u{bits} $0, [$1];"
    return primitive(f"ld_{order}_u{bits}".replace(".", "_"), f"u{bits}(u64)", text, lambda a: getattr(cpu.mem, read)(a, bits // 8))


def _st(order: str, bits: int) -> Any:
    """Make a store of a word. order: PTX's memory order and scope."""
    write = "store_release" if order.startswith("release") else "store"
    text = f"st.{order}.global.u{bits} [$0], $1;"
    name = f"st_{order}_u{bits}".replace(".", "_")
    return primitive(name, f"void(u64, u{bits})", text, lambda a, v: getattr(cpu.mem, write)(a, v, bits // 8))


ld_relaxed_sys_u64, ld_acquire_sys_u64 = _ld("relaxed.sys", 64), _ld("acquire.sys", 64)
ld_relaxed_gpu_u64, ld_acquire_gpu_u64 = _ld("relaxed.gpu", 64), _ld("acquire.gpu", 64)
ld_relaxed_sys_u32 = _ld("relaxed.sys", 32)
st_relaxed_sys_u64, st_release_sys_u64 = _st("relaxed.sys", 64), _st("release.sys", 64)
st_relaxed_gpu_u64, st_release_gpu_u64 = _st("relaxed.gpu", 64), _st("release.gpu", 64)
st_relaxed_sys_u32, st_release_sys_u32 = _st("relaxed.sys", 32), _st("release.sys", 32)

#: Two adjacent words at a multiple of 16.
ld_relaxed_sys_pair = primitive(
    "ld_relaxed_sys_pair", "(u64, u64)(u64)", "ld.relaxed.sys.global.v2.u64 {$0, $1}, [$2];",
    lambda a: (cpu.mem.load(a, 8), cpu.mem.load(a + 8, 8)),
)  # fmt: skip

#: Store of a part of a WQE, which is not read before it is released, and never by this SM.
st_octoword = primitive("st_octoword", "void(u64, u64, u64)", "st.global.L1::no_allocate.v2.u64 [$0], {$1, $2};",
                        lambda *octoword: cpu.store_octoword(*octoword))  # fmt: skip
st_u32 = primitive("st_u32", "void(u64, u32)", "st.global.L1::no_allocate.u32 [$0], $1;", lambda a, v: cpu.mem.store(a, v, 4))
st_u16 = primitive("st_u16", "void(u64, u32)", "{ .reg .u16 h; cvt.u16.u32 h, $1; st.global.u16 [$0], h; }",
                   lambda a, v: cpu.mem.store(a, v & 0xFFFF, 2))  # fmt: skip
st_u8 = primitive("st_u8", "void(u64, u32)", "st.global.u8 [$0], $1;", lambda a, v: cpu.mem.store(a, v & 0xFF, 1))

#: Accesses to words of this process's memory of any kind, by width: ``ld(addr)`` returns u64, ``st(addr, value)`` stores its low bytes.
ld_plain = {
    width: primitive(f"ld_plain_{width}", "u64(u64)", f"ld.u{8 * width} $0, [$1];", lambda a, width=width: cpu.mem.load(a, width))
    for width in (1, 2, 4, 8)
}
st_plain = {
    width: primitive(
        f"st_plain_{width}", "void(u64, u64)", f"st.u{8 * width} [$0], $1;",
        lambda a, v, width=width: cpu.mem.store(a, v & (1 << 8 * width) - 1, width),
    )
    for width in (1, 2, 4, 8)
}  # fmt: skip
#: Two adjacent words at a multiple of 16, in global memory that only this kernel changes; L1 may serve the load.
ld_pair_plain = primitive(
    "ld_pair_plain", "(u64, u64)(u64)", "ld.global.v2.u64 {$0, $1}, [$2];", lambda a: (cpu.mem.load(a, 8), cpu.mem.load(a + 8, 8))
)
st_pair_plain = primitive("st_pair_plain", "void(u64, u64, u64)", "st.global.v2.u64 [$0], {$1, $2};",
                          lambda *pair: cpu.store_octoword(*pair))  # fmt: skip
st_pair_sys = primitive("st_pair_sys", "void(u64, u64, u64)", "st.relaxed.sys.global.v2.u64 [$0], {$1, $2};",
                        lambda *pair: cpu.store_octoword(*pair))  # fmt: skip

#: A line of LL-16: {low half of word, flag, high half of word, flag}, stored and loaded as 16 bytes. Each half of a line is an aligned word
#: of 8 bytes, which never tears and contains the flag. A reader that finds the flag in both halves therefore has the whole word.
st_line = primitive(
    "st_line", "void(u64, u64, u32)",
    "{ .reg .b32 l, h; mov.b64 {l, h}, $1; st.relaxed.sys.global.v4.b32 [$0], {l, $2, h, $2}; }",
    lambda a, word, flag: cpu.store_octoword(a, word & 0xFFFF_FFFF | flag << 32, word >> 32 | flag << 32),
)  # fmt: skip
ld_line = primitive(
    "ld_line", "(u32, u32, u32, u32)(u64)", "ld.relaxed.sys.global.v4.b32 {$0, $1, $2, $3}, [$4];",
    lambda a: cpu.load_line(a),
)  # fmt: skip

#: The same address, but opaque, so that LLVM does not compute 15 others from it before a loop and keep them in registers.
same = primitive("same", "u64(u64)", "mov.u64 $0, $1;", lambda a: a)

# Numbers and their bits ---------------------------------------------------------------------------------------------------------

f32_of_bits = primitive("f32_of_bits", "f32(u32)", "mov.b32 $0, $1;", lambda b: cpu.number(b, "u4", "f4"), pure=True)
bits_of_f32 = primitive("bits_of_f32", "u32(f32)", "mov.b32 $0, $1;", lambda x: cpu.bits(x, "f4", "u4"), pure=True)
f64_of_bits = primitive("f64_of_bits", "f64(u64)", "mov.b64 $0, $1;", lambda b: cpu.number(b, "u8", "f8"), pure=True)
bits_of_f64 = primitive("bits_of_f64", "u64(f64)", "mov.b64 $0, $1;", lambda x: cpu.bits(x, "f8", "u8"), pure=True)
#: Conversion of float16 to float32, and back, to the nearest even; bits of a float16 are in the low half.
f32_of_f16 = primitive("f32_of_f16", "f32(u32)", "{ .reg .b16 h; cvt.u16.u32 h, $1; cvt.f32.f16 $0, h; }",
                       lambda b: cpu.number(cpu.bits(cpu.number(b, "u2", "f2"), "f4", "u4"), "u4", "f4"), pure=True)  # fmt: skip
f16_of_f32 = primitive("f16_of_f32", "u32(f32)", "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h; }",
                       lambda x: cpu.bits(x, "f2", "u2"), pure=True)  # fmt: skip
#: Conversion of float32 to bfloat16, to the nearest even. The bits of a bfloat16 are the upper half of the float32's.
bf16_of_f32 = primitive("bf16_of_f32", "u32(f32)", "{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; cvt.u32.u16 $0, h; }",
                        lambda x: cpu.bf16_bits(x), pure=True)  # fmt: skip

# Atomics ----------------------------------------------------------------------------------------------------------------------

atom_cas_sys_u64 = primitive(
    "atom_cas_sys_u64", "u64(u64, u64, u64)", "atom.relaxed.sys.global.cas.b64 $0, [$1], $2, $3;",
    lambda a, compare, swap: cpu.mem.atomic_compare_swap(a, compare, swap, 8),
)  # fmt: skip
red_add_sys_u64 = primitive(
    "red_add_sys_u64", "void(u64, u64)", "red.relaxed.sys.global.add.u64 [$0], $1;", lambda a, v: cpu.mem.atomic_add(a, v, 8)
)

atom_add_gpu_u64 = primitive(
    "atom_add_gpu_u64", "u64(u64, u64)", "atom.relaxed.gpu.global.add.u64 $0, [$1], $2;", lambda a, v: cpu.mem.atomic_add(a, v, 8)
)
atom_cas_gpu_u64 = primitive(
    "atom_cas_gpu_u64", "u64(u64, u64, u64)", "atom.acquire.gpu.global.cas.b64 $0, [$1], $2, $3;",
    lambda a, compare, swap: cpu.mem.atomic_compare_swap(a, compare, swap, 8),
)  # fmt: skip
atom_cas_release_gpu_u64 = primitive(
    "atom_cas_release_gpu_u64", "u64(u64, u64, u64)", "atom.release.gpu.global.cas.b64 $0, [$1], $2, $3;",
    lambda a, compare, swap: cpu.mem.atomic_compare_swap(a, compare, swap, 8),
)  # fmt: skip
red_max_gpu_u64 = primitive(
    "red_max_gpu_u64", "void(u64, u64)", "red.release.gpu.global.max.u64 [$0], $1;", lambda a, v: cpu.atomic_max(a, v)
)
red_add_release_gpu_u64 = primitive(
    "red_add_release_gpu_u64", "void(u64, u64)", "red.release.gpu.global.add.u64 [$0], $1;", lambda a, v: cpu.mem.atomic_add(a, v, 8)
)
red_or_gpu_u64 = primitive(
    "red_or_gpu_u64", "void(u64, u64)", "red.relaxed.gpu.global.or.b64 [$0], $1;", lambda a, v: cpu.mem.atomic_or(a, v, 8)
)

# Fences -----------------------------------------------------------------------------------------------------------------------

fence_sys = primitive("fence_sys", "void()", "fence.acq_rel.sys;", lambda: cpu.mem.fence("sys"))
#: Order for the NIC, which accesses this GPU's memory through its L2 cache, like the GPU's own threads. MEMBAR.GPU takes half as long as
#: MEMBAR.SYS (673 and 1,370 cycles on an H100). NVSHMEM, DOCA GPUNetIO, and NCCL's GIN rely on the same.
fence_nic = primitive("fence_nic", "void()", "fence.acq_rel.gpu;", lambda: cpu.mem.fence("sys"))
fence_sc_sys = primitive("fence_sc_sys", "void()", "fence.sc.sys;", lambda: cpu.mem.fence("sys"))
#: Only a compiler barrier on a GPU, because an issued store has its value in a register.
sources_read = primitive("sources_read", "void()", "", lambda: cpu.mem.read_sources())

# Threads ----------------------------------------------------------------------------------------------------------------------

syncwarp = primitive("syncwarp", "void()", "bar.warp.sync 0xffffffff;", lambda: cpu.engine.warp_barrier(), convergent=True)
syncthreads = primitive("syncthreads", "void()", "bar.sync 0;", lambda: cpu.engine.block_barrier(), convergent=True)
#: Cycles of this multiprocessor.
clock = primitive("clock", "u64()", "mov.u64 $0, %clock64;", lambda: time.monotonic_ns())
globaltimer = primitive("globaltimer", "u64()", "mov.u64 $0, %globaltimer;", lambda: time.monotonic_ns())

#: Hash of SM, warp, and lane; collisions are rare. It is not pure; otherwise LLVM would hoist it out of loops that wait.
seat = primitive(
    "seat", "u32()",
    "{ .reg .u32 s, w, l; mov.u32 s, %smid; mov.u32 w, %warpid; mov.u32 l, %laneid; mad.lo.u32 w, w, 32, l; mad.lo.u32 $0, s, 37, w; }",
    lambda: 33 * cpu.block_rank() + cpu.thread_rank(),
)  # fmt: skip

nanosleep = primitive("nanosleep", "void(u32)", "nanosleep.u32 $0;", lambda ns: None)

#: The thread's number in its warp, and the size of the warp: fewer than 32 threads in the last warp of some blocks.
lane = primitive("lane", "u32()", "mov.u32 $0, %laneid;", lambda: cpu.lane(), pure=True)
warp_size = primitive(
    "warp_size", "u32()",
    "{ .reg .u32 t, u, n, m; mov.u32 t, %tid.z; mov.u32 n, %ntid.y; mov.u32 u, %tid.y; mad.lo.u32 t, t, n, u;"
    " mov.u32 m, %ntid.x; mov.u32 u, %tid.x; mad.lo.u32 t, t, m, u; and.b32 t, t, 0xffffffe0;"
    " mul.lo.u32 n, n, m; mov.u32 m, %ntid.z; mul.lo.u32 n, n, m; sub.u32 n, n, t; min.u32 $0, n, 32; }",
    lambda: cpu.warp_size(), pure=True,
)  # fmt: skip
#: The thread's number in its block, and the size of the block; x runs fastest.
thread_rank = primitive(
    "thread_rank", "u32()",
    "{ .reg .u32 t, u, n; mov.u32 t, %tid.z; mov.u32 n, %ntid.y; mov.u32 u, %tid.y; mad.lo.u32 t, t, n, u;"
    " mov.u32 n, %ntid.x; mov.u32 u, %tid.x; mad.lo.u32 $0, t, n, u; }",
    lambda: cpu.thread_rank(), pure=True,
)  # fmt: skip
block_size = primitive(
    "block_size", "u32()",
    "{ .reg .u32 n, m; mov.u32 n, %ntid.x; mov.u32 m, %ntid.y; mul.lo.u32 n, n, m; mov.u32 m, %ntid.z; mul.lo.u32 $0, n, m; }",
    lambda: cpu.block_size(), pure=True,
)  # fmt: skip
#: Number of the block in its grid; x runs fastest.
block_rank = primitive(
    "block_rank", "u32()",
    "{ .reg .u32 t, u, n; mov.u32 t, %ctaid.z; mov.u32 n, %nctaid.y; mov.u32 u, %ctaid.y; mad.lo.u32 t, t, n, u;"
    " mov.u32 n, %nctaid.x; mov.u32 u, %ctaid.x; mad.lo.u32 $0, t, n, u; }",
    lambda: cpu.block_rank(), pure=True,
)  # fmt: skip

#: Number of the running launch, which grows from launch to launch.
grid_number = primitive("grid_number", "u64()", "mov.u64 $0, %gridid;", lambda: cpu.launch_number(), pure=True)

#: Number of the multiprocessor; one in the simulator.
smid = primitive("smid", "u32()", "mov.u32 $0, %smid;", lambda: 0)

# Lanes together ---------------------------------------------------------------------------------------------------------------
#
# ``peers(key)`` returns two masks: of the active lanes, and of those among them with the same key. Any lane but the caller's may be
# missing. ``here()`` returns only the active mask. The calls below take this mask; exactly its lanes must make them.
#
# Both end with an OR of the caller's own bit, which is set anyway. This bit differs from lane to lane, so that ptxas does not treat the
# masks as uniform (lanes.py).

peers = primitive(
    "peers", "(u32, u32)(u64)",
    "{ .reg .u32 m, own; activemask.b32 m; match.any.sync.b64 $1, $2, m;"
    " mov.u32 own, %lanemask_eq; or.b32 $0, m, own; or.b32 $1, $1, own; }",
    lambda key: cpu.engine.gather(key), convergent=True,
)  # fmt: skip
here = primitive(
    "here", "u32()", "{ .reg .u32 m, own; activemask.b32 m; mov.u32 own, %lanemask_eq; or.b32 $0, m, own; }",
    lambda: cpu.engine.gather(0)[0], convergent=True,
)  # fmt: skip
syncwarp_mask = primitive("syncwarp_mask", "void(u32)", "bar.warp.sync $0;", lambda mask: cpu.engine.warp_barrier(mask), convergent=True)
shfl_u32 = primitive(
    "shfl_u32", "u32(u32, u32, u32)", "shfl.sync.idx.b32 $0, $2, $3, 31, $1;",
    lambda mask, value, source: cpu.engine.warp_exchange(mask, value, "shfl")[source], convergent=True,
)  # fmt: skip
shfl_u64 = primitive(
    "shfl_u64", "u64(u32, u64, u32)",
    "{ .reg .u32 l, h; mov.b64 {l, h}, $2; shfl.sync.idx.b32 l, l, $3, 31, $1; shfl.sync.idx.b32 h, h, $3, 31, $1; mov.b64 $0, {l, h}; }",
    lambda mask, value, source: cpu.engine.warp_exchange(mask, value, "shfl")[source], convergent=True,
)  # fmt: skip
vote_all = primitive(
    "vote_all", "u32(u32, u32)",
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; vote.sync.all.pred p, p, $1; selp.u32 $0, 1, 0, p; }",
    lambda mask, holds: int(all(cpu.engine.warp_exchange(mask, bool(holds), "vote_all").values())), convergent=True,
)  # fmt: skip
vote_any = primitive(
    "vote_any", "u32(u32, u32)",
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; vote.sync.any.pred p, p, $1; selp.u32 $0, 1, 0, p; }",
    lambda mask, holds: int(any(cpu.engine.warp_exchange(mask, bool(holds), "vote_any").values())), convergent=True,
)  # fmt: skip
least = primitive(
    "least", "u32(u32, u32)", "redux.sync.min.u32 $0, $2, $1;",
    lambda mask, value: min(cpu.engine.warp_exchange(mask, value, "least").values()), convergent=True,
)  # fmt: skip
lanemask_lt = primitive("lanemask_lt", "u32()", "mov.u32 $0, %lanemask_lt;", lambda: (1 << cpu.lane()) - 1, pure=True)

# Bits -------------------------------------------------------------------------------------------------------------------------

popc = primitive("popc", "u32(u32)", "popc.b32 $0, $1;", lambda a: a.bit_count(), pure=True)
#: Position of the lowest bit that is set; one must be.
lowest = primitive("lowest", "u32(u32)", "{ .reg .u32 t; brev.b32 t, $1; clz.b32 $0, t; }", lambda a: (a & -a).bit_length() - 1, pure=True)
lowest_u64 = primitive(
    "lowest_u64", "u32(u64)", "{ .reg .u64 t; brev.b64 t, $1; clz.b64 $0, t; }", lambda a: (a & -a).bit_length() - 1, pure=True
)
#: Reversal of the bytes, because a NIC's fields are big-endian.
swap_u32 = primitive("swap_u32", "u32(u32)", "prmt.b32 $0, $1, 0, 0x0123;", lambda a: cpu.swapped(a, 4), pure=True)
swap_u64 = primitive(
    "swap_u64", "u64(u64)",
    "{ .reg .u32 l, h; mov.b64 {l, h}, $1; prmt.b32 l, l, 0, 0x0123; prmt.b32 h, h, 0, 0x0123; mov.b64 $0, {h, l}; }",
    lambda a: cpu.swapped(a, 8), pure=True,
)  # fmt: skip

#: Thread rank, number of threads, and barrier for an operation of one thread. They are opaque to the compiler, which would otherwise unroll
#: the copy loops of one thread too far (878 instructions for a put on sm_90).
zero = primitive("zero", "u32()", "mov.u32 $0, 0;", lambda: 0, pure=True)
one = primitive("one", "u32()", "mov.u32 $0, 1;", lambda: 1, pure=True)
nothing = primitive("nothing", "void()", "", lambda: None, pure=True)

#: Function called after the state has been poisoned. It does nothing on a GPU, whose kernels run to their end; the simulator raises.
failed = primitive("failed", "void()", "", lambda: cpu.on_failure(), pure=True)

# Elements of arrays: width by dtype -------------------------------------------------------------------------------------------

_SUFFIX = {1: ".u8", 2: ".b16", 4: ".b32", 8: ".b64", 16: ".v2.b64"}


def _load(operation: str) -> Any:
    def text(dtype: Any) -> str:
        nbytes = element_size(dtype)
        return f"{operation}{_SUFFIX[nbytes]} {'{$0, $1}, [$2]' if nbytes == 16 else '$0, [$1]'};"

    return text


def _store(operation: str) -> Any:
    def text(dtype: Any) -> str:
        nbytes = element_size(dtype)
        return f"{operation}{_SUFFIX[nbytes]} [$0], {'{$1, $2}' if nbytes == 16 else '$1'};"

    return text


def _atomic(instruction: str, change: str, operands: str) -> Any:
    """PTX of an atomic; ``change``: add, min, max, exch, cas, and, or, xor."""

    def text(dtype: Any) -> str:
        if change == "add" and dtype == types.bfloat16:
            return _add_bfloat16(*operands.split(", "))
        kind = "b"
        if change in ("min", "max"):
            kind = "s" if dtype.signed else "u"
        elif change == "add":
            kind = "f" if isinstance(dtype, types.Float) else "u"
        rounding = ".noftz" if change == "add" and dtype == types.float16 else ""
        return f"{instruction}.relaxed.sys.global.{change}{rounding}.{kind}{dtype.bitwidth} {operands};"

    return text


def _add_bfloat16(*operands: str) -> str:
    """PTX of an addition by compare-and-swap, because GPUs before sm_90 have no atomic addition of bfloat16."""
    *result, address, value = operands
    return (
        "{ .reg .b16 old, new, seen, one; .reg .pred p; mov.b16 one, 0x3f80;"
        f" ld.relaxed.sys.global.b16 old, {address}; again: fma.rn.bf16 new, old, one, {value};"
        f" atom.relaxed.sys.global.cas.b16 seen, {address}, old, new; setp.ne.b16 p, seen, old; mov.b16 old, seen; @p bra again;"
        f"{''.join(f' mov.b16 {register}, old;' for register in result)} }}"
    )


def _update(change: str) -> Any:
    return lambda *operands: cpu.update_element(change, *operands)


#: Load of a remote or polled word, which L1 must never serve.
ld_element = element_primitive("ld_element", "load", _load("ld.relaxed.sys.global"), lambda *operands: cpu.load_element(*operands))
#: Load that ends a wait: what the writer did before it released this value is visible afterwards.
ld_acquire_element = element_primitive(
    "ld_acquire_element", "load", _load("ld.acquire.sys.global"), lambda *operands: cpu.load_acquire_element(*operands)
)
#: Store of p, which is relaxed at system scope, so that a peer may poll the word.
st_element = element_primitive("st_element", "store", _store("st.relaxed.sys.global"), lambda *operands: cpu.store_element(*operands))
#: Atomics by change, ``(addr, array, value)``; red returns nothing, atom the old value.
red_element = {
    change: element_primitive(f"red_{change}_element", "store", _atomic("red", change, "[$0], $1"), _update(change))
    for change in ("add", "and", "or", "xor", "min", "max")
}
atom_element = {
    change: element_primitive(f"atom_{change}_element", "update", _atomic("atom", change, "$0, [$1], $2"), _update(change))
    for change in ("add", "exch", "and", "or", "xor", "min", "max")
}
#: ``(addr, array, compare, swap)``
atom_cas_element = element_primitive("atom_cas_element", "compare", _atomic("atom", "cas", "$0, [$1], $2, $3"), _update("cas"))

# Runs of accesses: for i in range(first, end, step): copy ``width`` bytes at byte offset i * width ----------------------------
#
# A put reads local memory of any kind (by generic loads, including shared and local arrays) and stores to the window. A get reads the
# window, bypassing L1 because the owner may have changed it, and stores to local memory of any kind. ``deferred``: for put_nbi and get_nbi.
# The simulator's weak mode may then read the source of a put, or write the destination of a get, as late as the next quiet.

_WIDTHS = {1: ("u32", "u8"), 2: ("u16", "b16"), 4: ("u32", "b32"), 8: ("u64", "b64")}


def _accesses(width: int, load: str, store: str) -> tuple[Any, Any]:
    """Make a load and a store of ``width`` bytes; those of 16 return and take two words."""
    if width == 16:
        return (
            primitive("ld", "(u64, u64)(u64)", f"{load}.v2.b64 {{$0, $1}}, [$2];", None),
            primitive("st", "void(u64, u64, u64)", f"{store}.v2.b64 [$0], {{$1, $2}};", None),
        )
    register, suffix = _WIDTHS[width]
    return (
        primitive("ld", f"{register}(u64)", f"{load}.{suffix} $0, [$1];", None),
        primitive("st", f"void(u64, {register})", f"{store}.{suffix} [$0], $1;", None),
    )


def _single(width: int, load: str, store: str) -> Any:
    """Make ``single(dst, src)`` from a load and a store instruction: one access."""
    ld, st = _accesses(width, load, store)

    if width == 16:

        def single(dst, src):
            low, high = ld(src)
            st(dst, low, high)

    else:

        def single(dst, src):
            st(dst, ld(src))

    return device(single, lambda dst, src: cpu.mem.copy_elements(dst, width, src, width, 1, width))


def _run(width: int, load: str, store: str, batch: int = 4) -> Any:
    """Make ``run(dst, src, first, end, step, deferred)`` from a load and a store instruction; counters are u64."""
    return _run_of(_run_16(load, store, batch) if width == 16 else _run_narrow(width, load, store), width)


def _run_of(run: Any, width: int) -> Any:
    return device(run, lambda dst, src, first, end, step, deferred: cpu.mem.copy_strided(dst, src, first, end, step, width, deferred))


def _run_narrow(width: int, load: str, store: str) -> Any:
    _width, (ld, st) = constant(width), _accesses(width, load, store)

    def run(dst, src, first, end, step, deferred):
        i = first
        while i < end:
            st(dst + i * _width, ld(src + i * _width))
            i += step

    return run


def _run_16(load: str, store: str, batch: int) -> Any:
    """Make a run of 16-byte accesses: ``batch`` loads are in flight before the first store, so that they share one latency.

    In one latency (about 300 cycles from L2), a warp copies at most 512 bytes per load in flight. NVSHMEM's one load gives 2.9 GB/s on H200
    (put_latency, warp, 1 MiB). A copy by one warp has eight in flight: 13 GB/s, issue included, for 32 registers; kernels with blocks of
    1,024 threads, which have 64 registers each, may then need launch_bounds=1024. Other copies have four: a CTA of 256 threads then has 16
    KiB in flight, and over NVLink an SM sends at most 44 GB/s, or 13 KiB in one latency (4 CTAs: 180 GB/s, and 149 with one load in flight;
    measured 2026-11-21). The remainder is copied as half a batch, if it is as long, and then in one last, predicated batch.
    """
    half = batch // 2
    copy_batch, copy_half, copy_rest = (
        _together(load, store, batch),
        _together(load, store, half),
        _together(load, store, half - 1, rest=True),
    )
    _16, _batch, _half, _last, _last_half = (constant(c) for c in (16, batch, half, batch - 1, half - 1))

    def run(dst, src, first, end, step, deferred):
        stride = step * _16
        to = dst + first * _16
        source = src + first * _16
        stop = src + end * _16
        while source + _last * stride < stop:
            copy_batch(to, source, stride)
            to += _batch * stride
            source += _batch * stride
        if source + _last_half * stride < stop:
            copy_half(to, source, stride)
            to += _half * stride
            source += _half * stride
        if source < stop:
            copy_rest(to, source, stride, stop)

    return run


def _run_of_thread(load: str, store: str) -> Any:
    """Make a run of 16-byte accesses for a copy by one thread, whose step is 1: ten loads are in flight.

    The thread stores five words and loads the next five while the other five are in flight. A put of 16 KiB over NVLink by one thread took
    45 us in batches of four, 27 in batches of eight, 24 with eight in flight in this way (H100, 2026-11-27). Ten take 48 registers.
    """
    rest, copy_fives = device(_run_16(load, store, 4), None), _fives(load, store)
    _10, _16 = constant(10), constant(16)

    def run(dst, src, first, end, step, deferred):
        done = first
        if first + _10 <= end:
            done += copy_fives(dst + first * _16, src + first * _16, src + end * _16)
        rest(dst, src, done, end, step, deferred)

    return run


def _fives(load: str, store: str) -> Any:
    """Make ``copy(dst, src, stop)``, which copies ten or more accesses below stop except the last 0 to 9, and returns how many."""

    def five(access: str, registers: str, address: str, offset: int) -> list[str]:
        lines = []
        for n in range(5):
            pair, at = f"{{{registers}{2 * n}, {registers}{2 * n + 1}}}", f"[{address}+{offset + 16 * n}]"
            lines.append(f"{load}.v2.b64 {pair}, {at};" if access == "load" else f"{store}.v2.b64 {at}, {pair};")
        return lines

    return primitive("copy", "u64(u64, u64, u64)", " ".join([
        "{ .reg .b64 s, d, next, a<10>, b<10>; .reg .pred more; mov.b64 d, $1; mov.b64 s, $2;", *five("load", "a", "s", 0),
        "add.u64 next, s, 240; setp.le.u64 more, next, $3; @!more bra LAST;",
        "AGAIN:", *five("load", "b", "s", 80), *five("store", "a", "d", 0),
        *five("load", "a", "s", 160), *five("store", "b", "d", 80),
        "add.u64 s, s, 160; add.u64 d, d, 160; add.u64 next, s, 240; setp.le.u64 more, next, $3; @more bra AGAIN;",
        "LAST:", *five("store", "a", "d", 0), "sub.u64 s, s, $2; add.u64 s, s, 80; shr.u64 $0, s, 4; }",
    ]), None)  # fmt: skip


def _together(load: str, store: str, count: int, *, rest: bool = False) -> Any:
    """Make ``copy(dst, src, stride)``: ``count`` loads of 16 bytes, then their stores; rest: those before ``stop``, a fourth argument."""
    loads = [f"{load}.v2.b64 {{a{n}, b{n}}}, [s]; add.u64 s, s, $2;" for n in range(count)]
    stores = [f"{store}.v2.b64 [d], {{a{n}, b{n}}}; add.u64 d, d, $2;" for n in range(count)]
    if rest:
        loads = [f"setp.lt.u64 p{n}, s, $3; @p{n} {access}" for n, access in enumerate(loads)]
        stores = [f"@p{n} {access}" for n, access in enumerate(stores)]
    registers = f".reg .b64 s, d, a<{count}>, b<{count}>; .reg .pred p<{count}>; mov.b64 d, $0; mov.b64 s, $1;"
    return primitive("copy", f"void(u64, u64, u64{', u64' if rest else ''})", " ".join(["{", registers, *loads, *stores, "}"]), None)


_PUT, _GET = ("ld", "st.global"), ("ld.relaxed.sys.global", "st")


def _runs(load: str, store: str) -> dict[str, dict[int, Any]]:
    """Return the runs of a thread, a warp, and a block, by the suffix of the scope and the width of the accesses."""
    of_block = {width: _run(width, load, store) for width in (1, 2, 4, 8, 16)}
    return {
        "": of_block | {16: _run_of(_run_of_thread(load, store), 16)},
        "_warp": of_block | {16: _run(16, load, store, batch=8)},
        "_block": of_block,
    }


put_run, get_run = _runs(*_PUT), _runs(*_GET)
#: Copies between global addresses with relaxed accesses, whose 8-byte words do not tear: for memory that others poll.
copy_run_16 = _run(16, "ld.relaxed.sys.global", "st.relaxed.sys.global")

# Bulk copies (PTX ISA, "Data Movement: cp.async.bulk"; sm_90) ------------------------------------------------------------------
#
# Addresses of shared memory are generic ones of this block.

_SHARED = "{{ .reg .u64 w; .reg .u32 s, b; cvta.to.shared.u64 w, {0}; cvt.u32.u64 s, w; {1} }}"

is_shared = primitive(
    "is_shared", "u32(u64)", "{ .reg .pred p; isspacep.shared p, $1; selp.u32 $0, 1, 0, p; }", lambda a: cpu.bulk.is_shared(a), pure=True
)
is_global = primitive("is_global", "u32(u64)", "{ .reg .pred p; isspacep.global p, $1; selp.u32 $0, 1, 0, p; }", lambda a: 1, pure=True)
mbarrier_init = primitive(
    "mbarrier_init", "void(u64)", _SHARED.format("$0", "mbarrier.init.shared::cta.b64 [s], 1;"), lambda a: cpu.bulk.init(a)
)
#: Make initialized mbarriers visible to bulk copies.
fence_mbarrier_init = primitive("fence_mbarrier_init", "void()", "fence.mbarrier_init.release.cluster;", lambda: None)
#: Order ordinary accesses to global or shared memory that happened before, also those of other threads, before the bulk copies that follow.
#: Without a state space, the fence would also wait for all earlier stores (MEMBAR.GPU).
fence_proxy_global = primitive("fence_proxy_global", "void()", "fence.proxy.async.global;", lambda: None)
fence_proxy_shared = primitive("fence_proxy_shared", "void()", "fence.proxy.async.shared::cta;", lambda: None)
#: ``(dst, src, nbytes, mbarrier)``: start a load from global memory of any GPU into shared memory, which completes a phase of the mbarrier.
bulk_load = primitive(
    "bulk_load", "void(u64, u64, u32, u64)",
    _SHARED.format("$0", "cvta.to.shared.u64 w, $3; cvt.u32.u64 b, w; mbarrier.arrive.expect_tx.shared::cta.b64 _, [b], $2; "
                   "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [$1], $2, [b];"),
    lambda *request: cpu.bulk.load(*request),
)  # fmt: skip
#: ``(mbarrier, parity)``: whether the phase of this parity is complete; acquires. It may wait for a short time.
bulk_landed = primitive(
    "bulk_landed", "u32(u64, u32)",
    _SHARED.format("$1", ".reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [s], $2; selp.u32 $0, 1, 0, p;"),
    lambda barrier, parity: cpu.bulk.landed(barrier, parity),
)  # fmt: skip
#: ``(dst, src, nbytes)``: start a store from shared memory to global memory of any GPU, in a group of its own.
bulk_store = primitive(
    "bulk_store", "void(u64, u64, u32)",
    _SHARED.format("$1", "cp.async.bulk.global.shared::cta.bulk_group [$0], [s], $2; cp.async.bulk.commit_group;"),
    lambda *request: cpu.bulk.store(*request),
)  # fmt: skip
#: Wait until all of this thread's bulk stores except the last have read shared memory.
bulk_wait_read = primitive("bulk_wait_read", "void()", "cp.async.bulk.wait_group.read 1;", lambda: cpu.bulk.wait_read(1))
#: Wait until all of this thread's bulk stores are complete; an ordinary fence of this thread then covers them.
bulk_wait_all = primitive("bulk_wait_all", "void()", "cp.async.bulk.wait_group 0;", lambda: cpu.bulk.wait_all())

# Copies of one access --------------------------------------------------------------------------------------------------------

#: Copies of one access each, for elements that are not adjacent (iput, iget).
put_single = {width: _single(width, *_PUT) for width in (1, 2, 4, 8, 16)}
get_single = {width: _single(width, *_GET) for width in (1, 2, 4, 8, 16)}
