"""Calls of pgas for type checkers: `make types` checks this file, and an expected error that is not reported is an error."""

from typing import Any, assert_type

import numpy as np

import pgas


def copies(dest: pgas.SymmetricArray, source: Any) -> None:
    pgas.put(dest, source, 1)
    pgas.put(dest, source, pe=np.int32(1), nelems=3, stream=None)
    pgas.put_block(dest[1:], source, 1, 3, qp=2)
    pgas.put(dest)  # type: ignore[call-arg]
    pgas.put(dest, dest, pe=0, count=3)  # type: ignore[call-arg]
    pgas.put(dest, source, 0.5)  # type: ignore[arg-type]
    pgas.put_block(dest, source, 1, stream=0)  # type: ignore[call-arg]
    pgas.iget(dest, source, 1, 1)  # type: ignore[call-arg]


def bound(dest: pgas.SymmetricArray, source: Any) -> None:
    again = pgas.put.bind(dest, source, 1, stream=0)
    assert_type(again(), None)
    pgas.reduce.bind(pgas.TEAM_WORLD, dest, source, pgas.SUM, stream=0)()
    pgas.put.bind(dest, stream=0)  # type: ignore[call-arg]


def elements(dest: pgas.SymmetricArray) -> None:
    pgas.p(dest, 0, 3.5, 1)
    pgas.p(dest, (np.int64(0), 1), 1j, 1)
    pgas.p(dest, 0, 1)  # type: ignore[call-arg]
    pgas.g(dest, 0.5, 1)  # type: ignore[arg-type]
    pgas.atomic_add(dest, 0, 1, pe=0)
    pgas.atomic_add(dest, 0, 1)  # type: ignore[call-arg]
    pgas.atomic_compare_swap(dest, 0, 1, 0, 1, 2)  # type: ignore[call-arg]


def order(flag: pgas.SymmetricArray) -> None:
    pgas.put_signal(flag, flag, flag, 0, 1, pgas.SIGNAL_ADD, 1)
    pgas.signal_op(flag, 0, 1, "add", 1)  # type: ignore[arg-type]
    pgas.wait_until(flag, 0, pgas.EQ, 1)
    pgas.wait_until(flag, pgas.EQ, 1)  # type: ignore[call-arg]
    pgas.wait_until_any(flag, None, pgas.GE, 1, nelems=4)
    pgas.wait_until_any(flag, pgas.GE, 1)  # type: ignore[call-arg]
    pgas.wait_until_some(flag, flag, None, pgas.GE, 1, stream=0)
    pgas.set_lock(flag, 0, stream=0)
    pgas.set_lock(flag)  # type: ignore[call-arg]
    pgas.fence(1)  # type: ignore[call-arg]
    pgas.quiet_pe()  # type: ignore[call-arg]
    pgas.barrier_all(stream=0)
    pgas.barrier_all_warp(stream=0)  # type: ignore[call-arg]


def queries(array: pgas.SymmetricArray) -> None:
    assert_type(pgas.my_pe(), int)
    pgas.n_pes(1)  # type: ignore[call-arg]
    pgas.ptr(array, 1)
    pgas.ptr(array)  # type: ignore[call-arg]


def arrays() -> None:
    with pgas.init(), pgas.zeros((2, 3), "bfloat16") as array:
        assert_type(array, pgas.SymmetricArray)
        assert_type(array.reshape(6), pgas.SymmetricArray)
        assert_type(array.T.shape, tuple[int, ...])
        assert_type(array.dtype, np.dtype[Any])
        array.copy_to_device(array.copy_to_host() + 1)
        array.copy_to_device()  # type: ignore[call-arg]
        array.copy_to_gpu()  # type: ignore[attr-defined]
        pgas.zeros_like(array, shape=3, order="C")  # type: ignore[call-arg]
