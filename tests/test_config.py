"""The PGAS_* variables: defaults, sizes, bad values that name variable, value and what is allowed, misspelled names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgas.base import config
from pgas.base.text import printable


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in config.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_every_default_is_a_valid_value(monkeypatch):
    """The default in the docs can be set, and means the same, as does an empty value."""
    for name, variable in config.VARIABLES.items():
        unset = config.read(name)
        for text in (variable.default, ""):
            monkeypatch.setenv(name, text)
            assert config.read(name) == unset, name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("PGAS_SYMMETRIC_SIZE", "1", 1),
        ("PGAS_SYMMETRIC_SIZE", "64M", 64 << 20),
        ("PGAS_SYMMETRIC_SIZE", " 2 GiB ", 2 << 30),
        ("PGAS_SYMMETRIC_SIZE", "1.5k", 1536),
        ("PGAS_MAX_MEMORY_PER_GPU", "16M", 16 << 20),
        ("PGAS_TRANSPORT", "p2p", "p2p"),
        ("PGAS_TRANSPORT", " P2P ", "p2p"),
        ("PGAS_TRANSPORT", "ibgda", "ibgda"),
        ("PGAS_TRANSPORT", "ibrc", "ibrc"),
        ("PGAS_TIMEOUT", "0.25", 0.25),
        ("PGAS_TIMEOUT", "1e3", 1000.0),
        ("PGAS_DEBUG", "info", {"info"}),
        ("PGAS_DEBUG", "INFO", {"info"}),
        ("PGAS_DEBUG", "check, info,", {"check", "info"}),
        ("PGAS_DEBUG", "", set()),
        ("PGAS_SIM_WEAK", "0", 0),
        ("PGAS_SIM_WEAK", "12345", 12345),
        ("PGAS_SIM_WEAK", "", None),
        ("PGAS_HCA", " SoftHCA ", "softhca"),
        ("PGAS_HCA", "rxe0", "rxe0"),
        ("PGAS_HCA", "mlx5_0:2", "mlx5_0:2"),
        ("PGAS_HCA_LIST", "^mlx5_0, mlx5_1:1", "^mlx5_0,mlx5_1:1"),
        ("PGAS_HOST_BLOCKS", " 7 ", tuple((name, 0, 7) for name in config.COLLECTIVES)),
        ("PGAS_HOST_BLOCKS", "reduce=64K:16, alltoall=0:999,", (("reduce", 64 << 10, 16), ("alltoall", 0, 999))),
        ("PGAS_HOST_BLOCKS", "", ()),
        ("PGAS_IB_GID_INDEX", "-1", -1),
        ("PGAS_IB_GID_INDEX", " 3 ", 3),
        ("PGAS_SOFTHCA_FAULTS", "seed=1,delay=0.1,fail=17:0x13,stop=100", "seed=1,delay=0.1,fail=17:0x13,stop=100"),
    ],
)
def test_good_value(name, text, value, monkeypatch):
    monkeypatch.setenv(name, text)
    assert config.read(name) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("PGAS_SYMMETRIC_SIZE", "lots", "a number with an optional unit K, M, G, or T"),
        ("PGAS_SYMMETRIC_SIZE", "-1G", "a number with an optional unit K, M, G, or T"),
        ("PGAS_SYMMETRIC_SIZE", "1P", "a number with an optional unit K, M, G, or T"),
        ("PGAS_SYMMETRIC_SIZE", "1e9", "a number with an optional unit K, M, G, or T"),
        ("PGAS_SYMMETRIC_SIZE", "0", "at least 1 byte"),
        ("PGAS_SYMMETRIC_SIZE", "0.5", "at least 1 byte"),
        *(("PGAS_LL_BYTES", text, "a power of two from 64 to 1048576 (units K, M)") for text in ("0", "16", "96", "2M")),
        ("PGAS_SYMMETRIC_SIZE", "\N{FULLWIDTH DIGIT ONE}G", "a number with an optional unit K, M, G, or T"),
        ("PGAS_SYMMETRIC_SIZE", "9" * 60, "a number with an optional unit K, M, G, or T"),
        ("PGAS_TIMEOUT", "6_0", "must be a number of seconds greater than 0 and less than 1e9"),
        ("PGAS_TIMEOUT", "\N{FULLWIDTH DIGIT ONE}", "must be a number of seconds greater than 0 and less than 1e9"),
        ("PGAS_SIM_WEAK", str(1 << 64), "must be a non-negative integer of at most 64 bits"),
        ("PGAS_SOFTHCA_FAULTS", "seed=1_0", "'1_0' is not an integer"),
        ("PGAS_MAX_MEMORY_PER_GPU", "all", "a number with an optional unit K, M, G, or T"),
        ("PGAS_TRANSPORT", "tcp", "auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc"),
        ("PGAS_TIMEOUT", "0", "must be a number of seconds greater than 0 and less than 1e9"),
        ("PGAS_TIMEOUT", "-3", "must be a number of seconds greater than 0 and less than 1e9"),
        ("PGAS_TIMEOUT", "1e9", "must be a number of seconds greater than 0 and less than 1e9"),
        ("PGAS_TIMEOUT", "nan", "must be a number of seconds greater than 0 and less than 1e9"),
        ("PGAS_TIMEOUT", "inf", "must be a number of seconds greater than 0 and less than 1e9"),
        ("PGAS_TIMEOUT", "soon", "seconds"),
        ("PGAS_DEBUG", "info,verbose", "info, check, strict"),
        ("PGAS_ENGINE", "fpga", "one of auto, cpu, cuda"),
        ("PGAS_SOFTHCA_DEVICE", "GPU-0", "must be a CUDA device ordinal, or empty"),
        ("PGAS_SOFTHCA_SMS", "-1", "an integer from 0 to 1024"),
        ("PGAS_HCA", "mlx5_0:0", "auto, softhca, or an RDMA device"),
        ("PGAS_HCA", "mlx5_0,mlx5_1", "auto, softhca, or an RDMA device"),
        ("PGAS_HCA_LIST", "mlx5_0,^mlx5_1", "a leading ^ excludes"),
        *(
            ("PGAS_HOST_BLOCKS", text, "must be a number of blocks, or some of COLLECTIVE=BYTES:BLOCKS, separated by commas")
            for text in (
                "=3",
                ":3",
                "reduce=16",
                "reduce=:4",
                "0",
                "1000",
                "-1",
                "reduce=x",
                "reduce=1:0",
                "foo=1:2",
                "1K:2",
                "reduce=0:1,fcollect=1:x",
                "\N{SUPERSCRIPT TWO}",
            )
        ),
        ("PGAS_HOST_BLOCKS", "reduce=some:4", "a number with an optional unit K, M, G, or T"),
        ("PGAS_IB_GID_INDEX", "-2", "an integer from -1 to 255"),
        ("PGAS_IB_SL", "16", "an integer from 0 to 15"),
        ("PGAS_IB_TIMEOUT", "0", "an integer from 1 to 31"),
        ("PGAS_IB_RETRY_COUNT", "8", "an integer from 0 to 7"),
        ("PGAS_IBGDA_NIC_HANDLER", "dpu", "one of auto, gpu, cpu"),
        ("PGAS_SOFTHCA_FAULTS", "crash", "unknown fault 'crash'"),
        ("PGAS_SOFTHCA_FAULTS", "fail=3:0x99", "0x99 is not a CQE syndrome"),
        ("PGAS_SOFTHCA_FAULTS", "fail=3", "fail=<n>:<CQE syndrome>"),
        ("PGAS_SOFTHCA_FAULTS", f"fail={1 << 63}:5", "fail must be at least 0 and less than 2^63"),
        ("PGAS_SOFTHCA_FAULTS", f"seed=1,stop={1 << 63}", "stop must be at least 0 and less than 2^63"),
        ("PGAS_SOFTHCA_FAULTS", "stop=-1", "stop must be at least 0 and less than 2^63"),
        ("PGAS_SOFTHCA_FAULTS", "stop=soon", "stop=<n>"),
        ("PGAS_SOFTHCA_FAULTS", "seed=-1", "seed must be at least 0 and less than 2^64"),
        ("PGAS_SOFTHCA_FAULTS", "fail_qpn=0x1000000", "fail_qpn must be at least 0 and less than 2^24"),
        ("PGAS_SOFTHCA_FAULTS", "delay=nan", "'nan' is not a number"),
        ("PGAS_SIM_WEAK", "-1", "must be a non-negative integer of at most 64 bits, or empty for off"),
        ("PGAS_SIM_WEAK", "yes", "must be a non-negative integer of at most 64 bits, or empty for off"),
        ("PGAS_SIM_WEAK", "\N{SUPERSCRIPT TWO}", "must be a non-negative integer of at most 64 bits, or empty for off"),
    ],
)
def test_bad_value_names_variable_value_and_what_is_allowed(name, text, allowed, monkeypatch):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=rf"^{name}={re.escape(text)}: ") as refused:
        config.read(name)
    assert allowed in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bad_word_is_named(monkeypatch):
    monkeypatch.setenv("PGAS_DEBUG", "info,verbose,loud")
    monkeypatch.setenv("PGAS_CHECK", "ordr")
    with pytest.raises(ValueError, match="PGAS_CHECK=ordr: unknown: ordr; must be order, or empty"):
        config.read("PGAS_CHECK")
    with pytest.raises(ValueError, match="PGAS_DEBUG=info,verbose,loud: unknown: loud, verbose; must be one or more of info, check"):
        config.read("PGAS_DEBUG")


@given(st.integers(0, 1 << 30), st.sampled_from([("", 0), ("k", 10), ("m", 20), ("g", 30), ("t", 40)]), st.sampled_from(["", "b", "ib"]))
def test_sizes(number, unit, suffix):
    letter, shift = unit
    assert config.parse_size(f"{number}{letter}{suffix}") == number << shift
    assert config.parse_size(f" {number} {letter.upper()}{suffix} ") == number << shift


@given(st.integers(1 << 40, 1 << 53))
def test_large_sizes_are_exact(number):
    assert config.parse_size(str(number)) == number


@given(st.text(max_size=8))
def test_sizes_parse_or_are_refused_by_name(text):
    size, refusal = 0, ""
    try:
        size = config.parse_size(text)
    except ValueError as error:
        refusal = str(error)
    assert size >= 0
    assert refusal in ("", f"'{printable(text)}' is not a size (a number with an optional unit K, M, G, or T)")


def test_unknown_variables(monkeypatch):
    for name in config.VARIABLES:
        monkeypatch.setenv(name, "1")
    assert config.unknown_variables() == []
    monkeypatch.setenv("PGAS_TIMOUT", "3")
    monkeypatch.setenv("PGAS_A", "3")
    monkeypatch.setenv("pgas_timeout", "3")
    assert config.unknown_variables() == ["PGAS_A", "PGAS_TIMOUT"]


def test_undeclared_variable_cannot_be_read():
    with pytest.raises(KeyError, match="PGAS_TIMOUT"):
        config.read("PGAS_TIMOUT")
