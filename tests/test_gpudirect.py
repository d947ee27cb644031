"""What CUDA is asked for where GPU and NIC are to reach each other, and what is said where it refuses. The driver is played."""

import pytest
from cuda.bindings import driver

from pgas.errors import PgasError, TransportError
from pgas.transports import gpudirect

OK, NOT_PERMITTED, NOT_SUPPORTED = (
    driver.CUresult(number) for number in (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_PERMITTED, 801)
)


class Memory:
    """Of a GPU, but for one address."""

    def is_on_host(self, address):
        return address == 0x2000


@pytest.fixture
def calls(monkeypatch):
    """What the driver was asked, and what it answers."""
    answers = {
        "cuCtxGetDevice": (OK, 0),
        "cuDeviceGetAttribute": (OK, 100),
        "cuMemGetHandleForAddressRange": (OK, 42),
        "cuMemHostRegister": (OK,),
        "cuMemHostGetDevicePointer": (OK, 0x7000),
        "cuMemHostUnregister": (OK,),
        "cuGetErrorName": (OK, b"CUDA_ERROR_X"),
        "cuGetErrorString": (OK, b"words"),
    }
    asked = []

    def play(name):
        def call(*arguments):
            asked.append((name, *arguments))
            return answers[name]

        return call

    for name in answers:
        monkeypatch.setattr(gpudirect.driver, name, play(name))
    return asked, answers


def test_a_register_is_mapped_as_io_memory(calls):
    asked, _ = calls
    reach = gpudirect.GPUDirect(Memory())
    assert reach.map_register(0x9800) == 0x7000
    assert asked[-2:] == [("cuMemHostRegister", 0x9800, 8, 0x1 | 0x2 | 0x4), ("cuMemHostGetDevicePointer", 0x9800, 0)]
    reach.unmap_register(0x9800)
    assert asked[-1] == ("cuMemHostUnregister", 0x9800)


def test_error_800_names_the_option_of_the_driver(calls):
    _, answers = calls
    answers["cuMemHostRegister"] = (NOT_PERMITTED,)
    with pytest.raises(TransportError, match="doorbell register") as caught:
        gpudirect.GPUDirect(Memory()).map_register(0x9800)
    for words in ("(cuMemHostRegister, error 800)", 'NVreg_RegistryDwords="PeerMappingOverride=1;"', "PGAS_IBGDA_NIC_HANDLER=cpu"):
        assert words in str(caught.value)


def test_other_errors_of_mapping(calls):
    _, answers = calls
    answers["cuMemHostRegister"] = (NOT_SUPPORTED,)
    with pytest.raises(TransportError, match=r"^the GPU cannot store to a doorbell register of the NIC: .*CUDA_ERROR_X"):
        gpudirect.GPUDirect(Memory()).map_register(0x9800)


def test_a_dma_buf(calls):
    asked, answers = calls
    reach = gpudirect.GPUDirect(Memory())
    assert (reach.on_gpu(0x1000), reach.on_gpu(0x2000)) == (True, False)
    assert reach.dmabuf(0x1000, 4096) == 42
    assert asked[-1] == ("cuMemGetHandleForAddressRange", 0x1000, 4096, driver.CUmemRangeHandleType(1), 0)
    answers["cuMemGetHandleForAddressRange"] = (NOT_SUPPORTED, 0)
    with pytest.raises(PgasError, match="cuMemGetHandleForAddressRange: CUDA_ERROR_X"):
        reach.dmabuf(0x1000, 4096)


def test_a_gpu_that_does_not_order_writes(calls):
    _, answers = calls
    answers["cuDeviceGetAttribute"] = (OK, 0)
    with pytest.raises(TransportError, match=r"GPU_DIRECT_RDMA_WRITES_ORDERING of at least 100, here it is 0"):
        gpudirect.GPUDirect(Memory())
