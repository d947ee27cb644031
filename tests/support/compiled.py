"""Compiles the device functions for one transport: a program, because a process compiles for one transport only.

``python compiled.py TRANSPORT`` prints JSON: numbers, PTX and SASS instructions of every kernel of perftests.sass.KERNELS; under ``wrong``,
those of kernels with a planted error in the queue, a builder or the ring's wait, and of the same kernels without it.
``python compiled.py TRANSPORT A100``: of the kernels of ON_A100, for sm_80, over NICs for a GPU that does not see their writes in order.
"""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

#: The folder of sass.py, for programs that import its table of kernels, and this tree, which need not be the one that is installed.
TOOLS = os.pathsep.join(str(folder) for folder in (Path(__file__).resolve().parents[1] / "tools", Path(__file__).resolve().parents[2]))

#: Time limit of a compiling process in seconds, generous for slow and busy machines.
LIMIT = 1500


#: Kernels that settle what NICs write, and some that do not.
ON_A100 = ("p", "g", "put_block", "put_signal_block", "get", "get_block", "get_nbi_block", "iget_warp", "atomic_add",
           "atomic_fetch_add", "atomic_fetch_or", "signal_wait_until", "test", "wait_until_any", "quiet", "quiet_pe", "fence", "flush",
           "barrier_all")  # fmt: skip


def compiled(*arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": TOOLS}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def listing(built):
    return {**built.summary(), "sass": built.instructions, "ptx": built.ptx}


#: Planted errors of submit, poll, and quiet in queue.py: (text, replacement).
OF_A_QUEUE = {
    "submit: fence before the doorbell of an idle queue": ("        order()\n        ring(queue, end)", "        ring(queue, end)"),
    "submit: fence before the turn": ("    order()\n    if waits", "    if waits"),
    "submit: fence of the one who rings": ("            if not own:\n                order()\n", ""),
    "submit: release of the register": ("    order()\n    ptx.st_relaxed_sys_u64", "    ptx.st_relaxed_sys_u64"),
    "submit: release of the turn": ("ptx.st_release_gpu_u64(queue + layout.READY_HEAD", "ptx.st_relaxed_gpu_u64(queue + layout.READY_HEAD"),
    "submit: acquire of the mark": (
        "ptx.atom_cas_gpu_u64(queue + layout.READY_HEAD",
        "ptx.atom_cas_relaxed_gpu_u64(queue + layout.READY_HEAD",
    ),
    "submit: release of the mark": ("ptx.atom_cas_release_gpu_u64", "ptx.atom_cas_relaxed_gpu_u64"),
    "poll: acquire of the cursor": ("    cons = ptx.ld_acquire_gpu_u64", "    cons = ptx.ld_relaxed_gpu_u64"),
    "poll: acquire at the end": ("ptx.ld_acquire_sys_u64", "ptx.ld_relaxed_sys_u64"),
    "quiet: acquire of the cursor": (", ptx.ld_acquire_gpu_u64(", ", ptx.ld_relaxed_gpu_u64("),
}

#: The same for ring.wait.
OF_A_WAIT = {
    "wait: acquire of the look": ("ptx.ld_acquire_sys_u64(control", "ptx.ld_relaxed_sys_u64(control"),
    "wait: acquire of LOOKING": ("ptx.atom_cas_gpu_u64(layout.RING_LOOKING", "ptx.atom_cas_relaxed_gpu_u64(layout.RING_LOOKING"),
    "wait: release of SEEN": ("ptx.st_release_gpu_u64(layout.RING_SEEN", "ptx.st_relaxed_gpu_u64(layout.RING_SEEN"),
    "wait: release of LOOKING": ("ptx.st_release_gpu_u64(layout.RING_LOOKING", "ptx.st_relaxed_gpu_u64(layout.RING_LOOKING"),
    "wait: acquire at the end": ("ptx.ld_acquire_gpu_u64(layout.RING_SEEN)", "ptx.ld_relaxed_gpu_u64(layout.RING_SEEN)"),
}


def altered(module, old="", new=""):
    source = inspect.getsource(module)
    assert not old or source.count(old) == 1, f"{module.__name__} has {source.count(old)} times: {old}"
    other = ModuleType(module.__name__)
    exec(compile(source.replace(old, new) if old else source, module.__file__, "exec"), other.__dict__)
    return other


def linked(module, real, instead):
    """Return a module that imports another module instead of the real one."""
    other = altered(module)
    for name, value in vars(module).items():
        if value is real:
            setattr(other, name, instead)
        elif callable(value) and getattr(real, name, None) is value:
            setattr(other, name, getattr(instead, name))
    return other


def wrong(transport):
    """Return, by name, kernels that post, poll or wait, with their types: the correct one and one for each planted error."""
    import posting
    from numba.cuda import types

    from pgas.kernels.compiler import constant, primitive, ptx
    from pgas.kernels.paths import ibgda
    from pgas.kernels.paths.nic import post, queue, ring
    from pgas.kernels.paths.nic.lanes import group
    from pgas.kernels.scope import THREAD

    u64 = types.uint64
    _0 = constant(0)
    text = "atom.relaxed.gpu.global.cas.b64 $0, [$1], $2, $3;"
    ptx.atom_cas_relaxed_gpu_u64 = primitive("atom_cas_relaxed_gpu_u64", "u64(u64, u64, u64)", text, None)

    def submit(queue):
        hand_over = queue.submit

        def submit(record, base, n, idle):
            here, _, rank, _ = group(record)
            hand_over(_0, record, here, rank, n, (base, idle))

        return submit, (u64, u64, u64, types.boolean)

    def poll(queue):
        wait = queue.poll

        def poll(record, target):
            wait(_0, record, target)

        return poll, (u64, u64)

    def quiet(queue):
        complete = queue.quiet

        def quiet():
            complete(_0)

        return quiet, ()

    def put(ibgda):
        move = ibgda.put("put", THREAD, 4, nbi=True)

        def put(to, source, nbytes, pe):
            move(to, source, nbytes, pe, 0)

        return put, (u64, u64, u64, types.int32)

    def wait(ring):
        finish = ring.wait

        def wait(target):
            finish(_0, target)

        return wait, (u64,)

    def ibgda_with(builder, instead):
        posts = altered(post)
        setattr(posts, builder, instead)
        return linked(ibgda, post, posts)

    if transport == "ibrc":
        return {"wait": wait(ring)} | {name: wait(altered(ring, *change)) for name, change in OF_A_WAIT.items()}
    calls = {"submit": submit, "poll": poll, "quiet": quiet}
    kernels = {name: call(queue) for name, call in calls.items()} | {"put": put(ibgda)}
    for name, change in OF_A_QUEUE.items():
        kernels[name] = calls[name.partition(":")[0]](altered(queue, *change))
    return kernels | {f"put: {field}": put(ibgda_with(*posting.WRONG[field])) for field in posting.WRONG_IN_SHORT}


def compiled_wrong(transport):
    from pgas import sass

    return sass.build_all(wrong(transport))


def main(transport, gpu=""):
    from sass import KERNELS, LENT

    from pgas import sass

    sass.configure(transport, settles=gpu == "A100")
    if gpu == "A100":
        found = {"kernels": sass.build_all({"put_lent": LENT} | {name: KERNELS[name] for name in ON_A100}, (8, 0))}
    else:
        found = {"kernels": sass.build_all(KERNELS), "wrong": compiled_wrong(transport)}
    json.dump({part: {name: listing(built) for name, built in kernels.items()} for part, kernels in found.items()}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
