"""A software ConnectX: a device in a separate process, one per node, that executes the mlx5 commands, doorbells and WQEs of its PEs.

Read in this order: ``layout`` (addresses and limits), ``tables`` (contexts, and who owns which field), ``ops`` (the engine's
primitives), ``requester``, ``responder``, ``completer`` (what happens to a WQE), ``engine`` (the loop); then the control path ``objects``,
``firmware``, ``queue_pairs``; then the process: ``messages``, ``server``, ``client``.
"""
