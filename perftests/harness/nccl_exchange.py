"""Expert-parallel dispatch and combine by PyTorch's ``all_to_all_single`` over NCCL, for rows next to those of pgas.

The same rows move as with pgas: a token once to each PE that has one of its experts. Before that, index_select brings them into the order
of PEs. After the way back, index_add_ adds them up, in bfloat16.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pgas
from pgas.perftests.harness.peers import graph_seconds

__all__ = ["NcclExchange"]


class NcclExchange:
    """Tensors and calls of an exchange; collective.

    Args:
        torch: PyTorch.
        device: this PE's GPU.
        group: torch.distributed with a group of all PEs.
        rows: rows of this PE's tokens, int32 words.
        goes: whether a token (axis 0) goes to a PE (axis 1).
        hidden: number of bfloat16 in a row that comes back.
    """

    def __init__(self, torch: Any, device: Any, group: Any, rows: Any, goes: Any, hidden: int) -> None:
        self._torch, self._group, n, sent = torch, group, goes.shape[1], int(goes.sum())
        empty: Callable[..., Any] = lambda *shape, dtype: torch.empty(shape, dtype=dtype, device=device)  # noqa: E731
        self._rows, self._goes = torch.from_numpy(rows).to(device), torch.from_numpy(goes).to(device)
        self._sent, self._received = (empty(most, rows.shape[1], dtype=torch.int32) for most in (sent, n * len(rows)))
        self._y, self._back, self._out = (empty(most, hidden, dtype=torch.bfloat16) for most in (n * len(rows), sent, len(rows)))
        self._y.fill_(pgas.my_pe() + 1)
        self._counts = empty(n, dtype=torch.int64)
        self._count()

    def fault(self, arriving: Any) -> str | None:
        """Exchange once; return what is wrong, or None. arriving: the rows that should arrive, in the order of PEs and tokens."""
        self._both()
        self._torch.cuda.synchronize()
        if not np.array_equal(self._received[: sum(self._from)].cpu().numpy(), arriving):
            return "rows are wrong"
        sums = self._goes.cpu().numpy() @ np.arange(1, self._goes.shape[1] + 1, dtype=np.float32)
        return None if (self._out.float().cpu().numpy() == sums[:, None]).all() else "sums are wrong"

    def seconds(self, iters: int) -> dict[str, list[float]]:
        """Return the seconds of dispatch, combine, and both.

        "splits known": the host knows how many rows go where, and one CUDA graph repeats the calls. "with counts": in every dispatch, the
        PEs exchange counts and the host waits for them, which is what a new routing needs.
        """
        stream = self._torch.cuda.Stream()
        return {
            "splits known": [graph_seconds(self._torch, stream, call, iters) for call in (self._dispatch, self._combine, self._both)],
            "with counts": [self._seconds(call, iters) for call in (self._new_dispatch, self._combine, self._new_both)],
        }

    def _seconds(self, call: Callable[[], None], iters: int) -> float:
        """Return the seconds of a call by the wall clock, because the host waits in it."""
        for _ in range(3):
            call()
        self._torch.cuda.synchronize()
        pgas.barrier_all()
        started = time.perf_counter()
        for _ in range(iters):
            call()
        self._torch.cuda.synchronize()
        return (time.perf_counter() - started) / iters

    def _count(self) -> None:
        """Find the order of the rows, and how many go to each PE and come from it; the host waits."""
        self._order, to = self._goes.t().nonzero()[:, 1].contiguous(), self._goes.sum(dim=0)
        self._group.all_to_all_single(self._counts, to)
        self._to, self._from = self._torch.stack((to, self._counts)).tolist()

    def _dispatch(self) -> None:
        self._torch.index_select(self._rows, 0, self._order, out=self._sent)
        self._group.all_to_all_single(self._received[: sum(self._from)], self._sent, self._from, self._to)

    def _combine(self) -> None:
        self._group.all_to_all_single(self._back, self._y[: sum(self._from)], self._to, self._from)
        self._out.zero_()
        self._out.index_add_(0, self._order, self._back)

    def _both(self) -> None:
        self._dispatch()
        self._combine()

    def _new_dispatch(self) -> None:
        self._count()
        self._dispatch()

    def _new_both(self) -> None:
        self._count()
        self._both()
