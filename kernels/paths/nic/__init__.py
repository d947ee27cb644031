"""Device code that the NIC paths (ibgda, ibrc) share.

Both use lanes.py, queue_pair.py, cells.py and amo.py. ibgda posts by post.py and atomic_wqe.py into the send queues of queue.py, ibrc by
ring.py.
"""
