"""The QEMU guest of make check-rxe: tests that need no guest."""

import os
import platform
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rxe.__main__ as command_line
from rxe import guest, packages
from rxe.packages import Missing

#: Tests of this tool in `make check`; the others are in `make check-all`.
TESTS = Path(__file__).parents[1]

SMOKE = ("test_forks_behave_like_real_pythons",)


def test_without_root_the_commands_for_root_are_printed(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "missing", lambda names: ["iproute2", "seabios"])
    with pytest.raises(Missing, match=r"^as root: apt-get install .*iproute2 seabios$"):
        packages.install(packages.GUEST)


def test_a_failure_of_apt_shows_its_last_line(tmp_path, monkeypatch):
    program = tmp_path / "apt-get"
    program.write_text("#!/bin/sh\necho first >&2; echo 'E: no network' >&2; exit 100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(Missing, match=r"^apt-get update: E: no network$"):
        packages.apt("apt-get", "update")


def test_modules_load_after_their_dependencies(tmp_path):
    for name, depends in {"rdma_rxe": "ib-core,udp_tunnel", "ib-core": "", "udp_tunnel": "", "dummy": ""}.items():
        (tmp_path / f"{name}.ko").write_bytes(b"\0license=GPL\0depends=" + depends.encode() + b"\0")
    assert [path.stem for path in packages.load_order(tmp_path)] == ["ib-core", "udp_tunnel", "rdma_rxe", "dummy"]


def test_a_missing_guest_is_one_line(monkeypatch, capsys):
    def missing(*_):
        raise Missing("qemu is missing")

    monkeypatch.setattr(packages, "install", missing)
    monkeypatch.setattr(command_line.signal, "signal", lambda *_: None)
    assert command_line.main(["run", "true"]) == 77
    assert capsys.readouterr().err == "rxe: no guest here: qemu is missing\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="capability missing: x86-64")
def test_status_and_output_of_the_command(tmp_path, monkeypatch, capfd):
    """A script instead of QEMU runs the command on this machine, dies, or takes too long."""
    monkeypatch.setattr(guest, "_initramfs", lambda *_: tmp_path)
    (tmp_path / "qemu-system-x86_64").write_text(
        """#!/bin/sh
for word; do case $word in local,id=guest,path=*) shared=${word#local,id=guest,path=}; shared=${shared%%,*};; esac; done
sh "$shared/command"; status=$?
test $status = 7 || echo $status > "$shared/status"
"""
    )
    (tmp_path / "qemu-system-x86_64").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert guest.boot(tmp_path, ["sh", "-c", "echo 'a  b'; exit 42"], 20) == 42
    assert capfd.readouterr().out == "a  b\n"
    assert guest.boot(tmp_path, ["sh", "-c", "exit 7"], 20) == guest.DIED
    assert "the guest died (qemu: 0)" in capfd.readouterr().err
    assert guest.boot(tmp_path, ["sleep", "60"], 0.5) == guest.TIMED_OUT


# ---------------------------------------------------------------------------------------------------------------------- forks

FORKS = "import sys; from rxe.forks import main; sys.exit(main(sys.argv[1:], load=lambda: None))"


def under_forks(script, **keywords):
    """Run a shell script whose python is a client of rxe.forks."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS / "support"))), **keywords.pop("env", {})}
    command = [sys.executable, "-c", FORKS, "sh", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, **keywords)


def test_forks_behave_like_real_pythons(tmp_path):
    (tmp_path / "shown.py").write_text("import os, sys; print(__name__, sys.argv[1:], sys.stdin.read(), os.environ['X'], os.getcwd())")
    (tmp_path / "other").mkdir()
    script = f"""
        cd {shlex.quote(str(tmp_path))}
        printf 1 | X=a python shown.py 'b c'
        printf 2 | X=d python -m shown e
        cd other
        printf 3 | X=f PYTHONPATH=.. python3 -u -c 'import sys, shown; print(sys.argv)' g
        python -c 'import os; os.write(9, b"file"); print(os.path.exists("/proc/self/fd/8"))' 9> written
        python -c 'import subprocess, sys; sys.exit(subprocess.call([sys.executable, "-c", "raise SystemExit(5)"]))'
        echo $?
        python -c 'import os, signal; os.kill(os.getpid(), signal.SIGKILL)'
        echo $?
        python -c 'import atexit; atexit.register(print, "at exit"); 1/0' 2>&1 | tail -2
        python -E -c 'import sys; print("rxe.forks" in sys.modules)'
        exit 3
    """
    done = under_forks(script)
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        f"__main__ ['b c'] 1 a {tmp_path}",
        f"__main__ ['e'] 2 d {tmp_path}",
        f"shown ['g'] 3 f {tmp_path}/other",
        "['-c', 'g']",
        "False",
        "5",
        "137",
        "ZeroDivisionError: division by zero",
        "at exit",
        "False",
    ]
    assert (tmp_path / "other" / "written").read_text() == "file"


def test_the_end_of_a_client_ends_its_fork(tmp_path):
    """Killed as by mpirun, and as by a test that kills a PE."""
    script = f"""
        python -c 'import os, time; open("{tmp_path}/pid", "w").write(str(os.getpid())); time.sleep(100)' &
        while ! test -s {tmp_path}/pid; do sleep 0.05; done
        kill -9 $!; wait $!; echo $?
        while kill -0 $(cat {tmp_path}/pid) 2> /dev/null; do sleep 0.05; done
    """
    done = under_forks(script)
    assert done.stdout == "137\n"


def test_the_server_leaves_nothing(tmp_path):
    done = under_forks(
        f"python -c 'import time; time.sleep(100)' & echo $! > {tmp_path}/pid; sleep 0.5; kill -15 $$", env={"TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]
