"""Random programs: a seed decides what PEs do, and an oracle in plain Python what must come of it.

    mpirun -n 3 python -m pgas.perftests.programs --count 1000 --seed 1

* operation.py: a program is a list of operations, in the order of one possible execution.
* rules.py: which programs are defined: conflicting operations are ordered, by the rules of OpenSHMEM.
* draw.py: programs from a seed.
* oracle.py: the contents of memory after each phase, and what operations fetch. It uses nothing of pgas.
* interpreter.py: the kernel that performs programs from a table.
* on_host.py: phases of operations that hosts call, at once and on a stream.
* trial.py: performs a group of programs on all PEs and compares the results.
* shrink.py: makes a program that failed small.
* soak.py: random operations from all threads at once, for minutes and without an oracle.
* __main__.py: the command.
"""
