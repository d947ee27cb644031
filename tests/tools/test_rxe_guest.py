"""The forks of make check-rxe, outside its QEMU guest."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_forks_behave_like_real_pythons",)


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
