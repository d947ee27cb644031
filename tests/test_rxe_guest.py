"""The QEMU guest of make check-rxe, as far as it can be tested without one: what it is made of, what it says, how it ends."""

import importlib.machinery
import lzma
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rxe.__main__ as command_line
from rxe import guest, kernel, packages
from rxe.clock import clock_options
from rxe.initramfs import Entry, archive, initramfs
from rxe.kernel import Kernel, load_order, unpack_vmlinux
from rxe.packages import Missing

# ------------------------------------------------------------------------------------------------------------------- packages


def elf(*types):
    """An ELF file of program headers of some types only."""
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    header[32:40] = (64).to_bytes(8, "little")
    header[54:56], header[56:58] = (56).to_bytes(2, "little"), len(types).to_bytes(2, "little")
    return bytes(header) + b"".join(kind.to_bytes(4, "little") + bytes(52) for kind in types)


@pytest.mark.parametrize(("content", "static"), [(elf(1, 2), True), (elf(1, 3), False), (b"#!/bin/sh\n", False), (None, False)])
def test_busybox_must_run_without_a_loader(tmp_path, content, static):
    program = tmp_path / "busybox"
    if content is not None:
        program.write_bytes(content)
    assert packages.is_static(program) is static


@pytest.fixture
def lacking(monkeypatch):
    """seabios is there, iproute2 and busybox-static are not."""
    there = {"seabios": lambda: True, "iproute2": lambda: False, "busybox-static": lambda: False}
    monkeypatch.setattr(packages, "NEEDED", there)
    monkeypatch.setattr(packages, "USEFUL", {})
    return there


def test_without_root_it_says_what_root_would_do(lacking, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    with pytest.raises(Missing, match=r"^iproute2, busybox-static not installed.* as root: apt-get install .*iproute2 busybox-static$"):
        packages.install_missing(print)


def test_without_apt_it_says_what_is_missing(lacking, monkeypatch):
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: None)
    with pytest.raises(Missing, match=r"^no apt-get here to install iproute2 busybox-static with$"):
        packages.install_missing(print)
    with pytest.raises(Missing, match="apt-cache is missing: packages can be had on Debian only"):
        packages.apt("apt-cache", "depends", "x")


def test_root_installs_what_is_missing_and_no_more(lacking, monkeypatch):
    calls = []

    def apt(*arguments):
        calls.append(arguments)
        lacking.update(dict.fromkeys(lacking, lambda: True))

    monkeypatch.setattr(packages, "apt", apt)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    packages.install_missing(lambda line: None)
    packages.install_missing(lambda line: None)
    assert calls == [("update",), ("install", "-y", "--no-install-recommends", "iproute2", "busybox-static")]


@pytest.mark.parametrize(("user", "installed"), [(0, [("update",), ("install", "-y", "--no-install-recommends", "rdma-core")]), (1000, [])])
def test_what_is_only_useful_is_installed_if_it_can_be(monkeypatch, user, installed):
    """And nothing is said against the guest where it cannot be had, not even after it was installed."""
    calls = []
    monkeypatch.setattr(packages, "NEEDED", {"seabios": lambda: True})
    monkeypatch.setattr(packages, "USEFUL", {"rdma-core": lambda: False})
    monkeypatch.setattr(packages, "apt", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    packages.install_missing(lambda line: None)
    assert calls == installed


def test_a_failure_of_apt_is_its_last_line(tmp_path, monkeypatch):
    program = tmp_path / "apt-get"
    program.write_text("#!/bin/sh\necho first >&2; echo 'E: no network' >&2; exit 100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(Missing, match=r"^apt-get update: E: no network$"):
        packages.apt("update")


def test_pyverbs_of_another_python_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs" / "device.cpython-305-x86_64-linux-gnu.so").touch()
    with pytest.raises(Missing, match=f"python3-pyverbs is built for cpython-305-x86_64-linux-gnu, {sys.executable} loads"):
        packages.link_pyverbs(tmp_path, tmp_path)


def test_pyverbs_of_this_python_is_linked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    built, site = tmp_path / "dist-packages", tmp_path / "site-packages"
    (built / "pyverbs").mkdir(parents=True)
    (built / "pyverbs" / f"device{importlib.machinery.EXTENSION_SUFFIXES[0]}").touch()
    site.mkdir()
    for _ in range(2):
        packages.link_pyverbs(built, site)
        assert (site / "pyverbs").readlink() == built / "pyverbs"


# --------------------------------------------------------------------------------------------------------------------- kernel


def module(tree, path, depends):
    file = tree / "lib/modules/6.1" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\x7fELF..license=GPL\0depends=" + depends.encode() + b"\0intree=Y\0")


def test_modules_load_after_what_they_need(tmp_path):
    module(tmp_path, "kernel/drivers/rdma_rxe.ko", "ib-uverbs,ib_core,udp_tunnel")
    module(tmp_path, "kernel/drivers/ib_uverbs.ko", "ib_core")
    module(tmp_path, "kernel/drivers/ib_core.ko", "")
    module(tmp_path, "kernel/net/udp_tunnel.ko", "")
    module(tmp_path, "kernel/net/9p.ko", "netfs")
    module(tmp_path, "kernel/fs/netfs.ko", "")
    module(tmp_path, "kernel/fs/unwanted.ko", "")
    (tmp_path / "lib/modules/6.1/modules.builtin").write_text("kernel/crypto/crc32-generic.ko\n")
    names = [path.stem for path in load_order(tmp_path, ("9p", "crc32_generic", "ib_uverbs", "rdma_rxe"))]
    assert names == ["netfs", "9p", "ib_core", "ib_uverbs", "udp_tunnel", "rdma_rxe"]
    with pytest.raises(ValueError, match="the kernel has no module dummy"):
        load_order(tmp_path, ("dummy",))


def bzimage(payload, magic=b"HdrS"):
    header = bytearray(1024)
    header[0x1F1], header[0x202:0x206] = 1, magic
    header[0x248:0x24C], header[0x24C:0x250] = (16).to_bytes(4, "little"), len(payload).to_bytes(4, "little")
    return bytes(header) + bytes(16) + payload + b"what follows"


def test_vmlinux_is_unpacked():
    vmlinux = b"\x7fELF" + bytes(range(256)) * 40
    assert unpack_vmlinux(bzimage(lzma.compress(vmlinux) + b"size")) == vmlinux


@pytest.mark.parametrize(
    ("image", "error"),
    [
        (bzimage(b"", magic=b"none"), "no bzImage"),
        (bzimage(b"\x1f\x8b123456"), "not compressed by xz: 1f8b31323334"),
        (bzimage(lzma.compress(b"MZ..")), "no ELF file: 4d5a2e2e"),
    ],
)
def test_what_is_no_vmlinux(image, error):
    with pytest.raises(ValueError, match=error):
        unpack_vmlinux(image)


def test_a_kernel_is_kept_outside_the_checkout(monkeypatch):
    monkeypatch.delenv("PGAS_RXE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert kernel.cache_folder() == Path("/var/cache/me/pgas-rxe")
    monkeypatch.setenv("PGAS_RXE_DIR", "/srv/rxe")
    assert kernel.cache_folder() == Path("/srv/rxe")


def test_apt_without_the_kernel_is_said(monkeypatch):
    monkeypatch.setattr(kernel, "apt", lambda *arguments, **keywords: "")
    with pytest.raises(Missing, match="apt knows no linux-image-amd64"):
        Kernel.fetch(Path("/nonexistent"), print)


# ------------------------------------------------------------------------------------------------------------------ initramfs


def entries_of(cpio):
    """(name, mode, content) of a newc archive."""
    at = 0
    while True:
        assert cpio[at : at + 6] == b"070701"
        fields = [int(cpio[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, filesize, namesize = fields[1], fields[6], fields[11]
        name = cpio[at + 110 : at + 110 + namesize]
        start = at + (110 + namesize + 3) // 4 * 4
        at = start + (filesize + 3) // 4 * 4
        assert name.endswith(b"\0")
        if name == b"TRAILER!!!\0":
            assert at == len(cpio)
            return
        yield name[:-1].decode(), mode, cpio[start : start + filesize]


def test_archive_of_any_length():
    entries = [Entry("d"), *(Entry(f"d/{'n' * size}", bytes(size)) for size in range(1, 9)), Entry("x", b"#!", executable=True)]
    found = list(entries_of(archive(entries)))
    assert found[0] == ("d", 0o40755, b"")
    assert found[1:-1] == [(f"d/{'n' * size}", 0o100644, bytes(size)) for size in range(1, 9)]
    assert found[-1] == ("x", 0o100755, b"#!")


@pytest.fixture
def kept(tmp_path):
    """A kernel of two modules."""
    (tmp_path / "kernel" / "modules").mkdir(parents=True)
    (tmp_path / "kernel" / "vmlinux").touch()
    for name in ("01-9p.ko", "00-virtio.ko"):
        (tmp_path / "kernel" / "modules" / name).write_text(name)
    return Kernel(tmp_path / "kernel")


def test_initramfs_has_what_init_uses(kept, tmp_path):
    (tmp_path / "busybox").write_bytes(b"busy")
    content = {name: (mode, data) for name, mode, data in entries_of(initramfs(kept, tmp_path / "busybox"))}
    assert content["bin/busybox"] == (0o100755, b"busy")
    assert content["modules/order"][1] == b"00-virtio.ko\n01-9p.ko\n"
    assert content["modules/01-9p.ko"][1] == b"01-9p.ko"
    assert content["init"][0] == 0o100755
    init = content["init"][1].decode()
    for folder in ("/proc", "/sys", "/dev", "/host", "/memory", "/root"):
        assert f" {folder}" in init
        assert content[folder[1:]][0] == 0o40755
    assert subprocess.run(["sh", "-n"], input=init, text=True, check=False).returncode == 0


# ---------------------------------------------------------------------------------------------------------------------- guest


def test_the_command_gets_arguments_folder_and_environment(tmp_path):
    folder = tmp_path / "it's here"
    folder.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "A": "two words\nand 'quotes'",
        "BASH_FUNC_x%%": "() { :; }",
        "PMI_RANK": "0",
        "TERM": "xterm",
    }
    script = guest.command_script(
        ["sh", "-c", 'printf "%s|" "$PWD" "$A" "${PMI_RANK-none}" "$TERM" "$@"', "sh", "$HOME", ""], environment, str(folder)
    )
    done = subprocess.run(["sh", "-c", script], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{folder}|two words\nand 'quotes'|none|dumb|$HOME||"


def test_kvm_is_never_used():
    line = " ".join(guest.qemu_command(Path("/k"), Path("/i"), Path("/with,comma"), Path("/c")))
    assert "-accel tcg," in line
    assert "kvm" not in line
    assert "readonly=on" in line
    assert "path=/with,,comma" in line


@pytest.mark.skipif(platform.machine() != "x86_64", reason="capability missing: x86-64")
def test_the_kernel_is_told_the_frequency_of_the_counter():
    """The same each time, within the 1 % beyond which the kernel would not correct it (tsc_refine_calibration_work)."""
    told = [int(re.fullmatch(r"tsc=reliable tsc_early_khz=(\d+)", clock_options())[1]) for _ in range(3)]
    assert 500_000 < min(told) <= max(told) < 1.005 * min(told) < 10_000_000


#: Does what the guest does with the folder that it shares, or something else.
FAKE_QEMU = """#!/bin/sh
for argument; do
  case $argument in
    local,id=guest,path=*) shared=${argument#local,id=guest,path=}; shared=${shared%%,*} ;;
    file,id=console,path=*) console=${argument#file,id=console,path=} ;;
  esac
done
echo $$ > "$FAKE_PID"
test -f "$shared/devices" || exit 1
"""
OBEY = 'sh "$shared/command" < /dev/null 2>&1; echo $? > "$shared/status"\n'


@pytest.fixture
def fake_qemu(tmp_path, monkeypatch):
    """Install a qemu-system-x86_64 that does what a shell script says; returns the file with its pid."""

    def install(script):
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "qemu-system-x86_64"
        program.write_text(FAKE_QEMU + script)
        program.chmod(0o755)
        return tmp_path / "pid"

    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_PID", str(tmp_path / "pid"))
    monkeypatch.setattr(guest.tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(guest, "initramfs", lambda kernel: b"initramfs")
    yield install
    assert list((tmp_path / "tmp").iterdir()) == []
    process = Path("/proc", (tmp_path / "pid").read_text().strip(), "environ")
    deadline = time.monotonic() + 10
    while runs_for(tmp_path, process):  # killed by the kernel, soon, if its parent was ended while it was being started
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs_for(folder, environ):
    """Whether a process that was given a folder by its environment runs: the number may be another's by now, or only to be reaped."""
    try:
        return os.fsencode(folder) in environ.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_exit_status_and_output_are_the_commands(fake_qemu, kept, capfd, status):
    fake_qemu(OBEY)
    assert guest.boot(kept, ["sh", "-c", f"echo out; echo err >&2; exit {status}"], timeout_s=20) == status
    assert capfd.readouterr().out == "out\nerr\n"


@pytest.mark.parametrize("script", ['echo "Kernel panic" > "$console"; exit 0\n', 'echo "Kernel panic" > "$console"; kill -9 $$\n'])
def test_a_guest_that_dies(fake_qemu, kept, capfd, script):
    fake_qemu(script)
    assert guest.boot(kept, ["true"], timeout_s=20) == guest.DIED == 125
    assert "the guest died" in (said := capfd.readouterr().err)
    assert "Kernel panic" in said


def test_a_guest_that_takes_too_long_is_killed(fake_qemu, kept, capfd):
    fake_qemu("exec sleep 100\n")
    started = time.monotonic()
    assert guest.boot(kept, ["true"], timeout_s=0.5) == guest.TIMED_OUT == 124
    assert time.monotonic() - started < 20
    assert "did not end within 0.5 s" in capfd.readouterr().err


MAIN = """
import sys
from pathlib import Path
from rxe import __main__ as command_line, guest
from rxe.kernel import Kernel
command_line.prepare = lambda: Kernel(Path(sys.argv[1]))
guest.initramfs = lambda kernel: b""
sys.exit(command_line.main(["run", "sh", "-c", "echo started; sleep 100"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_the_guest(fake_qemu, kept, tmp_path, number, status):
    fake_qemu('exec sh "$shared/command" < /dev/null 2>&1\n')
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-c", MAIN, str(kept.folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "started\n"  # output comes while the command runs
        program.send_signal(number)
        assert program.wait(20) == status


def test_where_there_can_be_no_guest_one_line_says_why(monkeypatch, capsys):
    def install_missing(say):
        raise Missing("qemu-system-x86 not installed")

    monkeypatch.setattr(command_line, "install_missing", install_missing)
    for arguments in (["prepare"], ["run", "true"]):
        assert command_line.main(arguments) == command_line.UNAVAILABLE == 77
        assert capsys.readouterr().err == "rxe: no guest here: qemu-system-x86 not installed\n"


def test_other_machines_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(command_line.platform, "machine", lambda: "riscv64")
    assert command_line.main(["prepare"]) == 77
    assert "the guest is for Linux on x86_64" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------- forks

FORKS = "import sys; from rxe.forks import main; sys.exit(main(sys.argv[1:], names=()))"


def under_forks(script, **keywords):
    """Run a shell script whose python is a client of rxe.forks."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **keywords.pop("env", {})}
    command = [sys.executable, "-c", FORKS, "sh", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, **keywords)


def test_forks_are_as_pythons_of_their_own(tmp_path):
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


def test_the_end_of_a_client_is_the_end_of_its_fork(tmp_path):
    """As mpirun kills what it started, and as a test kills a PE."""
    script = f"""
        python -c 'import os, time; open("{tmp_path}/pid", "w").write(str(os.getpid())); time.sleep(100)' &
        while ! test -s {tmp_path}/pid; do sleep 0.05; done
        kill -9 $!; wait $!; echo $?
        while kill -0 $(cat {tmp_path}/pid) 2> /dev/null; do sleep 0.05; done
    """
    done = under_forks(script)
    assert done.stdout == "137\n"


def test_nothing_of_the_server_is_left(tmp_path):
    done = under_forks(
        f"python -c 'import time; time.sleep(100)' & echo $! > {tmp_path}/pid; sleep 0.5; kill -15 $$", env={"TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]


def test_pytest_is_imported_as_it_imports_its_plugins_itself(tmp_path):
    """A warning would say that what was imported before cannot be rewritten, and warnings are errors."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nfilterwarnings = ["error"]\n')
    (tmp_path / "test_it.py").write_text("import os, sys\nassert 'hypothesis' in sys.modules\n\ndef test_it():\n    import hypothesis\n")
    program = FORKS.replace("()", "('hypothesis', 'hypothesis.strategies')")
    command = [sys.executable, "-c", program, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
