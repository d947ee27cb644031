"""The operations of pgas as events: which memory a call reads and writes, when, and what it orders. By name without scope, in CALLS."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgas.check import log
from pgas.check.collectives import staging
from pgas.check.log import ADD, ATOMIC_ADD, ATOMIC_OTHER, ATOMIC_SET, PLAIN, SET
from pgas.kernels import layout, state, window
from pgas.kernels.codes import Comparison, Reduction, SignalOp
from pgas.kernels.collectives import sizes
from pgas.kernels.compiler import simulator
from pgas.kernels.ops.lock import owner
from pgas.kernels.ops.sync import holds
from pgas.sim import mem, watch
from pgas.sim.arrays import LocalArray, SharedArray, ndarray_of


@dataclass
class WatchedCall:
    """A call of an operation by a thread, or by the first thread of a warp or block for all."""

    recorder: Any
    name: str
    given: dict[str, Any]
    thread: int
    site: int
    width: int  #: number of threads that make the call together, 0 for one thread

    def tell(self, code: int, *event: Any) -> None:
        """Note an event of the calling thread that has a turn."""
        self.recorder.log.add(code, self.recorder.log.turn(), self.thread, self.site, *event)

    def span(self, name: str, nelems: Any = None) -> tuple[int, int]:
        """Return the address and size in bytes of an operand, or of its first elements; address 0 if only this thread has it."""
        array = self.given[name]
        view = ndarray_of(array)
        count = view.size if nelems is None else int(nelems)
        return self.address(array), count * view.dtype.itemsize

    def address(self, array: Any) -> int:
        """Return the tagged address of an array, 0 for one that only this thread has."""
        if isinstance(array, LocalArray) and not isinstance(array, SharedArray):
            return 0
        addr = simulator.address_of(array)
        return self.recorder.tagged(addr, watch.thread() if isinstance(array, SharedArray) else None)

    def element(self, name: str, idx: Any = None) -> tuple[int, int]:
        """Return the address and size of the element that the operands name."""
        array = self.given[name]
        return simulator.address_of_element(array, self.given["idx"] if idx is None else idx), ndarray_of(array).dtype.itemsize


@dataclass(frozen=True)
class _Kind:
    """What a call notes at its beginning and at its end."""

    begin: Callable[[WatchedCall], None]
    end: Callable[[WatchedCall, Any], None] = lambda call, result: None
    nbi: bool = False  #: whether the threads of a warp or block meet only at its beginning, whatever this implementation does


def address_on(addr: int, pe: Any) -> int:
    """Return the address of the same object on a PE."""
    return addr & window.OFFSET_MASK | window.slot(int(pe)) if pe is not None else addr


def _put(*, nbi: bool, signal: bool = False) -> Callable[[WatchedCall], None]:
    def begin(call: WatchedCall) -> None:
        given = call.given
        source, nbytes = call.span("source", given.get("nelems"))
        dest, _ = call.span("dest")
        pe, small = int(given["pe"]), not signal and 0 < nbytes <= 8
        where = address_on(dest, pe)
        if small:
            call.tell(log.UPDATE, pe, where, nbytes, PLAIN, None, False, 0, call.width if nbi else 0)
            call.tell(log.PUT, pe, 0, source, nbytes, 1, 0, 0, nbi, False, call.width)
        else:
            call.tell(log.PUT, pe, where, source, nbytes, 1, 0, 0, nbi, signal, call.width)
        if signal:
            _signal(call)

    return begin


def _get(*, nbi: bool) -> Callable[[WatchedCall], None]:
    def begin(call: WatchedCall) -> None:
        source, nbytes = call.span("source", call.given.get("nelems"))
        dest, _ = call.span("dest")
        call.tell(log.GET, int(call.given["pe"]), dest, address_on(source, call.given["pe"]), nbytes, 1, 0, 0, nbi, call.width)

    return begin


def strided(given: dict[str, Any]) -> tuple[int, int, tuple[int, int]]:
    """Return what iput or iget copies: bytes of an element, elements, and their distances in dest and source in bytes."""
    arrays = ndarray_of(given["dest"]), ndarray_of(given["source"])
    steps = int(given["dst_stride"]), int(given["src_stride"])
    held = min(-(-array.size // step) for array, step in zip(arrays, steps, strict=True))
    width = arrays[0].dtype.itemsize
    return width, held if given["nelems"] is None else int(given["nelems"]), (steps[0] * width, steps[1] * width)


def _strided(code: int) -> Callable[[WatchedCall], None]:
    def begin(call: WatchedCall) -> None:
        given = call.given
        width, count, steps = strided(given)
        to, origin = call.address(given["dest"]), call.address(given["source"])
        pe = int(given["pe"])
        to, origin = (address_on(to, pe), origin) if code == log.PUT else (to, address_on(origin, pe))
        more = (False, False, 0) if code == log.PUT else (False, 0)
        call.tell(code, pe, to, origin, width, count, *steps, *more)

    return begin


def _word(call: WatchedCall, name: str) -> tuple[int, int, int]:
    """Return the PE, address, and size of the element that a call accesses there."""
    addr, nbytes = call.element(name)
    pe = int(call.given["pe"])
    return pe, address_on(addr, pe), nbytes


def _p(call: WatchedCall) -> None:
    call.tell(log.UPDATE, *_word(call, "dest"), PLAIN, _number(call.given["value"]), False)


def _g(call: WatchedCall) -> None:
    pe, addr, nbytes = _word(call, "source")
    call.tell(log.GET, pe, 0, addr, nbytes, 1, 0, 0, False, 0)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, (int, np.integer)) else None


def _before(call: WatchedCall, pe: int, addr: int, nbytes: int) -> int:
    """Return the value of a word before an update, 0 if this PE cannot read it. It has no update that takes its turn later."""
    job = call.recorder.job
    return int(mem.load(addr, nbytes)) if pe == job.my_pe or pe in job.near_pes else 0


def _signal(call: WatchedCall) -> None:
    word = _word(call, "sig")
    kind = SET if call.given["op"] == SignalOp.SET else ADD
    call.tell(log.UPDATE, *word, kind, _number(call.given["value"]), False, _before(call, *word))


def _atomic(kind: int, *, fetches: bool, value: Any = "value") -> _Kind:
    def begin(call: WatchedCall) -> None:
        word = _word(call, "dest")
        given = call.given[value] if isinstance(value, str) else value
        call.tell(log.UPDATE, *word, kind, _number(given), fetches, _before(call, *word))

    return _Kind(begin, _fetched) if fetches else _Kind(begin)


def _fetch(call: WatchedCall) -> None:
    """Note an atomic read."""
    call.tell(log.UPDATE, *_word(call, "dest"), ATOMIC_OTHER, None, True)


def _fetched(call: WatchedCall, result: Any) -> None:
    _, addr, _ = _word(call, "dest")
    call.tell(log.FETCHED, addr)


def _nothing(call: WatchedCall) -> None:
    pass


def _found(call: WatchedCall, name: str, idx: Any, value: Any) -> None:
    """Note that a wait or test of an element has succeeded."""
    addr, nbytes = call.element(name, idx)
    found, comparison, wanted = mem.load(addr, nbytes), int(call.given["cmp"]), int(value) & (1 << 8 * nbytes) - 1
    if holds(found, comparison, wanted) or mem.load(layout.POISON, 8) == state.SOUND:  # Otherwise it ends because of an error.
        call.tell(log.ACQUIRED, addr, nbytes, comparison, wanted, found)


def _waits(call: WatchedCall, name: str, wanted: Iterable[tuple[Any, Any]]) -> None:
    """Note that a wait for elements (idx, value) begins, unless it ends immediately."""
    words = []
    for idx, value in wanted:
        addr, nbytes = call.element(name, idx)
        words.append((addr, nbytes, mem.load(addr, nbytes), int(value) & (1 << 8 * nbytes) - 1))
    comparison, every = int(call.given["cmp"]), "any" not in call.name and "some" not in call.name
    if not (all if every else any)(holds(found, comparison, value) for _, _, found, value in words):
        call.recorder.log.add(log.WAITS, call.thread, call.site, comparison, every, tuple(words))


def _waited(name: str) -> _Kind:
    def begin(call: WatchedCall) -> None:
        _waits(call, name, [(call.given["idx"], call.given["value"])])

    def end(call: WatchedCall, result: Any) -> None:
        _found(call, name, call.given["idx"], call.given["value"])

    return _Kind(begin, end)


def _tested(call: WatchedCall, result: Any) -> None:
    if result:
        _found(call, "ivar", call.given["idx"], call.given["value"])


def _signal_fetched(call: WatchedCall, result: Any) -> None:
    addr, nbytes = call.element("sig")
    call.tell(log.ACQUIRED, addr, nbytes, int(Comparison.EQ), int(result), int(result))


def _several(which: Callable[[WatchedCall, Any, Sequence[int]], Sequence[int]]) -> _Kind:
    """Note a wait or test of several elements. which: function that returns those that are known to satisfy the condition."""

    def asked(call: WatchedCall) -> dict[int, Any]:
        given = call.given
        count = ndarray_of(given["ivars"]).size if given["nelems"] is None else int(given["nelems"])
        status = None if given["status"] is None else ndarray_of(given["status"])
        values = given.get("values")
        indices = (i for i in range(count) if status is None or not status[i])
        return {i: given["value"] if values is None else ndarray_of(values)[i] for i in indices}

    def begin(call: WatchedCall) -> None:
        if call.name.startswith("wait"):
            _waits(call, "ivars", asked(call).items())

    def end(call: WatchedCall, result: Any) -> None:
        values = asked(call)
        for i in which(call, result, list(values)):
            _found(call, "ivars", int(i), values[int(i)])

    return _Kind(begin, end)


def _all(call: WatchedCall, result: Any, asked: Sequence[int]) -> Sequence[int]:
    return asked if result is None or result else ()


def _any(call: WatchedCall, result: Any, asked: Sequence[int]) -> Sequence[int]:
    return (int(result),) if result >= 0 else ()


def _some(call: WatchedCall, result: Any, asked: Sequence[int]) -> Sequence[int]:
    return ndarray_of(call.given["indices"])[: int(result)].tolist()  # type: ignore[no-any-return]


def _order(call: WatchedCall) -> None:
    pe = call.given.get("pe")
    call.tell(log.ORDER, call.name, None if pe is None else int(pe))


def _lock(call: WatchedCall) -> tuple[int, int]:
    addr, _ = call.element("lock")
    pe = int(owner(addr))
    return address_on(addr, pe), pe


def _set_lock(call: WatchedCall, result: Any) -> None:
    if not result:  # None, or 0 of test_lock.
        call.tell(log.ACQUIRED, _lock(call)[0], 8, None, 0, 0)


def _clear_lock(call: WatchedCall) -> None:
    addr, pe = _lock(call)
    call.tell(log.ORDER, "quiet", None)
    call.tell(log.UPDATE, pe, addr, 8, ATOMIC_ADD, None, False)


def _collective(call: WatchedCall) -> tuple[Any, tuple[int, ...]]:
    """Return the group in which calls of members match, and the members; none of a team that does not exist."""
    if "team" not in call.given:
        return "all", tuple(range(call.recorder.job.n_pes))
    team = int(call.given["team"])
    record = call.recorder.job.teams.records.get(team)
    pes = () if record is None else record.pes
    channel = int(call.given["channel"])
    if channel < 0:  # A channel of the host; calls match whatever they are.
        channel = layout.HOST_CHANNEL + (channel - layout.HOST_CHANNEL) % layout.MAX_HOST_CHANNELS
    return (team, channel, pes), pes


def _enter(call: WatchedCall) -> None:
    group, members = _collective(call)
    given, part, root = call.given, call.given.get("part"), int(call.given.get("root") or 0)
    if root >= len(members) or (part is not None and not 0 <= part[0] < part[1]):  # The call fails.
        return
    dest = call.span("dest") if "dest" in given else (0, 0)
    source = call.span("source") if "source" in given else (0, 0)
    what = [call.name]
    if "dest" in given:
        to, origin = ndarray_of(given["dest"]), ndarray_of(given["source"])
        what.append(str(to.dtype))
        if (rules := sizes.of(call.name)).known:
            what.append(f"{int(rules.moved(len(members), to.size, origin.size))} elements")
    what += [Reduction(given["op"]).name] if "op" in given else []
    what += [f"{name}={given[name]}" for name in ("root", "part") if given.get(name) is not None]
    rows = None
    if call.name == "alltoallv":
        size = ndarray_of(given["dest"]).dtype.itemsize
        rows = tuple(
            [int(n) * size for n in ndarray_of(given[name])[: len(members)]]
            for name in ("dest_displs", "dest_counts", "source_displs", "source_counts")
        )
    limit = staging(call.name, together=call.width > 0)
    part = part and tuple(map(int, part))
    call.tell(log.ENTER, group, tuple(what), members, *dest, *source, root if "root" in given else None, part, rows, limit)


def _left(call: WatchedCall, result: Any) -> None:
    group, _ = _collective(call)
    call.recorder.log.add(log.LEFT, call.recorder.log.turn(), call.thread, call.width, call.site, group)


_COLLECTIVE = _Kind(_enter, _left)

CALLS: dict[str, _Kind] = {
    "put": _Kind(_put(nbi=False)), "put_nbi": _Kind(_put(nbi=True), nbi=True),
    "put_signal": _Kind(_put(nbi=False, signal=True)), "put_signal_nbi": _Kind(_put(nbi=True, signal=True), nbi=True),
    "get": _Kind(_get(nbi=False)), "get_nbi": _Kind(_get(nbi=True), nbi=True),
    "iput": _Kind(_strided(log.PUT)), "iget": _Kind(_strided(log.GET)),
    "p": _Kind(_p), "g": _Kind(_g), "signal_op": _Kind(_signal),
    "atomic_fetch": _Kind(_fetch, _fetched),
    "atomic_set": _atomic(ATOMIC_SET, fetches=False), "atomic_swap": _atomic(ATOMIC_SET, fetches=True),
    "atomic_compare_swap": _atomic(ATOMIC_OTHER, fetches=True),
    "atomic_inc": _atomic(ATOMIC_ADD, fetches=False, value=1), "atomic_fetch_inc": _atomic(ATOMIC_ADD, fetches=True, value=1),
    "atomic_add": _atomic(ATOMIC_ADD, fetches=False), "atomic_fetch_add": _atomic(ATOMIC_ADD, fetches=True),
    **{f"atomic_{name}": _atomic(ATOMIC_OTHER, fetches=False) for name in ("min", "max", "and", "or", "xor")},
    **{f"atomic_fetch_{name}": _atomic(ATOMIC_OTHER, fetches=True) for name in ("min", "max", "and", "or", "xor")},
    "wait_until": _waited("ivar"), "signal_wait_until": _waited("sig"), "test": _Kind(_nothing, _tested),
    "signal_fetch": _Kind(_nothing, _signal_fetched),
    **{f"{form}_all{suffix}": _several(_all) for form in ("wait_until", "test") for suffix in ("", "_vector")},
    **{f"{form}_any{suffix}": _several(_any) for form in ("wait_until", "test") for suffix in ("", "_vector")},
    **{f"{form}_some{suffix}": _several(_some) for form in ("wait_until", "test") for suffix in ("", "_vector")},
    **dict.fromkeys(("fence", "quiet", "quiet_pe", "flush"), _Kind(_order)),
    "set_lock": _Kind(_nothing, _set_lock), "test_lock": _Kind(_nothing, _set_lock), "clear_lock": _Kind(_clear_lock),
    **dict.fromkeys(("barrier_all", "sync_all", "barrier", "team_sync"), _COLLECTIVE),
    **dict.fromkeys(("alltoall", "alltoallv", "broadcast", "fcollect", "collect", "reduce", "reducescatter"), _COLLECTIVE),
    **dict.fromkeys(("inscan", "exscan", "maxloc", "minloc"), _COLLECTIVE),
}  # fmt: skip
