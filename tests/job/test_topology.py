"""Decisions about a job, from given descriptions of PEs."""

from dataclasses import replace

import pytest

from pgas.base.errors import BootstrapError, HeapError, TransportError
from pgas.job.paths import topology
from pgas.job.paths.topology import PE, START_MPS, Neighbors, check_alike, check_memory, check_shared_gpus, slow_engine

OPTIONS = (("PGAS_SYMMETRIC_SIZE", 1 << 30), ("PGAS_TRANSPORT", "auto"))


def pe(number=0, node="alpha/boot/pid:[1]", gpu=None, mps=False, **fields):
    name, memory = ("NVIDIA H100", 80 << 30) if gpu else ("", 0)
    return PE(number, node, 1000 + number, "0.1", gpu, name, mps, memory, fields.pop("options", OPTIONS), **fields)


def reachable(n):
    return [[None] * n for _ in range(n)]


def choose_transport(requested, pes, access, engine="auto", per_node=(), ask=None):
    """The transport of PEs that have the NICs which they name, whatever is asked for."""
    return topology.choose_transport(requested, Neighbors(pes, access, per_node), ask or (lambda name: pes), engine)


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
        ({"options": (("PGAS_SYMMETRIC_SIZE", 1 << 30), ("PGAS_TRANSPORT", "p2p"))}, ["PGAS_TRANSPORT", "PE 0 has auto", "PE 2 has p2p"]),
        ({"options": (("PGAS_TRANSPORT", ""), ("PGAS_SYMMETRIC_SIZE", 1 << 30))}, ["PGAS_TRANSPORT", "PE 0 has auto", "PE 2 has nothing"]),
    ],
)
def test_first_difference_is_named(other, words):
    with pytest.raises(BootstrapError) as refused:
        check_alike([pe(0), pe(1), replace(pe(2), **other), replace(pe(3), version="9")])
    text = str(refused.value)
    for word in [*words, "it must be the same on all PEs"]:
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
        HeapError,
        match=r"^PGAS_SYMMETRIC_SIZE=15 bytes: the heaps of PEs 1, 2 take 30 bytes, and the node has 29 bytes; it may be at most 14 by",
    ):
        check_memory(simulators, 15)
    with pytest.raises(HeapError, match="the heaps of PEs 1, 2 take 100 GiB, and the GPU has 80 GiB; it may be at most 40 GiB"):
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
    for words in ("PE 1 and the engine of the software NIC share one GPU (NVIDIA H100, GPU-a) without MPS", "milliseconds", "a spare GPU"):
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
    assert "one node" in reason


@pytest.mark.parametrize("requested", ["ibgda", "ibrc"])
def test_nic_transports(requested):
    """On one machine, in the simulator, where the software card's engine reaches the heaps."""
    pes = [pe(i, gpu=None) for i in range(2)]
    assert choose_transport(requested, pes, reachable(2)) == (requested, "asked for; over the software NIC (cpu engine)")
    reason = "asked for; over the software NIC (cuda engine)"
    assert choose_transport(requested, pes, reachable(2), "cuda") == (requested, reason)
    apart, over = [pe(0, gpu=None), pe(1, gpu=None, node="beta")], "asked for; over the software NICs of the nodes"
    reason = f"{over}, with RoCE v2 over UDP between them (cpu engine)"
    assert choose_transport(requested, apart, reachable(2)) == (requested, reason)
    with pytest.raises(TransportError, match=f"{requested} over the software NIC with the cuda engine connects only PEs on one node"):
        choose_transport(requested, apart, reachable(2), "cuda")


@pytest.mark.parametrize("requested", ["ibgda", "ibrc"])
def test_nic_transports_on_gpus(requested):
    """The engine is a kernel, as the CPU cannot reach the heaps."""
    pes = [pe(0, gpu="GPU-0"), pe(1, gpu="GPU-1")]
    for engine in ("auto", "cuda"):
        assert choose_transport(requested, pes, reachable(2), engine) == (requested, "asked for; over the software NIC (cuda engine)")
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
        choose_transport(requested, pes, reachable(4), "cuda")
    assert "PE 0 (alpha) and PE 2 (beta) are on different nodes or in different containers" in str(refused.value)
    assert "p2p connects only PEs on one node" in str(refused.value)


def test_different_machines_in_the_simulator():
    """auto takes the wire between software cards, and says so."""
    pes = [pe(0), pe(1), pe(2, node="beta"), pe(3, node="gamma")]
    name, reason = choose_transport("auto", pes, reachable(4))
    assert name == "p2p,ibgda"
    assert reason.endswith("ibgda over the software NICs of the nodes, with RoCE v2 over UDP between them (cpu engine)")
    with pytest.raises(TransportError, match="p2p connects only PEs on one node"):
        choose_transport("p2p", pes, reachable(4))


def test_different_machines_with_gpus():
    pes = [pe(0, gpu="GPU-0"), pe(1, node="beta", gpu="GPU-1")]
    for engine in ("auto", "dma"):
        name, reason = choose_transport("auto", pes, reachable(2), engine)
        assert name == "ibgda"
        assert reason.endswith("with RoCE v2 over UDP between them (dma engine)")


def test_two_containers_of_one_machine():
    pes = [pe(0), pe(1, node="alpha/boot/pid:[2]")]
    with pytest.raises(TransportError, match=r"PE 0 \(alpha\) and PE 1 \(alpha\) .*different containers"):
        choose_transport("auto", pes, reachable(2), "cuda")


NO_ACCESS = "the GPUs (NVIDIA H100) have no peer access (see nvidia-smi topo -p2p r)"


@pytest.mark.parametrize("requested", ["auto", "p2p"])
def test_no_peer_access(requested):
    access = reachable(3)
    access[2][1] = NO_ACCESS
    with pytest.raises(TransportError) as refused:
        choose_transport(requested, [pe(i, gpu=f"GPU-{i}", nic_reason="none here") for i in range(3)], access)
    beginning, _, rest = str(refused.value).partition("; ")
    assert beginning == f"transport p2p: PE 2 cannot reach the memory of PE 1: {NO_ACCESS}"
    nics = "for ibgda and ibrc PE 0 has no NIC (none here)"
    assert rest == (nics if requested == "auto" else "with NICs: PGAS_TRANSPORT=p2p,ibgda or p2p,ibrc")


# ----------------------------------------------------------------------------------------------------------- two paths


def groups(nodes, access=None, per_node=()):
    return Neighbors([pe(i, node=f"{node}/boot/pid") for i, node in enumerate(nodes)], access or reachable(len(nodes)), per_node).groups


def test_who_is_near():
    assert groups("aaaa") == (range(4),)
    assert groups("aabb") == (range(2), range(2, 4))
    assert groups("abab") == ((0, 2), (1, 3))
    assert groups("abc") == (range(1), range(1, 2), range(2, 3))
    assert groups("aaaa", per_node=(2,)) == (range(2), range(2, 4))
    assert groups("aaa", per_node=(2, 1)) == (range(2), range(2, 3))
    assert groups("aabb", per_node=(1, 3)) == (range(1), range(1, 2), range(2, 4))  # counts no PEs of two machines as those of one


def test_who_is_near_where_gpus_do_not_reach_each_other():
    """Being near is mutual, and all that are near to one are near to each other: teams of near PEs depend on it."""
    access = reachable(4)
    access[0][2] = access[1][3] = access[3][0] = NO_ACCESS
    near = Neighbors([pe(i, gpu=f"GPU-{i}") for i in range(4)], access)
    assert near.groups == (range(2), range(2, 4))
    assert near.nodes == (range(4),)  # TEAM_NODE, unlike TEAM_SHARED, does not depend on it
    assert near.apart(0, 2) == near.apart(2, 0) == NO_ACCESS
    assert near.apart(1, 2) is None  # and yet they are not near, as PE 0 and PE 2 are not


@pytest.mark.parametrize(("per_node", "words"), [((2,), "2: 3 PEs are not a multiple of 2"), ((2, 2), "2,2: 3 PEs are not 4")])
def test_machines_for_tests_that_do_not_fit(per_node, words):
    with pytest.raises(ValueError, match=rf"^PGAS_PES_PER_NODE={words} \(a list, such as 2,1, gives the number of PEs on each node\)$"):
        groups("aaa", per_node=per_node)


TWO_MACHINES = [pe(0, nic="mlx5_0:1"), pe(1, nic="mlx5_0:1"), pe(2, node="beta", nic="mlx5_0:1"), pe(3, node="beta", nic="mlx5_0:1")]


@pytest.mark.parametrize("far", ["ibgda", "ibrc"])
def test_pairs_asked_for(far):
    reason = f"asked for; {far} over mlx5_0:1 ()"
    assert choose_transport(f"p2p,{far}", TWO_MACHINES, reachable(4)) == (f"p2p,{far}", reason)
    card = f"asked for; {far} over the software NIC (cpu engine)"
    assert choose_transport(f"p2p,{far}", [pe(i) for i in range(4)], reachable(4), per_node=(2,)) == (f"p2p,{far}", card)
    words = rf"^PE 0 \(alpha\) and PE 2 \(beta\) are on .* {far} over the software NIC with the cuda engine connects only PEs on one node$"
    with pytest.raises(TransportError, match=words):
        choose_transport(f"p2p,{far}", [replace(pe, nic="softhca") for pe in TWO_MACHINES], reachable(4), "cuda")


@pytest.mark.parametrize("requested", ["p2p,ibgda", "p2p,ibrc", "auto"])
def test_a_nic_on_one_machine_only(requested):
    pes = [*TWO_MACHINES[:2], *(replace(pe, nic="softhca", nic_reason="this machine has no RDMA device") for pe in TWO_MACHINES[2:])]
    words = "PE 2 has no NIC" if requested == "auto" else "PE 2 uses the software NIC"
    with pytest.raises(TransportError, match=rf"{words} \(this machine has no RDMA device\)"):
        choose_transport(requested, pes, reachable(4))


def test_auto_takes_the_best_that_all_have():
    """ibgda if the NICs of all PEs carry it, else ibrc; one path if one suffices."""
    asked = []

    def ask(name):
        asked.append(name)
        return [replace(pe, nic="softhca", nic_reason="no DevX") if name == "ibgda" else pe for pe in TWO_MACHINES]

    assert choose_transport("auto", TWO_MACHINES, reachable(4)) == (
        "p2p,ibgda",
        "not all PEs map each other's memory; ibgda over mlx5_0:1 ()",
    )
    assert choose_transport("auto", TWO_MACHINES, reachable(4), ask=ask)[0] == "p2p,ibrc"
    assert choose_transport("auto", TWO_MACHINES[1:3], reachable(2))[0] == "ibgda"
    assert choose_transport("auto", TWO_MACHINES[:2], reachable(2), ask=pytest.fail)[0] == "p2p"
    assert choose_transport("auto", [pe(i) for i in range(3)], reachable(3), per_node=(2, 1))[0] == "p2p,ibgda"
    assert asked == ["ibgda", "ibrc"]


def test_auto_on_one_machine_that_counts_as_two():
    """A NIC that ibrc can use goes before the software card. A device that is asked for by name is not replaced by the card."""

    def ask(name, refused=""):
        without = {"nic": refused, "nic_reason": "PGAS_HCA=mlx5_0: port 1 has no DevX"}
        return [pe(i, nic="mlx5_0:1") if name == "ibrc" else pe(i, **without) for i in range(3)]

    for refused in ("softhca", ""):
        chosen = choose_transport("auto", ask("ibgda"), reachable(3), per_node=(2, 1), ask=lambda name, refused=refused: ask(name, refused))
        assert chosen == ("p2p,ibrc", "not all PEs map each other's memory; ibrc over mlx5_0:1 ()")
    with pytest.raises(TransportError, match=r"according to PGAS_PES_PER_NODE=2,1: .*; for ibgda and ibrc PE 0 has no NIC \(PGAS_HCA="):
        choose_transport("auto", ask("ibgda"), reachable(3), per_node=(2, 1))


def test_p2p_asked_for_on_what_counts_as_two_machines():
    with pytest.raises(TransportError, match="on different nodes according to PGAS_PES_PER_NODE=1: p2p connects only PEs on one node"):
        choose_transport("p2p", [pe(0), pe(1)], reachable(2), per_node=(1,))
