"""Collectives on the device: channels of teams (channel.py), ways between members (near.py, far.py), operations on elements (reduction.py).

A collective is performed by the threads of a scope on every member of a team. Every (team, channel) numbers its collectives; the number is
the *epoch*. It is the flag of all that belongs to the collective, so nothing is ever reset.
"""
