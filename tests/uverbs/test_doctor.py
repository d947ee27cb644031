"""doctor and topo with emulated devices below the real libibverbs and libmlx5."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    "UVERBS_CARD" not in os.environ, reason="capability missing: the devices of tests/uverbs (python -m uverbs; tests/tools/test_uverbs.py)"
)


def pgas(*arguments):
    done = subprocess.run([sys.executable, "-m", "pgas", *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_devices_that_open_with_devx():
    status, text = pgas("doctor", "--json", "ibgda", "ibrc")
    said = json.loads(text)
    assert (status, said["status"]) == (0, 0)
    found = {f["check"]: f["text"] for f in said["findings"] if f["section"] == "Verbs and DevX"}
    works = "opens, with DevX and atomics; a queue pair to itself works, in the host's memory"
    assert found["mlx5_0"] == found["mlx5_1"] == works
    assert said["paths"]["ibgda"]["text"].startswith("with PGAS_HCA=mlx5_0:1 or mlx5_1:1 ")
    gids = {f["check"]: f["text"] for f in said["findings"] if f["check"].startswith("GID")}
    assert gids["GID mlx5_0:1"].startswith("index 0 (fe80::")
    assert gids["GID mlx5_1:1"].startswith("index 3 (192.168.7.2, RoCE v2)")


def test_topo_lists_them():
    status, text = pgas("topo")
    assert status == 0
    assert "not PCI devices, so not close to any GPU: mlx5_0, mlx5_1" in text
