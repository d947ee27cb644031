"""Words that kernels share with the host (kernels/layout.py): none overlaps another, and each is used by its owners only."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from pgas.kernels import codes, layout, window
from pgas.kernels.layout import Who

ROOT = Path(__file__).resolve().parents[2]
WORDS = [word for region in layout.REGIONS for word in region.words]

#: Words that one side uses under another name: a kernel's access of 16 bytes covers the second word with the first, the host writes all
#: CURSORS, and a kernel is given an array that lies at RESULTS.
OTHER_NAMES = {"NBYTES": "WHAT", "REMOTE": "LOCAL", "SECOND": "VALUE", "ASKED": "POISON", "FIRST_IDX": "CURSORS", "ONE_SIDED": "EPOCH"}
BY_ARRAY = {"RESULTS"}


def text(*folders):
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return "\n".join(file.read_text() for file in files if file != ROOT / "kernels/layout.py")


def uses(name, source):
    return any(re.search(rf"\blayout\.{n}\b", source) for n in (name, OTHER_NAMES.get(name, name)))


@pytest.mark.parametrize("region", layout.REGIONS, ids=lambda region: region.name)
def test_words_do_not_overlap(region):
    words = sorted(region.words, key=lambda word: word.address)
    assert [(a.name, b.name) for a, b in pairwise(words) if a.end > b.address] == []
    assert region.base <= words[0].address
    assert words[-1].end <= region.base + region.nbytes
    assert [word.name for word in words if (word.address - region.base) % min(word.width, 8)] == []


def test_regions_do_not_overlap():
    assert len({region.name for region in layout.REGIONS}) == len(layout.REGIONS)
    assert window.STATE + window.STATE_SIZE <= window.PRIVATE + window.PRIVATE_SIZE <= window.BASE
    assert layout.MAX_QUEUES <= layout.NUMBER_MASK + 1
    assert max(codes.Request) <= layout.OPERATION_MASK < layout.LANDING < 1 << layout.NUMBER_SHIFT


def test_every_word_has_a_name_in_the_module():
    assert [word.name for word in WORDS if getattr(layout, word.name) != word.address] == []
    assert len({word.name for word in WORDS}) == len(WORDS)


def test_the_error_record_is_that_of_an_entry_of_waiters():
    assert layout.ERROR - layout.POISON == layout.WAITER_RECORD - layout.WAITER_STATE
    assert layout.ERROR_RECORD.size == 9 * layout.WORD


def test_words_that_are_accessed_together_are_16_aligned_bytes():
    for second in ("NBYTES", "REMOTE", "SECOND", "ASKED", "ONE_SIDED"):
        first = getattr(layout, OTHER_NAMES[second])
        assert (getattr(layout, second), first % 16) == (first + 8, 0)


def test_cursors_are_in_sectors_of_their_own():
    """A sector has 32 bytes. RUNG_IDX and READY_HEAD are written by one thread."""
    sectors = [word // 32 for word in (layout.FIRST_IDX, layout.RESV_HEAD, layout.READY_HEAD, layout.CONS_IDX)]
    assert len(set(sectors)) == 4


def test_words_are_used_by_their_owners():
    kernels, host = text("kernels"), text("pgas/api", "pgas/job", "pgas/doctor", "transports")
    wrong = []
    for word in WORDS:
        who = word.writers | word.readers
        if word.name not in BY_ARRAY and bool(who & (Who.KERNELS | Who.PEERS)) != bool(uses(word.name, kernels)):
            wrong.append(f"{word.name}: kernels")
        if bool(who & Who.HOST) != bool(uses(word.name, host)):
            wrong.append(f"{word.name}: the host")
    assert wrong == []


def test_no_literal_offsets_in_kernels():
    """Only named offsets are added to or subtracted from addresses: no ``at + 8``, no ``record - _48``."""
    found = []
    for file in sorted((ROOT / "kernels").rglob("*.py")):
        if file == ROOT / "kernels/layout.py" or "compiler" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
                for side in (node.left, node.right):
                    number = ast.unparse(side).removeprefix("_")
                    if number.isdigit() and int(number) >= 4:
                        found.append(f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
