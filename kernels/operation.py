"""Operations in error records and hang reports: their numbers, their prepositions, and the names of their operands."""

_SCOPED = ("put", "put_nbi", "get", "get_nbi", "iput", "iget", "put_signal", "put_signal_nbi", "barrier_all", "sync_all", "give_smem")

#: Of teams.
COLLECTIVES = (
    "team_sync", "barrier", "alltoall", "alltoallv", "broadcast", "fcollect", "collect", "reduce", "reducescatter", "inscan", "exscan",
    "maxloc", "minloc",
)  # fmt: skip

NAMES = (
    *(name + scope for name in _SCOPED for scope in ("", "_warp", "_block")),
    "p", "g", "signal_op", "signal_fetch", "signal_wait_until", "wait_until", "test", "ptr", "fence", "flush", "quiet", "quiet_pe",
    "atomic_fetch", "atomic_set", "atomic_swap", "atomic_compare_swap", "atomic_inc", "atomic_fetch_inc", "atomic_add", "atomic_fetch_add",
    "atomic_min", "atomic_fetch_min", "atomic_max", "atomic_fetch_max", "set_lock", "test_lock", "clear_lock",
    "atomic_and", "atomic_fetch_and", "atomic_or", "atomic_fetch_or", "atomic_xor", "atomic_fetch_xor",
    "wait_until_all", "wait_until_all_vector", "wait_until_any", "wait_until_any_vector", "wait_until_some", "wait_until_some_vector",
    "test_all", "test_all_vector", "test_any", "test_any_vector", "test_some", "test_some_vector",
    "team_my_pe", "team_n_pes", "team_translate_pe", *(name + scope for name in COLLECTIVES for scope in ("", "_warp", "_block")),
)  # fmt: skip

#: Operand that an error record is about: the array on the symmetric heap, the other array, or the array of which the operation names an
#: element. wait_until_all and similar functions have ivars, indices, status, and values instead, in this order.
SYMMETRIC, LOCAL, ELEMENT = 0, 1, 2

_TO, _FROM = ("put", "put_nbi", "put_signal", "put_signal_nbi", "iput", "p"), ("get", "get_nbi", "iget", "g")


def number(name: str) -> int:
    """Return the number of an operation."""
    return NAMES.index(name)


def preposition(name: str) -> str:
    """Return the word between an operation and its PE: put to PE 1, get from PE 1, atomic_add on PE 1."""
    plain = _plain(name)
    return "to" if plain in _TO else "from" if plain in _FROM else "on"


def position(name: str, argument: str) -> int:
    """Return the number of an operand in error records, from its name."""
    return _operands(_plain(name)).index(argument)


def operand(name: str, which: int) -> str:
    """Return the name that the operation gives to the operand that a record is about."""
    names = _operands(_plain(name))
    return names[min(which, len(names) - 1)]


def _plain(name: str) -> str:
    return name.removesuffix("_warp").removesuffix("_block")


def _operands(plain: str) -> tuple[str, ...]:
    if plain.startswith("put_signal"):
        return "dest", "source", "sig"
    if plain in _FROM:
        return ("source",) if plain == "g" else ("source", "dest")
    if plain == "give_smem":
        return ("array",)
    if plain.startswith("signal_"):
        return ("sig",)
    if plain.endswith("_lock"):
        return ("lock",)
    if plain in ("wait_until", "test"):
        return ("ivar",)
    if plain.startswith(("wait_until_", "test_")):
        return "ivars", "indices", "status", "values"
    if plain == "alltoallv":
        return "dest", "source", "an array of counts or displacements"
    return ("dest", "source") if (plain in _TO and plain != "p") or plain in COLLECTIVES else ("dest",)
