"""Wrong calls of every public function in kernels: a program that prints, as JSON, what each of them raises.

``python wrong_calls.py`` under NUMBA_ENABLE_CUDASIM=1 runs them in the simulator, under 0 compiles them for sm_90. ``python wrong_calls.py
host`` makes wrong calls of the host.
"""

import inspect
import json
import re
import sys

import numpy as np

import pgas
from pgas.base import parameters

#: Right and wrong arguments by the name of the parameter. Kernels get a (an array of uint64), s (of int32), m (of int64, shape (n, 2)), pe.
_ARRAY, _INTEGER = ("7", "None", "'x'", "(a, a)", "pgas"), ("0.5", "a", "'x'", "None", "(1, 2)", "True")
_TEAM = ("0.5", "None", "a", "'x'", "True")
ARGUMENTS = {
    **dict.fromkeys(("dest", "source", "sig", "lock", "ivar", "ivars", "values"), ("a", _ARRAY)),
    **dict.fromkeys(("dest_counts", "dest_displs", "source_counts", "source_displs"), ("s", _ARRAY)),
    **dict.fromkeys(("indices", "status"), ("s", ("7", "'x'", "(a, a)", "m", "pgas"))),
    **dict.fromkeys(("team", "src_team", "dest_team"), ("pgas.TEAM_WORLD", _TEAM)),
    **dict.fromkeys(("value", "cond"), ("1", ("a", "'x'", "None", "1j", "(1, 2)", "pgas"))),
    **dict.fromkeys(("dst_stride", "src_stride"), ("1", _INTEGER)),
    **dict.fromkeys(("channel", "qp", "root", "src_pe"), ("0", _INTEGER)),
    "array": ("a", _ARRAY),
    "smem": ("None", ("7", "'x'", "(a, a)", "pgas")),
    "cmp": ("pgas.EQ", (*_INTEGER, "pgas.SUM", "pgas.SIGNAL_ADD")),
    "idx": ("0", ("0.5", "a", "'x'", "None", "(0, 0)", "True")),
    "nelems": ("2", ("0.5", "a", "'x'", "(1, 2)", "True")),
    "op": ("pgas.SUM", (*_INTEGER, "pgas.EQ")),
    "part": ("(0, 1)", ("1", "(0, 1.5)", "(0, 1, 2)", "(0, a)", "'x'", "pgas")),
    "pe": ("pe", _INTEGER),
}


def functions():
    """Return the public functions that kernels may call, with their parameters there, and the names of those that they may not."""
    in_kernels, of_host = {}, []
    for name in pgas.__all__:
        public = getattr(pgas, name)
        if inspect.isfunction(public):
            if "@host_only" in inspect.getsource(public.__wrapped__):
                of_host.append(name)
            else:
                in_kernels[name] = list(parameters.in_kernels(public).parameters.values())
    return in_kernels, of_host


def calls():
    """Yield name, parameter and text of wrong calls; the parameter is "" if the number or the name of arguments is wrong."""
    in_kernels, of_host = functions()
    for name in of_host:
        yield name, "", f"pgas.{name}()"
    for name, taken in in_kernels.items():
        right = {p.name: ARGUMENTS[p.name][0] for p in taken}
        if name.startswith(("maxloc", "minloc")):
            right |= {"dest": "m", "source": "m"}
        if "signal" in name and "op" in right:
            right["op"] = "pgas.SIGNAL_SET"
        given = [right[p.name] for p in taken if p.default is p.empty]
        wrong = [[*right.values(), "0"], [*given, "stream=0"]]
        if given:
            misspelled = f"{taken[len(given) - 1].name}s={given[-1]}"
            wrong += [given[:-1], [], [*given[:-1], misspelled], [*given, f"{taken[0].name}={given[0]}"]]
        for arguments in wrong:
            yield name, "", f"pgas.{name}({', '.join(arguments)})"
        for p in taken:
            values = ARGUMENTS[p.name][1]
            # They share their checks with the plain form, which has no part. Of the forms with a part, one gets all wrong values.
            few = name.endswith(("_warp", "_block")) and (p.name, name) != ("part", "reduce_block")
            for value in values[:1] if few else values:
                yield name, p.name, f"pgas.{name}({', '.join((right | {p.name: value}).values())})"


#: On the host: right arguments, None for those left out, and more wrong ones, by the name of the parameter.
ON_HOST = {
    "alignment": (None, ("3", "'x'", "None", "True")),
    "array": ("a", ("3", "None", "a[1:]", "freed")),
    "args": ("()", ("5", "a", "None")),
    "block": ("1", ("0", "'x'", "5000", "True", "(1, True)")),
    "channels": (None, ("0", "'x'", "1.5", "True")),
    "dtype": (None, ("'nodtype'", "object", "'S4'", "5")),
    "grid": ("1", ("0", "'x'", "-1", "True", "(1, True)")),
    "host": (None, ("5", "'a..b'")),
    "kernel": ("kernel", ("5", "None", "print")),
    "parent": ("pgas.TEAM_WORLD", ("5", "None", "'x'")),
    "pes": ("[0]", ("5", "[0, 0]", "[7]", "'x'", "[0.5]", "[False]")),
    "prototype": ("a", ("3", "None")),
    "shape": ("4", ("-1", "'x'", "1.5", "(2, 'x')", "True", "(2, True)")),
    "shared": (None, ("'x'", "-1", "1.5", "True")),
    "size": ("1", ("0", "'x'", "True")),
    "start": ("0", ("7", "'x'", "False")),
    "stream": (None, ("'x'", "5.5", "a")),
    "stride": ("1", ("'x'", "True")),
    "values": ("[1, 2]", ("'x'", "None", "['a']", "[1, [2]]")),
    "xrange": ("1", ("0", "'x'", "None", "True")),
}
AS_IN_KERNELS = {
    "channel": ("99",),
    "cmp": ("99", "pgas.SUM"),
    "dest": ("freed",),
    "idx": ("9", "-1"),
    "ivar": ("host", "freed"),
    "ivars": ("host", "freed", "m"),
    "lock": ("s", "host", "freed"),
    "nelems": ("99", "-1"),
    "op": ("99", "pgas.EQ"),
    "pe": ("7", "-1"),
    "root": ("9",),
    "sig": ("s", "host", "freed"),
    "source": ("freed",),
    "team": ("99", "-1"),
    "value": ("1 << 70",),
}
#: Functions of the host that take anything, and that tests/test_faults.py and tests/test_tracebacks.py call wrongly.
LEFT_OUT = {"allgather_object", "broadcast_object", "finalize", "info", "init", "jit", "reset"}
#: Only in kernels.
NOT_ON_HOST = {"give_smem", "qp", "smem"}


def host_calls():
    """Yield name, parameter and text of wrong calls on the host."""
    for name in pgas.__all__:
        public = getattr(pgas, name)
        if not inspect.isfunction(public) or name in LEFT_OUT | NOT_ON_HOST or name.endswith(("_warp", "_block")):
            continue
        taken = [p for p in inspect.signature(public).parameters.values() if p.name not in NOT_ON_HOST]
        kernels = {p.name for p in taken} <= ARGUMENTS.keys() - {"array"} | {"stream"}
        known = {p.name: ARGUMENTS[p.name] if kernels and p.name != "stream" else ON_HOST.get(p.name, ARGUMENTS.get(p.name)) for p in taken}
        right = {p: argument for p, (argument, _) in known.items()}
        if name.startswith(("maxloc", "minloc")):
            right |= {"dest": "m", "source": "m"}
        if "signal" in name and "op" in right:
            right["op"] = "pgas.SIGNAL_SET"
        for p, (_, wrong) in known.items():
            for value in (*wrong, *(AS_IN_KERNELS.get(p, ()) if kernels else ())):
                given = {word: text for word, text in (right | {p: value}).items() if text is not None}
                yield name, p, f"pgas.{name}({', '.join(f'{word}={text}' for word, text in given.items())})"


def on_host():
    pgas.init()
    scope = {"pgas": pgas, "host": np.zeros(4, np.uint64), "freed": pgas.zeros(4, np.uint64), "kernel": pgas.jit(lambda: None), "pe": 0}
    scope |= {"a": pgas.zeros(4, np.uint64), "s": pgas.zeros(4, np.int32), "m": pgas.zeros((4, 2), np.int64)}
    pgas.free(scope["freed"])

    def said(call):
        try:
            eval(call, scope)
        except (TypeError, ValueError, pgas.PgasError) as error:
            return str(error)
        return ""

    return said


def kernel_of(call):
    scope = {"pgas": pgas}
    exec(f"def kernel(a, s, m, pe):\n    {call}", scope)
    return pgas.jit(scope["kernel"], cache=False)


def simulated():
    """Return a function that returns what a call raises in the simulator."""
    pgas.init()
    arguments = pgas.zeros(4, np.uint64), pgas.zeros(4, np.int32), pgas.zeros((4, 2), np.int64), 0

    def said(call):
        try:
            kernel_of(call)[1, 1](*arguments)
        except TypeError as error:
            return str(error).removeprefix("tid=[0, 0, 0] ctaid=[0, 0, 0]: ")
        return ""

    return said


def compiled():
    from numba.cuda import types

    from pgas import sass
    from pgas.kernels.compiler.reason import reason

    sass.configure("p2p")
    arguments = types.uint64[::1], types.int32[::1], types.int64[:, ::1], types.int64

    def said(call):
        kernel = kernel_of(call)
        try:
            sass.compile_ptx(kernel, arguments)
        except Exception as error:
            return re.sub(r" \(<string>:2\)$", "", reason(error, kernel.py_func))
        return ""

    return said


if __name__ == "__main__":
    of_host = sys.argv[1:] == ["host"]
    said_of = on_host() if of_host else simulated() if pgas.SIMULATOR else compiled()
    json.dump([(*call, said_of(call[-1])) for call in (host_calls() if of_host else calls())], sys.stdout)
