"""Calls of pgas in kernels as events of a timeline, and as traffic (PGAS_TRACE): the body of a call, and around it what records the call.

Every public function of device code is bound by binding.device_function(), which asks ``of_call()`` for the body. The first thread of a
scope records the call for all of its threads.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pgas.base import events
from pgas.kernels import operation, state, trace, traffic, window
from pgas.kernels.compiler import address_of, address_of_element, bits_of, constant, device, element_size, types, u64
from pgas.kernels.ops import operands
from pgas.kernels.scope import BLOCK, THREAD, WARP, Scope

#: Functions that neither communicate nor wait, which programs call too often for a timeline.
_LOCAL = ("ptr", "give_smem", "signal_fetch", "team_my_pe", "team_n_pes", "team_translate_pe")

#: Names of the operand that a call is about, in the order of preference: on the symmetric heap, if there is one.
_SUBJECTS = ("sig", "ivar", "ivars", "lock", "dest")

#: Scopes, by their number in an event.
SCOPES = (THREAD, WARP, BLOCK)


def of_call(name: str, given: Mapping[str, Any], body: Callable[..., Any], defaults: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the body of a call that also records it, or the same body if the job records nothing.

    Args:
        name: the public name.
        given: types of the operands by parameter, in order.
        body: the body for them.
        defaults: defaults of parameters.
    """
    scope = next((s for s in SCOPES if s.suffix and name.endswith(s.suffix)), THREAD)
    plain = name.removesuffix(scope.suffix)
    if not (window.TRACES or window.COUNTS) or name not in operation.NAMES or plain in _LOCAL or plain.startswith("test"):
        return body
    code = operation.number(name) | SCOPES.index(scope) << events.SCOPE_SHIFT
    parts = {
        "code": f"u64({code}) | (u64({_condition(given)}) & {events.COMPARISON_MASK}) << {events.COMPARISON_SHIFT}",
        "peer": "u64(pe)" if "pe" in given else "nobody",
        "address": _address(plain, given),
        "nbytes": _nbytes(plain, given),
        "word": _word(plain, given),
        "value": "bits_of(value)" if _is_number(given.get("value")) else "u64(channel)" if "channel" in given else "zero",
    }
    lines = []
    if window.COUNTS:
        lines += [f"count(u64({traffic.FAMILIES.index(family)}), {on}, one, {size})" for family, on, size in _counted(plain, given, parts)]
    if window.TRACES:
        lines.append("end(began, {code}, {peer}, {address}, u64({nbytes}), {word}, {value})".format(**parts))
    return _composed(given, defaults, lines, _names(given, scope, body)) if lines else body


def _counted(plain: str, given: Mapping[str, Any], parts: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return what a call counts: families, and the PE and bytes of each as expressions."""
    nbytes = f"u64({parts['nbytes']})"
    if plain in operation.COLLECTIVES or plain in ("barrier_all", "sync_all"):
        return [("collective", "my_pe()", nbytes)]
    family = traffic.family_of(plain)
    if family is None or "pe" not in given:
        return []
    found = [(family, "u64(pe)", nbytes)]
    return [*found, ("signal", "u64(pe)", "size_of_sig")] if plain in _SIGNALLED else found


def _composed(given: Mapping[str, Any], defaults: Mapping[str, Any], lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    """Compile the body, whose parameters must be those of the call, because compilers compare them."""
    parameters = ", ".join(f"{name}={defaults[name]!r}" if name in defaults else name for name in given)
    begin = "        began = begin()\n" if window.TRACES else "        pass\n"
    text = f"""
def body({parameters}):
    leads = leading()
    began = zero, zero
    if leads:
{begin}    result = inner({", ".join(given)})
    if leads:
        {"; ".join(lines)}
    return result
"""
    exec(compile(text, "<recorded>", "exec"), names)
    return names["body"]  # type: ignore[no-any-return]


def _names(given: Mapping[str, Any], scope: Scope, body: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals of the body."""
    arrays = {f"size_of_{name}": constant(element_size(kind.dtype)) for name, kind in given.items() if isinstance(kind, types.Array)}
    return {
        "inner": device(body), "leading": trace.leading(scope.rank), "begin": trace.begin, "end": trace.end, "u64": u64,
        "address_of": address_of, "address_of_element": address_of_element, "bits_of": bits_of, "nobody": constant(events.NOBODY),
        "zero": constant(0), "one": constant(1), "min": min, "count": traffic.count, "my_pe": state.my_pe, **arrays,
    }  # fmt: skip


def _subject(plain: str, given: Mapping[str, Any]) -> str | None:
    """Return the parameter of the array that the call is about."""
    if plain.startswith("put_signal"):
        return "dest"
    if plain in ("get", "get_nbi", "iget", "g"):
        return "source"
    return next((name for name in _SUBJECTS if name in given), None)


def _address(plain: str, given: Mapping[str, Any]) -> str:
    name = _subject(plain, given)
    if name is None:
        return "zero"
    return f"address_of_element({name}, idx)" if "idx" in given and plain not in _SIGNALLED else f"address_of({name})"


#: Operations of which idx is the index of the signal.
_SIGNALLED = ("put_signal", "put_signal_nbi")


def _word(plain: str, given: Mapping[str, Any]) -> str:
    """Return the address of the signal that an operation sends after its data, or the number of a team."""
    if plain in _SIGNALLED:
        return "address_of_element(sig, idx)"
    return "u64(team)" if "team" in given else "zero"


def _nbytes(plain: str, given: Mapping[str, Any]) -> str:
    """Return the bytes that a call moves: of a collective, those that this member brings."""
    if "dest" not in given and "source" not in given:
        return f"size_of_{_subject(plain, given)}" if plain in ("signal_op", "clear_lock") else "zero"
    if "idx" in given and plain not in _SIGNALLED:
        return f"size_of_{_subject(plain, given)}"
    if plain in operation.COLLECTIVES:
        return "u64(source.size) * size_of_source"
    if "nelems" in given and not operands.is_none(given["nelems"]):
        return "u64(nelems) * size_of_source"
    if "dst_stride" in given:
        held = (
            f"(u64({array}.size) + u64({by}) - u64(1)) // u64({by})" for array, by in (("dest", "dst_stride"), ("source", "src_stride"))
        )
        return f"min({', '.join(held)}) * size_of_source"
    return "u64(min(dest.size, source.size)) * size_of_source"


def _condition(given: Mapping[str, Any]) -> str:
    """Return the comparison of a wait, or the op of a signal."""
    if "cmp" in given:
        return "cmp"
    return "op" if "sig" in given and "op" in given else "0"


def _is_number(kind: Any) -> bool:
    """Whether the type of an operand is one whose bits fit into a word."""
    if isinstance(kind, types.Omitted) or kind is None:
        return False
    return isinstance(kind, (types.Integer, types.Float, types.Boolean)) or kind in (int, float)
