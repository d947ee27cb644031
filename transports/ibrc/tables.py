"""The memory of the proxy thread's loop: a record, one row per queue pair, the outstanding requests, and the queue pairs to ring.

All are 8-byte words in this process's memory. Some belong to the posting back end (wqes.py, work_requests.py).
"""

# The record. PHASE: one of PHASES. REGISTERED: address of the table of registered memory. TRACE: address of the ring of events, 0 for none;
# number of events written; mask of a ring's slots. The words from LKEY to SINK, and those after END, belong to the back end.
(
    STOP, CONTROL, SLOT_MASK, ROWS, UNDONE, UNRUNG, DEPTH, BATCH, LKEY, CELL_LKEY, SINK, PHASE, REGISTERED, TRACE, TRACE_TICKET, TRACE_MASK,
    END,
) = range(0, 136, 8)  # fmt: skip

# An entry of the table of registered memory: its lkey in the back end's byte order, and the number to subtract from its addresses.
REGION_LKEY, REGION_SHIFT, REGION_SIZE = 0, 8, 16

# A row. The cursors only grow and count WQEBBs or work requests, whichever the back end posts: built, rung for, completed. RECORD: the
# queue pair's record in the state page (kernels/layout.py), which identifies it in errors. Other words belong to the back end.
RECORD, PROD_IDX, RUNG_IDX, CONS_IDX = range(56, 88, 8)
ROW = 128

#: An outstanding request: the row of its queue pair, and PROD_IDX after its last WQE.
UNDONE_SIZE = 16

#: Maximum number of WQEBBs that one step posts: a WRITE, a MASKED_CS of 2 WQEBBs, and the NOP that completes it.
STEP_MAX = 4

#: Results of step() other than a count of bytes: the whole request is posted; it failed, or the adapter cannot perform it.
POSTED, REFUSED = -1, -2

#: Values of PHASE, for profiling: building WQEs, ringing doorbells, polling CQs, or idle in the last iteration.
POSTING, RINGING, COMPLETING, WAITING = range(4)
PHASES = ("posting", "ringing", "completing", "waiting")
