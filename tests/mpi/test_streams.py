"""Operations called on the host, at once and on CUDA streams, and captured into CUDA graphs (pgas/api/host_ops.py)."""

import weakref

import numpy as np
import pytest
from numba import cuda

import pgas
from mpi.checks import RECORDS, Watched, equal, everywhere, name_of, needs_any_memory, payload
from pgas.api.jit import BoundLaunch
from pgas.job import runtime

DTYPES = [np.dtype(name) for name in ("int8", "float16", "int32", "float64", "complex128")]
INTEGERS = [np.dtype(name) for name in ("int32", "uint32", "int64", "uint64")]


class Wrapped:
    """A stream of another library: an object with one attribute."""

    def __init__(self, attribute, handle):
        setattr(self, attribute, handle)


class Protocol:
    """A stream with __cuda_stream__."""

    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return 0, self._handle


def streams_of_all_kinds():
    """Return streams of Numba, cuda.core (by protocol), CuPy and PyTorch, and a bare handle; in the simulator similar objects."""
    stream = cuda.stream()
    handle = 0 if pgas.SIMULATOR else int(stream.handle)
    others = [Wrapped("ptr", handle), Wrapped("cuda_stream", handle), Wrapped("handle", handle)]
    return [0, stream, Protocol(handle), *others], stream


def raised(error, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------------- put, get


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("start", "count"), [(0, 1), (3, 100), (5, 70_001)])
def test_put_and_get(heap, me, right, left, dtype, start, count):
    sources = [payload(count, dtype, seed=7 + pe) for pe in range(pgas.n_pes())]
    source, dest, back = heap.array(sources[me]), Watched(heap, 80_000, dtype), Watched(heap, count, dtype)
    pgas.put(dest.array[start : start + count], source, right)
    dest.holds(start, sources[left])
    pgas.get(back.array, dest.array[start:], right, count)
    back.holds(0, sources[me])
    pgas.put_nbi(dest.array[start:], source, left, 1)
    pgas.quiet()
    dest.holds(start, sources[right][:1])


@pytest.mark.parametrize("dtype", [*DTYPES, *RECORDS], ids=name_of)
@pytest.mark.parametrize(("start", "count", "far", "near"), [(0, 1, 1, 1), (3, 100, 1, 1), (3, 100, 2, 3), (5, 9001, 3, 1)])
def test_iput_and_iget(heap, me, n, right, left, dtype, start, count, far, near):
    """To every n-th element, and back; the gaps stay unchanged."""
    sources = [payload(count * near, dtype, seed=7 + pe) for pe in range(n)]
    end = start + (count - 1) * far + 1
    source, dest, back = heap.array(sources[me]), Watched(heap, end + 9, dtype), Watched(heap, count * near, dtype)
    pgas.iput(dest.array[start:], source, far, near, right, count)
    dest.image[start:end:far] = sources[left][::near]
    pgas.barrier_all()
    dest.check()
    pgas.iget(back.array, dest.array[start:end], near, far, right)  # as many as fit
    back.image[::near] = sources[me][::near]
    back.check()


def test_a_matrix_is_transposed_on_a_stream(heap, me, right, left):
    """Each column, written by the kernel before, becomes a row at the neighbor."""
    rows, columns, rounds, stream = 7, 5, 3, cuda.stream()
    first = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    matrix, back = heap.array(first + 100 * me), heap.zeros((rows, columns), np.int32)
    turned = heap.zeros((rounds, columns, rows), np.int32)
    for turn in turned:
        increment[1, 64, stream](matrix.reshape(-1))
        for column in range(columns):
            pgas.iput(turn[column], matrix.reshape(-1)[column:], 1, columns, right, stream=stream)
    pgas.barrier_all(stream=stream)
    for column in range(columns):
        pgas.iget(back.reshape(-1)[column:], turned[rounds - 1, column], np.uint8(columns), np.int64(1), right, stream=stream)
    pgas.synchronize(stream)
    equal(turned, np.stack([first.T + 100 * left + 1 + i for i in range(rounds)]))
    equal(back, first + 100 * me + rounds)


@needs_any_memory
def test_local_operands_are_any_memory(heap, me, right, left):
    dest, back = heap.zeros((4, 50), np.float32), cuda.device_array((4, 50), np.float32)
    pgas.put(dest, cuda.to_device(np.full((4, 50), me, np.float32)), right)
    pgas.barrier_all()
    pgas.get(back, dest, right)
    equal(back, np.full((4, 50), me, np.float32))
    equal(dest, np.full((4, 50), left, np.float32))
    row, few = heap.zeros(9, np.float32), cuda.to_device(np.zeros(9, np.float32))
    pgas.iput(row, cuda.to_device(np.full(5, me, np.float32)), 2, 1, right)
    pgas.barrier_all()
    pgas.iget(few, row, 1, 2, right)
    equal(row, np.array([left, 0] * 4 + [left], np.float32))
    equal(few, np.array([me] * 5 + [0] * 4, np.float32))


def test_streams_of_all_libraries(heap, me, right, left):
    streams, wait_for = streams_of_all_kinds()
    dest, source = heap.zeros((len(streams), 100), np.int32), heap.array(np.arange(100, dtype=np.int32) + 1000 * me)
    sums = heap.zeros(len(streams), np.uint64)
    for row, stream in enumerate(streams):
        for turn in range(1, 4):  # repeated calls are bound
            pgas.put(dest[row], source, right, stream=stream)
            pgas.signal_op(sums, row, turn, pgas.SIGNAL_ADD, right, stream=stream)
            pgas.quiet(stream=stream)
        pgas.synchronize(stream)
    pgas.synchronize(wait_for)
    equal(dest, np.tile(np.arange(100, dtype=np.int32) + 1000 * left, (len(streams), 1)))
    equal(sums, np.full(len(streams), 6, np.uint64))


def test_kernels_on_streams_of_all_libraries(heap):
    streams, _ = streams_of_all_kinds()
    counters = heap.zeros(len(streams), np.int32)
    for i, stream in enumerate(streams):
        add[1, 32, stream](counters[i : i + 1])
        add[1, 32, stream].bind(counters[i : i + 1])()
        pgas.launch(add, 1, 32, (counters[i : i + 1],), stream=stream)
    equal(counters, np.full(len(streams), 96, np.int32))


@pgas.jit
def add(counter):
    cuda.atomic.add(counter, 0, 1)


@pgas.jit
def increment(array):
    i = cuda.grid(1)
    if i < array.size:
        array[i] += 1


def test_a_stream_keeps_the_order_of_kernels_and_operations(heap, n, right, left):
    """Each put copies what the kernel before it wrote, and its signal announces that."""
    stream, rounds, size = cuda.stream(), 5, 20_000
    source, dest, sig = heap.zeros(size, np.int32), heap.zeros((rounds, size), np.int32), heap.zeros(2, np.uint64)
    for i in range(rounds):
        increment[-(-size // 256), 256, stream](source)
        pgas.put_signal(dest[i], source, sig, 1, 1, pgas.SIGNAL_ADD, right, stream=stream)
    pgas.wait_until(sig, 1, pgas.GE, rounds, stream=stream)
    pgas.synchronize(stream)
    everywhere(None if (dest.copy_to_host() == np.arange(1, rounds + 1)[:, None]).all() else f"from PE {left} of {n}")


# ------------------------------------------------------------------------------------------- signals, elements, atomics, order


def test_signals(heap, me, n, right, left):
    sig, dest, source = heap.zeros((2, 3), np.uint64), heap.zeros(10, np.int16), heap.full(10, me, np.int16)
    pgas.put_signal(dest, source, sig, (0, 1), 5, pgas.SIGNAL_SET, right)
    found = pgas.signal_wait_until(sig, (0, 1), pgas.EQ, 5)
    everywhere(None if found == 5 and (dest.copy_to_host() == left).all() else f"{found}, {dest}")
    pgas.signal_op(sig, (1, 2), 2 + me, pgas.SIGNAL_ADD, 0, stream=0)
    pgas.put_signal_nbi(dest, source, sig, (1, 0), 1, pgas.SIGNAL_ADD, right)
    pgas.barrier_all()
    expected = np.array([[0, 5, 0], [1, 0, 2 * n + n * (n - 1) // 2 if me == 0 else 0]], np.uint64)
    equal(sig, expected)


def test_bound_calls(heap, me, n, right, left):
    """Each performs what the call does; they share the checks of the call, and notice what has ended."""
    stream, world = cuda.stream(), pgas.TEAM_WORLD
    source, dest, sig = heap.array(np.full(1000, me)), heap.array(np.zeros(1000, np.int64)), heap.array(np.zeros(1, np.uint64))
    put, reduce = pgas.put.bind(dest, source, right, stream=stream), pgas.reduce.bind(world, dest, source, pgas.SUM, stream=stream)
    meet, add = pgas.barrier_all.bind(stream=stream), pgas.signal_op.bind(sig, 0, 1, pgas.SIGNAL_ADD, right, stream=stream)
    assert sig.copy_to_host()[0] == 0  # bind performs nothing
    for turn in range(3):
        source[:] = np.full(1000, 10 * turn + me)
        pgas.barrier_all()
        for bound, result in ((put, 10 * turn + left), (reduce, 10 * turn * n + sum(range(n)))):
            bound()
            meet()
            pgas.synchronize(stream)
            assert (dest.copy_to_host() == result).all()
            pgas.barrier_all()
        add()
    meet()
    pgas.synchronize(stream)
    assert sig.copy_to_host()[0] == 3
    assert "pgas.put.bind: stream= is missing" in raised(TypeError, pgas.put.bind, dest, source, right)
    with pytest.raises(TypeError, match="stream must be 0 or a stream of Numba"):
        pgas.put.bind(dest, source, right, stream="x")
    assert "pgas.put: pe must be" in raised(ValueError, pgas.put.bind, dest, source, n, stream=stream)
    assert "pgas.g.bind: the call returns a value" in raised(TypeError, pgas.g.bind, dest, 0, right, stream=stream)
    assert "pgas.put_block.bind: the host cannot call" in raised(TypeError, pgas.put_block.bind, dest, source, right, stream=stream)
    gone = pgas.zeros(8, np.int64)
    of_freed = pgas.put.bind(gone, gone, right, stream=stream)
    pgas.free(gone)
    assert raised(pgas.HeapError, of_freed) == "pgas.put: an array of this bound call was freed"
    team = pgas.team_create(list(range(n)))
    of_team = pgas.team_sync.bind(team, stream=stream)
    pgas.team_destroy(team)
    assert "has ended" in raised(pgas.PgasError, of_team)


def test_bound_after_the_same_call(heap, n):
    """Calls are remembered; a bind of the same objects performs nothing, and each of several binds performs the call."""
    stream, world = cuda.stream(), pgas.TEAM_WORLD
    source, dest = heap.array(np.ones(8, np.int64)), heap.array(np.zeros(8, np.int64))
    for calls in (1, 2, 0):
        for _ in range(calls):
            pgas.reduce(world, dest, source, pgas.SUM, stream=stream)
        pgas.synchronize(stream)
        dest[:] = np.zeros(8, np.int64)
        pgas.barrier_all()
        for bound in [pgas.reduce.bind(world, dest, source, pgas.SUM, stream=stream) for _ in range(2)]:
            pgas.synchronize(stream)
            assert not dest.copy_to_host().any()
            pgas.barrier_all()
            bound()
            pgas.synchronize(stream)
            assert (dest.copy_to_host() == n).all()
            dest[:] = np.zeros(8, np.int64)
            pgas.barrier_all()


def test_bound_calls_keep_their_operands(heap, n, right):
    """A local operand that the program drops, and a team given by its number."""
    stream, dest = cuda.stream(), heap.array(np.zeros(1000, np.int64))
    if pgas.SIMULATOR and pgas.info()["transport"] == "p2p":  # where the host writes to local memory of any kind
        put = pgas.put.bind(dest, np.full(1000, 7), right, stream=stream)
        others = [np.full(1000, 9) for _ in range(50)]
        put()
        pgas.synchronize(stream)
        pgas.barrier_all()
        assert (dest.copy_to_host() == 7).all()
        assert len(others) == 50
    team = pgas.team_create(list(range(n)))
    meet = pgas.team_sync.bind(int(team), stream=stream)
    pgas.team_destroy(team)
    again = pgas.team_create(list(range(n)))
    assert int(again) == int(team)
    assert "has ended" in raised(pgas.PgasError, meet)
    pgas.team_destroy(again)


@pytest.mark.parametrize("given", [True, False], ids=["stream", "none"])
def test_repeated_calls(heap, me, n, right, left, given):
    """A call with the same arguments as before does the same; other arrays, freed arrays and destroyed teams are noticed."""
    on, world = {"stream": cuda.stream()} if given else {}, pgas.TEAM_WORLD
    source, dest = heap.array(np.zeros(100, np.int64)), heap.array(np.zeros(100, np.int64))
    for turn in range(4):
        source[:] = np.full(100, 10 * turn + me)
        pgas.barrier_all()
        pgas.put(dest, source, right, **on)
        pgas.barrier_all(**on)
        pgas.synchronize(on.get("stream"))
        assert (dest.copy_to_host() == 10 * turn + left).all()
        pgas.reduce(world, dest, source, pgas.MAX, **on)
        pgas.synchronize(on.get("stream"))
        assert (dest.copy_to_host() == 10 * turn + n - 1).all()
        pgas.barrier_all()
        pgas.reduce(world, source=source, dest=dest, op=pgas.MIN, **on)
        pgas.synchronize(on.get("stream"))
        assert (dest.copy_to_host() == 10 * turn).all()
        pgas.barrier_all()
        pgas.reduce(world, dest=source, source=dest, op=pgas.MIN, **on)  # the same objects under other names
        pgas.synchronize(on.get("stream"))
        assert (source.copy_to_host() == 10 * turn).all()
        source[:] = np.full(100, 10 * turn + me)
        pgas.put(dest[turn:], source[:1], me, **on)  # new views, often with the IDs of those before
        pgas.synchronize(on.get("stream"))
        assert dest.copy_to_host()[turn] == 10 * turn + me
        pgas.barrier_all()
    gone, team = pgas.zeros(100, np.int64), pgas.team_create(list(range(n)))
    for _ in range(3):
        pgas.put(gone, source, right, **on)
        pgas.team_sync(team, **on)
        pgas.team_sync(int(team), **on)  # a number, which may be another team's later
    pgas.barrier_all()
    pgas.free(gone)
    pgas.team_destroy(team)
    assert "pgas.put: dest: use after free" in raised(pgas.HeapError, pgas.put, gone, source, right, **on)
    for known in (team, int(team)):
        assert "pgas.team_sync: team" in raised(pgas.PgasError, pgas.team_sync, known, **on)


class Current(Wrapped):
    """A stream as torch.cuda.current_stream() returns it: another object each time."""


class Tensor:
    """An array as PyTorch describes it."""

    is_cuda = True

    def __init__(self, array, requires_grad=False):
        self.array, self.requires_grad = array, requires_grad
        self.shape, self.dtype = array.shape, "torch.int64"

    def data_ptr(self):
        return self.array.__cuda_array_interface__["data"][0]

    def stride(self):
        return tuple(step // 8 for step in self.array.strides)

    @property
    def __cuda_array_interface__(self):
        if self.requires_grad:
            raise RuntimeError("this tensor requires a gradient")
        return self.array.__cuda_array_interface__


def test_repeated_calls_with_arrays_of_other_libraries(heap, me, right, left):
    """A call is repeated if the arrays have the same addresses and shapes, though they and the stream are other objects each time.

    Nothing keeps them alive.
    """
    if pgas.info()["transport"] != "p2p":
        pytest.skip("a NIC must know the memory")
    runtime.current().repeated.clear()
    dest, local, other, stream = heap.zeros(64, np.int64), heap.zeros(64, np.int64), heap.full(64, -1, np.int64), cuda.stream()
    handle = 0 if pgas.SIMULATOR else int(stream.handle)
    for turn in range(5):
        local.copy_to_device(np.full(64, 10 * turn + me))
        pgas.barrier_all()
        tensor = Tensor(local)
        pgas.put(Tensor(dest), tensor, right, stream=Current("cuda_stream", handle))
        pgas.synchronize(stream)
        pgas.barrier_all()
        everywhere(None if (found := dest.copy_to_host()[0]) == 10 * turn + left else f"turn {turn}: {found}")
        gone = weakref.ref(tensor)
        del tensor
        everywhere(None if gone() is None else f"turn {turn}: a call keeps its tensor alive")
    kept = [call.bound is not None for call in runtime.current().repeated["put"].values()]
    everywhere(None if kept == [True] else f"five equal calls are kept as {kept}")
    pgas.put(Tensor(dest), Tensor(other), right, stream=stream)  # another address
    pgas.barrier_all(stream=stream)
    pgas.synchronize(stream)
    everywhere(None if (dest.copy_to_host() == -1).all() else "the array of an earlier call was sent")
    with pytest.raises(RuntimeError, match="requires a gradient"):
        pgas.put(Tensor(dest), Tensor(local, requires_grad=True), right, stream=stream)


def test_repeated_launches(heap, me, n, monkeypatch):
    """A launch like an earlier one takes one exchange, and prepares nothing; arguments, streams, and teams are noticed."""

    def add(total, source, value):
        total[0] += source[0] + value

    def exchanging(job, value, exchange=runtime.Job.exchange):
        done.append("exchange")
        return exchange(job, value)

    def preparing(launch, *args, prepare=BoundLaunch.__init__, **options):
        done.append("prepare")
        prepare(launch, *args, **options)

    done, streams = [], [cuda.stream(), cuda.stream()]
    total, sources = heap.zeros(1, np.int64), [heap.full(1, 10 * i, np.int64) for i in range(3)]
    for kernel in (pgas.jit(add), cuda.jit(add)):
        total[0] = 0
        pgas.barrier_all()
        pgas.launch(kernel, 1, 1, (total, sources[0], 1), streams[0])
        with monkeypatch.context() as patch:
            patch.setattr(runtime.Job, "exchange", exchanging)
            patch.setattr(BoundLaunch, "__init__", preparing)
            for i in range(3):
                pgas.launch(kernel, 1, 1, (total, sources[i], i + me), streams[0])
            everywhere(None if done == ["exchange"] * 3 else f"three launches did {done}")
            pgas.launch(kernel, 1, 1, (total, cuda.to_device(np.full(1, 5)), me), streams[0])  # other dtypes on the heap
            pgas.synchronize(streams[0])
            pgas.launch(kernel, (1, 1), [1], (total, sources[0], 1.0 if me else 1), streams[1])  # a new type on some PEs only
            pgas.synchronize(streams[1])
        everywhere(None if (found := int(total[0])) == 40 + 4 * me else f"the sum is {found}")
        done.clear()
    if me == 0:
        assert "takes 3 arguments" in raised(TypeError, pgas.launch, kernel, 1, 1, (total, 1), streams[0])
    else:
        assert "PE 0 failed in pgas.launch(add): TypeError" in raised(
            ValueError, pgas.launch, kernel, 1, 1, (total, sources[0], 1), streams[0]
        )
    gone, team = pgas.zeros(1, np.int64), pgas.team_create(list(range(n)))
    of_team = pgas.jit(lambda total, team: None)
    for array, number in ((total, team), (total, pgas.TEAM_WORLD), (gone, team)):
        pgas.launch(of_team, 1, 1, (array, number))
    pgas.synchronize()
    pgas.free(gone)
    pgas.team_destroy(team)
    assert "use after free" in raised(pgas.HeapError, pgas.launch, of_team, 1, 1, (gone, pgas.TEAM_WORLD))
    assert "was destroyed" in raised(pgas.PgasError, pgas.launch, of_team, 1, 1, (total, team))


@pytest.mark.parametrize("given", [True, False], ids=["stream", "none"])
def test_repeated_calls_with_other_values(heap, me, right, left, given):
    """A value may differ from call to call; each is sent, and a value that the element cannot hold is refused every time."""
    on, sig = {"stream": cuda.stream()} if given else {}, heap.zeros(2, np.uint64)
    # Several blocks put these over p2p, so that the signal is a second launch.
    source, dest = heap.full(40_000, me, np.int64), heap.zeros(40_000, np.int64)
    words, numbers, bits = heap.zeros(2, np.int32), heap.zeros(2, np.float32), heap.zeros(2, np.float16)
    small = [heap.zeros(1, name) for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn", "bool")]
    for turn in range(1, 6):
        pgas.put_signal(dest[:8], source[:8], sig, 0, turn, pgas.SIGNAL_SET, right, **on)
        pgas.put_signal(dest, source, sig, 0, 100 * turn, pgas.SIGNAL_ADD, right, **on)
        pgas.signal_op(sig, 1, turn, pgas.SIGNAL_ADD, right, **on)
        pgas.p(words, 0, -turn, right, **on)
        pgas.p(words, idx=1, value=turn, pe=right, **on)
        pgas.p(numbers, 0, turn + 0.5, right, **on)
        pgas.atomic_add(numbers, 1, turn, right, **on)
        pgas.p(bits, 0, turn, right, **on)
        for array in small:
            pgas.p(array, 0, turn % 2 if array.dtype == bool else float(turn), right, **on)
        pgas.barrier_all(**on)
        pgas.wait_until(words, 0, pgas.EQ, -turn, **on)
        pgas.synchronize(on.get("stream"))
        total = turn * (turn + 1) // 2
        found = [array.copy_to_host().tolist() for array in (sig, words, numbers, bits)]
        everywhere(None if found == [[101 * turn, total], [-turn, turn], [turn + 0.5, total], [turn, 0]] else f"turn {turn}: {found}")
        narrow = [float(array.copy_to_host()[0]) for array in small]
        everywhere(None if narrow == [turn, turn, turn, turn % 2] else f"turn {turn}: {narrow}")
        for array, value in ((words, 2**31), (words, -(2**31) - 1), (sig, -1), (sig, 2**64), (words, "one")):
            name, function = ("signal_op", pgas.signal_op) if array is sig else ("p", pgas.p)
            args = (array, 0, value, pgas.SIGNAL_SET, right) if array is sig else (array, 0, value, right)
            with pytest.raises((TypeError, ValueError), match=rf"^pgas\.{name}: value (must be|is of type str)"):
                function(*args, **on)
    pgas.signal_op(sig, 1, 2**64 - 1, pgas.SIGNAL_SET, right, **on)
    pgas.barrier_all(**on)
    pgas.synchronize(on.get("stream"))
    equal(sig, np.array([505, 2**64 - 1], np.uint64))


@pytest.mark.parametrize("dtype", [*INTEGERS, np.dtype(np.float32), np.dtype(np.float64)], ids=name_of)
def test_elements_and_atomics(heap, me, n, right, left, dtype):
    cells = heap.zeros((2, n), dtype)
    pgas.p(cells, (0, me), 10 + me, right)
    pgas.barrier_all()
    everywhere(None if pgas.g(cells, (0, left), me) == 10 + left else f"{cells}")
    before = pgas.atomic_fetch_add(cells, (1, 0), 3, 0)
    assert before.dtype == dtype
    pgas.atomic_add(cells, (1, 0), 4, 0)
    pgas.barrier_all()
    olds = sorted(float(old) for old in pgas.allgather_object(float(before)))
    everywhere(None if olds[0] >= 0 and len(set(olds)) == n and float(pgas.g(cells, (1, 0), 0)) == 7 * n else f"{olds}, {cells}")


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_other_atomics(heap, me, n, right, left, dtype):
    """Each PE uses its own element at its neighbor."""
    cells = heap.full(n, 6, dtype)
    found = [
        pgas.atomic_fetch(cells, me, right),
        pgas.atomic_compare_swap(cells, me, 6, 12, right),
        pgas.atomic_swap(cells, me, 9, right, stream=0),
        pgas.atomic_fetch_inc(cells, me, right),
        pgas.atomic_fetch_or(cells, me, 5, right),
        pgas.atomic_fetch_xor(cells, me, 3, right),
    ]
    pgas.atomic_and(cells, me, 4, right)
    pgas.barrier_all()
    expected = np.full(n, 6, dtype)
    expected[left] = 4
    equal(cells, expected)
    everywhere(None if [int(v) for v in found] == [6, 6, 12, 9, 10, 15] else f"{found}")


@pytest.mark.parametrize("stream", [None, 0, "a stream"])
def test_barriers_and_quiet(heap, me, n, stream):
    """Puts before a barrier are complete after it."""
    stream = cuda.stream() if stream == "a stream" else stream
    seen, table = [], heap.zeros(n, np.int32)
    for i in range(3):
        for pe in range(n):
            pgas.p(table, me, 1 + i, pe, stream=stream)
        pgas.quiet(stream=stream)
        pgas.barrier_all(stream=stream)
        pgas.synchronize(stream)
        seen.append(table.copy_to_host().min())
        pgas.sync_all(stream=stream)
        pgas.synchronize(stream)
    pgas.fence(stream=stream)
    everywhere(None if seen == [1, 2, 3] else f"{seen}")


@pytest.mark.parametrize("on_stream", [False, True], ids=["at once", "on a stream"])
def test_waits_and_tests_of_several_elements(heap, right, on_stream):
    """The left neighbor sets the flags; all forms, with a status and without."""
    given = {"stream": cuda.stream()} if on_stream else {}
    flags, values, indices = heap.zeros(5, np.int32), heap.array(np.array([1, 2, 3, 0, 5])), heap.zeros(5, np.int64)
    status = heap.array(np.array([0, 1, 0, 1, 0], np.int32))
    found = [
        pgas.test(flags, 3, pgas.EQ, 0, **given),
        pgas.test(flags, 3, pgas.NE, 0, **given),
        pgas.test_all(flags, None, pgas.EQ, 0, **given),
        pgas.test_any(flags, status, pgas.NE, 0, **given),
        pgas.test_all_vector(flags, status, pgas.EQ, values, **given),
        pgas.wait_until_any(flags, None, pgas.EQ, 1, nelems=0, **given),
    ]
    pgas.barrier_all()
    for i in (4, 2, 0):
        pgas.p(flags, i, i + 1, right, **given)
    pgas.wait_until_all(flags, status, pgas.GT, 0, **given)
    pgas.wait_until_all_vector(flags, status, pgas.EQ, values, **given)
    found += [
        pgas.wait_until_any(flags, None, pgas.EQ, 3, **given),
        pgas.wait_until_any_vector(flags, status, pgas.NE, heap.array(np.array([1, 9, 9, 9, 5])), **given),
        pgas.wait_until_some(flags, indices, None, pgas.GT, 0, **given),
        indices[:3].copy_to_host().tolist(),
        pgas.wait_until_some_vector(flags, indices, None, pgas.EQ, values, 3, **given),
        pgas.test_any_vector(flags, status, pgas.NE, values, **given),
        pgas.test_some(flags, indices, status, pgas.GE, 3, **given),
        pgas.test_some_vector(flags, indices, status, pgas.LT, values, **given),
        indices.copy_to_host()[:2].tolist(),
    ]
    expected = [True, False, True, -1, False, -1, 2, 2, 3, [0, 2, 4], 2, -1, 2, 0, [2, 4]]
    kinds = [type(value) for value in found] == [type(value) for value in expected]
    everywhere(None if found == expected and kinds else f"{found}")
    pgas.barrier_all()


# ---------------------------------------------------------------------------------------------------------------- refusals


def test_refusals(heap, n):
    dest, source, short, sig = heap.zeros(10), heap.zeros(10), heap.zeros(9, np.float32), heap.zeros(4, np.uint64)
    texts = [
        raised(ValueError, pgas.put, dest, source, n),
        raised(ValueError, pgas.put, dest, source, 0, 11),
        raised(ValueError, pgas.put, dest[::2], source[:5], 0),
        raised(ValueError, pgas.put, cuda.device_array(10), source, 0),
        raised(ValueError, pgas.get, source, cuda.device_array(10), 0),
        raised(TypeError, pgas.put, dest, short, 0),
        raised(TypeError, pgas.put, dest, source.reshape(5, 2), 0),
        raised(TypeError, pgas.get, dest.reshape(5, 2), source.reshape(2, 5).T, 0),
        raised(TypeError, pgas.put, dest, [1.0, 2.0], 0),
        raised(TypeError, pgas.put, dest, source, 0, stream="fast"),
        raised(TypeError, pgas.put_block, dest, source, 0),
        raised(ValueError, pgas.p, dest, 10, 1, 0),
        raised(ValueError, pgas.atomic_add, dest, (0, 0), 1, 0),
        raised(TypeError, pgas.p, dest, 1),
        raised(ValueError, pgas.signal_op, sig, 0, 1, 9, 0),
        raised(ValueError, pgas.signal_wait_until, sig, 0, 77, 1),
        raised(ValueError, pgas.iput, dest, source, 0, 1, 0),
        raised(ValueError, pgas.iget, dest, source, 2, 1.5, 0),
        raised(ValueError, pgas.iput, dest, source, 3, 1, 0, 5),
        raised(ValueError, pgas.iget, dest, source, 1, 1, n),
        raised(TypeError, pgas.iput, dest, short, 1, 1, 0),
        raised(TypeError, pgas.iget, dest.reshape(2, 5), source.reshape(2, 5), 1, 1, 0),
        raised(ValueError, pgas.iput, dest[::2], source, 1, 1, 0),
        raised(ValueError, pgas.iput, cuda.device_array(10), source, 1, 1, 0),
        raised(ValueError, pgas.iget, dest, cuda.device_array(10), 1, 1, 0),
        raised(TypeError, pgas.iput_warp, dest, source, 1, 1, 0),
        raised(TypeError, pgas.set_lock, short, 0),
        raised(ValueError, pgas.clear_lock, sig, 4),
        raised(TypeError, pgas.test_all, dest, None, pgas.EQ, 0),
        raised(ValueError, pgas.wait_until_any, sig, sig[1:], pgas.EQ, 0),
        raised(ValueError, pgas.wait_until_all, sig, None, pgas.EQ, -1),
        raised(TypeError, pgas.test_all_vector, sig, None, pgas.EQ, dest),
        raised(TypeError, pgas.test_any, sig.reshape(2, 2), None, pgas.EQ, 0),
        raised(ValueError, pgas.test_some, sig, sig, None, 6, 0, 4),
        raised(ValueError, pgas.put, dest, source, 0, 4.0),
        raised(ValueError, pgas.get, dest, source, 0, -1),
        raised(ValueError, pgas.put, dest[2:6], dest[:4], pgas.my_pe()),
        raised(TypeError, pgas.put_signal, dest, source, sig, 0, pgas.SIGNAL_SET, 1, 0),
    ]
    expected = (
        "pe must be an integer", "11 elements wanted, dest has 10", "dest must be contiguous", "dest must be on the symmetric heap",
        "source must be on the symmetric heap",
        "pgas.put: source has elements of type float32, dest of type float64; they must be the same",
        "pgas.put: source has 2 dimensions, dest has 1 dimension; they must have the same number",
        "pgas.get: source is in F order, dest in C order; they must be the same", "source must be an array", "stream must be 0 or",
        "device function", "idx must be a subscript", "idx must be a subscript", "missing a required argument",
        "op must be one of", "cmp must be one of",
        "pgas.iput: dst_stride must be an integer of 1 or more, not 0", "pgas.iget: src_stride must be an integer of 1 or more, not 1.5",
        "pgas.iput: 5 elements wanted, dest has 4 and source 10", "pe must be an integer", "source has elements of type float32",
        "pgas.iget: dest and source have 2 dimensions, but must have 1", "dest must be contiguous", "dest must be on the symmetric heap",
        "source must be on the symmetric heap", "device function",
        "pgas.set_lock: lock has elements of type float32; they must be int64 or uint64", "idx must be a subscript of lock",
        "pgas.test_all: ivars has elements of type float64", "pgas.wait_until_any: 4 elements wanted, but status has 3",
        "value must be from 0", "pgas.test_all_vector: values must be an array of integers with 1 dimension, not one of float64",
        "pgas.test_any: ivars has 2 dimensions", "cmp must be one of",
        "pgas.put: nelems must be an integer of 0 or more, not 4.0", "pgas.get: nelems must be an integer of 0 or more, not -1",
        "pgas.put: dest and source overlap on this PE", "pgas.put_signal: value must be a number, not",
    )  # fmt: skip
    faults = [f"{found!r} for {wanted!r}" for found, wanted in zip(texts, expected, strict=True) if wanted not in found]
    everywhere("; ".join(faults))
    pgas.barrier_all()  # the job is still usable


def test_freed_operands(heap):
    dest, source = heap.zeros(10), pgas.zeros(10)
    pgas.free(source)
    everywhere(None if "use after free" in raised(pgas.HeapError, pgas.put, dest, source, 0) else "another error")


# ------------------------------------------------------------------------------------------------------------------- graphs


class Captured:
    """Captures the calls on a stream in a with block as a graph, by driver calls, as PyTorch and CuPy do."""

    def __init__(self, stream):
        from cuda.bindings import driver

        self._driver, self._stream = driver, driver.CUstream(int(stream.handle))
        self.graph = None

    def _call(self, function, *args):
        status, *values = function(*args)
        assert status == self._driver.CUresult.CUDA_SUCCESS, (function.__name__, status)
        return values[0] if values else None

    def __enter__(self):
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        self._call(self._driver.cuStreamBeginCapture, self._stream, mode)
        return self

    def __exit__(self, kind, error, traceback):
        status, graph = self._driver.cuStreamEndCapture(self._stream)
        if kind is None:
            assert status == self._driver.CUresult.CUDA_SUCCESS, status
            self.graph = self._call(self._driver.cuGraphInstantiate, graph, 0)

    def launch(self):
        self._call(self._driver.cuGraphLaunch, self.graph, self._stream)


@pgas.jit
def put_and_signal(dest, source, sig, pe):
    pgas.put_signal_block(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, pe)


@pgas.jit
def add_up(total, array):
    i = cuda.grid(1)
    if i < array.size:
        total[i] += array[i]


@pytest.mark.gpu
@pytest.mark.parametrize("bound", [False, True], ids=["launched", "bound"])
def test_a_graph_of_kernels_that_communicate(heap, right, bound):
    """Captured before any kernel is loaded; every replay puts the values that the previous one incremented."""
    stream, rounds, size = cuda.stream(), 20, 3000
    source, dest, total, sig = heap.zeros(size, np.int32), heap.zeros(size, np.int32), heap.zeros(size, np.int32), heap.zeros(1, np.uint64)
    blocks = -(-size // 256)
    with Captured(stream) as captured:
        increment[blocks, 256, stream](source)
        launch = put_and_signal[1, 128, stream]
        if bound:
            launch.bind(dest, source, sig, right)()
        else:
            launch(dest, source, sig, right)
        pgas.barrier_all(stream=stream)
        add_up[blocks, 256, stream](total, dest)
        pgas.barrier_all(stream=stream)
    for _ in range(rounds):
        captured.launch()
    pgas.synchronize(stream)
    equal(total, np.full(size, rounds * (rounds + 1) // 2, np.int32))
    equal(sig, np.array([rounds], np.uint64))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_graph_of_stream_operations(heap, me, n, right, left, size):
    stream, rounds = cuda.stream(), 10
    source, dest, back = heap.full(size, me, np.float32), heap.zeros(size, np.float32), heap.zeros(size, np.float32)
    sig, count = heap.zeros(2, np.uint64), heap.zeros(1, np.int64)
    few, apart = heap.zeros(size // 4, np.float32), heap.zeros(30, np.float32)
    with Captured(stream) as captured:
        increment[-(-size // 256), 256, stream](source)
        pgas.put_signal(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, right, stream=stream)
        pgas.atomic_add(count, 0, 1, 0, stream=stream)
        pgas.barrier_all(stream=stream)
        pgas.get(back, dest, right, stream=stream)
        pgas.iget(few, dest, 1, 4, right, stream=stream)
        pgas.iput(apart, source, 3, 2, right, 10, stream=stream)
        pgas.wait_until(sig, 0, pgas.GE, 1, stream=stream)
        pgas.wait_until_all(sig, None, pgas.GE, 1, 1, stream=stream)
        pgas.barrier_all(stream=stream)
    for _ in range(rounds):
        captured.launch()
    pgas.synchronize(stream)
    equal(dest, np.full(size, left + rounds, np.float32))
    equal(back, np.full(size, me + rounds, np.float32))
    equal(few, np.full(size // 4, me + rounds, np.float32))
    equal(apart, np.array([left + rounds, 0, 0] * 10, np.float32))
    equal(count, np.array([rounds * n if me == 0 else 0]))


@pytest.mark.gpu
def test_calls_that_wait_are_not_captured(heap):
    cells, stream = heap.zeros(4, np.int64), cuda.stream()
    with Captured(stream):
        texts = [
            raised(pgas.PgasError, pgas.g, cells, 0, 0, stream=stream),
            raised(pgas.PgasError, pgas.atomic_fetch_add, cells, 0, 1, 0, stream=stream),
            raised(pgas.PgasError, pgas.test_any, cells, None, pgas.EQ, 0, stream=stream),
            raised(pgas.PgasError, pgas.synchronize, stream),
        ]
    everywhere(None if all("captured" in text for text in texts) else texts)
    pgas.barrier_all()
