"""Collectives at their limits: epochs that wrap, staging full of old lines, a NIC that delays, and very many teams."""

import functools
import itertools
import os
import struct

import numpy as np
import pytest
from conformance.checks import BLOCK, THROUGH_NIC, equal, everywhere, launch_together
from conformance.collectives import LL_BYTES, kernel, reducing
from conformance.test_collectives import broadcasting, flood, meet_and_move, put_and_meet
from numba import cuda

import pgas
from mpi.checks import needs_card, observer
from pgas.job import runtime
from pgas.kernels import layout

WRAP = 1 << 32
ROUNDS = 30 if pgas.SIMULATOR else 500


def channel_of(team, number=0):
    """Return address and size of a channel's memory on this PE, and the offset of staging in it."""
    teams = runtime.current().teams
    size = teams.plan.channel_bytes(team.n_pes)
    return teams._address(teams.find(int(team))) + number * size, size, teams.plan.staging_offset(team.n_pes)


def epoch_of(team, number=0):
    return struct.unpack("<Q", runtime.current().memory.read(channel_of(team, number)[0] + layout.EPOCH, 8))[0]


def begin_at(team, epoch, number=0):
    """Set the epoch of a channel's last collective, and fill staging with lines of the next two epochs and of epoch 0. Collective."""
    memory, (base, size, staging) = runtime.current().memory, channel_of(team, number)
    pgas.barrier_all()
    memory.write(base + layout.EPOCH, struct.pack("<QQ", epoch, 0))
    half = (size - staging) // 2
    for i in range(2):
        line = struct.pack("<4I", 0xDEAD, 2 + i, 0xBEEF, 2 + i)
        memory.write(base + staging + i * half, (line + bytes(len(line))) * (half // len(line) // 2))
    pgas.barrier_all()


@pytest.mark.parametrize("before", [1, 2, 3, 7])
def test_epochs_that_wrap(heap, before):
    """The low 32 bits of the epoch wrap during collectives of all kinds; no old line is taken for a new one."""
    n, team = pgas.n_pes(), pgas.team_split_strided(pgas.TEAM_WORLD, pgas.n_pes() - 1, -1, pgas.n_pes())
    dest, source, wrong = heap.zeros(n * 5, np.int64), heap.zeros(n * 5, np.int64), heap.zeros(1, np.int32)
    begin_at(team, WRAP - before)
    launch_together(flood, 1, BLOCK, team, dest, source, wrong, 15, 0)
    equal(wrong, np.zeros(1, np.int32), "elements of another round")
    everywhere(None if epoch_of(team) == WRAP + 17 - before else f"epoch {epoch_of(team):#x}")
    pgas.team_destroy(team)


@pytest.mark.parametrize("name", ["team_sync", "barrier", "broadcast", "reduce", "exscan", "alltoall"])
def test_the_collective_in_which_an_epoch_wraps(heap, me, n, name):
    """Each kind of collective, small, in slices, and large, also in several rounds. Each has a new team, as flags of rows only grow."""
    for size, before in itertools.product((1, LL_BYTES // 4, LL_BYTES), (1, 2)):
        team = pgas.team_create(range(n))
        begin_at(team, WRAP - before)
        dest, source = heap.zeros(size * n, np.int32), heap.full(size * n, 1 + me, np.int32)
        pgas.barrier_all()
        for r in range(3):
            if name in ("team_sync", "barrier"):
                kernel_of_meetings[1, BLOCK](team)
                expected = np.zeros(1)
            elif name == "broadcast":
                broadcasting("_block")[1, BLOCK](team, dest, source, r % n)
                expected = np.full(size * n, 1 + r % n)
            elif name == "alltoall":
                kernel(name, "_block")[1, BLOCK](team, dest, source)
                expected = np.repeat(np.arange(1, n + 1), size)
            else:
                reducing(name, "_block", "SUM")[1, BLOCK](team, dest, source)
                expected = np.full(size * n, n * (n + 1) // 2 if name == "reduce" else me * (me + 1) // 2)
            equal(dest[: expected.size], expected.astype(np.int32), f"round {r}")
        everywhere(None if epoch_of(team) > WRAP else f"epoch {epoch_of(team):#x}")
        pgas.team_destroy(team)


@pgas.jit
def kernel_of_meetings(team):
    pgas.team_sync_block(team)
    pgas.barrier_block(team)


@pytest.fixture
def late_card(heap):
    """Let the card delay WQEs, so that queue pairs overtake each other."""
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        observer().set_faults("seed=11,delay=0.1,hold=20000")
    pgas.barrier_all()
    yield
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        observer().set_faults("")


@needs_card
@pytest.mark.skipif(not THROUGH_NIC, reason="capability missing: a NIC")
def test_a_card_that_delays(heap, me, n, late_card):
    dest, source, wrong = heap.zeros(n * 30, np.int64), heap.zeros(n * 30, np.int64), heap.zeros(1, np.int32)
    launch_together(flood, 1, BLOCK, pgas.TEAM_WORLD, dest, source, wrong, ROUNDS, 5)
    flags = heap.zeros((3, n), np.int32), heap.zeros((3, n), np.int32)
    launch_together(meet_and_move, 3, 32, pgas.TEAM_WORLD, *flags, wrong, ROUNDS)
    launch_together(put_and_meet, 1, 32, pgas.TEAM_WORLD, heap.zeros(1, np.int64), (me + 1) % n, (me - 1) % n, wrong, ROUNDS)
    equal(wrong, np.zeros(1, np.int32))


@functools.cache
def overwriting(name, in_place):
    """Return a kernel that fills source for a round, calls a collective, and overwrites source when the call has returned."""
    call, reduction = getattr(pgas, name + "_block"), name in ("reduce", "inscan")

    @pgas.jit
    def once(team, dest, source, r):
        t, value = cuda.threadIdx.x, 10 * pgas.my_pe() + r
        for i in range(t, source.size, cuda.blockDim.x):
            source[i] = value
        pgas.barrier_block(team)
        if reduction:
            call(team, dest, source, pgas.SUM)
        else:
            call(team, dest, source)
        if not in_place:
            for i in range(t, source.size, cuda.blockDim.x):
                source[i] = -1

    return once


@needs_card
@pytest.mark.skipif(not THROUGH_NIC, reason="capability missing: a NIC")
@pytest.mark.parametrize("size", [40, 5000])
def test_sources_that_are_overwritten_at_once(heap, me, n, late_card, size):
    """The NIC reads source before the call returns, and in place before dest is written."""
    for name, in_place in (("alltoall", False), ("fcollect", False), ("reduce", False), ("reduce", True), ("inscan", True)):
        source = heap.zeros(size * n, np.int32)
        dest = source if in_place else heap.zeros(size * n * n, np.int32)
        pgas.barrier_all()
        for r in range(3):
            launch_together(overwriting(name, in_place), 1, BLOCK, pgas.TEAM_WORLD, dest, source, r)
            each = np.arange(n) * 10 + r
            expected = {
                "alltoall": np.repeat(each, size), "fcollect": np.repeat(each, size * n), "reduce": np.full(size * n, each.sum()),
                "inscan": np.full(size * n, each[: me + 1].sum()),
            }[name].astype(np.int32)  # fmt: skip
            equal(dest[: expected.size], expected, f"{name}, round {r}")


@pytest.mark.parametrize("count", [400, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_splits_and_destroys_without_end(heap, count):
    """Destroyed teams leave no id, no team memory, no memory of the process and no descriptor behind."""
    n, teams = pgas.n_pes(), runtime.current().teams

    def held():
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        return (teams.room, len(teams.records), len(os.listdir("/proc/self/fd"))), pages * os.sysconf("SC_PAGE_SIZE")

    for i in range(count):
        if i == count // 10:
            before, memory = held()
        kind = i % 4
        if kind < 2:
            made = (pgas.team_split_strided(pgas.TEAM_WORLD, (n - 1) * kind, 1 - 2 * kind, n, channels=1 + i % 3),)
        elif kind == 2:
            made = pgas.team_split_2d(pgas.TEAM_WORLD, 1 + i % n)
        else:
            made = (pgas.team_create([i % n]),)
        for team in made:
            pgas.team_destroy(team)
    after, now = held()
    everywhere(None if after == before else f"{before} before, {after} after")
    everywhere(None if now - memory < 32 << 20 else f"{now - memory} bytes more")
