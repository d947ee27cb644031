"""Shared by the chapters on teams and collectives: the sources of members, and the expected results, computed by NumPy."""

import functools
import os

import numpy as np
import pytest

from conformance import library as pgas
from conformance.checks import BLOCK, TRANSPORT, WARP, nbytes_of, payload

__all__ = ["BLOCK_FIRST", "BY_NIC", "LL_BYTES", "OPS", "SCOPES", "THREADS", "core", "folded", "kernel", "numbers", "reducing", "taken"]

#: Scope: threads that call together.
THREADS = {"": 1, "_warp": WARP, "_block": BLOCK}
SCOPES = pytest.mark.parametrize("scope", THREADS, ids=["thread", "warp", "block"])


def core(values, *first):
    """Parameters of a test: `make check` runs the first ones, `make check-all` every one."""
    return [value if value in first else pytest.param(value, marks=pytest.mark.slow) for value in values]


BLOCK_FIRST = pytest.mark.parametrize("scope", core(THREADS, "_block"), ids=["thread", "warp", "block"])

#: Largest message that pgas sends through staging. Other libraries may have such a limit nearby.
LL_BYTES = nbytes_of(os.environ.get("PGAS_LL_BYTES", "4K"))

#: Whether some PEs reach each other through a NIC, which has its own algorithms for large messages.
BY_NIC = "ib" in TRANSPORT

#: By name of an op: its function of two arrays.
OPS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
}


@functools.cache
def kernel(name, scope):
    """Return a kernel that calls a collective with (team, dest, source)."""
    call = getattr(pgas, name + scope)

    @pgas.jit
    def once(team, dest, source):
        call(team, dest, source)

    return once


@functools.cache
def reducing(name, scope, op):
    """Return a kernel that calls a reduction with an op."""
    call, op = getattr(pgas, name + scope), getattr(pgas, op)

    @pgas.jit
    def once(team, dest, source):
        call(team, dest, source, op)

    return once


def is_float(dtype):
    """Whether elements are real numbers. To NumPy, the types of ml_dtypes are not."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def numbers(nelems, dtype, seed):
    """Return elements to reduce: any integers, or floats whose sum depends on the order of additions."""
    dtype = np.dtype(dtype)
    if is_float(dtype) or dtype.kind == "c":
        drawn = np.random.default_rng([seed, nelems]).standard_normal(2 * nelems) * 10
        return (drawn[:nelems] + (1j * drawn[nelems:] if dtype.kind == "c" else 0)).astype(dtype)
    return payload(nelems, dtype, seed)


def folded(op, sources):
    """Combine sources in the order of members; 16-bit floats in float32, rounded once."""
    dtype = sources[0].dtype
    wide = [s.astype(np.float32) for s in sources] if is_float(dtype) and dtype.itemsize == 2 else sources
    with np.errstate(all="ignore"):
        return functools.reduce(OPS[op], wide).astype(dtype)


def exscan_of_none(op, dtype):
    """Return the result of an exclusive scan at member 0."""
    dtype = np.dtype(dtype)
    if op in ("SUM", "OR", "XOR"):
        return dtype.type(0)
    if op == "PROD":
        return dtype.type(1)
    if op == "AND":
        return dtype.type(1) if dtype == np.bool_ else np.invert(dtype.type(0))
    if is_float(dtype):
        return dtype.type(np.inf if op == "MIN" else -np.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.max if op == "MIN" else limits.min)


def taken(name, sources, me, *, root=0, op="SUM"):
    """Return the expected dest of member ``me``."""
    if name == "broadcast":
        return sources[root]
    if name in ("fcollect", "collect"):
        return np.concatenate(sources)
    if name == "alltoall":
        each = sources[0].size // len(sources)
        return np.concatenate([s[me * each : (me + 1) * each] for s in sources])
    if name == "reduce":
        return folded(op, sources)
    if name == "reducescatter":
        each = sources[0].size // len(sources)
        return folded(op, sources)[me * each : (me + 1) * each]
    if name == "inscan":
        return folded(op, sources[: me + 1])
    if name == "exscan":
        return folded(op, sources[:me]) if me else np.full(sources[0].size, exscan_of_none(op, sources[0].dtype), sources[0].dtype)
    raise AssertionError(name)
