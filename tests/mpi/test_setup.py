"""Additions to conformance/test_init.py: pgas's variables, and resources left after a job. These tests run last and start without a job."""

import inspect
import os
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC, TRANSPORT, N, equal, everywhere, needs_peer
from conformance.collectives import BY_NIC, numbers, taken
from conformance.job import is_running
from conformance.ring import ring_works, works_afterwards
from numba import cuda

import pgas
from mpi.test_collective_limits import epoch_of
from pgas.job import runtime


def window_mappings():
    """Return this process's mappings of window and state page, in the simulator only."""
    maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace") if pgas.SIMULATOR else ""
    return [line for line in maps.splitlines() if line.startswith(("5ff", "60")) and len(line.split("-")[0]) == 12]


@pytest.fixture(autouse=True)
def unmapped():
    """Check after each test that nothing is mapped."""
    yield
    assert window_mappings() == []


# ---------------------------------------------------------------------------------------------------------------- init, finalize


def test_a_heap_of_another_size(monkeypatch):
    for size in ("64M", "1.5G", "4k"):
        monkeypatch.setenv("PGAS_SYMMETRIC_SIZE", size)
        monkeypatch.setenv("PGAS_MAX_MEMORY_PER_GPU", size)
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


def test_leaks_are_reported_with_the_line_that_allocated():
    pgas.init()
    line = inspect.currentframe().f_lineno + 1
    leaked = [pgas.zeros((2, 3), np.int16), pgas.empty(5), pgas.empty(5), pgas.empty(5)]
    kept = pgas.full(3, 1.0)
    pgas.free(kept)
    me, n = pgas.my_pe(), pgas.n_pes()
    backwards = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
    pgas.team_destroy(pgas.team_create([me]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pgas.finalize()
    texts = [str(w.message) for w in caught if issubclass(w.category, pgas.PgasWarning)]
    assert len(leaked) == 4
    arrays = [
        "4 symmetric arrays never freed:",
        f"  {__file__}:{line}: int16 array of shape (2, 3), 12 bytes",
        f"  {__file__}:{line}: float64 array of shape (5,), 40 bytes, 3 times",
    ]
    teams = ["1 team never destroyed:", f"  {__file__}:{line + 4}: team {int(backwards)} of PEs {', '.join(map(str, range(n)[::-1]))}"]
    told = arrays * (me == 0) + teams * (me == n - 1)  # a team by its first member
    assert [text.splitlines() for text in texts] == ([told] if told else [])


def test_the_end_of_a_with_block_frees_without_a_warning():
    with pgas.init():
        left = pgas.zeros(3)
        with pgas.init(), pgas.zeros(3) as nested:
            pass
        assert not left.copy_to_host().any()
    for array in (left, nested):
        with pytest.raises(pgas.HeapError, match="use after free"):
            array.copy_to_host()


def test_a_with_block_of_an_array_in_which_the_job_ends():
    pgas.init()
    with pytest.warns(pgas.PgasWarning, match="1 symmetric array never freed") if pgas.my_pe() == 0 else nullcontext(), pgas.zeros(3):
        pgas.finalize()
    assert not is_running()


def test_leaks_when_warnings_are_errors():
    """The warning is raised on PE 0, after finalize has completed on all PEs."""
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


# ------------------------------------------------------------------------------------------------------------------- configuration


def test_another_configuration_is_refused(monkeypatch):
    """Compiled kernels contain the first configuration."""
    with pgas.init():
        pass
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_DEBUG", "" if "check" in os.environ.get("PGAS_DEBUG", "") else "check")
        with pytest.raises(pgas.PgasError, match=r"a different configuration .*check was (True|False), now (True|False)"):
            pgas.init()
    works_afterwards()


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("PGAS_SYMMETRIC_SIZE", "lots", "is not a size"),
        ("PGAS_SYMMETRIC_SIZE", "0", "at least 1 byte"),
        ("PGAS_TIMEOUT", "-1", "greater than 0"),
        ("PGAS_TIMEOUT", "soon", "number"),
        ("PGAS_TRANSPORT", "pigeon", "one of auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc"),
        ("PGAS_DEBUG", "loud", "unknown: loud; must be one or more of"),
        ("PGAS_HOST_BLOCKS", "reduce=x", "must be a number of blocks, or some of COLLECTIVE=BYTES:BLOCKS"),
        pytest.param(
            "PGAS_SIM_WEAK", "-3", "must be a non-negative integer",
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
def test_an_adapter_that_is_not_there(monkeypatch, transport):
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_TRANSPORT", transport)
        patch.setenv("PGAS_HCA", "mlx5_99")
        with pytest.raises(pgas.TransportError, match="no such device"):
            pgas.init()
    works_afterwards()


@pytest.mark.skipif(THROUGH_NIC, reason=f"refused: this process is compiled for {TRANSPORT}")
def test_p2p_by_name(monkeypatch):
    monkeypatch.setenv("PGAS_TRANSPORT", "p2p")
    with pgas.init():
        assert pgas.info()["transport"] == "p2p"
        ring_works()


@needs_peer
def test_more_heap_than_memory_on_one_pe_only(monkeypatch, mpi):
    """Refused before the sizes are checked, as all PEs must have the same variables."""
    with monkeypatch.context() as patch:
        patch.delenv("PGAS_MAX_MEMORY_PER_GPU")
        if mpi.COMM_WORLD.rank == 1:
            patch.setenv("PGAS_SYMMETRIC_SIZE", "100T")
        with pytest.raises(pgas.BootstrapError, match=r"PEs differ in PGAS_SYMMETRIC_SIZE: PE 0 has \d+, PE 1 has 109951162777600"):
            pgas.init()
    works_afterwards()


@needs_peer
@pytest.mark.parametrize(
    ("name", "values", "said"), [("PGAS_TIMEOUT", ("33", "44"), "PE 0 has 33.0, PE 1 has 44.0"), ("PGAS_HOST_BLOCKS", ("2", "3"), "")]
)
def test_pes_with_different_variables(monkeypatch, mpi, name, values, said):
    with monkeypatch.context() as patch:
        patch.setenv(name, values[mpi.COMM_WORLD.rank > 0])
        with pytest.raises(pgas.BootstrapError, match=f"PEs differ in {name}: {said}"):
            pgas.init()
    works_afterwards()


#: Of each collective that several blocks of a host's call divide: the arguments between source and stream.
DIVIDED = {"alltoall": (), "broadcast": (0,), "fcollect": (), "reduce": (pgas.SUM,), "reducescatter": (pgas.SUM,)}


def call_on_the_host(blocks, size, stream, found):
    """Call each collective, and add the bits of dest to found. Check the number of blocks: each has a channel, whose epoch ascends."""
    n = pgas.n_pes()
    team = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
    record = runtime.current().teams.find(int(team))
    for name, more in DIVIDED.items():
        sources = [numbers(size * (n if name in ("alltoall", "reducescatter") else 1), np.float32, q) for q in range(n)]
        source, expected = pgas.array(sources[team.my_pe]), taken(name, sources, team.my_pe)
        dest = pgas.zeros(expected.size, np.float32)
        before = [epoch_of(team, record.channels + i) for i in range(record.host_channels)]
        pgas.barrier_all()
        getattr(pgas, name)(team, dest, source, *more, stream=stream)
        pgas.synchronize(stream)
        equal(dest, expected, f"{name} of {size} elements with {blocks} blocks")
        used = sum(epoch_of(team, record.channels + i) > epoch for i, epoch in enumerate(before))
        everywhere(None if used == blocks else f"{name} of {size} elements: {used} blocks, not {blocks}")
        found.setdefault((name, size), set()).add(dest.copy_to_host().tobytes())
        pgas.free(dest)
        pgas.free(source)
    pgas.team_destroy(team)


@pytest.mark.skipif(BY_NIC, reason="refused: a collective through a NIC has one block")
def test_blocks_of_collectives_on_the_host(monkeypatch):
    """Any number of blocks gives the bits of one block, also if parts go through staging, but the whole does not."""
    found, large = {}, 4091  # 64 blocks have a part each
    few_for_small = ",".join(f"{name}=0:1,{name}=64:2" for name in DIVIDED)
    for text, blocks in (("1", 1), ("3", 3), ("64", 64), (few_for_small, 2)):
        monkeypatch.setenv("PGAS_HOST_BLOCKS", text)
        with pgas.init():
            stream = cuda.stream()
            call_on_the_host(blocks, large, stream, found)
            if blocks < 64:  # which take long in the simulator
                call_on_the_host(blocks, large, None, found)
                call_on_the_host(1, 5, None, found)  # of less than a line of memory, all other parts are empty
    assert {call for call, bits in found.items() if len(bits) > 1} == set()


def test_variables_that_nothing_reads(monkeypatch):
    monkeypatch.setenv("PGAS_SYMETRIC_SIZE", "1G")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pgas.init():
            me = pgas.my_pe()
    texts = [str(w.message) for w in caught]
    assert len(texts) == (1 if me == 0 else 0), texts
    assert all("PGAS_SYMETRIC_SIZE (did you mean PGAS_SYMMETRIC_SIZE?)" in text for text in texts)


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
