"""The simulator's engine under `@cuda.jit`: scheduling, barriers, warps, shared memory, errors, deadlocks."""

import gc
import os
import re
import signal
import sys
import threading
import time
import weakref
from typing import Any

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import numba
import numpy as np
import pytest
from greenlet import greenlet
from numba import cuda
from numba import cuda as device_names

from pgas.base.errors import DeadlockError, PgasError
from pgas.kernels import operation, state
from pgas.sim import engine, memory, scheduler, turns

engine.install()
pytestmark = pytest.mark.skipif(not cuda.is_available() or not hasattr(cuda, "simulator"), reason="needs NUMBA_ENABLE_CUDASIM=1")

FULL = 0xFFFFFFFF


def zeros(n: int = 64, dtype: Any = np.int64) -> np.ndarray:
    return np.zeros(n, dtype)


class Launched:
    """``@launched[grid, block](*args)`` launches the function below it; its name then means the last argument."""

    def __getitem__(self, configuration: Any) -> Any:
        def of(*args: Any) -> Any:
            return lambda function: (cuda.jit(function)[configuration](*args), args[-1])[1]

        return of


launched = Launched()


class TestIndices:
    def test_grid_in_three_dimensions_visits_each_point_once(self) -> None:
        @launched[(2, 2, 1), (3, 2, 4)](np.zeros((6, 4, 4), np.int32))
        def out(out):
            x, y, z = cuda.grid(3)
            out[x, y, z] += 1 + (cuda.gridsize(3) != (6, 4, 4))

        assert (out == 1).all()

    def test_linear_numbers_follow_x_first(self) -> None:
        @launched[(2, 3), (4, 2, 2)](zeros(16))
        def out(out):
            t, d = cuda.threadIdx, cuda.blockDim
            me = engine.current()
            assert me is not None
            assert me.linear == t.x + d.x * (t.y + d.y * t.z)
            assert engine.thread_index() == (t.x, t.y, t.z)
            assert engine.block_index() == (cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z)
            assert engine.block_dim() == (4, 2, 2)
            assert engine.grid_dim() == (2, 3, 1)
            cuda.atomic.add(out, cuda.laneid, 1)

        assert (out == 6).all()


class TestFrontend:
    def test_options_of_the_real_jit_are_accepted(self) -> None:
        @cuda.jit(device=True, forceinline=True, lineinfo=True, inline="never")
        def two():
            return 2

        @cuda.jit(lineinfo=True, max_registers=32, lto=False, opt=True, fastmath=True, cache=False, extensions=[], launch_bounds=(64, 2))
        def k(out):
            out[0] = two()

        out = zeros()
        k[1, 1](out)
        assert out[0] == 2
        with pytest.raises(ValueError, match="has 128 threads, but must have 1 to 64"):
            k[1, 128]

    def test_an_option_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(TypeError, match="unknown option fastmaths"):
            cuda.jit(fastmaths=True)
        with pytest.raises(NotImplementedError, match="cannot link"):
            cuda.jit(link=["a.ptx"])

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            ((1, 0), "has 0 threads"),
            ((1, 2048), "has 2048 threads, but must have 1 to 1024"),
            ((0, 1), "has no block"),
            (((1, 1 << 16), 1), r"^k: the grid \(1, 65536, 1\) is larger than \(2147483647, 65535, 65535\), which CUDA allows$"),
            ((1, (1, 1, 65)), r"^k: the block \(1, 1, 65\) is larger than \(1024, 1024, 64\), which CUDA allows$"),
            ((1, 1, 0, (48 << 10) + 1), "^k: dynamic shared memory must have 0 to 49152 bytes, not 49153$"),
            ((1, 1, 0, -1), "^k: dynamic shared memory must have 0 to 49152 bytes, not -1$"),
        ],
    )
    def test_impossible_configurations(self, config: Any, text: str) -> None:
        @cuda.jit
        def k():
            pass

        with pytest.raises(ValueError, match=text):
            k[config]

    def test_forall_covers_the_tasks(self) -> None:
        @cuda.jit
        def k(out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] += 1

        out = zeros(300)
        k.forall(300)(out)
        k.forall(0)(out)
        assert (out == 1).all()

    def test_eager_signatures_and_cooperative_limits(self) -> None:
        @cuda.jit("void(int64[:])")
        def k(out):
            out[0] = 1

        k[1, 1](zeros())
        most = k.overloads["anything"].max_cooperative_grid_blocks
        assert [most(threads) // 132 for threads in (1024, 513, 512, 65, 64, 1)] == [2, 3, 4, 21, 32, 32]
        assert most((8, 8), 40 << 10) == 5 * 132

    def test_shared_arrays_larger_than_a_block_s_memory(self) -> None:
        @cuda.jit
        def k(out):
            cuda.shared.array(3 << 10, np.float64)
            out[0] = cuda.shared.array(2 << 10, np.float64).size

        out = zeros()
        k[1, 1, 0, 8 << 10](out)
        assert out[0] == 2 << 10
        with pytest.raises(ValueError, match=r"k: blocks must have 0 to 49152 bytes of shared memory, not 49160$"):
            k[1, 1, 0, (8 << 10) + 8](out)

    def test_a_grid_barrier_of_more_blocks_than_run_at_once(self) -> None:
        @cuda.jit
        def k():
            cuda.cg.this_grid().sync()

        k[264, 1]()
        with pytest.raises(
            PgasError, match="k: 265 blocks of 1024 threads cannot run concurrently on an H100; the maximum is 264, because a grid barrier"
        ):
            k[265, 1024]()

    def test_host_arrays_are_copied_device_arrays_shared(self) -> None:
        @cuda.jit
        def k(host, dev, pair):
            host[0] = dev[0] = 5
            pair[0][1] = 6

        host, second, dev = zeros(), zeros(), cuda.to_device(zeros())
        k[1, 1](host, dev, (second, 1))
        assert host[0] == 5
        assert second[1] == 6
        assert dev.copy_to_host()[0] == 5

    def test_extensions_see_the_arguments(self) -> None:
        class Doubling:
            def prepare_args(self, ty, value, stream, retr):
                return ty, value * 2 if isinstance(value, int) else value

        @cuda.jit(extensions=[Doubling()])
        def k(out, n):
            out[0] = n

        out = zeros()
        k[1, 1](out, 21)
        assert out[0] == 42

    def test_device_names_under_any_global_name_and_imported_locally(self) -> None:
        @launched[1, 4](zeros(4))
        def out(out):
            from numba import cuda as local

            out[device_names.threadIdx.x] = local.threadIdx.x + local.blockDim.x
            local.syncthreads()

        assert out.tolist() == [4, 5, 6, 7]
        assert device_names is cuda is sys.modules["numba.cuda"]

    def test_device_functions_of_other_modules(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "from numba import cuda as gpu\n@gpu.jit(device=True)\ndef lane_of():\n    return gpu.laneid + 100 * gpu.blockIdx.x\n"
        (tmp_path / "sim_engine_other.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        import sim_engine_other  # type: ignore[import-not-found]

        @launched[2, 2](zeros(4))
        def out(out):
            out[cuda.grid(1)] = sim_engine_other.lane_of()

        assert out.tolist() == [0, 1, 100, 101]
        assert sim_engine_other.gpu is numba.cuda

    def test_records_have_attributes(self) -> None:
        @launched[1, 1](np.zeros(2, [("a", np.int32), ("b", np.float64)]))
        def out(out):
            out[1].a = out[0].a + 1
            out[1]["b"] = 2.5

        assert out[1]["a"] == 1
        assert out[1]["b"] == 2.5


class TestBarriers:
    def test_votes_of_the_block(self) -> None:
        @launched[1, 40](np.zeros((40, 5), np.int64))
        def out(out):
            t = cuda.threadIdx.x
            out[t, 0] = cuda.syncthreads_count(t % 3 == 0)
            out[t, 1] = cuda.syncthreads_and(t < 40)
            out[t, 2] = cuda.syncthreads_and(t < 39)
            out[t, 3] = cuda.syncthreads_or(t == 17)
            out[t, 4] = cuda.syncthreads_or(t == 99)

        assert (out == [14, 1, 0, 1, 0]).all()

    def test_threads_that_returned_do_not_take_part(self) -> None:
        @launched[1, 32](zeros(32))
        def out(out):
            if cuda.threadIdx.x % 2:
                return
            cuda.syncthreads()
            out[cuda.threadIdx.x] = cuda.syncthreads_count(1)

        assert out[::2].tolist() == [16] * 16

    def test_threads_that_returned_do_not_hold_up_the_grid(self) -> None:
        """In block 0 a thread returns before the others wait in the grid barrier, in block 1 while all other threads of the grid wait."""

        @launched[3, 5](zeros(16))
        def out(out):
            if cuda.threadIdx.x == 0 and cuda.blockIdx.x < 2:
                while cuda.blockIdx.x == 1 and out[0] < 4 + 4 + 5:
                    engine.yield_()
                return
            cuda.atomic.add(out, 0, 1)
            cuda.cg.this_grid().sync()
            out[1 + cuda.grid(1)] = out[0]
            cuda.cg.this_grid().sync()
            out[0] = 0

        assert out.tolist() == [0, *[0, 13, 13, 13, 13] * 2, *[13] * 5]

    @pytest.mark.parametrize("first_waits", [True, False])
    def test_blocks_wait_for_each_other(self, first_waits: bool) -> None:
        @launched[100, 2](zeros(), zeros())
        def out(flag, out):
            if (cuda.blockIdx.x == 0) == first_waits:
                while flag[0] == 0:
                    engine.yield_()
                out[0] = flag[0]
            elif cuda.blockIdx.x == 99 or not first_waits:
                flag[0] = 7

        assert out[0] == 7


class TestSpinLoops:
    """Spin loops of users yield to other threads after some reads of the polled word."""

    def test_on_an_argument(self) -> None:
        @launched[1, 2](zeros(), zeros())
        def found(flag, found):
            if cuda.threadIdx.x == 1:
                flag[0] = 1
                return
            for _ in range(1000):  # a bounded spin: a test that fails must end
                found[0] = flag[0]
                if found[0] != 0:
                    return

        assert found[0] == 1

    def test_on_shared_memory(self) -> None:
        @launched[1, 2](zeros())
        def found(found):
            s = cuda.shared.array(1, np.int32)
            s[0] = 0
            cuda.syncthreads()
            if cuda.threadIdx.x == 1:
                s[0] = 1
                return
            for _ in range(1000):
                found[0] = s[0]
                if found[0] != 0:
                    return

        assert found[0] == 1

    def test_on_a_lock(self) -> None:
        @launched[4, 32](zeros(), zeros())
        def count(lock, count):
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            count[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

        assert count[0] == 128


class TestWarps:
    def test_shuffles(self) -> None:
        @launched[1, 32](np.zeros((32, 4), np.int64))
        def out(out):
            lane, v = cuda.laneid, cuda.laneid * 10
            out[lane, 0] = cuda.shfl_sync(FULL, v, 7)
            out[lane, 1] = cuda.shfl_up_sync(FULL, v, 2)
            out[lane, 2] = cuda.shfl_down_sync(-1, v, 3)
            out[lane, 3] = cuda.shfl_xor_sync(FULL, v, 1)

        lanes = np.arange(32)
        assert (out[:, 0] == 70).all()
        assert (out[:, 1] == np.where(lanes < 2, lanes, lanes - 2) * 10).all()
        assert (out[:, 2] == np.where(lanes > 28, lanes, lanes + 3) * 10).all()
        assert (out[:, 3] == (lanes ^ 1) * 10).all()

    def test_votes_and_matches(self) -> None:
        @launched[1, 64](np.zeros((32, 9), np.int64))
        def out(out):
            lane = cuda.laneid
            out[lane, 0] = cuda.ballot_sync(FULL, lane >= 30)
            out[lane, 1] = cuda.all_sync(FULL, lane < 32)
            out[lane, 2] = cuda.any_sync(FULL, lane == 40)
            out[lane, 3] = cuda.match_any_sync(FULL, lane % 4)
            out[lane, 4], out[lane, 5] = cuda.match_all_sync(FULL, 3)
            out[lane, 6], out[lane, 7] = cuda.match_all_sync(FULL, lane)
            out[lane, 8] = cuda.eq_sync(FULL, lane == 1)

        assert out[5].tolist() == [-(1 << 30), 1, 0, 0x22222222, -1, 1, 0, 0, 0]  # masks are int32

    def test_a_partial_last_warp(self) -> None:
        @launched[1, 40](zeros(40))
        def out(out):
            t = cuda.threadIdx.x
            cuda.syncwarp()
            out[t] = cuda.ballot_sync(FULL, 1)

        assert out[:32].tolist() == [-1] * 32  # an int32
        assert out[32:].tolist() == [0xFF] * 8

    def test_lanes_that_returned_do_not_take_part(self) -> None:
        @launched[1, 32](zeros(32))
        def out(out):
            if cuda.laneid >= 4:
                if cuda.laneid == 9:
                    engine.yield_()  # returns while the others wait
                return
            out[cuda.laneid] = cuda.ballot_sync(FULL, 1)

        assert out[:4].tolist() == [0xF] * 4

    def test_divergent_groups_meet_by_mask(self) -> None:
        @launched[1, 32](zeros(32))
        def out(out):
            lane = cuda.laneid
            mask = 0x55555555 if lane % 2 == 0 else 0xAAAAAAAA
            out[lane] = sum(engine.warp_exchange(mask, lane).values())
            engine.warp_barrier(mask)

        assert out[0] == sum(range(0, 32, 2))
        assert out[1] == sum(range(1, 32, 2))

    def test_a_mask_without_the_caller_is_an_error(self) -> None:
        @cuda.jit
        def k():
            cuda.syncwarp(0x1)

        with pytest.raises(ValueError, match=r"tid=\[1, 0, 0\] ctaid=\[0, 0, 0\]: syncwarp: lane 1 called it with mask 0x1"):
            k[1, 2]()

    def test_activemask_is_safe_to_sync_on(self) -> None:
        @launched[1, 32](zeros(32))
        def out(out):
            if cuda.laneid % 2:
                cuda.syncwarp(cuda.activemask())
            out[cuda.laneid] = cuda.activemask() & ~cuda.lanemask_lt()

        assert out.tolist() == [1 << i for i in range(32)]


class TestMemorySpaces:
    def test_shared_arrays_by_place(self) -> None:
        @cuda.jit(device=True)
        def scratch():
            return cuda.shared.array(4, np.int32)

        @launched[3, 2](zeros(2))
        def out(out):
            a, b = cuda.shared.array(2, numba.int64), cuda.shared.array(2, np.int64)
            t = cuda.threadIdx.x
            a[t], b[t] = t + 1, t + 10
            for i in range(2):
                c = cuda.shared.array((2, 2), np.float32)  # one array, not one for each iteration
                c[i, t] = i + t
            scratch()[t] = 5
            cuda.syncthreads()
            out[t] = a[1 - t] * 10000 + b[1 - t] * 100 + int(c[0, 1 - t]) * 10 + scratch()[1 - t]

        assert out.tolist() == [20000 + 1100 + 10 + 5, 10000 + 1000 + 0 + 5]

    @pytest.mark.parametrize("dtype", [np.int16, np.dtype("int16"), numba.int16, numba.cuda.types.int16])
    def test_dynamic_shared_memory(self, dtype: Any) -> None:
        @launched[2, 8, 0, 17](zeros(8))
        def out(out):
            s, t = cuda.shared.array(0, dtype), cuda.threadIdx.x
            s[t] = t
            cuda.syncthreads()
            out[t] = s[7 - t] + 100 * len(s)

        assert out.tolist() == [800 + 7 - t for t in range(8)]

    def test_memory_starts_with_garbage_and_blocks_have_their_own(self) -> None:
        @launched[3, 4](zeros(3))
        def out(out):
            s, mine = cuda.shared.array(1, np.uint8), cuda.local.array(3, np.uint8, alignment=64)
            if cuda.threadIdx.x == 0:
                out[cuda.blockIdx.x] = int(s[0]) + 1000 * int(mine[0]) + mine.ctypes.data % 64
            cuda.syncthreads()
            s[0] = 1

        assert out.tolist() == [0xA5 * 1001] * 3

    def test_cache_hints_and_bit_operations(self) -> None:
        @launched[1, 1](np.arange(4), zeros())
        def out(a, out):
            cuda.stcg(out, 0, cuda.ldcg(a, 1) + cuda.ldcv(a, 2))
            out[1] = cuda.popc(np.int32(-1))
            out[2] = cuda.clz(np.uint64(1)) * 100 + cuda.clz(1)
            out[3] = cuda.ffs(0) * 100 + cuda.ffs(np.int64(-8))
            out[4] = cuda.brev(1)

        assert out[:5].tolist() == [3, 32, 6363, 4, 1 << 31]


class TestErrors:
    def test_the_exception_names_the_thread_and_keeps_its_type(self) -> None:
        @cuda.jit
        def k(out):
            cuda.syncthreads()
            if cuda.grid(1) == 7:
                raise KeyError("lost")
            cuda.syncthreads()

        with pytest.raises(KeyError) as caught:
            k[2, 4](zeros())
        assert "tid=[3, 0, 0] ctaid=[1, 0, 0]: lost" in str(caught.value)

    def test_exceptions_with_their_own_constructors(self) -> None:
        class Fancy(Exception):
            def __init__(self, code: int, why: str) -> None:
                super().__init__(f"{why} ({code})")
                self.code = code

        class Stubborn(Exception):
            def __str__(self) -> str:
                return "always this"

        errors = Fancy(3, "why"), Stubborn(1, 2), OSError(2, "no such thing")

        @cuda.jit
        def k(which):
            raise errors[which]

        with pytest.raises(Fancy, match=r"tid=\[0, 0, 0\] ctaid=\[0, 0, 0\]: why \(3\)") as fancy:
            k[1, 1](0)
        assert fancy.value.code == 3
        with pytest.raises(Stubborn, match="always this") as stubborn:
            k[1, 1](1)
        assert stubborn.value.args == (1, 2)
        assert stubborn.value.__notes__ == ["tid=[0, 0, 0] ctaid=[0, 0, 0]"]
        with pytest.raises(FileNotFoundError) as system:
            k[1, 1](2)
        assert system.value.errno == 2
        assert "tid=" in system.value.__notes__[0]

    def test_a_failed_launch_leaves_nothing_behind(self) -> None:
        class Payload:
            pass

        finished = []

        @cuda.jit
        def k(payload, out):
            mine = payload
            try:
                if cuda.grid(1) == 63:
                    raise ValueError("stop")
                cuda.syncthreads()
            finally:
                finished.append(mine is payload)
                cuda.syncthreads()  # must not wait for threads that are being ended

        payload = Payload()
        ref = weakref.ref(payload)
        out = zeros()
        with pytest.raises(ValueError, match="stop"):
            k[2, 32](payload, out)
        assert len(finished) > 1
        assert all(finished)
        assert engine.current() is None
        assert engine.report() == ""
        del payload
        gc.collect()
        assert ref() is None

        @cuda.jit
        def fine(out):
            cuda.syncthreads()
            cuda.atomic.add(out, 0, 1)

        fine[2, 32](out)
        assert out[0] == 64
        alive = [g for g in gc.get_objects() if type(g).__name__ == "_Worker" and isinstance(g, greenlet) and hasattr(g, "thread")]
        assert not alive

    def test_division_by_zero_in_debug_mode(self) -> None:
        @cuda.jit(debug=True, opt=False)
        def k(a):
            a[0] = a[0] / a[1]

        with pytest.raises(FloatingPointError, match="tid="):
            k[1, 1](np.array([1.0, 0.0]))

    def test_a_kernel_cannot_launch_a_kernel(self) -> None:
        @cuda.jit
        def inner(out):
            out[0] = 1

        @cuda.jit
        def outer(out):
            inner[1, 1](out)

        @cuda.jit
        def calls(out):
            inner(out)

        with pytest.raises(PgasError, match="inner was launched from inside a kernel"):
            outer[1, 1](zeros())
        out = zeros()
        calls[1, 1](out)  # calling it as a function is allowed, as on a GPU
        assert out[0] == 1

    def test_host_threads_take_turns(self) -> None:
        """In the order of their calls. A wait for kernels ends after those that were launched before it."""
        inside, go_on, done = threading.Event(), threading.Event(), []

        @cuda.jit
        def first(out):
            inside.set()
            while not go_on.is_set():
                engine.yield_()
            out[0] += 1

        @cuda.jit
        def then(out, factor):
            engine.preempt()
            out[0] = factor * out[0] + 1

        def call(call, *args) -> threading.Thread:
            def target() -> None:
                call(*args)
                done.append(args)

            thread = threading.Thread(target=target)
            thread.start()
            return thread

        out = cuda.to_device(zeros())  # a host array would be copied at the call
        threads = [call(first[1, 1], out)]
        assert inside.wait(30)
        for another in ((then[1, 1], out, 2), (engine.wait_for_kernels, "wait"), (then[1, 1], out, 10)):
            threads.append(call(*another))
            while len(engine._turns.waiting()) < len(threads) - 1:
                time.sleep(0.001)
        assert done == []
        go_on.set()
        for thread in threads:
            thread.join()
        assert out.copy_to_host()[0] == 31
        assert {args[1:] for args in done} == {(), (2,), (10,)}

    def test_a_deadlock_of_host_threads_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGAS_TIMEOUT", "0.1")
        monkeypatch.setattr(turns, "_GRACE_S", 0.2)
        caught: list[BaseException] = []
        flag = zeros()

        @cuda.jit
        def waits(flag):
            while engine.current() and not caught:
                engine.yield_("the flag")

        @cuda.jit
        def sets(flag):
            flag[0] = 1

        def second() -> None:
            try:
                sets[1, 1](flag)
            except DeadlockError as error:
                caught.append(error)

        thread = threading.Thread(target=second, name="setter")
        thread.start()
        thread.join()
        assert (flag[0], caught) == (1, [])
        flag[0] = 0

        def start() -> None:
            time.sleep(0.1)
            second()

        thread = threading.Thread(target=start, name="setter")
        thread.start()
        waits[1, 1](flag)
        thread.join()
        assert flag[0] == 0
        assert re.search(r"^sets: thread setter waits for its turn, and thread MainThread runs waits, .*for the flag", str(caught[0]))
        sets[1, 1](flag)
        assert flag[0] == 1

    def test_device_names_outside_a_kernel(self) -> None:
        with pytest.raises(PgasError, match="only inside a kernel"):
            engine.block_barrier()
        with pytest.raises(PgasError, match="only inside a kernel"):
            cuda.threadIdx  # noqa: B018
        with pytest.raises(AttributeError, match="warp_speed"):
            cuda.warp_speed  # noqa: B018
        engine.yield_()  # allowed: loops shared with the host


class TestDeadlocks:
    def test_a_warp_that_waits_for_a_block(self) -> None:
        @cuda.jit
        def k():
            if cuda.threadIdx.x == 0:
                cuda.syncwarp(0x3)
            cuda.syncthreads()

        with pytest.raises(DeadlockError) as caught:
            k[1, 32]()
        text = str(caught.value)
        assert "deadlock in k" in text
        assert "block 0: 1 of 32 threads waits in syncwarp mask 0x3 (thread 0)" in text
        assert "31 of 32 threads wait in syncthreads (threads 1-31)" in text

    def test_operations_that_do_not_match(self) -> None:
        @cuda.jit
        def k():
            if cuda.laneid == 5:
                return
            if cuda.laneid % 2:
                cuda.ballot_sync(FULL, 1)
            else:
                cuda.shfl_sync(FULL, 1, 0)

        with pytest.raises(DeadlockError) as caught:
            k[2, 8]()
        text = str(caught.value)
        assert "2 blocks (0-1), each: " in text
        assert "3 of 8 threads wait in ballot_sync mask 0xff (threads 1, 3, 7)" in text
        assert "4 of 8 threads wait in shfl_sync mask 0xff (threads 0, 2, 4, 6)" in text
        assert "thread 5 has returned" in text

    def test_a_block_that_never_comes_to_the_grid_barrier(self) -> None:
        @cuda.jit
        def k():
            if cuda.blockIdx.y == 1:
                return
            cuda.cg.this_grid().sync()

        with pytest.raises(DeadlockError) as caught:
            k[(1, 2), 4]()
        assert "block [0, 0, 0]: 4 of 4 threads wait in the grid barrier (threads 0-3)" in str(caught.value)
        assert "block [0, 1, 0] has returned" in str(caught.value)

    def test_long_reports_stay_short(self) -> None:
        @cuda.jit
        def k():
            if cuda.threadIdx.x != cuda.blockIdx.x:
                cuda.syncthreads()
            else:
                cuda.cg.this_grid().sync()

        with pytest.raises(DeadlockError) as caught:
            k[100, 128]()
        assert len(str(caught.value)) < 3000
        assert "more kinds of blocks" in str(caught.value)

    def test_reports_of_a_running_kernel(self) -> None:
        texts = []

        @cuda.jit
        def k(flag):
            if cuda.grid(1) == 3:
                for _ in range(3):
                    engine.yield_()
                texts.append(engine.report())
                flag[0] = 1
            else:
                while flag[0] == 0:
                    engine.yield_(lambda: f"flag 0 != {flag[0]}")

        k[2, 2](zeros())
        assert "block 0: 2 of 2 threads wait for flag 0 != 0 (threads 0-1)" in texts[0]
        assert "1 of 2 threads waits for flag 0 != 0 (thread 0)" in texts[0]


class TestIdling:
    def test_a_hook_ends_the_launch(self) -> None:
        calls = []

        def hook() -> None:
            calls.append(1)
            if len(calls) == 300:
                raise PgasError("peer 3 died")

        @cuda.jit
        def k(flag):
            while flag[0] == 0:
                engine.yield_("a dead peer")

        engine.add_idle_hook(hook)
        try:
            with pytest.raises(PgasError, match=r"^peer 3 died$"):
                k[2, 32](zeros())
        finally:
            engine.remove_idle_hook(hook)
        engine.remove_idle_hook(hook)
        assert len(calls) == 300

    def test_hooks_run_during_raw_spins(self) -> None:
        flag, found = cuda.to_device(zeros()), zeros()

        def hook() -> None:
            flag[0] += 1

        @cuda.jit
        def k(flag, found):
            for _ in range(100_000):
                found[0] = flag[0]
                if found[0] == 3:
                    return

        engine.add_idle_hook(hook)
        try:
            k[1, 1](flag, found)
        finally:
            engine.remove_idle_hook(hook)
        assert found[0] == 3

    @pytest.mark.parametrize("body", ["engine.yield_()", "flag[0]", "cuda.nanosleep(10)"])
    def test_interrupt(self, body: str) -> None:
        running, ended = threading.Event(), threading.Event()
        names: dict[str, Any] = {"cuda": cuda, "engine": engine, "running": running}
        exec(f"def k(flag):\n    running.set()\n    while True:\n        {body}\n", names)
        k = cuda.jit(names["k"])

        def interrupt() -> None:
            running.wait()
            while not ended.wait(1):  # again, as a garbage collector's callback (hypothesis has one) drops it
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with SIGINT ignored
        thread.start()
        begin = time.perf_counter()
        try:
            with pytest.raises(KeyboardInterrupt):
                k[2, 16](zeros())
        finally:
            ended.set()
            signal.signal(signal.SIGINT, before)
        assert time.perf_counter() - begin < 30
        thread.join()

    @pytest.mark.parametrize("waits", [1, 2])
    def test_polls_that_store_are_idle(self, waits: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Polls that store, like those of ibrc's ring, let the kernel sleep, unless the thread goes from wait to wait."""
        lock, slept, rounds = zeros(), [], []

        def hook() -> None:
            rounds.append(1)
            if slept or len(rounds) == 2000:
                raise StopIteration

        @cuda.jit
        def k():
            for poll in range(1_000_000):
                memory.atomic_exchange(lock.ctypes.data, 1, 8)
                memory.store_release(lock.ctypes.data, 0, 8)
                state.relax(operation.number("quiet"), lock.ctypes.data, 0, poll % waits)

        monkeypatch.setattr(scheduler.time, "sleep", slept.append)
        engine.add_idle_hook(hook)
        try:
            with pytest.raises(StopIteration):
                k[1, 1]()
        finally:
            engine.remove_idle_hook(hook)
        assert bool(slept) is (waits == 1)

    def test_an_idle_kernel_gives_the_core_away(self) -> None:
        def hook() -> None:
            if time.perf_counter() - begin > 0.4:
                raise StopIteration

        @cuda.jit
        def k():
            while True:
                engine.yield_()

        engine.add_idle_hook(hook)
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            with pytest.raises(StopIteration):
                k[1, 1]()
        finally:
            engine.remove_idle_hook(hook)
        assert time.process_time() - cpu < 0.9 * (time.perf_counter() - begin)


def test_speed() -> None:
    """Only the order of magnitude, in CPU time, so that a busy machine passes."""

    @cuda.jit
    def empty(out):
        pass

    @cuda.jit
    def meets(out):
        cuda.syncthreads()

    for k, grid, floor in ((empty, 1000, 50_000), (meets, 200, 20_000)):
        begin = time.process_time()
        k[grid, 256](zeros())
        assert grid * 256 / (time.process_time() - begin) > floor
