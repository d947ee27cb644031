"""A wrong call is one sentence, in kernels the same one from the compiler and from the simulator: every public function."""

import json
import os
import re
import subprocess
import sys

import pytest
import wrong_calls
from compiled import LIMIT

pytestmark = [pytest.mark.sass, pytest.mark.timeout(2 * LIMIT)]


#: Right on the host: values of full(), and no team, as for a PE that is not a member.
ACCEPTED = r"pgas\.(full(_like)?\(.*value=(a|1j)|team_(destroy|\w+_pes?)\(.*=None)"


def test_sentences_of_the_host_name_the_function():
    command = [sys.executable, wrong_calls.__file__, "host"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PGAS_")} | {"NUMBA_ENABLE_CUDASIM": "1"}
    said = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=LIMIT, check=True).stdout)
    assert len(said) > 1500
    wrong = [call for call in said if not call[3].startswith(f"pgas.{call[0]}: ") or "\n" in call[3]]
    assert [call for call in wrong if call[3] or not re.match(ACCEPTED, call[2])] == []


@pytest.fixture(scope="module")
def said():
    """Return (function, parameter, call, what the compiler says, what the simulator says) of every wrong call."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PGAS_")}
    command, pipe = [sys.executable, wrong_calls.__file__], subprocess.PIPE
    started = [subprocess.Popen(command, env=environment | {"NUMBA_ENABLE_CUDASIM": which}, stdout=pipe, text=True) for which in "01"]
    by_compiler, by_simulator = (json.loads(process.communicate(timeout=LIMIT)[0]) for process in started)
    assert [call for *call, _ in by_compiler] == [call for *call, _ in by_simulator]
    return [(*call, sentence) for call, (*_, sentence) in zip(by_compiler, by_simulator, strict=True)]


def test_every_function_is_called(said):
    in_kernels, of_host = wrong_calls.functions()
    assert {"put", "ptr", "maxloc_block", "team_my_pe"} <= in_kernels.keys()
    assert {"init", "zeros", "launch", "jit"} <= set(of_host)
    assert {function for function, *_ in said} == in_kernels.keys() | set(of_host)


def test_sentences_name_the_function_and_are_the_same(said):
    wrong = [call for call in said if not call[3].startswith(f"pgas.{call[0]}: ") or call[3] != call[4]]
    assert wrong == []


def test_sentences_about_types_name_the_parameter(said):
    wrong = [call for call in said if call[1] and not re.match(rf"pgas\.\w+: (\w+ (of|has) .*)?{call[1]} ", call[3])]
    assert wrong == []


def test_sentences_have_no_name_of_numbas(said):
    """Such as array(int32, 1d, C), unicode_type and Module(<module ...>)."""
    assert [call for call in said if re.search(r"\d+d, |unicode|Tuple|Literal|not none|[<>]|pyobject", call[3])] == []
