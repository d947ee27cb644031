"""RDMA devices through libibverbs: ``abi`` is its binary interface, ``device`` asks, ``memory`` registers, ``queue_pair`` connects.

pyverbs makes the objects; what posts to them and polls (transports/ibrc/work_requests.py) uses none of it.
"""
