"""Collectives on the device: channels of teams (channel.py), ways between members (near.py, far.py), operations on elements (reduction.py).

A collective is performed by the threads of a scope on every member of a team. Each (team, channel) counts its collectives; this number is
the *epoch*. All flags of a collective have its epoch as their value, so nothing is reset.
"""
