"""A job that does not go on as before: a collective that an exception left, a child that was forked, pgas.reset() after an error.

The programs run in the simulator, in processes of their own, under mpirun where there is more than one PE.
"""

import jobs

job = jobs.job

# ------------------------------------------------------------------------------------------------- a collective that was left

#: PE 0 leaves collectives, by what Ctrl-C raises: while it waits, while it computes, in init. PE 1 comes to them after that where it can.
LEAVING = """
from pathlib import Path
from pgas import runtime

me = int(os.environ["PMI_RANK"])

class Interrupts:
    def __int__(self):
        raise KeyboardInterrupt

def interrupted(job):
    int(Interrupts())

def leave(step, call, *args, place="_interrupt"):
    if me:
        while call not in (pgas.init, pgas.launch) and not Path(sys.argv[0]).with_name(step).exists():
            time.sleep(0.01)
        attempt(call, *args)
        return
    whole = getattr(runtime.Job, place)
    setattr(runtime.Job, place, interrupted)
    try:
        call(*args)
    except KeyboardInterrupt:
        say("PE 0: interrupted")
    setattr(runtime.Job, place, whole)
    note(step)
"""

LEFT = "BootstrapError: PE 0 left {} by KeyboardInterrupt: the PEs are out of step, and the job makes no collective call any more"


def test_collective_that_an_exception_left(job):
    """Each later one says so, on every PE: nobody gets another call's data, and nobody waits for ever. A new job works."""
    text = """
leave("init", pgas.init, place="_node_rank")
for step, call, args, place in (
    ("waiting", pgas.allgather_object, (1,), "_interrupt"),
    ("completing", pgas.barrier_all, (), "complete"),
    ("preparing", pgas.launch, (waits, 1, 1, (), 0, 0 if me else Interrupts()), "_say"),
):
    pgas.init()
    leave(step, call, *args, place=place)
    attempt(pgas.allgather_object, 2)
    attempt(pgas.zeros, 3)
    attempt(pgas.finalize)
with pgas.init():
    say(f"PE {me}:", pgas.allgather_object(me))
"""
    ended = job(LEAVING + text)
    assert ended.status == 0, ended
    told = [[LEFT.format(call)] * 3 for call in ("pgas.allgather_object()", "pgas.barrier_all()", "pgas.launch(waits)")]
    assert ended.lines(0) == ["interrupted", *(line for lines in told for line in ("interrupted", *lines)), "[0, 1]"], ended
    assert ended.lines(1) == [LEFT.format("pgas.init()"), *(line for lines in told for line in (lines[0], *lines)), "[0, 1]"], ended
