"""Device code that the NIC paths (ibgda, ibrc) share.

Both use lanes.py, queue_pair.py, cells.py, and amo.py. ibgda posts WQEs (post.py, atomic_wqe.py) to send queues (queue.py); ibrc posts
requests to a ring (ring.py).
"""
