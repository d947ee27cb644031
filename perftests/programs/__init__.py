"""Random programs: what PEs do is drawn from a seed, and what must come of it is told by an oracle in plain Python.

    mpirun -n 3 python -m pgas.perftests.programs --count 1000 --seed 1

* operation.py: what a program is: a list of operations, in the order of one possible execution.
* rules.py: which programs have an outcome: operations that conflict are ordered, by the rules of OpenSHMEM.
* draw.py: programs from a seed.
* oracle.py: what memory holds after each phase, and what operations fetch. It uses nothing of pgas.
* interpreter.py: the kernel that performs programs from a table.
* on_host.py: phases in which the hosts call operations themselves, at once and on a stream.
* trial.py: performs a group of programs on all PEs and compares.
* shrink.py: makes a program that failed small.
* soak.py: random operations from all threads at once, for minutes and without an oracle.
* __main__.py: the command.
"""
