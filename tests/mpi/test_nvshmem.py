"""nvshmem4py's names (pgas.nvshmem) on two or more PEs: device functions, host functions, teams, and what differs from those of pgas."""

import importlib.util
import re

import numpy as np
import pytest
from numba import cuda

import pgas
from pgas.job import runtime
from pgas.nvshmem import core
from pgas.nvshmem.core.device import numba as device

SCOPES = ["", "_warp", "_block"]


@pytest.fixture
def ring():
    """This PE's number, its right neighbor's, and its left neighbor's."""
    me, n = pgas.my_pe(), pgas.n_pes()
    if n < 2:
        pytest.skip("needs two PEs")
    return me, (me + 1) % n, (me - 1) % n


def arrays(*sizes, dtype="int32"):
    """Allocate arrays of zeros."""
    made = [core.array(size, dtype) for size in sizes]
    for array in made:
        array[:] = 0
    pgas.barrier_all()
    return made


def on_host(array):
    """Return the elements as a list. Without CuPy, core.array() returns a symmetric array."""
    return (array.copy_to_host() if hasattr(array, "copy_to_host") else array.get()).tolist()


def free(*made):
    pgas.barrier_all()
    for array in made:
        core.free_array(array)


def launched(kernel, threads, *args):
    """Launch a kernel on all PEs, and wait until all have ended."""
    kernel[1, threads](*args)
    pgas.barrier_all()


@pytest.mark.parametrize("scope", SCOPES)
def test_copies_move_as_many_elements_as_the_smaller_array_has(ring, scope):
    me, right, left = ring
    put, get = getattr(device, f"put{scope}"), getattr(device, f"get{scope}")
    put_nbi, get_nbi = getattr(device, f"put_nbi{scope}"), getattr(device, f"get_nbi{scope}")

    @cuda.jit
    def kernel(dst, src, fetched, pe):
        put(dst[:3], src, pe)
        put_nbi(dst[4:], src[:2], pe)
        get(fetched, src[:3], pe)
        get_nbi(fetched[4:6], src, pe)
        pgas.quiet()

    dst, src, fetched = arrays(8, 8, 8)
    src[:] = me + 1
    pgas.barrier_all()
    launched(kernel, 32 if scope else 1, dst, src, fetched, right)
    assert on_host(dst) == [left + 1] * 3 + [0] + [left + 1] * 2 + [0] * 2
    assert on_host(fetched) == [right + 1] * 3 + [0] + [right + 1] * 2 + [0] * 2
    free(dst, src, fetched)


@pytest.mark.parametrize("scope", SCOPES)
def test_signals(ring, scope):
    me, right, left = ring
    put_signal, put_signal_nbi = getattr(device, f"put_signal{scope}"), getattr(device, f"put_signal_nbi{scope}")
    one, add = core.SignalOp.SIGNAL_SET, core.SignalOp.SIGNAL_ADD

    @cuda.jit
    def kernel(dst, src, sig, seen, op, pe):
        put_signal(dst[0], src[0], sig, 2, op, pe)
        put_signal_nbi(dst[1, :2], src[1], sig, 3, add, pe)
        if cuda.threadIdx.x == 0:
            device.signal_op(sig[1:], np.uint64(4), add, pe)
            device.signal_wait(sig, core.ComparisonType.CMP_GE, 5)
            seen[0] = device.signal_wait(sig[1:], core.ComparisonType.CMP_EQ, 4)

    dst, src = arrays((2, 4), (2, 4))
    sig, seen = arrays(2, 1, dtype="uint64")
    src[:] = me + 1
    pgas.barrier_all()
    launched(kernel, 32 if scope else 1, dst, src, sig, seen, one, right)
    assert on_host(dst) == [[left + 1] * 4, [left + 1] * 2 + [0] * 2]
    assert (on_host(sig), seen[0]) == ([5, 4], 4)
    free(dst, src, sig, seen)


def test_elements_and_atomics(ring):
    _me, right, _left = ring

    @cuda.jit
    def kernel(a, got, pe):
        device.p(a[0], 7, pe)
        device.atomic_set(a[1], 5, pe)
        got[0] = device.atomic_fetch_add(a[1], 2, pe)
        device.atomic_add(a[1], 1, pe)
        got[1] = device.atomic_fetch_inc(a[1], pe)
        device.atomic_inc(a[1], pe)
        got[2] = device.atomic_swap(a[1], 12, pe)
        device.atomic_and(a[1], 10, pe)
        device.atomic_or(a[1], 1, pe)
        device.atomic_xor(a[1], 3, pe)
        got[3] = device.atomic_fetch_and(a[1], 14, pe)
        got[4] = device.atomic_fetch_or(a[1], 4, pe)
        got[5] = device.atomic_fetch_xor(a[1], 1, pe)
        got[6] = device.atomic_compare_swap(a[1], 15, 3, pe)
        got[7] = device.atomic_fetch(a[1], pe)
        pgas.quiet()
        got[8] = device.g(a, pe)

    a, got = arrays((2, 2), 9)
    launched(kernel, 1, a, got, right)
    assert on_host(got) == [5, 8, 10, 10, 10, 14, 15, 3, 7]
    free(a, got)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_collectives(ring, scope, op):
    me, _right, _left = ring
    n = pgas.n_pes()
    reduce, reducescatter, fcollect = (getattr(device, f"{name}{scope}") for name in ("reduce", "reducescatter", "fcollect"))
    broadcast, alltoall, barrier, sync = (getattr(device, f"{name}{scope}") for name in ("broadcast", "alltoall", "barrier", "sync"))
    barrier_all, sync_all = getattr(device, f"barrier_all{scope}"), getattr(device, f"sync_all{scope}")

    @cuda.jit
    def kernel(team, out, src, sizes):
        reduce(team, out[0, :3], src, op)  # of three elements
        reducescatter(team, out[1, :1], src, op)
        fcollect(team, out[2], src[:1])
        broadcast(team, out[3, :2], src, root=1)
        broadcast(team, out[3, 2:3], src)
        alltoall(team, out[4], src[: 2 * device.team_n_pes(team) - 1])
        barrier(team)
        sync(team)
        barrier_all()
        sync_all()
        sizes[0], sizes[1] = device.team_my_pe(team), device.n_pes()

    out, src, sizes = arrays((5, 2 * n), 2 * n, 2)
    src[:] = me + 1
    pgas.barrier_all()
    launched(kernel, 32 if scope else 1, core.Teams.TEAM_WORLD, out, src, sizes)
    result = sum(range(1, n + 1)) if op == "sum" else n
    members = list(range(1, n + 1))
    assert on_host(out) == [
        [result] * 3 + [0] * (2 * n - 3),
        [result] + [0] * (2 * n - 1),
        members + [0] * n,
        [2, 2, 1] + [0] * (2 * n - 3),
        members + [0] * n,
    ]
    assert on_host(sizes) == [me, n]
    free(out, src, sizes)


@pytest.mark.parametrize("callers", ["all", "the last thread", "every third"])
def test_any_threads_of_a_grid_may_call_fcollect(ring, callers):
    """Each performs it, one after another."""
    me, _right, _left = ring
    blocks, threads = (1, 128) if callers == "all" else (2, 40)
    step = {"all": 1, "the last thread": 40, "every third": 3}[callers]

    @cuda.jit
    def kernel(team, out, src, seen):
        i = cuda.grid(1)
        if cuda.threadIdx.x % step == step - 1:
            device.fcollect(team, out, src)
            seen[i] = out[out.size - 1]

    out, src, seen = arrays(2 * pgas.n_pes(), 2, blocks * threads)
    src[:] = me + 1
    pgas.barrier_all()
    for _ in range(2):
        kernel[blocks, threads](core.Teams.TEAM_WORLD, out, src, seen)
    pgas.barrier_all()
    assert on_host(out) == [pe + 1 for pe in range(pgas.n_pes()) for _ in range(2)]
    assert on_host(seen) == [pgas.n_pes() if i % threads % step == step - 1 else 0 for i in range(blocks * threads)]
    free(out, src, seen)


def test_memory_of_a_peer(ring):
    """Its address is 0 if it is not mapped; get_peer_array on the host then raises NvshmemError."""
    me, right, left = ring

    @cuda.jit
    def kernel(a, pe):
        device.get_peer_array(a, pe)[0] = device.my_pe() + 1

    (a,) = arrays(2)
    launched(kernel, 1, a, me)
    assert a[0] == me + 1
    mapped = pgas.ptr(core.memory.whole(a), right) is not None
    pgas.barrier_all()
    if all(pgas.allgather_object(mapped)):
        launched(kernel, 1, a, right)
        assert a[0] == left + 1
        peer = core.get_peer_array(a, right)
        pgas.barrier_all()
        peer[1] = me + 5
        pgas.barrier_all()
        assert a[1] == left + 5
        core.free_array(peer)
        assert core.get_peer_buffer(core.array_get_buffer(a)[0], right).size == 8
    elif not mapped:
        with pytest.raises(core.NvshmemError, match=f"nvshmem.core.get_peer_array: the memory of PE {right} is not mapped here"):
            core.get_peer_array(a, right)
        if pgas.SIMULATOR:
            with pytest.raises(IndexError, match="the array is at address 0, because the memory of its PE is not mapped here"):
                kernel[1, 1](a, right)
    free(a)


# ----------------------------------------------------------------------------------------------------------------- on the host


def test_copies_and_signals_of_the_host(ring):
    me, right, left = ring
    stream = cuda.stream()
    dst, src, got = arrays(4, 2, 4)
    (sig,) = arrays(1, dtype="uint64")
    word = core.array_get_buffer(sig)[0]
    src[:] = me + 1
    pgas.barrier_all()
    core.put(dst, src, remote_pe=right, stream=stream)
    core.get_nbi(got, src, right, stream)
    core.quiet(stream=stream)
    core.put_signal_nbi(dst, src, word, 3, core.SignalOp.SIGNAL_ADD, remote_pe=right, stream=stream)
    core.flush(stream=stream)
    core.signal_op(word, 2, core.SignalOp.SIGNAL_ADD, remote_pe=right, stream=stream)
    core.signal_wait(word, 5, core.ComparisonType.CMP_EQ, stream=stream)
    core.barrier_all(stream=stream)
    pgas.synchronize()
    assert (core.signal_fetch(word), word.size) == (5, 8)
    assert on_host(dst) == [left + 1] * 2 + [0] * 2
    assert on_host(got) == [right + 1] * 2 + [0] * 2
    free(dst, src, got, sig)


def test_atomics_of_the_host(ring):
    _me, right, _left = ring
    (a,) = arrays(3)
    core.atomic_set(a, 12, right, offset=1)
    assert core.atomic_fetch_add(a, 4, right, offset=1) == 12
    assert core.atomic_fetch_inc(a, remote_pe=right, offset=1) == 16
    assert core.atomic_compare_swap(a, 17, 9, right, offset=1) == 17
    assert core.atomic_fetch(core.array_get_buffer(a)[0], right, offset=1, dtype="int") == 9
    free(a)


@pytest.mark.parametrize("dtype", ["int32", "float16", "bool"])
def test_collectives_of_the_host(ring, dtype):
    """Sums of bool are those of bytes."""
    me, _right, _left = ring
    n, world, stream = pgas.n_pes(), core.Teams.TEAM_WORLD, cuda.stream()
    src, out, all_of = arrays((2, n), (2, n), (n, 2, n), dtype=dtype)
    src[:] = 1 if dtype == "bool" else me + 1

    def shown(array):
        core.sync(world, stream=stream)
        pgas.barrier_all()
        return core.memory.typed(array).copy_to_host().tolist()

    values = [1 if dtype == "bool" else pe + 1 for pe in range(n)]
    core.reduce(world, out, src, "sum", stream=stream)
    assert shown(out) == [sum(values)] * 2 * n
    core.broadcast(world, out, src, root=1, stream=stream)
    assert shown(out) == [values[1]] * 2 * n
    core.alltoall(world, out, src, stream=stream)
    assert shown(out) == [v for v in values for _ in range(2)]
    core.fcollect(world, all_of, src, stream=stream)
    assert shown(all_of) == [v for v in values for _ in range(2 * n)]
    core.reducescatter(world, src, all_of, "max", stream=stream)
    assert shown(src) == [values[me]] * 2 * n
    assert core.collective_on_buffer("reduce", world, *(core.array_get_buffer(a)[0] for a in (out, src)), dtype, "min") == 0
    assert shown(out) == [min(values)] * 2 * n
    free(src, out, all_of)


def test_repeated_calls_of_the_host(ring):
    """A call with the same arrays as before is neither checked nor converted again."""
    _, right, _ = ring
    repeated = runtime.current().repeated
    repeated.clear()
    n, team, stream = pgas.n_pes(), core.Teams.TEAM_WORLD, cuda.stream()
    dst, src, wide, wide_src = arrays(8, 8, 8 * n, 8 * n)
    sig = core.buffer(8)
    for _ in range(3):
        core.put(dst, src, right, stream)
        core.get(dst, src, right, stream)
        core.put_signal(dst, src, sig, 1, core.SignalOp.SIGNAL_SET, right, stream)
        core.signal_op(sig, 1, core.SignalOp.SIGNAL_ADD, right, stream)
        core.signal_wait(sig, 0, core.ComparisonType.CMP_NE, stream)
        core.broadcast(team, dst, dst, 0, stream)
        core.fcollect(team, wide, dst, stream)
        core.alltoall(team, wide, wide_src, stream)
        core.reduce(team, dst, dst, "sum", stream)
        core.reducescatter(team, dst, wide, "sum", stream)
        core.barrier(team, stream)
        core.sync(team, stream)
        core.quiet(stream)
        core.barrier_all(stream)
    found = {name: [call.bound is not None for call in calls.values()] for name, calls in repeated.items()}
    assert len(found) == 14
    assert all(bound == [True] for bound in found.values()), found
    free(dst, src, wide, wide_src, sig)


def test_teams(ring):
    me, _right, _left = ring
    n, Teams = pgas.n_pes(), core.Teams
    assert [Teams.TEAM_WORLD, Teams["TEAM_SHARED"], Teams.TEAM_NODE, Teams.TEAM_SAME_MYPE_NODE, Teams.TEAM_INVALID] == [0, 1, 2, 3, -1]
    config = core.TeamConfig()
    config.uniqueid = 7
    both = core.team_init(config, 0, n, n - 1 - me, new_team_name="BACKWARDS")
    assert (core.team_my_pe(Teams.BACKWARDS), core.team_n_pes(both)) == (n - 1 - me, n)
    assert core.team_translate_pe(both, 0, Teams.TEAM_WORLD) == n - 1
    first = core.team_split_strided(both, 0, 1, 1, config, 0)
    assert (first is None) == (me != n - 1)
    row, column = core.team_split_2d(Teams.TEAM_WORLD, n, config, 0, config, 0, new_team_name="GRID")
    assert (core.team_n_pes(Teams.GRID_X), core.team_n_pes(column), row) == (n, 1, Teams.GRID_X)
    for make in (  # They are refused before a team is made, which would be left at the end of the job.
        lambda: core.team_split_strided(both, 0, 1, n, new_team_name="BACKWARDS"),
        lambda: core.team_split_2d(both, n, new_team_name="GRID"),
        lambda: core.team_init(config, 0, n, me, new_team_name="BACKWARDS"),
    ):
        made = len(runtime.current().teams.records)
        with pytest.raises(ValueError, match=r"^nvshmem\.core\.Teams: there is a member \w+ already; choose another name$"):
            make()
        assert len(runtime.current().teams.records) == made
    with pytest.raises(ValueError, match="this PE has no team 77; its teams are"):
        core.team_n_pes(77)
    with pytest.raises(ValueError, match=f"src_pe must be 0 to {n - 1}, not {n}"):
        core.team_translate_pe(both, n, Teams.TEAM_WORLD)
    core.team_destroy(77)
    for team in (column, row, first, "BACKWARDS"):
        if team is not None:
            core.team_destroy(team)
    assert "BACKWARDS" not in Teams
    assert Teams.keys() == {"TEAM_INVALID", "TEAM_WORLD", "TEAM_SHARED", "TEAM_NODE", "TEAM_SAME_MYPE_NODE"}
    with pytest.raises(KeyError):
        core.team_destroy("BACKWARDS")


def test_wrong_arguments(ring):
    """The error names the function of nvshmem.core."""
    sig = core.array(1, "uint64")
    for call, text in (
        (lambda: core.signal_wait(sig, 1, "eq"), "signal_wait: signal_op must be one of ComparisonType.CMP_EQ, "),
        (
            lambda: core.signal_op(sig, 1, "add", 0),
            "signal_op: signal_op must be one of SignalOp.SIGNAL_SET, SignalOp.SIGNAL_ADD, not 'add'",
        ),
        (lambda: core.put_signal(sig, sig, sig, 1, 7, 0), "put_signal: signal_op must be one of SignalOp.SIGNAL_SET, "),
        (lambda: core.get_peer_array(sig, 99), f"get_peer_array: the PE must be an integer from 0 to {pgas.n_pes() - 1}, not 99"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(f"nvshmem.core.{text}")):
            call()
    core.free_array(sig)


def test_memory(ring):
    me, _right, _left = ring
    made = core.buffer(100)
    assert (
        made.size,
        core.memory.get_size((2, 3), "bfloat16"),
        core.memory.dtype_nbytes("ptrdiff"),
        core.memory.dtype_nbytes("int32_t"),
    ) == (100, 12, 8, 4)
    core.free(made)
    with pytest.raises(ValueError, match="operands must be what buffer, array, or tensor returned, not another Buffer"):
        core.free(made)
    a = core.array((2, 3), dtype=np.float64, morder="F")
    b = core.bytearray((2, 3), dtype="float64")
    assert (a.shape, a.strides, str(a.dtype), b.nbytes) == ((2, 3), (8, 16), "float64", 6)
    a[:] = me
    if pgas.SIMULATOR:
        assert (a == me).all()
        assert ((a + 1) * 2).tolist() == [[2 * me + 2] * 3] * 2
        assert not (a[1] != a.get()[0]).any()
    _, nbytes, dtype = core.array_get_buffer(a)
    assert (nbytes, dtype) == (48, "float64")
    free(a, b)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="capability missing: PyTorch")
def test_tensors(ring):
    import torch

    me, right, left = ring
    dst, src = core.tensor((2, 3), dtype=torch.bfloat16), core.tensor((2, 3), dtype=torch.bfloat16, morder="F")
    dst[:], src[:] = 0, me + 1
    assert src.stride() == (1, 2)
    pgas.barrier_all()
    core.put(dst, src, right)
    pgas.barrier_all()
    assert (dst == left + 1).all()
    core.reduce(core.Teams.TEAM_WORLD, dst, src, "sum")
    pgas.synchronize()
    assert (dst == sum(range(1, pgas.n_pes() + 1))).all()
    core.free_tensor(dst)
    core.free_tensor(src)


def test_a_job_in_a_job(ring):
    """init with any method in a job that runs; then finalize leaves it running."""
    core.init(initializer_method="mpi")
    assert core.init_status() == core.InitStatus.STATUS_IS_INITIALIZED
    (a,) = arrays(1)
    core.finalize()
    assert runtime.active()
    free(a)
    assert (core.get_version().nvshmem4py_version, core.query_thread().name) == ("0.4.1", "THREAD_SERIALIZED")
    with pytest.raises(ValueError, match="initializer_method must be mpi, emulated_mpi, uid, or process_group, not 'pmi'"):
        core.init(initializer_method="pmi")
