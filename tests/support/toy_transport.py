"""A transport outside of pgas: one thread copies every byte by a load and a store, in address order.

Loaded as a pytest plugin (``-p toy_transport``, PGAS_TRANSPORT=toy), it passes the chapters of put, get and signals in the simulator.
"""

from pgas.kernels.compiler import KernelTypeError, constant, device, ptx, u64
from pgas.kernels.window import remote
from pgas.transports import registry
from pgas.transports.p2p import attach_peers


class Toy:
    """The host side (registry.Transport): peers' slots are mapped, as by p2p."""

    name = "toy"
    maps_peers = True
    path = __name__
    needs = frozenset({"patience"})
    simulated = "byte by byte", "on GPUs"

    def constants(self, requested):
        return {}

    def why_not(self, device, port):
        return "is not for toys"

    def segments(self, n_pes, constants, setting):
        return ()

    def connect(self, part, setting):
        attach_peers(part.memory, part.me, part.segments, part.fds, part.exchange)


registry.register(Toy())

# The device side (kernels.paths.transport.Path).

_ONE = constant(1)
_load_store, _get_load_store = ptx.put_single[1], ptx.get_single[1]


@device
def _carry(dst, src, nbytes):
    at = u64(0)
    while at < nbytes:
        _load_store(dst + at, src + at)
        at += _ONE


@device
def _fetch(dst, src, nbytes):
    at = u64(0)
    while at < nbytes:
        _get_load_store(dst + at, src + at)
        at += _ONE


def put(name, scope, unit, *, nbi):
    rank, sync = scope.rank, scope.sync

    @device
    def put(to, source, nbytes, pe, qp):
        if rank() == 0:
            _carry(remote(to, pe), source, nbytes)
        sync()

    return put


def get(name, scope, unit, *, nbi):
    rank, sync = scope.rank, scope.sync

    @device
    def get(dest, origin, nbytes, pe, qp):
        if rank() == 0:
            _fetch(dest, remote(origin, pe), nbytes)
        sync()

    return get


def put_signal(name, scope, unit, *, nbi):
    rank, sync = scope.rank, scope.sync

    @device
    def put_signal(to, source, nbytes, word, value, add, pe):
        if rank() == 0:
            _carry(remote(to, pe), source, nbytes)
            fence()
            signal(word, value, add, pe)
        sync()

    return put_signal


def p(dtype):
    @device
    def p(addr, array, value, pe, qp):
        ptx.st_element(remote(addr, pe), array, value)

    return p


def g(dtype):
    @device
    def g(addr, array, pe, qp):
        return ptx.ld_element(remote(addr, pe), array)

    return g


def strided(name, scope, itemsize, unit, *, get):
    raise KernelTypeError(f"pgas.{name}: transport toy has no strides")


def atomic(name, update, dtype, *, fetch):
    raise KernelTypeError(f"pgas.{name}: transport toy has no atomics")


@device
def signal(addr, value, add, pe):
    if add:
        ptx.red_add_sys_u64(remote(addr, pe), value)
    else:
        ptx.st_relaxed_sys_u64(remote(addr, pe), value)


@device
def flag(addr, value, pe):
    ptx.st_release_sys_u64(remote(addr, pe), value)


@device
def quiet_pe(pe):
    quiet()


quiet, flush, fence = ptx.fence_sc_sys, ptx.sources_read, ptx.fence_sys
