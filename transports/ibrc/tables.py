"""What the proxy thread's loop works on: one record, then a row for each queue pair, the requests that are not done, the queues to ring.

Words of 8 bytes in memory of this process. A posting back end (wqes.py, work_requests.py) uses the words marked so as it likes.
"""

# The record, at its start. PHASE: one of PHASES. REGISTERED: address of the table of registered memory. The words from LKEY to SINK, and
# those behind END, are the back end's.
STOP, CONTROL, SLOT_MASK, ROWS, UNDONE, UNRUNG, DEPTH, BATCH, LKEY, CELL_LKEY, SINK, PHASE, REGISTERED, END = range(0, 112, 8)

# An entry of the table of registered memory: its lkey as the back end wants it, and what is subtracted from its addresses.
REGION_LKEY, REGION_SHIFT, REGION_SIZE = 0, 8, 16

# A row. The cursors count what the back end posts, WQEBBs or work requests, and only grow: built, rung for, completed. RECORD: the
# queue pair's record in the state page (kernels/paths/nic/queue.py), its name in errors. Other words are the back end's.
RECORD, PROD_IDX, RUNG_IDX, CONS_IDX = range(56, 88, 8)
ROW = 128

#: A request that is not done: the row of its queue pair, and PROD_IDX behind it.
UNDONE_SIZE = 16

#: What one step of a request posts at most: a WRITE, a MASKED_CS of 2 WQEBBs, and a NOP that completes it.
STEP_MAX = 4

#: What step() returns when a request is posted as a whole, and when the adapter cannot do what it asks for.
POSTED, REFUSED = -1, -2

#: What the thread does, in PHASE, for who wants to know where its time goes: builds what it posts, rings doorbells, looks at CQEs, or
#: found nothing to do in the last turn.
POSTING, RINGING, COMPLETING, WAITING = range(4)
PHASES = ("posting", "ringing", "completing", "waiting")
