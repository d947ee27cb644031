"""RDMA devices through libibverbs: ``abi`` has its binary interface, ``device`` opens, ``memory`` registers, and ``queue_pair`` connects.

pyverbs makes the objects. The loop that posts and polls (transports/ibrc/work_requests.py) does not use pyverbs.
"""
