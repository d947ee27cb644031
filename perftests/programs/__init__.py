"""Random programs: a seed determines the operations of the PEs, and an oracle in plain Python determines their results.

    mpirun -n 3 python -m pgas.perftests.programs --count 1000 --seed 1

* operation.py: a program, which is a list of operations in the order of one possible execution.
* rules.py: OpenSHMEM's rules, by which a program is defined if its conflicting operations are ordered.
* draw.py: draws programs from a seed.
* oracle.py: the contents of memory after each phase, and what operations fetch. It does not use pgas.
* interpreter.py: the kernel that performs programs from a table.
* on_host.py: phases in which hosts call the operations, immediately or on a stream.
* trial.py: performs a group of programs on all PEs and compares the results.
* shrink.py: makes a failing program smaller.
* soak.py: concurrent random operations from all threads, for minutes, without an oracle.
* __main__.py: the command.
"""
