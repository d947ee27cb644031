"""doctor's queue pair to itself: every step of it, over the software card."""

import pytest
import rig
from poster import Wrapped

from pgas.doctor import trial
from pgas.transports.mlx5 import commands
from pgas.transports.mlx5.commands import Command, Status
from pgas.transports.nic.adapter import AddressPath
from pgas.transports.softhca.process import client

card, observer = rig.card, rig.observer


@pytest.fixture
def adapter(card, observer):
    adapter = client.SoftHCA(card.name, 0, ())
    yield adapter
    counted = observer.counters()
    assert [len(counted[kind]) for kind in ("qps", "cqs", "keys", "uars")] == [0] * 4
    adapter.close()


def refusing(command):
    def edit(sent, values, outbox):
        return commands.build_output(sent, status=Status.BAD_PARAM, syndrome=0x357275) if sent == command else outbox

    return edit


def test_it_works(adapter):
    assert trial.try_queue_pair(adapter, AddressPath()) == ""
    assert trial.try_queue_pair(adapter, AddressPath()) == ""


def test_it_works_on_a_card_that_returns_old_values_big_endian(adapter, observer):
    observer.set_faults("atomics=big_endian")
    assert trial.try_queue_pair(adapter, AddressPath()) == ""
    observer.set_faults("")


@pytest.mark.parametrize(
    ("command", "step"),
    [
        (Command.RST2INIT_QP, "it is not connected to itself"),
        (Command.INIT2RTR_QP, "it is not connected to itself"),
        (Command.RTR2RTS_QP, "it is not connected to itself"),
    ],
)
def test_a_command_that_is_refused(adapter, command, step):
    said = trial.try_queue_pair(Wrapped(adapter, refusing(command)), AddressPath())
    assert said.startswith(f"{step}: {command.name} failed: BAD_PARAM (bad parameter), syndrome 0x357275")


def test_memory_that_is_refused(adapter, monkeypatch):
    monkeypatch.setattr(trial, "_NBYTES", trial._DATA)
    assert trial.try_queue_pair(adapter, AddressPath()).startswith("memory is not registered: ")


def test_a_queue_pair_that_is_refused(adapter, monkeypatch):
    monkeypatch.setattr(trial, "_DATA", 4096)
    assert trial.try_queue_pair(adapter, AddressPath()).startswith("a queue pair is not made: CREATE_QP failed: ")


@pytest.mark.parametrize(("number", "step"), [(1, "a write"), (2, "a fetching atomic")])
def test_a_wqe_that_fails(adapter, observer, number, step):
    observer.set_faults(f"fail={number}:0x13")
    assert trial.try_queue_pair(adapter, AddressPath()) == f"{step} fails: remote access error (0x13), vendor_err_synd 0x01"


def test_a_card_that_does_nothing(adapter, observer, monkeypatch):
    monkeypatch.setattr(trial, "_TIMEOUT_S", 0.05)
    observer.pause()
    text = "a write fails: no completion in 0.05 s; QUERY_QP says the queue pair is in RTS"
    assert trial.try_queue_pair(adapter, AddressPath()) == text


def test_data_that_does_not_arrive(adapter, monkeypatch):
    monkeypatch.setattr(trial, "_run", lambda *arguments: None)
    assert trial.try_queue_pair(adapter, AddressPath()) == "a write fails: it completed, but memory holds 0x0 instead of 0x123456789abcdef"
