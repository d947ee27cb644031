"""What the compiler makes of the device functions of one transport: a program, because a process compiles for one transport only.

``python compiled.py TRANSPORT`` prints JSON: of every kernel of perftests.sass.KERNELS the numbers, the PTX and the SASS
instructions; under ``wrong``, of queues and builders with an error each (ibgda only).
"""

import contextlib
import json
import os
import subprocess
import sys
from unittest import mock


def compiled(transport):
    """Run this program and return what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, __file__, transport], capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def listing(built):
    return {**built.summary(), "sass": built.instructions, "ptx": built.ptx}


def wrong():
    """name -> kernels that post and poll: as they are, and with one error each."""
    import posting
    from numba.cuda import types

    from pgas.kernels import ibgda, ptx, queue, window
    from pgas.kernels.compiler import constant, primitive
    from pgas.kernels.scope import THREAD

    u64 = types.uint64
    _0 = constant(0)

    def fresh(make):
        """A transport's functions, compiled anew."""
        make.cache_clear()
        return make(window.constants())

    def submit():
        hand_over = fresh(queue.make).submit

        def submit(record, base, n):
            hand_over(_0, record, base, n)

        return submit, (u64, u64, u64)

    def poll():
        wait = fresh(queue.make).poll

        def poll(record, target):
            wait(_0, record, target)

        return poll, (u64, u64)

    def put():
        fresh(queue.make)
        post = fresh(ibgda.make).put("put", THREAD, 4, nbi=True)

        def put(to, source, nbytes, pe):
            post(to, source, nbytes, pe, 0)

        return put, (u64, u64, u64, types.int32)

    def relaxed(name):
        """The primitive without its order."""
        load, scope, bits = name.startswith("ld"), name.split("_")[2], name[-2:]
        text = f"{name[:2]}.relaxed.{scope}.global.u{bits} " + ("$0, [$1];" if load else "[$0], $1;")
        return primitive(name, f"u{bits}(u64)" if load else f"void(u64, u{bits})", text, None)

    cases = {"submit": (submit, None), "poll": (poll, None), "put": (put, None)}
    for function, name in (("submit", "st_release_sys_u32"), ("submit", "st_release_sys_u64"), ("submit", "st_release_gpu_u64"),
                           ("submit", "ld_acquire_gpu_u64"), ("poll", "ld_acquire_sys_u64")):  # fmt: skip
        cases[f"{function}: {name}"] = {"submit": submit, "poll": poll}[function], (ptx, name, relaxed(name))
    for field in posting.WRONG_IN_SHORT:
        name, builder = posting.WRONG[field]
        cases[f"put: {field}"] = put, (ibgda, name, builder)
    return cases


def compiled_wrong():
    """The kernels of wrong(), each compiled while its error is in place."""
    from pgas.perftests import sass

    ptx = {}
    for name, (make, change) in wrong().items():
        with mock.patch.object(*change) if change else contextlib.nullcontext():
            ptx[name] = sass.compile_ptx(*make())
    return sass.assemble(ptx)


def main(transport):
    from pgas.perftests import sass

    sass.configure(transport)
    found = {"kernels": sass.build_all(sass.KERNELS), "wrong": compiled_wrong() if transport == "ibgda" else {}}
    json.dump({part: {name: listing(built) for name, built in kernels.items()} for part, kernels in found.items()}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
