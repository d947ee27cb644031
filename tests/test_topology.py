"""Decisions about a job, from given descriptions of PEs."""

from dataclasses import replace

import pytest

from pgas.base.errors import BootstrapError, HeapError, TransportError
from pgas.job.topology import PE, START_MPS, check_alike, check_memory, check_shared_gpus, choose_transport, slow_engine

OPTIONS = (("PGAS_SYMMETRIC_SIZE", 1 << 30), ("PGAS_TRANSPORT", "auto"))


def pe(number=0, node="alpha/boot/pid:[1]", gpu=None, mps=False, **fields):
    name, memory = ("NVIDIA H100", 80 << 30) if gpu else ("", 0)
    return PE(number, node, 1000 + number, "0.1", gpu, name, mps, memory, fields.pop("options", OPTIONS), **fields)


def reachable(n):
    return [[None] * n for _ in range(n)]


# --------------------------------------------------------------------------------------------------------------- alike


def test_alike():
    check_alike([pe(0)])
    check_alike([pe(i) for i in range(4)])
    check_alike([pe(i, gpu=f"GPU-{i}") for i in range(4)])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"version": "0.2"}, ["the version of pgas", "PE 0 has 0.1", "PE 2 has 0.2"]),
        ({"gpu": "GPU-0"}, ["where kernels run", "PE 0 has the simulator", "PE 2 has a GPU"]),
        (
            {"options": (("PGAS_SYMMETRIC_SIZE", 1 << 20), ("PGAS_TRANSPORT", "auto"))},
            ["PGAS_SYMMETRIC_SIZE", "PE 0 has 1073741824", "PE 2 has 1048576"],
        ),
        (
            {"options": (("PGAS_SYMMETRIC_SIZE", 1 << 30), ("PGAS_TRANSPORT", "p2p"))},
            ["PGAS_TRANSPORT", "PE 0 has auto", "PE 2 has p2p"],
        ),
    ],
)
def test_first_difference_is_named(other, words):
    with pytest.raises(BootstrapError) as refused:
        check_alike([pe(0), pe(1), replace(pe(2), **other), replace(pe(3), version="9")])
    text = str(refused.value)
    for word in [*words, "it must be the same on all"]:
        assert word in text


def test_a_gpu_among_simulators_and_the_reverse():
    with pytest.raises(BootstrapError, match="PE 0 has a GPU, PE 1 has the simulator"):
        check_alike([pe(0, gpu="GPU-0"), pe(1)])


# -------------------------------------------------------------------------------------------------------------- memory


def test_heaps_that_fit():
    check_memory([pe(i, node, host_memory=16 << 30) for i, node in enumerate(("alpha", "alpha", "beta"))], 8 << 30)
    check_memory([pe(0, gpu="GPU-a"), pe(1, gpu="GPU-a"), pe(2, gpu="GPU-b")], 40 << 30)
    check_memory([pe(i, host_memory=8 << 30) for i in range(16)], 1 << 30)  # the default size; the simulator takes memory only when touched


def test_heaps_larger_than_the_memory():
    simulators = [pe(0, "alpha", host_memory=99), pe(1, "beta", host_memory=29), pe(2, "beta", host_memory=29)]
    with pytest.raises(
        HeapError, match=r"^PGAS_SYMMETRIC_SIZE=15: the heaps of PEs 1, 2 take 30 bytes, and the machine has 29; it may be 14 at most$"
    ):
        check_memory(simulators, 15)
    with pytest.raises(
        HeapError, match=rf"the heaps of PEs 1, 2 take {100 << 30} bytes, and the GPU has {80 << 30}; it may be {40 << 30} at"
    ):
        check_memory([pe(0, gpu="GPU-a"), pe(1, gpu="GPU-b"), pe(2, gpu="GPU-b")], 50 << 30)


# --------------------------------------------------------------------------------------------------------- shared GPUs


def test_gpus_that_are_not_shared():
    check_shared_gpus([pe(0), pe(1)])
    check_shared_gpus([pe(0, gpu="GPU-a"), pe(1, gpu="GPU-b")])
    check_shared_gpus([pe(0, gpu="GPU-a"), pe(1, gpu="GPU-a", node="beta")])  # equal names on two machines are two GPUs


def test_sharing_under_mps():
    check_shared_gpus([pe(0, gpu="GPU-a", mps=True), pe(1, gpu="GPU-a", mps=True), pe(2, gpu="GPU-b")])


@pytest.mark.parametrize("mps", [(False, False), (True, False), (False, True)])
def test_sharing_without_mps_says_how_to_start_it(mps):
    with pytest.raises(TransportError) as refused:
        check_shared_gpus([pe(0, gpu="GPU-b"), pe(1, gpu="GPU-a", mps=mps[0]), pe(2, gpu="GPU-c"), pe(3, gpu="GPU-a", mps=mps[1])])
    text = str(refused.value)
    for word in ("PEs 1, 3 share one GPU", "NVIDIA H100", "GPU-a", "without MPS", "a GPU of its own"):
        assert word in text
    command = text.partition("start MPS first: ")[2]
    assert "nvidia-cuda-mps-control -d" in command
    assert "export CUDA_MPS_PIPE_DIRECTORY=" in command
    assert "mkdir -p $CUDA_MPS_PIPE_DIRECTORY" in command


def test_engine_that_shares_a_gpu_without_mps():
    """It works slowly, with a warning that says what is slow, why, and what helps."""
    text = slow_engine([pe(0, gpu="GPU-b"), pe(1, gpu="GPU-a")], "GPU-a")
    for words in ("PE 1 and the engine of the software card share one GPU (NVIDIA H100, GPU-a) without MPS", "milliseconds", "a spare GPU"):
        assert words in text
    assert text.endswith(f"start MPS first: {START_MPS}")


def test_engine_that_shares_no_gpu_or_under_mps():
    assert slow_engine([pe(0, gpu="GPU-b"), pe(1, gpu="GPU-a")], "GPU-c") is None
    assert slow_engine([pe(0, gpu="GPU-a", mps=True), pe(1, gpu="GPU-a", mps=True)], "GPU-a") is None


# ----------------------------------------------------------------------------------------------------------- transport


@pytest.mark.parametrize("requested", ["auto", "p2p"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_p2p(requested, n):
    transport, reason = choose_transport(requested, [pe(i) for i in range(n)], reachable(n))
    assert transport == "p2p"
    assert "one machine" in reason


@pytest.mark.parametrize("requested", ["ibgda", "ibrc"])
def test_nic_transports(requested):
    """On one machine, in the simulator, where the software card's engine reaches the heaps."""
    pes = [pe(i, gpu=None) for i in range(2)]
    assert choose_transport(requested, pes, reachable(2)) == (requested, "asked for; over the software card (cpu engine)")
    reason = "asked for; over the software card (cuda engine)"
    assert choose_transport(requested, pes, reachable(2), "cuda") == (requested, reason)
    with pytest.raises(TransportError, match=f"{requested} over the software card connects PEs of one machine only"):
        choose_transport(requested, [pe(0, gpu=None), pe(1, gpu=None, node="beta")], reachable(2))


@pytest.mark.parametrize("requested", ["ibgda", "ibrc"])
def test_nic_transports_on_gpus(requested):
    """The engine is a kernel, as the CPU cannot reach the heaps."""
    pes = [pe(0, gpu="GPU-0"), pe(1, gpu="GPU-1")]
    for engine in ("auto", "cuda"):
        assert choose_transport(requested, pes, reachable(2), engine) == (requested, "asked for; over the software card (cuda engine)")
    with pytest.raises(TransportError, match="PGAS_ENGINE=cpu: the CPU cannot reach heaps in GPU memory"):
        choose_transport(requested, pes, reachable(2), "cpu")


def test_unknown_transport():
    # config refuses the value first; callers inside pgas also get an error, never silently another transport
    with pytest.raises((ValueError, TransportError), match="tcp"):
        choose_transport("tcp", [pe(0), pe(1)], reachable(2))


@pytest.mark.parametrize("requested", ["auto", "p2p"])
def test_different_machines(requested):
    pes = [pe(0), pe(1), pe(2, node="beta/boot2/pid:[7]"), pe(3, node="gamma/boot3/pid:[7]")]
    with pytest.raises(TransportError) as refused:
        choose_transport(requested, pes, reachable(4))
    assert "PE 0 (alpha) and PE 2 (beta) are on different machines or in different containers" in str(refused.value)
    assert "p2p connects PEs of one machine only" in str(refused.value)


def test_two_containers_of_one_machine():
    pes = [pe(0), pe(1, node="alpha/boot/pid:[2]")]
    with pytest.raises(TransportError, match=r"PE 0 \(alpha\) and PE 1 \(alpha\) .*different containers"):
        choose_transport("auto", pes, reachable(2))


def test_no_peer_access():
    access = reachable(3)
    access[2][1] = "the GPUs (NVIDIA H100) have no peer access (see nvidia-smi topo -p2p r)"
    with pytest.raises(TransportError) as refused:
        choose_transport("auto", [pe(i, gpu=f"GPU-{i}") for i in range(3)], access)
    assert str(refused.value) == (
        "transport p2p: PE 2 cannot reach the memory of PE 1: the GPUs (NVIDIA H100) have no peer access (see nvidia-smi topo -p2p r)"
    )
