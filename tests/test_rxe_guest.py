"""The QEMU guest of make check-rxe, as far as it can be tested without one: what it is made of, what it says, how it ends."""

import fnmatch
import importlib.machinery
import importlib.util
import json
import lzma
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import rxe.__main__ as command_line
from rxe import guest, kernel, packages
from rxe import kept as kept_guest
from rxe.clock import clock_options
from rxe.initramfs import Entry, archive, first_files
from rxe.kept import NotKept
from rxe.kernel import Kernel, load_order, unpack_vmlinux
from rxe.monitor import MonitorError, TooLong
from rxe.packages import Missing

#: What `make check` runs of this tool; the rest is for `make check-all`.
SMOKE = ("test_forks_are_as_pythons_of_their_own",)

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
    found = list(entries_of(b"".join(archive(entries))))
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
    content = {name: (mode, data) for name, mode, data in entries_of(b"".join(archive(first_files(kept, tmp_path / "busybox"))))}
    assert content["busybox/busybox"] == (0o100755, b"busy")
    assert content["modules/order"][1] == b"00-virtio.ko\n01-9p.ko\n"
    assert content["modules/01-9p.ko"][1] == b"01-9p.ko"
    scripts = {name: content[name][1].decode() for name in ("init", "live.sh", "pause.sh")}
    for folder in ("/proc", "/sys", "/dev", "/host", "/memory", "/live"):
        assert f" {folder}" in "".join(scripts.values())
        assert content[folder[1:]][0] == 0o40755
    for name, script in scripts.items():
        assert content[name][0] == 0o100755
        assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_links_and_time_stamps(tmp_path):
    """Bytecode is good for a source of one time stamp."""
    (tmp_path / "file").write_bytes(b"content")
    packed = b"".join(archive([Entry("a", link="b/c", mtime=5), Entry("b", tmp_path / "file", mtime=0x6543210F)]))
    assert list(entries_of(packed)) == [("a", 0o120777, b"b/c"), ("b", 0o100644, b"content")]
    assert int(packed[6 + 8 * 5 : 14 + 8 * 5], 16) == 5
    assert b"6543210F" in packed.upper()


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


def test_python_is_that_of_forks_where_the_command_runs_under_them():
    script = guest.command_script(["sh", "-c", "echo $PATH"], {"PATH": "/usr/bin:/bin"}, "/")
    for before in ("", "/forks:"):
        done = subprocess.run(["/bin/sh", "-c", script], env={"FORKS_PATH": before}, capture_output=True, text=True, check=True)
        assert done.stdout == f"{before}/usr/bin:/bin\n"


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
    monkeypatch.setattr(guest, "first_files", lambda kernel: [])
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
guest.first_files = lambda kernel: []
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


# ----------------------------------------------------------------------------------------------------------------------- kept


def test_what_is_on_the_way_to_a_file(tmp_path):
    """Every folder and link once, before what is in it; links as they are written, and what they lead to."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep" / "program").write_text("#!/bin/sh")
    (tmp_path / "real" / "deep" / "program").chmod(0o755)
    (tmp_path / "real" / "data").write_text("data")
    (tmp_path / "short").symlink_to("real/deep")
    (tmp_path / "real" / "absolute").symlink_to(tmp_path / "short" / "program")
    (tmp_path / "real" / "loop").symlink_to("loop")
    files = [tmp_path / "short" / "program", tmp_path / "real" / "absolute", tmp_path / "real" / "data"]
    found = list(kept_guest.entries_of([str(file) for file in files]))
    inside = {entry.name.removeprefix(f"{tmp_path}/"[1:]): entry for entry in found if entry.name.startswith(f"{tmp_path}/"[1:])}
    assert list(inside) == ["short", "real", "real/deep", "real/deep/program", "real/absolute", "real/data"]
    assert len({entry.name for entry in found}) == len(found)
    assert inside["short"].link == "real/deep"
    assert inside["real/absolute"].link == f"{tmp_path}/short/program"
    assert inside["real"].content is None
    assert [name for name, entry in inside.items() if entry.executable] == ["real/deep/program"]
    assert inside["real/data"].read() == b"data"
    assert inside["real/data"].mtime == int((tmp_path / "real" / "data").stat().st_mtime)
    places = [entry.name for entry in found]
    assert all(str(Path(place).parent) == "." or places.index(str(Path(place).parent)) < at for at, place in enumerate(places))


@pytest.mark.skipif(importlib.util.find_spec("pyverbs") is None, reason="capability missing: pyverbs")
def test_files_that_python_needs():
    """Sources beside bytecode, also of modules that replace themselves; libraries by the names under which they are looked up."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-m", "rxe.files"], cwd="/", env=environment, capture_output=True, check=True, timeout=100)
    files = json.loads(done.stdout)
    assert len(set(files)) == len(files)
    assert {"/lib64/ld-linux-x86-64.so.2", sys.executable, f"{sys.prefix}/pyvenv.cfg", os.__file__} <= set(files)
    for end in (
        "numba/cuda/core/config.py",
        "numba/core/registry.py",
        "pyverbs/qp.*.so",
        "/libibverbs.so.1",
        "libibverbs.so.1.*",
        "rxe/forks.py",
    ):
        assert any(fnmatch.fnmatch(file, f"*{end}") for file in files), end
    assert not [file for file in files if file.startswith(("/proc", "/sys", "/dev", f"{Path(__file__).parent.parent}/pgas"))]


#: A QEMU with a monitor: the scripts of the tests below go on from here. Its input and output are the guest's second serial port.
FAKE_MONITOR = """#!{python}
import json, os, socket, subprocess, sys
line = sys.argv[1:]
if line == ["--version"]:
    sys.exit(print("QEMU emulator, a false one"))
def after(option, start=""):
    return next(value for name, value in zip(line, line[1:]) if name == option and value.startswith(start))
with open(os.environ["FAKE_PID"], "w") as file:
    file.write(str(os.getpid()))
shared = next(a for a in line if a.startswith("local,id=guest,path=")).split("path=")[1].split(",")[0]
monitor = socket.socket(fileno=int(after("-chardev", "socket,id=monitor").split("fd=")[1]))
def serve(**answers):
    "Answer until the monitor is closed, or one of the queries has said its last."
    peer = monitor.makefile("rw")
    def tell(**line): print(json.dumps(line), file=peer, flush=True)
    tell(QMP={{}})
    for request in map(json.loads, peer):
        asked = request["execute"]
        tell(event="something")
        if asked == "migrate":
            subprocess.run(request["arguments"]["uri"].removeprefix("exec:"), shell=True, input=b"the guest")
        left = answers.get(asked, [])
        tell(**(left.pop(0) if left else {{"return": {{}}}}))
        if asked in answers and not left:
            return
"""

READY = """
print("a warning", "ready", sep="\\n", flush=True)
serve(**{"query-migrate": [{"return": {"status": "active"}}, {"return": {"status": "completed"}}]})
"""
GOES_ON = """
assert after("-incoming").startswith("exec:cat ")
assert subprocess.run(after("-incoming").removeprefix("exec:"), shell=True, capture_output=True).stdout == b"the guest"
serve(**{"query-status": [{"return": {"status": "inmigrate"}}, {"return": {"status": "running"}}]})
assert sys.stdin.readline() == "go\\n"
assert abs(int(open(f"{shared}/date").read()) - __import__("time").time()) < 60
status = subprocess.run(["sh", f"{shared}/command"], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT).returncode
with open(f"{shared}/status", "w") as file:
    file.write(str(status))
"""


@pytest.fixture
def fake_monitor(fake_qemu, tmp_path, monkeypatch):
    """Install a QEMU that makes guests (READY or another script) and goes on with them (GOES_ON or another)."""
    monkeypatch.setattr(kept_guest.tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(kept_guest, "first_files", lambda kernel: [Entry(module.name, module) for module in kernel.modules])
    monkeypatch.setattr(kept_guest, "_files", lambda: [str(tmp_path / "imported.py")])
    (tmp_path / "imported.py").write_text("1")
    (tmp_path / "cache").mkdir()

    def install(making=READY, going_on=GOES_ON):
        pid = fake_qemu("")
        program = tmp_path / "bin" / "qemu-system-x86_64"
        both = f"if '-incoming' in line:\n{textwrap.indent(going_on, '    ')}\nelse:\n{textwrap.indent(making, '    ')}\n"
        program.write_text(FAKE_MONITOR.format(python=sys.executable) + both)
        return pid

    return install


def test_a_guest_is_kept_until_a_file_is_another(fake_monitor, kept, tmp_path, capfd):
    fake_monitor()
    cache, said = tmp_path / "cache", []
    first = kept_guest.keep(kept, cache, said.append)
    assert first.read_bytes() == b"the guest"
    assert kept_guest.keep(kept, cache, said.append) == first
    assert said == ["a guest is made and kept on disk, for this run and later ones"]
    assert list(cache.iterdir()) == [first]
    assert guest.boot(kept, ["sh", "-c", "echo out; exit 3"], timeout_s=20, kept=first) == 3
    assert capfd.readouterr().out == "out\n"
    others = []
    for text in ("22", "333"):
        (tmp_path / "imported.py").write_text(text)
        others.append(kept_guest.keep(kept, cache, said.append))
    assert set(cache.iterdir()) == {first, *others}
    (tmp_path / "imported.py").write_text("4444")
    others.append(kept_guest.keep(kept, cache, said.append))
    assert set(cache.iterdir()) == set(others)  # three are enough


@pytest.mark.parametrize(
    ("making", "error"),
    [
        ('print("ImportError: no module")\n', "Python did not start in it: ImportError: no module"),
        ("import time\ntime.sleep(60)", "Python did not start in it within 4 s: .*"),
        ('print("ready", flush=True)\n', "QEMU does not write it: .*"),
        (READY.replace('"completed"', '"failed", "error-desc": "no space"'), "QEMU does not write it: query-migrate: failed: no space"),
        (READY.replace('"query-migrate": [', '"migrate": [{"error": {"desc": "9p is mounted"}}], "x": ['), ".*migrate: 9p is mounted"),
    ],
)
def test_a_guest_that_cannot_be_kept(fake_monitor, kept, tmp_path, monkeypatch, making, error):
    monkeypatch.setattr(kept_guest, "MAKING_S", 4 if "sleep" in making else 60)
    fake_monitor(making)
    with pytest.raises(NotKept, match=f"^{error}$"):
        kept_guest.keep(kept, tmp_path / "cache", print)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_disk_that_takes_no_guest(kept, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(kept_guest, "first_files", lambda kernel: [])
    monkeypatch.setattr(kept_guest, "_files", lambda: [])
    monkeypatch.setattr(kept_guest.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "a version"))
    with pytest.raises(NotKept, match="Not a directory"):
        kept_guest.keep(kept, tmp_path / "file", lambda line: None)


def test_all_that_a_guest_is_made_from_is_in_its_name(fake_monitor, kept, tmp_path, monkeypatch):
    fake_monitor()
    names = set()

    def keep():
        names.add(kept_guest.keep(kept, tmp_path / "cache", lambda line: None).name)
        return len(names)

    assert keep() == keep() == 1
    kept.vmlinux.write_text("another kernel")
    assert keep() == 2
    (kept.folder / "modules" / "01-9p.ko").write_text("another module")
    assert keep() == 3
    for count, (name, value) in enumerate({"PYTHONPATH": "/another", "LD_LIBRARY_PATH": "/lib2", "NUMBA_DEBUG": "1"}.items(), 4):
        monkeypatch.setenv(name, value)
        assert keep() == count
    monkeypatch.setenv("PGAS_TIMEOUT", "5")
    assert keep() == count
    monkeypatch.chdir(tmp_path)
    assert keep() == count + 1


def test_python_of_a_kept_guest_finds_what_the_callers_would(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "clone::/other")
    paths = f"{tmp_path}:{tmp_path}/clone:/other:{Path(__file__).parent}"
    assert f"export PYTHONPATH={paths}\n" in kept_guest._server()


@pytest.fixture
def booted(kept, tmp_path, monkeypatch):
    """Commands that ran in guests, and the guests that were kept: nothing else of ``run --forks`` is done."""
    calls = []
    monkeypatch.setattr(command_line, "prepare", lambda: kept)
    monkeypatch.setattr(command_line.sys, "executable", "true")
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def boot(kernel, command, *, timeout_s, kept=None):
        calls.append((command, kept))
        if kept is not None and kept.read_text() == "cut off":
            raise MonitorError("query-status: QEMU is gone")
        if kept is not None and kept.read_text() == "busy":
            raise TooLong("query-status: inmigrate after 60 s")
        return 77

    monkeypatch.setattr(guest, "boot", boot)
    return calls


def test_where_no_guest_can_be_kept_one_is_booted(booted, monkeypatch, capsys):
    def keep(*_):
        raise NotKept("no space")

    monkeypatch.setattr(command_line, "keep", keep)
    assert command_line.main(["run", "--forks", "true"]) == 1  # 77 is for machines that can have no guest
    assert booted == [(["true", "-m", "rxe.forks", "true"], None)]
    assert "rxe: no guest is kept on disk, this run boots one: no space\n" in capsys.readouterr().err


def test_a_kept_guest_that_does_not_start_is_not_kept_on(booted, tmp_path, monkeypatch, capsys):
    state = tmp_path / "state"
    state.write_text("cut off")
    monkeypatch.setattr(command_line, "keep", lambda *_: state)
    assert command_line.main(["run", "--forks", "true"]) == 1
    assert booted == [(["true"], state), (["true", "-m", "rxe.forks", "true"], None)]
    assert not state.exists()
    assert "this run boots one and the next makes another: query-status: QEMU is gone\n" in capsys.readouterr().err
    state.write_text("busy")
    assert command_line.main(["run", "--forks", "true"]) == 1
    assert state.exists()
    assert "does not start in time, this run boots one: query-status: inmigrate after 60 s\n" in capsys.readouterr().err


def test_a_signal_while_a_guest_is_made(fake_monitor, kept, tmp_path):
    """Nothing is left, and nothing is waited for."""
    fake_monitor('print("started", flush=True)\nimport time; time.sleep(100)\n')
    text = "import sys\nfrom pathlib import Path\nfrom rxe import guest, kept\nfrom rxe.kernel import Kernel\nkept._files = lambda: []\n"
    text += "kept.first_files = lambda kernel: []\n"
    text += "with guest.ended_by_signals():\n    kept.keep(Kernel(Path(sys.argv[1])), Path(sys.argv[2]), print)\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", text, str(kept.folder), str(tmp_path / "cache")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        program.terminate()
        assert program.wait(20) == 143
    assert list((tmp_path / "cache").iterdir()) == []


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
