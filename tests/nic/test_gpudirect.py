"""CUDA calls for access between GPU and NIC, and the messages if they fail, with a fake driver."""

import os

import pytest
from cuda.bindings import driver

from pgas.base.errors import PgasError, TransportError
from pgas.transports.memory import gpudirect

OK, NOT_PERMITTED, NOT_SUPPORTED = (
    driver.CUresult(number) for number in (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_PERMITTED, 801)
)


PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Memory of a GPU, except for one address."""

    def is_on_host(self, address):
        return address == 0x2000


@pytest.fixture
def calls(monkeypatch):
    """The driver's recorded calls and its answers."""
    answers = {
        "cuMemGetHandleForAddressRange": (OK, 42),
        "cuMemGetAddressRange": (OK, 16 * PAGE, 32 * PAGE),
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
    assert reach.dmabuf(4 * PAGE, PAGE) == (42, 0)
    assert asked[-1] == ("cuMemGetHandleForAddressRange", 4 * PAGE, PAGE, driver.CUmemRangeHandleType(1), 0)
    answers["cuMemGetHandleForAddressRange"] = (NOT_SUPPORTED, 0)
    with pytest.raises(PgasError, match=r"^cuMemGetHandleForAddressRange: CUDA_ERROR_X \(words\)$"):
        reach.dmabuf(16 * PAGE, PAGE)


@pytest.mark.parametrize(
    ("first", "nbytes", "pages"),
    [(0, 1, 1), (0, PAGE + 1, 2), (512, 8, 1), (PAGE - 1, 1, 1), (PAGE - 1, 2, 2), (8, 3 * PAGE, 4), (3 * PAGE + 256, 2 * PAGE - 256, 2)],
)
def test_a_dma_buf_has_whole_pages(calls, first, nbytes, pages):
    asked, _ = calls
    address = 16 * PAGE + first
    assert gpudirect.dmabuf(address, nbytes) == (42, first % PAGE)
    assert asked[-1][:3] == ("cuMemGetHandleForAddressRange", address - first % PAGE, pages * PAGE)


def test_pages_beyond_an_allocation(calls):
    """The driver is called anyway; if it refuses, the text says what is wrong with the memory."""
    _, answers = calls
    answers["cuMemGetAddressRange"] = (OK, 16 * PAGE + 512, 1024)
    assert gpudirect.dmabuf(16 * PAGE + 512, 1024) == (42, 512)
    answers["cuMemGetHandleForAddressRange"] = (NOT_SUPPORTED, 0)
    with pytest.raises(
        PgasError, match=f"pages of {PAGE} bytes, {16 * PAGE:#x} to {17 * PAGE:#x}, reach beyond the allocation of 1024 bytes"
    ):
        gpudirect.dmabuf(16 * PAGE + 512, 1024)
    answers["cuMemGetAddressRange"] = (NOT_SUPPORTED, 0, 0)  # not CUDA's memory
    with pytest.raises(PgasError, match=r"CUDA_ERROR_X \(words\)$"):
        gpudirect.dmabuf(16 * PAGE + 512, 1024)
