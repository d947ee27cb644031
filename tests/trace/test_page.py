"""python -m pgas trace --html: one self-contained page; in headless Chromium, what it shows."""

import json
import re
import shutil
import subprocess
from argparse import Namespace

import pytest
from written import SIGNAL, WrittenPE, late_sender

from pgas.trace.command import run


def page(tmp_path):
    path = tmp_path / "t.html"
    assert run(Namespace(files=[str(tmp_path / "t")], output=None, plot=None, why=False, kernel="", html=str(path))) == 0
    return path


def data(text):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_has_all_data_and_loads_nothing(tmp_path):
    late_sender(tmp_path / "t")
    text = page(tmp_path).read_text()
    assert not re.search(r"""(?:src|href)=|url\(|@import|fetch\(|https?://""", text)
    found = data(text)
    assert found["matrix"]["put"] == [[1, 0, 2, (1 << 20) + 512]]
    assert {e["name"] for e in found["traceEvents"] if e["ph"] == "X"} >= {"put 1 MiB to PE 0", "signal_wait_until"}


def test_names_cannot_end_the_script(tmp_path):
    pe = WrittenPE(tmp_path / "t", 0, 1)
    pe.launch("</script><b>[1, 32]", 0, 10)
    pe.call("put", 1, 2, peer=0, address=SIGNAL, nbytes=8)
    pe.file.close()
    text = page(tmp_path).read_text()
    assert text.count("</script>") == 2
    assert "</script><b>[1, 32]" in {e["name"] for e in data(text)["traceEvents"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("", [r'id="summary"[^>]*>2 of 2 PEs, transport p2p: 5 events in .* slices, 2 flows<', r'id="range"[^>]*>0.000 µs to 110.000 µs<']),
        ("#from=20&to=40", [r'id="range"[^>]*>20.000 µs to 40.000 µs<']),
        (
            "#search=signal_wait&select=0",
            [r'id="found"[^>]*>1 found<', r"<strong>signal_wait_until</strong>", r"<td>ended by</td><td>put_signal of PE 1, block 0</td>",
             r"flow: put_signal to PE 0", r"<button>put_signal 512 bytes to PE 0 \(PE 1, block 0\)</button>"],
        ),
        ("#flows", [r"<td[^>]*>1,049,088</td>"]),
    ],
)  # fmt: skip
def test_in_chromium(tmp_path, link, wanted):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("capability missing: chromium")
    late_sender(tmp_path / "t")
    command = [
        chromium,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--virtual-time-budget=1000",
    ]
    shown = subprocess.run(
        [*command, "--dump-dom", f"file://{page(tmp_path)}{link}"], capture_output=True, text=True, timeout=250, check=True
    )
    for pattern in wanted:
        assert re.search(pattern, shown.stdout), f"{pattern}\n{shown.stdout[-3000:]}"
