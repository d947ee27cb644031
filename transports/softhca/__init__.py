"""A software ConnectX: a device in a separate process, one per node, that executes the mlx5 commands, doorbells, and WQEs of its PEs.

Read in this order: ``layout`` (addresses and limits), ``tables`` (contexts, and the writer of each field); in ``engine``, ``ops`` (its
primitives), ``pipeline`` (the states of a WQE), ``requester``, ``responder``, ``completer`` (their functions), ``loop``; in ``firmware``,
``objects``, ``queue_pairs``, ``commands``; in ``process``, ``messages``, ``server``, ``client``.
"""
