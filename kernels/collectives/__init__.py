"""Collectives on the device.

barriers.py, movement.py, and reductions.py check operands and make the bodies of the public functions. They transfer data by a strategy
(strategy.py): near.py for members that map each other's memory, far.py for others. channel.py has the flags and epochs of teams, and
operators.py the operations on elements.

A collective is performed by the threads of a scope on every member of a team. Each (team, channel) counts its collectives; this number is
the *epoch*. All flags of a collective have its epoch as their value, so that nothing needs to be reset.
"""
