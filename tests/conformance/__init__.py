"""A conformance suite for PGAS libraries in Numba CUDA kernels: one file a chapter of checklist.py, written against library.py alone.

Under mpirun, at one to four PEs, over each transport:

    PGAS_TRANSPORT=ibgda mpirun -n 2 python -m pytest tests/conformance -q --conformance-report report.json
    python -m conformance.report report.json        (PYTHONPATH=tests)  prints what all runs so far have shown

CONFORMANCE_WITHOUT names what a machine cannot do, by commas: checks.py has the names (capability()).

Another library than pgas takes part by a module that offers pgas's names: CONFORMANCE_LIBRARY=its.name. What that module lacks is
reported as refused, with its name.
"""
