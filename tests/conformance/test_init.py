"""Starting and ending jobs inside one process. These tests run last and start without a job."""

import gc
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import RANK, THROUGH_NIC, N, checklist, difference, everywhere, needs_jobs_side_by_side, needs_peer, raises
from conformance.job import is_running
from conformance.ring import once_is_enough, ring_works, send, works_afterwards


@checklist("Init and finalize", "PEs are numbered as the bootstrap numbers them")
def test_pes_are_numbered_from_zero():
    with pgas.init():
        assert pgas.n_pes() == N
        assert pgas.allgather_object(pgas.my_pe()) == list(range(N))
        assert type(pgas.my_pe()) is int
        ring_works()


@checklist("Init and finalize", "PEs are numbered as the bootstrap numbers them")
@once_is_enough
def test_pes_are_numbered_as_mpi_does(mpi):
    with pgas.init():
        assert (pgas.my_pe(), pgas.n_pes()) == (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size)


@checklist("Init and finalize", "init twice counts")
def test_init_may_be_nested():
    job = pgas.init()
    assert pgas.init() is job
    with pgas.init():
        ring_works(1)
    pgas.finalize()
    ring_works(2)
    pgas.finalize()
    assert not is_running()


@checklist("Init and finalize", "another job in the same process")
@checklist("Python", "kernels after another init")
def test_init_after_finalize():
    for i in range(2 if THROUGH_NIC else 4):
        pgas.init()
        ring_works(i)
        pgas.finalize()


@checklist("Init and finalize", "finalize releases everything")
@once_is_enough
def test_calls_without_a_job():
    array = np.zeros(3)
    for call in (
        pgas.my_pe, pgas.n_pes, pgas.barrier_all, pgas.synchronize, pgas.finalize, lambda: pgas.empty(3), lambda: pgas.zeros(3),
        lambda: pgas.full(3, 1), lambda: pgas.array([1]), lambda: pgas.free(array), lambda: pgas.ptr(array, 0), pgas.info,
        lambda: pgas.allgather_object(1), lambda: pgas.broadcast_object(1), lambda: send[1, 1](array, 0, 0),
        lambda: send[1, 1].bind(array, 0, 0), lambda: pgas.launch(send, 1, 1, (array, 0, 0)),
    ):  # fmt: skip
        with raises(pgas.PgasError, r"pgas.init\(\) has not been called"):
            call()


@checklist("Init and finalize", "finalize releases everything")
def test_arrays_after_finalize_are_refused():
    pgas.init()
    array = pgas.zeros(4)
    view = array[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgas.PgasWarning)
        pgas.finalize()
    for use in (array.copy_to_host, view.copy_to_host, lambda: array[0], lambda: array.__cuda_array_interface__):
        with raises(pgas.HeapError, "use after free: float64 array of shape"):
            use()
    with pgas.init():
        with raises(pgas.HeapError, "use after free"):
            send[1, 1](array, 0, 0)
        ring_works()


@checklist("Init and finalize", "finalize releases everything")
@once_is_enough
def test_a_clean_job_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pgas.init():
            ring_works()


@checklist("Init and finalize", "finalize releases everything")
@once_is_enough
def test_context_manager_finalizes():
    with pgas.init() as job:
        assert (job.my_pe, job.n_pes) == (pgas.my_pe(), pgas.n_pes())
        ring_works()
    assert not is_running()


@checklist("Init and finalize", "finalize releases everything")
def test_context_manager_leaves_an_exception_alone():
    """An uncaught exception ends the job on every PE; if it is caught, the program goes on."""
    with pytest.raises(ZeroDivisionError), pgas.init():
        raise ZeroDivisionError
    assert is_running() == (N > 1)
    if is_running():
        ring_works()
        pgas.finalize()


@checklist("Init and finalize", "PEs are numbered as the bootstrap numbers them")
@once_is_enough
def test_world_as_communicator(mpi):
    with pgas.init(mpi.COMM_WORLD):
        assert (pgas.my_pe(), pgas.n_pes()) == (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size)
        ring_works()


@checklist("Init and finalize", "PEs are numbered as the bootstrap numbers them")
@once_is_enough
def test_order_of_a_communicator(mpi):
    """PEs are numbered by the communicator's ranks."""
    world = mpi.COMM_WORLD
    comm = world.Split(0, -world.rank)
    with pgas.init(comm):
        assert pgas.my_pe() == N - 1 - world.rank
        ring_works()
    comm.Free()


@needs_jobs_side_by_side
@checklist("Init and finalize", "PEs are numbered as the bootstrap numbers them")
def test_sub_communicators(mpi):
    """Two jobs side by side, each with its own heap."""
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


@needs_jobs_side_by_side
@checklist("Init and finalize", "a job of one PE")
def test_communicator_of_one(mpi):
    with pgas.init(mpi.COMM_SELF):
        assert (pgas.my_pe(), pgas.n_pes()) == (0, 1)
        ring_works()


@checklist("Init and finalize", "init twice counts")
@once_is_enough
def test_nested_init_with_a_communicator(mpi):
    """A communicator of the job's processes in their order is accepted, others are refused."""
    world = mpi.COMM_WORLD
    same, turned = world.Dup(), world.Split(0, -world.rank)
    with pgas.init():
        with pgas.init(same):
            assert pgas.n_pes() == N
        if N > 1:
            for other in (turned, mpi.COMM_SELF):
                with raises(ValueError, "a job with different processes is already active"):
                    pgas.init(other)
        ring_works()
    same.Free()
    turned.Free()


@checklist("Init and finalize", "PEs are numbered as the bootstrap numbers them")
@once_is_enough
def test_messages_of_the_user_and_of_pgas_do_not_mix(mpi):
    world = mpi.COMM_WORLD
    with pgas.init():
        receive = world.irecv(source=(world.rank - 1) % N, tag=0)
        pgas.barrier_all()
        world.send({"rank": world.rank}, dest=(world.rank + 1) % N, tag=0)
        ring_works()
        assert receive.wait() == {"rank": (world.rank - 1) % N}


@checklist("Init and finalize", "an init that fails raises")
@needs_peer
@once_is_enough
def test_intercommunicator_is_refused(mpi):
    world = mpi.COMM_WORLD
    half = world.Split(int(world.rank > 0), world.rank)
    inter = half.Create_intercomm(0, world, 1 if world.rank == 0 else 0)
    with raises(ValueError, "intracommunicator"):
        pgas.init(inter)
    inter.Free()
    half.Free()
    with pgas.init():
        ring_works()


@checklist("Init and finalize", "an init that fails raises")
@once_is_enough
def test_more_heap_than_memory(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_SYMMETRIC_SIZE", "100T")
        patch.delenv("PGAS_MAX_MEMORY_PER_GPU")
        with raises(pgas.HeapError, rf"PGAS_SYMMETRIC_SIZE=100 TiB: the heaps? of PEs? 0.* take.* {N * 100} TiB"):
            pgas.init()
    works_afterwards()


@checklist("Init and finalize", "PEs are numbered as the bootstrap numbers them")
@once_is_enough
def test_exchange_of_objects():
    with pgas.init():
        me = pgas.my_pe()
        assert pgas.allgather_object({"pe": me, "data": [me] * 3}) == [{"pe": pe, "data": [pe] * 3} for pe in range(N)]
        big = bytes([me]) * (1 << 20)
        assert [len(b) for b in pgas.allgather_object(big)] == [1 << 20] * N
        for root in range(N):
            assert pgas.broadcast_object(f"from {me}", root) == f"from {root}"
        assert pgas.broadcast_object(("x", me)) == ("x", 0)
        with raises(ValueError, f"root must be an integer from 0 to {N - 1}, not {N}"):
            pgas.broadcast_object(None, N)


@pgas.jit
def put_without_quiet(dest, source, flag, pe):
    pgas.put_nbi_block(dest, source, pe)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        pgas.fence()
        pgas.p(flag, 0, 1, pe)


@pgas.jit
def await_and_copy(dest, flag, out):
    if cuda.threadIdx.x == 0:
        pgas.wait_until(flag, 0, pgas.EQ, 1)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, dest.size, cuda.blockDim.x):
        out[i] = dest[i]


@checklist("Init and finalize", "finalize implies quiet")
def test_puts_before_finalize_arrive():
    """PE 0 puts without a quiet and finalizes. The last PE waits for the flag, checks the data, and then finalizes."""
    pgas.init()
    me, n = pgas.my_pe(), pgas.n_pes()
    dest, source, flag = pgas.zeros(100, np.int32), pgas.full(100, 7, np.int32), pgas.zeros(1, np.int32)
    out = pgas.full(100, 7, np.int32)
    if me == 0:
        put_without_quiet[1, 32](dest, source, flag, n - 1)
    if me == n - 1:
        await_and_copy[1, 32](dest, flag, out)
    found = out.copy_to_host()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arrays that were not freed; a free would include a quiet
        pgas.finalize()
    assert (found == 7).all()


@once_is_enough
@checklist("Python", "any order of garbage collection")
def test_arrays_and_views_die_in_any_order():
    """Before and after finalize; arrays that were not freed are reported, and nothing else happens."""
    for order in (1, -1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pgas.init() as job:
                arrays = [pgas.zeros(100, np.int32) for _ in range(4)]
                things = [*arrays, *(a[3:50] for a in arrays), *(a.reshape(10, 10)[2] for a in arrays), send[1, 1], job][::order]
                pgas.free(arrays[2])
                del arrays, job
                del things[::2]
                gc.collect()
                ring_works()
        del things[::2]
        gc.collect()
        del things
        gc.collect()
    works_afterwards()


FORK = """
import os, sys
import numpy as np
import pgas
pgas.init()
array = pgas.full(5, 3, np.int32)
child = os.fork()
if child == 0:
    sys.exit(0)  # its atexit handlers run: the job is the parent's, and goes on
_, status = os.waitpid(child, 0)
pgas.barrier_all()
print("child", status, "array", array.copy_to_host().tolist(), "PE", pgas.my_pe(), flush=True)
"""  # ends without finalize


@once_is_enough
@checklist("Python", "fork and atexit")
@checklist("Init and finalize", "a job of one PE")
@pytest.mark.timeout(210)
def test_a_forked_child_and_a_program_without_finalize():
    """PE 0 starts a separate program, without mpirun."""
    if RANK > 0:
        return
    launcher = ("PMI", "PMIX", "OMPI", "MPI", "HYDRA", "MV2", "GFORTRAN")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    program = FORK.replace("import pgas\n", f"import {pgas.NAME} as pgas\n")
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended
    assert "child 0 array [3, 3, 3, 3, 3] PE 0" in ended.stdout, ended
