"""Chapter A, starting and ending jobs inside one process. These tests come last and begin without a job."""

import inspect
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import pgas
from mpi.checks import LAUNCHED, THROUGH_NIC, TRANSPORT, N, difference, everywhere, needs_peer
from mpi.conftest import end_job, is_running

needs_checks = pytest.mark.skipif(
    not pgas.SIMULATOR and "check" not in os.environ.get("PGAS_DEBUG", ""), reason="capability missing: PGAS_DEBUG=check on a GPU"
)


def window_mappings():
    """This process's mappings of window and state page (in the simulator; a GPU's are not in this file)."""
    maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace") if pgas.SIMULATOR else ""
    return [line for line in maps.splitlines() if line.startswith(("5ff", "60")) and len(line.split("-")[0]) == 12]


@pytest.fixture(scope="module", autouse=True)
def apart():
    """End the job of the other chapters; return a communicator on which the processes meet between the tests of this one."""
    if is_running():
        end_job()
    if not LAUNCHED:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


@pytest.fixture(autouse=True)
def in_step(request, apart):
    """Each test ends its own job, on every PE; after one that did not, there can be no other job."""
    yield
    lasting = is_running(), len(window_mappings())
    lasting = [lasting] if apart is None else apart.allgather(lasting)
    if any(running or mappings for running, mappings in lasting):
        pytest.exit(f"{request.node.nodeid} left something behind: (running, mappings) by PE: {lasting}", returncode=1)


@pytest.fixture
def mpi():
    """mpi4py, under mpirun."""
    if not LAUNCHED:
        pytest.skip("capability missing: mpirun")
    from mpi4py import MPI

    return MPI


@pgas.jit
def send(dest, value, pe):
    pgas.p(dest, cuda.threadIdx.x, value + cuda.threadIdx.x, pe)


@pgas.jit
def wait_forever(flag):
    pgas.wait_until(flag, 2, pgas.EQ, 7)


def ring_works(seed=0):
    """Everybody sends to the right."""
    me, n = pgas.my_pe(), pgas.n_pes()
    dest = pgas.zeros(5, np.int64)
    send[1, 5](dest, 100 * me + seed, (me + 1) % n)
    pgas.barrier_all()
    everywhere(difference(dest, 100 * ((me - 1) % n) + seed + np.arange(5)))
    pgas.free(dest)


# ---------------------------------------------------------------------------------------------------------------- init, finalize


def test_pes_are_numbered_from_zero():
    with pgas.init():
        assert pgas.n_pes() == N
        assert pgas.allgather_object(pgas.my_pe()) == list(range(N))
        assert type(pgas.my_pe()) is int
        ring_works()


def test_pes_are_numbered_as_mpi_does(mpi):
    with pgas.init():
        assert (pgas.my_pe(), pgas.n_pes()) == (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size)


def test_init_may_be_nested():
    job = pgas.init()
    assert pgas.init() is job
    with pgas.init():
        ring_works(1)
    pgas.finalize()
    ring_works(2)
    pgas.finalize()
    assert not is_running()


def test_init_after_finalize():
    for i in range(4):
        pgas.init()
        ring_works(i)
        pgas.finalize()


def test_a_heap_of_another_size(monkeypatch):
    for size in ("64M", "1.5G", "4k"):
        monkeypatch.setenv("PGAS_SYMMETRIC_SIZE", size)
        with pgas.init():
            if size == "64M":
                with pytest.raises(pgas.HeapError, match="exhausted"):
                    pgas.empty(65 << 20, np.uint8)
            ring_works()


def test_nothing_stays_open_or_mapped():
    """File descriptors and mappings of the heap, over several jobs."""

    def held():
        return len(list(Path("/proc/self/fd").iterdir())), window_mappings()

    with pgas.init():
        ring_works()
    before = held()
    for _ in range(3):
        with pgas.init():
            ring_works()
    assert held() == before


def test_calls_without_a_job():
    array = np.zeros(3)
    for call in (
        pgas.my_pe, pgas.n_pes, pgas.barrier_all, pgas.synchronize, pgas.finalize, lambda: pgas.empty(3), lambda: pgas.zeros(3),
        lambda: pgas.full(3, 1), lambda: pgas.array([1]), lambda: pgas.free(array), lambda: pgas.ptr(array, 0), pgas.info,
        lambda: pgas.allgather_object(1), lambda: pgas.broadcast_object(1), lambda: send[1, 1](array, 0, 0),
        lambda: send[1, 1].bind(array, 0, 0), lambda: pgas.launch(send, 1, 1, (array, 0, 0)),
    ):  # fmt: skip
        with pytest.raises(pgas.PgasError, match=r"pgas.init\(\) has not been called"):
            call()


def test_arrays_after_finalize_are_refused():
    pgas.init()
    array = pgas.zeros(4)
    view = array[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgas.PgasWarning)
        pgas.finalize()
    for use in (array.copy_to_host, view.copy_to_host, lambda: array[0], lambda: array.__cuda_array_interface__):
        with pytest.raises(pgas.HeapError, match="use after free: float64 array of shape"):
            use()
    with pgas.init():
        with pytest.raises(pgas.HeapError, match="use after free"):
            send[1, 1](array, 0, 0)
        ring_works()


def test_leaks_are_reported_with_the_line_that_allocated():
    pgas.init()
    line = inspect.currentframe().f_lineno + 1
    leaked = [pgas.zeros((2, 3), np.int16), pgas.empty(5)]
    kept = pgas.full(3, 1.0)
    pgas.free(kept)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        me = pgas.my_pe()
        pgas.finalize()
    texts = [str(w.message) for w in caught if issubclass(w.category, pgas.PgasWarning)]
    assert len(leaked) == 2
    if me == 0:
        (text,) = texts
        assert "2 symmetric array(s) never freed" in text
        assert f"int16 array of shape (2, 3) allocated at {__file__}:{line} (12 bytes)" in text
        assert f"float64 array of shape (5,) allocated at {__file__}:{line} (40 bytes)" in text
    else:
        assert not texts


def test_a_clean_job_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pgas.init():
            ring_works()


def test_leaks_when_warnings_are_errors():
    """The warning is raised on PE 0, after everybody has ended."""
    pgas.init()
    me, leaked = pgas.my_pe(), pgas.zeros(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if me == 0:
            with pytest.raises(pgas.PgasWarning, match="never freed"):
                pgas.finalize()
        else:
            pgas.finalize()
    assert not is_running()
    with pytest.raises(pgas.HeapError):
        leaked.copy_to_host()
    with pgas.init():
        ring_works()


# ------------------------------------------------------------------------------------------------------------------ context manager


def test_context_manager_finalizes():
    with pgas.init() as job:
        assert (job.my_pe, job.n_pes) == (pgas.my_pe(), pgas.n_pes())
        ring_works()
    assert not is_running()


def test_context_manager_leaves_an_exception_alone():
    """The job is the exception's, which ends it on every PE if nobody catches it; one who does may go on."""
    with pytest.raises(ZeroDivisionError), pgas.init():
        raise ZeroDivisionError
    assert is_running() == (N > 1)
    if is_running():
        ring_works()
        pgas.finalize()


# ------------------------------------------------------------------------------------------------------------------- communicators


def test_world_as_communicator(mpi):
    with pgas.init(mpi.COMM_WORLD):
        assert (pgas.my_pe(), pgas.n_pes()) == (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size)
        ring_works()


def test_order_of_a_communicator(mpi):
    """PEs are numbered by the communicator's ranks."""
    world = mpi.COMM_WORLD
    comm = world.Split(0, -world.rank)
    with pgas.init(comm):
        assert pgas.my_pe() == N - 1 - world.rank
        ring_works()
    comm.Free()


def test_sub_communicators(mpi):
    """Two jobs side by side, each with a heap of its own."""
    world = mpi.COMM_WORLD
    comm = world.Split(world.rank % 2, world.rank)
    with pgas.init(comm):
        assert (pgas.my_pe(), pgas.n_pes()) == (comm.rank, comm.size)
        marks = pgas.full(3, world.rank % 2)
        ring_works(world.rank % 2)
        assert pgas.allgather_object(world.rank % 2) == [world.rank % 2] * comm.size
        everywhere(difference(marks, np.full(3, world.rank % 2)))
        pgas.free(marks)
    comm.Free()


def test_communicator_of_one(mpi):
    with pgas.init(mpi.COMM_SELF):
        assert (pgas.my_pe(), pgas.n_pes()) == (0, 1)
        ring_works()


def test_nested_init_with_a_communicator(mpi):
    """That of the job's processes, in their order; others are refused."""
    world = mpi.COMM_WORLD
    same, turned = world.Dup(), world.Split(0, -world.rank)
    with pgas.init():
        with pgas.init(same):
            assert pgas.n_pes() == N
        if N > 1:
            for other in (turned, mpi.COMM_SELF):
                with pytest.raises(ValueError, match="a job of other processes is active"):
                    pgas.init(other)
        ring_works()
    same.Free()
    turned.Free()


def test_messages_of_the_user_do_not_meet_those_of_pgas(mpi):
    world = mpi.COMM_WORLD
    with pgas.init():
        receive = world.irecv(source=(world.rank - 1) % N, tag=0)
        pgas.barrier_all()
        world.send({"rank": world.rank}, dest=(world.rank + 1) % N, tag=0)
        ring_works()
        assert receive.wait() == {"rank": (world.rank - 1) % N}


@needs_peer
def test_intercommunicator_is_refused(mpi):
    world = mpi.COMM_WORLD
    half = world.Split(int(world.rank > 0), world.rank)
    inter = half.Create_intercomm(0, world, 1 if world.rank == 0 else 0)
    with pytest.raises(ValueError, match="intracommunicator"):
        pgas.init(inter)
    inter.Free()
    half.Free()
    with pgas.init():
        ring_works()


# ------------------------------------------------------------------------------------------------------------------- configuration


def works_afterwards():
    assert not is_running()
    with pgas.init():
        ring_works()


def test_another_configuration_is_refused(monkeypatch):
    """Compiled kernels contain the first one."""
    with pgas.init():
        pass
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_DEBUG", "" if "check" in os.environ.get("PGAS_DEBUG", "") else "check")
        with pytest.raises(pgas.PgasError, match=r"another configuration .*check was (True|False), now (True|False)"):
            pgas.init()
    works_afterwards()


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("PGAS_SYMMETRIC_SIZE", "lots", "is not a size"),
        ("PGAS_SYMMETRIC_SIZE", "0", "at least 1 byte"),
        ("PGAS_TIMEOUT", "-1", "more than 0"),
        ("PGAS_TIMEOUT", "soon", "number"),
        ("PGAS_TRANSPORT", "pigeon", "one of auto, p2p, ibgda, ibrc"),
        ("PGAS_DEBUG", "loud", "loud: not among"),
        pytest.param(
            "PGAS_SIM_WEAK", "-3", "a non-negative integer seed",
            marks=pytest.mark.skipif(not pgas.SIMULATOR, reason="capability missing: the simulator"),
        ),
    ],
)  # fmt: skip
def test_bad_values_of_variables(monkeypatch, name, value, wanted):
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        with pytest.raises(ValueError, match=f"^{name}={value}: .*{wanted}"):
            pgas.init()
    works_afterwards()


@pytest.mark.gpu
@pytest.mark.parametrize("transport", ["ibgda", "ibrc"])
def test_a_transport_that_is_not_there(monkeypatch, transport):
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_TRANSPORT", transport)
        with pytest.raises(pgas.TransportError, match=f"PGAS_TRANSPORT={transport}"):
            pgas.init()
    works_afterwards()


@pytest.mark.skipif(THROUGH_NIC, reason=f"refused: this process is compiled for {TRANSPORT}")
def test_p2p_by_name(monkeypatch):
    monkeypatch.setenv("PGAS_TRANSPORT", "p2p")
    with pgas.init():
        assert pgas.info()["transport"] == "p2p"
        ring_works()


def test_more_heap_than_memory(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_SYMMETRIC_SIZE", "100T")
        with pytest.raises(pgas.HeapError, match=r"PE 0: .*109951162777600") as caught:
            pgas.init()
    assert f"PE {N - 1}: " in str(caught.value)
    works_afterwards()


@needs_peer
def test_more_heap_than_memory_on_one_pe_only(monkeypatch, mpi):
    """Refused before that: PEs must be started alike."""
    with monkeypatch.context() as patch:
        if mpi.COMM_WORLD.rank == 1:
            patch.setenv("PGAS_SYMMETRIC_SIZE", "100T")
        with pytest.raises(pgas.BootstrapError, match=r"PEs differ in PGAS_SYMMETRIC_SIZE: PE 0 has \d+, PE 1 has 109951162777600"):
            pgas.init()
    works_afterwards()


@needs_peer
def test_pes_with_different_timeouts(monkeypatch, mpi):
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_TIMEOUT", "33" if mpi.COMM_WORLD.rank == 0 else "44")
        with pytest.raises(pgas.BootstrapError, match=r"PEs differ in PGAS_TIMEOUT: PE 0 has 33.0, PE 1 has 44.0"):
            pgas.init()
    works_afterwards()


def test_variables_that_nothing_reads(monkeypatch):
    monkeypatch.setenv("PGAS_SYMETRIC_SIZE", "1G")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pgas.init():
            me = pgas.my_pe()
    texts = [str(w.message) for w in caught]
    assert len(texts) == (1 if me == 0 else 0), texts
    assert all("PGAS_SYMETRIC_SIZE: misspelt?" in text for text in texts)


# -------------------------------------------------------------------------------------------------------------------------- queries


def test_info():
    with pgas.init():
        info = pgas.info()
        assert info["npes"] == N
        assert info["transport"] == (TRANSPORT if THROUGH_NIC else "p2p")
        assert info["versions"]["pgas"] == pgas.__version__
        assert (info["gpu"] is None) == pgas.SIMULATOR
        assert isinstance(info["machine"], str)
        same = pgas.allgather_object(info)
        assert all(other == info for other in same)


def test_exchange_of_objects():
    with pgas.init():
        me = pgas.my_pe()
        assert pgas.allgather_object({"pe": me, "data": [me] * 3}) == [{"pe": pe, "data": [pe] * 3} for pe in range(N)]
        big = bytes([me]) * (1 << 20)
        assert [len(b) for b in pgas.allgather_object(big)] == [1 << 20] * N
        for root in range(N):
            assert pgas.broadcast_object(f"from {me}", root) == f"from {root}"
        assert pgas.broadcast_object(("x", me)) == ("x", 0)
        with pytest.raises(ValueError, match=f"pe must be an integer from 0 to {N - 1}, not {N}"):
            pgas.broadcast_object(None, N)


# ----------------------------------------------------------------------------------------- errors of kernels: the job is over after one


@pgas.jit
def p_anywhere(dest, idx, pe):
    pgas.p(dest, idx, 1, pe)


@pgas.jit
def g_anywhere(dest, idx, pe):
    dest[0] = pgas.g(dest, idx, pe)


@pgas.jit
def add_anywhere(dest, idx, pe):
    pgas.atomic_fetch_add(dest, idx, 1, pe)


@pgas.jit
def put_any(dest, source, nelems, pe):
    pgas.put_block(dest, source, pe, nelems)


@pgas.jit
def get_any(dest, source, nelems, pe):
    pgas.get(dest, source, pe, nelems)


@pgas.jit
def put_all(dest, source, pe):
    pgas.put(dest, source, pe)


@pgas.jit
def signal_anywhere(sig, pe):
    pgas.signal_op(sig, 1, 1, pgas.SIGNAL_ADD, pe)


@pgas.jit
def wait_anywhere(flag, idx):
    pgas.wait_until(flag, idx, pgas.EQ, 0)


def device_error(kernel, *args):
    """The text of the error that the kernel leaves, which finalize tells again; all PEs make the same mistake."""

    def run():
        kernel[1, 1](*args)
        pgas.synchronize()

    with pytest.raises(pgas.DeviceError) as caught:
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(pgas.DeviceError):
            pgas.finalize()
    works_afterwards()
    return str(caught.value)


def test_a_wait_that_never_ends(monkeypatch):
    """Names PE, operation, element, what was awaited and what was there; the next job is sound."""
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_TIMEOUT", "0.3")
        pgas.init()
        me, flag = pgas.my_pe(), pgas.full(5, -3, np.int32)
        line = inspect.currentframe().f_lineno - 1
        text = device_error(wait_forever, flag)
    assert f"PE {me}, block 0, thread 0: wait_until waited 0.3 s (PGAS_TIMEOUT)" in text
    assert f"for element [2] of the int32 array of shape (5,) allocated at {__file__}:{line} == 7, last saw -3" in text


@pgas.jit
def wait_for_all(flags, status):
    pgas.wait_until_all(flags, status, pgas.LT, -3)


@pgas.jit
def wait_for_any(flags, status):
    pgas.wait_until_any(flags, status, pgas.LT, -3)


@pgas.jit
def wait_for_some(flags, status):
    pgas.wait_until_some_vector(flags, status, status, pgas.LT, flags)


@pytest.mark.parametrize("kernel", [wait_for_all, wait_for_any, wait_for_some], ids=["all", "any", "some_vector"])
def test_a_wait_for_several_that_never_ends(monkeypatch, kernel):
    """Names an element of the wait set: the only one."""
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_TIMEOUT", "0.3")
        pgas.init()
        flags, status = pgas.full(5, -3, np.int16), pgas.array(np.array([1, 1, 1, 0, 1], np.int32))
        text = device_error(kernel, flags, status)
    name = {"wait_for_all": "wait_until_all", "wait_for_any": "wait_until_any", "wait_for_some": "wait_until_some_vector"}[kernel.__name__]
    which = "" if kernel is wait_for_all else "one of its wait set, such as "
    assert f"thread 0: {name} waited 0.3 s (PGAS_TIMEOUT) for {which}element [3] of the int16 array of shape (5,)" in text
    assert "< -3, last saw -3" in text


@needs_checks
@pytest.mark.parametrize("pe", [-1, N, 1000])
@pytest.mark.parametrize("kernel", [p_anywhere, g_anywhere, add_anywhere], ids=["p", "g", "atomic_fetch_add"])
def test_a_pe_that_does_not_exist(kernel, pe):
    pgas.init()
    me = pgas.my_pe()
    text = device_error(kernel, pgas.zeros(3, np.int32), 1, pe)
    name = {"p_anywhere": "p", "g_anywhere": "g", "add_anywhere": "atomic_fetch_add"}[kernel.__name__]
    assert f"PE {me}, block 0, thread 0: {name}: PE {pe} does not exist" in text


@needs_checks
@pytest.mark.parametrize(
    ("kernel", "args", "name"), [(put_any, (3,), "put"), (get_any, (3,), "get"), (put_all, (), "put")], ids=["put_block", "get", "put"]
)
def test_a_copy_with_a_pe_that_does_not_exist(kernel, args, name):
    pgas.init()
    dest, source = pgas.zeros(9), pgas.zeros(9)
    assert f"thread 0: {name}: PE {N} does not exist" in device_error(kernel, dest, source, *args, N)


@needs_checks
def test_a_signal_to_a_pe_that_does_not_exist():
    pgas.init()
    assert f"signal_op: PE {N} does not exist" in device_error(signal_anywhere, pgas.zeros(3, np.uint64), N)


@needs_checks
@pytest.mark.parametrize("kernel", [p_anywhere, g_anywhere, add_anywhere], ids=["p", "g", "atomic_fetch_add"])
def test_an_element_off_the_heap(kernel):
    pgas.init()
    text = device_error(kernel, pgas.zeros(3, np.int32), 1 << 40, 0)
    assert f"idx is {1 << 40} on axis 0 of an array that has 3 there" in text


@needs_checks
def test_a_destination_off_the_heap():
    pgas.init()
    text = device_error(put_all, cuda.to_device(np.zeros(4)), pgas.zeros(4), N - 1)
    assert f"put to or from PE {N - 1}: 32 bytes at" in text
    assert "are not on the symmetric heap" in text


@needs_checks
def test_a_source_of_get_off_the_heap():
    pgas.init()
    text = device_error(get_any, pgas.zeros(4), cuda.to_device(np.zeros(4)), 2, 0)
    assert "get to or from PE 0: 16 bytes at" in text


@needs_checks
def test_a_wait_off_the_heap():
    pgas.init()
    assert "wait_until" in device_error(wait_anywhere, cuda.to_device(np.zeros(4, np.int64)), 1)


@needs_checks
@pytest.mark.parametrize(("kernel", "name"), [(put_any, "put"), (get_any, "get")], ids=["put", "get"])
@pytest.mark.parametrize("nelems", [11, -1])
def test_more_elements_than_there_are(kernel, name, nelems):
    pgas.init()
    dest, source = pgas.zeros(10, np.int16), pgas.zeros(20, np.int16)
    text = device_error(kernel, dest, source, nelems, 0)
    assert f"{name} to or from PE 0: {nelems} elements wanted, but an operand has 10" in text


@needs_checks
def test_a_source_longer_than_dest():
    pgas.init()
    text = device_error(put_all, pgas.zeros(4), pgas.zeros(5), 0)
    assert "put to or from PE 0: 5 elements wanted, but an operand has 4" in text
