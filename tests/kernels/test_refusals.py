"""The table of refusals: every refusal takes its message from it, and every row is used."""

import ast
from string import Formatter

import ml_dtypes
import numpy as np
import pytest
from test_architecture import SOURCES, tree

from pgas.api.values import check_value
from pgas.kernels import refusals
from pgas.kernels.refusals import TABLE, When
from pgas.transports import registry

CALLS = {"refuse", "refusals.refuse", "refusals.words"}


def uses():
    """Yield (module, row, names of values) of every call of refuse() and words()."""
    for module in SOURCES:
        for node in ast.walk(tree(module)) if module != "pgas.kernels.refusals" else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS and node.args and isinstance(node.args[0], ast.Constant):
                yield module, ast.literal_eval(node.args[0]), {k.arg for k in node.keywords}


def test_every_row_is_used_with_its_values():
    rows = {}
    for module, row, given in uses():
        wanted = {name for _, name, _, _ in Formatter().parse(TABLE[row].words) if name}
        assert given == wanted, f"{module}: {row}"
        rows.setdefault(row, module)
    assert set(rows) == set(TABLE)


def test_all_compile_time_refusals_are_in_the_table():
    assert [m for m, path in SOURCES.items() if "raise KernelTypeError(" in path.read_text()] == ["pgas.kernels.refusals"]


@pytest.mark.parametrize("name", TABLE)
def test_rows_name_what_they_refuse(name):
    row = TABLE[name]
    assert row.transports
    assert set(row.transports) <= {*registry.names(), *registry.pairs()}
    assert not row.words.endswith(".")
    if row.when is When.COMPILED:
        assert row.words.startswith("pgas.{function}: ")


def test_refusals_are_unique():
    assert len({row.what for row in TABLE.values()}) == len(TABLE)
    assert len({row.words for row in TABLE.values()}) == len(TABLE)


def test_refuse_raises_the_message():
    with pytest.raises(refusals.KernelTypeError, match=r"^pgas\.ptr: transport ibgda maps no peer's memory: use put and get$"):
        refusals.refuse("unmapped", function="ptr", transport="ibgda")


def test_an_element_is_a_value_of_its_array():
    """Also an element of ml_dtypes, which is no NumPy number."""
    elements = np.ones(1, ml_dtypes.bfloat16)
    check_value("full", "value", elements[0], elements.dtype)
    with pytest.raises(TypeError, match="value"):
        check_value("full", "value", "1", elements.dtype)
