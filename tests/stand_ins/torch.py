"""A stand-in where PyTorch is not installed: what docs/gallery/pytorch.py uses of it, by NumPy. examples.py puts it on PYTHONPATH then."""

import types

import numpy as np

float32, finfo = np.float32, np.finfo


class Tensor(np.ndarray):
    device = types.SimpleNamespace(type="cpu")

    def to(self, device, dtype):
        return self.astype(dtype)

    def copy_(self, source):
        self[...] = source

    def float(self):
        return self.astype(np.float32)

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def as_tensor(data):
    return np.asarray(data).view(Tensor)


def from_dlpack(array):
    return as_tensor(array)


def mm(a, b, out):
    np.matmul(a, b, out=out)
