"""Atomics on raw addresses: values, widths, wrapping; the cache of compiled code."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from pgas.native import cpu
from pgas.sim import mem, memory, memory_model

GUARD = 0xA5


class Buffer:
    """Bytes at an aligned address, with guards around them."""

    def __init__(self, nbytes: int = 4096) -> None:
        self.bytes = np.full(nbytes + 64, GUARD, np.uint8)
        self.addr = self.bytes.ctypes.data + -self.bytes.ctypes.data % 64

    def at(self, offset: int, nbytes: int) -> bytes:
        return ctypes.string_at(self.addr + offset, nbytes)

    def guarded(self, offset: int, nbytes: int) -> bool:
        return self.at(offset - 8, 8) == self.at(offset + nbytes, 8) == bytes([GUARD] * 8)


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8])
@pytest.mark.parametrize(("store", "load"), [(memory.store, memory.load), (memory.store_release, memory.load_acquire)])
def test_load_and_store(nbytes: int, store: Any, load: Any) -> None:
    b = Buffer()
    top = (1 << 8 * nbytes) - 1
    for value, expected in [
        (0, 0),
        (top, top),
        (-1, top),
        (top + 2, 1),
        (0x1122334455667788, 0x1122334455667788 & top),
        (np.int32(-2), top - 1),
    ]:
        store(b.addr + 64, value, nbytes)
        assert load(b.addr + 64, nbytes) == expected
        assert b.at(64, nbytes) == expected.to_bytes(nbytes, "little")
        assert b.guarded(64, nbytes)
    assert isinstance(load(np.uint64(b.addr + 64), nbytes), int)


@pytest.mark.parametrize("nbytes", [4, 8])
def test_read_modify_write(nbytes: int) -> None:
    b = Buffer()
    a, top = b.addr + 64, (1 << 8 * nbytes) - 1
    memory.store(a, 5, nbytes)
    steps = [
        (memory.atomic_add, 3, 5, 8),
        (memory.atomic_add, -9, 8, top),
        (memory.atomic_add, top + 3, top, 1),
        (memory.atomic_exchange, -16, 1, top - 15),
        (memory.atomic_and, 0x3F, top - 15, 0x30),
        (memory.atomic_or, 0x0F, 0x30, 0x3F),
        (memory.atomic_xor, -1, 0x3F, top - 0x3F),
    ]
    for operation, value, old, new in steps:
        assert operation(a, value, nbytes) == old, operation.__name__
        assert memory.load(a, nbytes) == new, operation.__name__
    assert memory.atomic_compare_swap(a, 1, 7, nbytes) == top - 0x3F
    assert memory.load(a, nbytes) == top - 0x3F
    assert memory.atomic_compare_swap(a, -0x40, -7, nbytes) == top - 0x3F
    assert memory.load(a, nbytes) == top - 6
    assert b.guarded(64, nbytes)


def test_atomics_have_two_widths() -> None:
    b = Buffer()
    for call in (memory.atomic_add, memory.atomic_exchange, memory.atomic_and, memory.atomic_or, memory.atomic_xor):
        with pytest.raises(ValueError, match="4 or 8 bytes, got 2"):
            call(b.addr, 1, 2)
    with pytest.raises(ValueError, match="4 or 8 bytes, got 16"):
        memory.atomic_compare_swap(b.addr, 1, 2, 16)


@pytest.mark.parametrize(("add", "dtype"), [(memory.atomic_add_f32, np.float32), (memory.atomic_add_f64, np.float64)])
def test_floating_point_add(add: Any, dtype: Any) -> None:
    a = np.array([1.5, 9], dtype)
    assert add(a.ctypes.data, 2.25) == 1.5
    assert add(a.ctypes.data, -4) == 3.75
    assert a.tolist() == [-0.25, 9]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(("first", "end", "step"), [(0, 9, 1), (2, 20, 3), (1, 2, 5), (5, 5, 1), (7, 3, 2)])
def test_copy_strided(width: int, shift: int, first: int, end: int, step: int) -> None:
    src, dst = Buffer(), Buffer()
    src.bytes[:] = np.random.default_rng(width).integers(0, 256, src.bytes.size)
    expected = bytearray(dst.at(0, 1024))
    for i in range(first, end, step):
        expected[64 + shift + i * width : 64 + shift + (i + 1) * width] = src.at(128 + i * width, width)
    memory.copy_strided(dst.addr + 64 + shift, src.addr + 128, first, end, step, width)
    assert dst.at(0, 1024) == bytes(expected)


def test_copy_elements_with_two_strides_also_backwards() -> None:
    src = np.arange(32, dtype=np.uint32)
    dst = np.zeros(32, np.uint32)
    memory.copy_elements(dst.ctypes.data, 8, src.ctypes.data + 40, -4, 10, 4)
    assert dst[:20:2].tolist() == list(range(10, 0, -1))
    assert not dst[1::2].any()
    assert not dst[20:].any()
    memory.copy_elements(dst.ctypes.data, 4, src.ctypes.data, 4, 0, 4)
    assert dst[0] == 10


def test_a_call_costs_about_a_microsecond() -> None:
    b = Buffer()
    for call in (lambda: memory.load(b.addr, 8), lambda: memory.store(b.addr, 1, 4), lambda: memory.atomic_add(b.addr, 1, 8)):
        best = 1.0
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(2000):
                call()
            best = min(best, (time.perf_counter() - begin) / 2000)
        assert best < 5e-6  # 0.5 us on a quiet machine


def test_mem_is_served_by_the_plain_memory() -> None:
    b = Buffer()
    assert memory_model() is memory
    mem.store(b.addr, 7, 4)
    assert mem.load(b.addr, 4) == 7
    assert mem.load is memory.load
    with pytest.raises(AttributeError, match="no 'stor'"):
        mem.stor  # noqa: B018


def _run(script: str, env: dict[str, str] | None = None, fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | (env or {}),
        pass_fds=fds,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_while_code_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt comes when the code is there: in a callback of LLVM it would be printed, and the program would go on."""
    successor = cpu.compiled_on_use(numba.int64(numba.int64), lambda x: x + 1)
    load, loaded = successor.compile, []

    def interrupted(kind: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        loaded.append(load(kind))

    monkeypatch.setattr(successor, "compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        successor(1)
    assert successor(1) == 2
    assert len(loaded) == 1


TIMED = """
import time, numba
from numba import njit
begin = time.perf_counter()
from pgas.native import atomics
functions = [d for d in vars(atomics).values() if hasattr(d, "stats")]
for function in functions:
    function._compile_for_args()
elapsed = time.perf_counter() - begin
hits = [sum(function.stats.cache_hits.values()) for function in functions]
print(elapsed, len(hits), sum(hits))
"""


@pytest.mark.slow
def test_a_second_start_finds_everything_in_the_cache(tmp_path: Path) -> None:
    results = []
    for _ in range(2):
        out, errors = _run(TIMED, {"NUMBA_CACHE_DIR": str(tmp_path)}).communicate(timeout=200)
        assert out, errors
        results.append([float(x) for x in out.split()])
    (cold, functions, cold_hits), (warm, _, warm_hits) = results
    assert functions > 30
    assert cold_hits == 0
    assert warm_hits == functions
    assert warm < cold


@pytest.mark.slow
def test_without_a_place_for_the_cache_it_still_works(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    script = "import numpy as np\nfrom pgas.sim import memory\na = np.zeros(1, np.uint64)\nmemory.store(a.ctypes.data, 3, 8)\nprint(a[0])"
    out, errors = _run(script, {"NUMBA_CACHE_DIR": str(blocked), "HOME": str(blocked)}).communicate(timeout=200)
    assert out.strip() == "3", errors
