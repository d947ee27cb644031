"""observe() with fake drivers and packages; test_doctor.py runs it on the real machine."""

import importlib
import subprocess
from types import SimpleNamespace

import pytest

from pgas.doctor import probe
from pgas.doctor.machine import Nic, Verbs
from pgas.transports.devices import Device, Port

REAL = importlib.import_module


def play(monkeypatch, **modules):
    """Make import_module return these modules; an exception is raised."""

    def import_module(name):
        found = modules.get(name.replace(".", "_"))
        if isinstance(found, Exception):
            raise found
        return found or REAL(name)

    monkeypatch.setattr(probe.importlib, "import_module", import_module)


class Driver:
    """cuda.bindings.driver with two GPUs; the first cannot access the second."""

    real = REAL("cuda.bindings.driver")
    CUdevice_attribute, CUcomputemode, CUresult = real.CUdevice_attribute, real.CUcomputemode, real.CUresult

    def __init__(self, status=0):
        self._init = self.CUresult(status)
        self.attributes = {"COMPUTE_MODE": 3, "DMA_BUF_SUPPORTED": 1, "MPS_ENABLED": 0, "GPU_DIRECT_RDMA_WRITES_ORDERING": 100}

    def __getattr__(self, name):
        ok, answers = self.CUresult.CUDA_SUCCESS, {
            "cuDriverGetVersion": lambda: 13000,
            "cuDeviceGetCount": lambda: 2,
            "cuDeviceCanAccessPeer": lambda a, b: int((a, b) == (1, 0)),
            "cuDeviceGetName": lambda length, ordinal: b"NVIDIA H100\0\0",
            "cuDeviceGetPCIBusId": lambda length, ordinal: f"0000:{ordinal + 0x1B:02X}:00.0\0".encode(),
            "cuDeviceTotalMem": lambda ordinal: 80 << 30,
            "cuDeviceGetUuid": lambda ordinal: SimpleNamespace(bytes=bytes(range(16))),
            "cuDeviceGetAttribute": self._attribute,
        }  # fmt: skip
        return lambda *arguments: (ok, answers[name](*arguments))

    def cuInit(self, flags):
        return (self._init,)

    def cuGetErrorString(self, status):
        return self.CUresult.CUDA_SUCCESS, b"what it means"

    def _attribute(self, attribute, ordinal):
        return next(
            (v for name, v in self.attributes.items() if attribute == getattr(self.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")), 1
        )


def test_gpus(monkeypatch):
    play(monkeypatch, cuda_bindings_driver=Driver())
    found = probe._gpus()
    assert (found["cuda"], found["access"]) == (13000, ((True, False), (True, True)))
    first, second = found["gpus"]
    assert (first.label, first.name, first.pci, first.memory) == ("GPU0", "NVIDIA H100", "0000:1b:00.0", 80 << 30)
    assert first.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (first.compute_mode, first.dma_buf, first.vmm, first.mps, first.writes_ordering) == ("EXCLUSIVE_PROCESS", True, True, False, 100)
    assert second.pci == "0000:1c:00.0"


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Driver(100), "cuInit: CUDA_ERROR_NO_DEVICE (what it means)"),
        (Driver(802), "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (what it means)"),
        (RuntimeError("libcuda.so.1: cannot open shared object file\nmore"), "libcuda.so.1: cannot open shared object file"),
        (KeyError(), "KeyError"),
    ],
)
def test_cuda_that_does_not_start(monkeypatch, driver, words):
    play(monkeypatch, cuda_bindings_driver=driver)
    assert probe._gpus() == {"cuda": 0, "gpus": (), "access": (), "cuda_error": words}


def test_no_nvml(monkeypatch):
    play(monkeypatch, cuda_bindings_nvml=RuntimeError("no NVML"))
    assert probe._nvlinks(["0000:1b:00.0"]) == {"nvlinks": (), "nvml_error": "no NVML"}
    assert probe._nvlinks([]) == {"nvlinks": ()}


def test_no_pyverbs(monkeypatch):
    play(monkeypatch, pyverbs_device=ImportError("No module named 'pyverbs'"))
    assert probe._verbs() == Verbs(error="No module named 'pyverbs'")


def test_a_device_whose_file_is_not_there():
    device = Device("mlx5_7", "mlx5_core", "0000:3b:00.0", 0, (Port(1, "ACTIVE", "LinkUp", "Ethernet", 100, 0, ()),), "uverbs777", "")
    assert probe._nic(device, Verbs("x", "44.0", names=("mlx5_7",))) == Nic(file="No such file or directory")


def test_no_mpi(monkeypatch):
    monkeypatch.setenv("PATH", "")
    play(monkeypatch, mpi4py_MPI=RuntimeError("cannot load MPI library\nlong story"))
    found = probe._mpi()
    assert (found.error, found.library, found.mpirun, found.launcher) == ("cannot load MPI library", "", "", "")


def test_a_command_that_hangs(monkeypatch):
    def hangs(*arguments, **options):
        raise subprocess.TimeoutExpired("mpirun", 20)

    monkeypatch.setattr(probe.subprocess, "run", hangs)
    assert probe._printed("mpirun", "--version") == ""
    assert probe._printed("no such command") == ""


def test_settings(monkeypatch):
    monkeypatch.setenv("PGAS_QP_DEPTH", "100")
    monkeypatch.setenv("PGAS_HCA", "mlx5_0:1")
    found = probe._settings()
    assert found["settings"]["PGAS_HCA"] == "mlx5_0:1"
    assert "PGAS_QP_DEPTH" not in found["settings"]
    assert found["bad_settings"] == ("PGAS_QP_DEPTH=100: must be a power of two from 128 to 32768",)


def test_required(monkeypatch):
    lines = ["numpy<2.5,>=2.4", "rich", "numba-cuda==0.30.4", "pyverbs>=44; extra == 'verbs'"]
    monkeypatch.setattr(probe.metadata, "requires", lambda name: lines)
    assert probe._required() == {"numpy": "<2.5,>=2.4", "numba-cuda": "==0.30.4"}
