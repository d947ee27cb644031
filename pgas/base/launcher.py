"""The launcher of this process, from its environment: python -m pgas.run, torchrun, Slurm's srun, or an MPI's mpirun."""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pgas.base.ancestors import Ancestor, lineage

#: Maximum number of PEs in a job.
MAX_PES = 4096

#: The variable of ``python -m pgas.run`` for each PE: JSON with rank, size, host, port, secret and the descriptors of the last word.
LAUNCHED = "PGAS_LAUNCHED"

#: The variable of pgas.init() for the processes that a PE starts: the PE's number and pid, and a digest of its launcher's variables.
STARTED_BY = "PGAS_STARTED_BY"

#: The types of the values in LAUNCHED. "launcher", the pid of the command, may be missing.
_TOLD = {"rank": int, "size": int, "host": str, "port": int, "secret": str, "word": list}

#: Variables of torchrun, and of other launchers for torch.distributed ("env://").
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Variables of srun in the processes of a step.
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID")

#: The variable of srun with the pid of the process that it started.
_SLURM_PID = "SLURM_TASK_PID"


class _Kind(NamedTuple):
    """The variables of a launcher, and the programs that its own processes run."""

    launcher: str
    rank: str
    size: str
    needed: tuple[str, ...]  #: variables that its processes always have
    programs: frozenset[str]


def _programs(names: str) -> frozenset[str]:
    return frozenset(name[:length] for name in names.split() for length in (15, None))  # The kernel cuts names after 15 characters.


#: Launchers other than pgas.run. If several started a process, with the same rank and size, the first one counts.
_KINDS = (
    _Kind("torchrun", *_TORCH[:2], _TORCH, _programs(
        "torchrun torch.distributed.run torch.distributed.launch accelerate accelerate.commands.launch deepspeed "
        "deepspeed.launcher.launch")),
    _Kind("srun", *_SLURM[:2], _SLURM, _programs("slurmstepd")),
    # PMI-1 and PMI-2: MPICH, Intel MPI, Cray, Flux, Slurm.
    _Kind("mpirun", "PMI_RANK", "PMI_SIZE", (), _programs(
        "hydra_pmi_proxy hydra_bstrap_proxy pmi_proxy mpiexec.hydra mpiexec.gforker mpiexec.mpich mpirun.mpich palsd aprun flux-shell "
        "mpirun mpiexec")),
    _Kind("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", (), _programs(
        "orted orterun prted prte prterun mpirun.openmpi mpiexec.openmpi jsrun jsmd mpirun mpiexec")),
    _Kind("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", (), _programs("mpispawn mpirun_rsh mpirun mpiexec")),
    _Kind("mpirun", "PMIX_RANK", "", (), _programs("orted orterun prted prte prterun jsrun jsmd mpirun mpiexec")),
)  # fmt: skip

#: Variables by which jobs of one launcher differ.
_JOBS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "PMI_FD", "PMI_PORT", "PMIX_NAMESPACE")


class Launched(NamedTuple):
    """A process's launcher, and its rank in the job."""

    launcher: str  #: "pgas.run", "torchrun", "srun" or "mpirun"
    rank: int
    size: int | None  #: None: unknown


def read_launched(text: str) -> dict[str, Any]:
    """Return the values in a text of LAUNCHED, {} if it is empty. Raises ValueError if the text is not from ``python -m pgas.run``."""
    if not text:
        return {}
    try:
        found = json.loads(text)
        if all(type(found[name]) is kind for name, kind in _TOLD.items()) and 0 <= found["rank"] < found["size"] <= MAX_PES:
            bytes.fromhex(found["secret"])
            return found  # type: ignore[no-any-return]
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise ValueError("only python -m pgas.run may set it, for its PEs")


class _Found(NamedTuple):
    """A launcher whose variables a process has."""

    launched: Launched
    values: dict[str, str]  #: its variables
    programs: frozenset[str]
    at: float  #: number of generations between this process and the launcher's own process; infinite: unknown
    since: int  #: number of generations between this process and the one that was started with the variables; -1: it set them itself

    def agrees(self, other: "_Found") -> bool:
        mine, its = self.launched, other.launched
        return mine.rank == its.rank and (mine.size == its.size or None in (mine.size, its.size))


def launched(environment: Mapping[str, str] = os.environ, ancestors: Sequence[Ancestor] | None = None) -> Launched | None:
    """Return the launcher that started the process with an environment, None if there is none.

    A process may also have variables that other launchers left: those of a shell, or of a launcher that started this one. The launcher
    whose process is the nearest ancestor is the right one. Variables that were set later win over it if they agree with it, or if it
    started only one process, as ``srun --pty bash`` does.

    Args:
        environment: its variables.
        ancestors: the process and its ancestors. Default: those of this process.

    Raises:
        ValueError: if PGAS_LAUNCHED is not from ``python -m pgas.run``, a rank or size of another launcher is not a number, or launchers
            contradict each other. Otherwise, each process would be a job of one PE.
    """
    found = _found(environment)
    if len(found) > 1:
        return _decide(_placed(found, environment, lineage() if ancestors is None else ancestors)).launched
    return found[0].launched if found else None


def _found(environment: Mapping[str, str]) -> list[_Found]:
    """Return the launchers whose variables are in an environment, at no place."""

    def number(name: str) -> int | None:
        value = environment.get(name, "")
        if value and not re.fullmatch(r"[0-9]{1,9}", value):
            raise ValueError(
                f"{name}={value[:80]!a}: must be a number, which a launcher sets; unset it if no launcher started this process"
            )
        return int(value) if value else None

    def add(launched: Launched, names: Iterable[str], programs: frozenset[str]) -> None:
        found.append(_Found(launched, {name: environment.get(name, "") for name in names if name}, programs, math.inf, 0))

    found: list[_Found] = []
    try:
        if told := read_launched(environment.get(LAUNCHED, "")):
            add(Launched("pgas.run", told["rank"], told["size"]), [LAUNCHED], frozenset())
    except ValueError as error:
        raise ValueError(f"{LAUNCHED}: {error}") from None
    for kind in _KINDS:
        if all(environment.get(name) for name in kind.needed) and (rank := number(kind.rank)) is not None:
            add(Launched(kind.launcher, rank, number(kind.size)), (kind.rank, kind.size), kind.programs)
    return found


def _placed(found: Iterable[_Found], environment: Mapping[str, str], ancestors: Sequence[Ancestor]) -> list[_Found]:
    """Return launchers with their places among the ancestors of the process with an environment."""
    pids = {ancestor.pid: at for at, ancestor in enumerate(ancestors)}
    told = read_launched(environment.get(LAUNCHED, ""))
    task = environment.get(_SLURM_PID, "")

    def place(one: _Found) -> _Found:
        at: float = next((at for at, ancestor in enumerate(ancestors) if at and ancestor.programs & one.programs), math.inf)
        if one.launched.launcher == "pgas.run":
            at = pids.get(told.get("launcher", 0), math.inf)
        if one.launched.launcher == "srun" and task.isdecimal() and int(task) in pids:
            at = pids[int(task)] + 1
        had = [all(ancestor.environment.get(name, "") == value for name, value in one.values.items()) for ancestor in ancestors]
        return one._replace(at=at, since=[*had, False].index(False) - 1)

    return [place(one) for one in found]


def _decide(found: list[_Found]) -> _Found:
    """Return the launcher that started a process. found: launchers whose variables it has, in the order in which agreeing ones count.

    Raises:
        ValueError: if launchers contradict each other.
    """
    nearest = min(found, key=lambda one: (one.at, one.since))
    if nearest.at == math.inf:  # Variables that the process itself set tell nothing.
        return _agreeing([one for one in found if one.since == nearest.since or nearest.since < 0])
    if nearest.launched.launcher == "pgas.run":
        return nearest
    later = [one for one in found if one.since < nearest.at - 1 and one.at == math.inf]
    equal = [one for one in found if (one.at, one.since) == (nearest.at, nearest.since)]
    if nearest.launched.size == 1 and not all(nearest.agrees(one) for one in later):
        return _agreeing(later)
    if nearest.at == 1:  # Only this process itself can have set the later ones, for a purpose of its own.
        later = [one for one in later if nearest.agrees(one)]
    return _agreeing([one for one in found if one in later or one in equal])


def _agreeing(found: list[_Found]) -> _Found:
    """Return the first of some launchers, all of which agree."""
    for one in found:
        for other in found:
            if not one.agrees(other):
                texts = [" and ".join(map("=".join, it.values.items())) + f" of {it.launched.launcher}" for it in (one, other)]
                raise ValueError(
                    f"{texts[0]} contradict {texts[1]}, and it is unknown which of them started this process; unset the variables of the "
                    "launcher that did not"
                )
    return found[0]


def has_launchers_variables() -> bool:
    """Whether this process has variables of any launcher, even one that did not start it."""
    return LAUNCHED in os.environ or bool(_found(os.environ))


def parents_launcher() -> Launched | None:
    """Return the launcher whose own process is the parent of this one, None if there is none."""
    return next((one.launched for one in _placed(_found(os.environ), os.environ, lineage()) if one.at == 1), None)


def start_marking() -> None:
    """Mark the environment of the processes that this one, a PE, starts from now on."""
    if (found := launched()) is not None:
        os.environ[STARTED_BY] = f"{found.rank} {os.getpid()} {_digest()}"


def starter() -> tuple[int, int] | None:
    """Return number and pid of the PE that started this process, or None if no PE did.

    A process has the launcher's variables of the PE that started it, and would otherwise take itself for this PE.
    """
    match = re.fullmatch(r"([0-9]{1,9}) ([0-9]{1,9}) ([0-9a-f]{16})", os.environ.get(STARTED_BY, ""))
    if match is None or int(match[2]) == os.getpid() or match[3] != _digest() or launched() is None:
        return None
    ancestors = lineage()
    pe = next((at for at, ancestor in enumerate(ancestors) if ancestor.pid == int(match[2])), 0)
    if any(one.at < pe for one in _placed(_found(os.environ), os.environ, ancestors)):
        return None  # That PE started a launcher, which set the same variables.
    return int(match[1]), int(match[2])


def _digest() -> str:
    """Return a digest of the launcher's variables. A launcher that a PE starts gives its processes other variables, thus another digest."""
    names = (LAUNCHED, *(name for kind in _KINDS for name in (kind.rank, kind.size, *kind.needed)), *_JOBS)
    return hashlib.sha256(repr([os.environ.get(name) for name in names]).encode()).hexdigest()[:16]


def launched_rank(environment: Mapping[str, str] = os.environ, ancestors: Sequence[Ancestor] | None = None) -> int | None:
    """Return the rank in an environment, None if no launcher started the process. Arguments and errors are those of launched()."""
    found = launched(environment, ancestors)
    return None if found is None else found.rank


def is_launcher() -> bool:
    """Whether this process is the command ``pgas run`` (``python -m pgas.run``), or only prints the version or the help of ``pgas``."""
    program, *arguments = sys.argv or [""]
    if program == "-m":  # Python imports the package of a module before it sets argv[0].
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
        if module != "pgas":
            return module == "pgas.run"
    elif os.path.basename(program) != "pgas" or os.path.dirname(program) != os.path.dirname(sys.executable):
        return False
    return not arguments or arguments[0] in ("run", "--version", "-h", "--help")


#: Environment variables that pgas set for this process alone.
OWN_VARIABLES: set[str] = set()


def environment() -> dict[str, str]:
    """Return the environment for programs that this process starts, which make and report their choices themselves."""
    return {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
