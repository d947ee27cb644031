"""The launcher of this process, from its environment: python -m pgas.run, torchrun, Slurm's srun, or an MPI's mpirun."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

#: Maximum number of PEs in a job.
MAX_PES = 4096

#: The variable of ``python -m pgas.run`` for each PE: JSON with rank, size, host, port, secret and the descriptors of the last word.
LAUNCHED = "PGAS_LAUNCHED"

#: The variable of pgas.init() for the processes that a PE starts: the PE's number and pid, and a digest of its launcher's variables.
STARTED_BY = "PGAS_STARTED_BY"

#: The types of the values in LAUNCHED.
_TOLD = {"rank": int, "size": int, "host": str, "port": int, "secret": str, "word": list}

#: Variables of torchrun, and of other launchers for torch.distributed ("env://").
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Variables of srun in the processes of a step.
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID")

#: Variables of mpirun and PMI for rank and size (PMI-1/2: MPICH, Slurm; PMIx; Open MPI; MVAPICH).
_MPI_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
_MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

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


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Return the launcher in an environment, None if there is none.

    Under mpirun in a Slurm allocation, Slurm's variables are those of mpirun's daemon, which srun started. Therefore, if the numbers of
    processes differ, MPI's variables are the right ones.

    Raises:
        ValueError: if PGAS_LAUNCHED is not from ``python -m pgas.run``.
    """

    def number(name: str) -> int | None:
        value = environment.get(name, "")
        return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else None

    try:
        if found := read_launched(environment.get(LAUNCHED, "")):
            return Launched("pgas.run", found["rank"], found["size"])
    except ValueError as error:
        raise ValueError(f"{LAUNCHED}: {error}") from None
    if all(environment.get(name) for name in _TORCH) and (rank := number("RANK")) is not None:
        return Launched("torchrun", rank, number("WORLD_SIZE"))
    rank = next((rank for name in _MPI_RANKS if (rank := number(name)) is not None), None)
    size = next((size for name in _MPI_SIZES if (size := number(name)) is not None), None)
    if all(environment.get(name) for name in _SLURM) and (task := number("SLURM_PROCID")) is not None:
        tasks = number("SLURM_STEP_NUM_TASKS")
        if rank is None or (rank, size or tasks) == (task, tasks):
            return Launched("srun", task, tasks)
    return None if rank is None else Launched("mpirun", rank, size)


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
    return int(match[1]), int(match[2])


def _digest() -> str:
    """Return a digest of the launcher's variables. A launcher that a PE starts gives its processes other variables, thus another digest."""
    names = (LAUNCHED, *_TORCH, *_SLURM, *_MPI_RANKS, *_MPI_SIZES, *_JOBS)
    return hashlib.sha256(repr([os.environ.get(name) for name in names]).encode()).hexdigest()[:16]


def launched_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the rank in an environment, None if no launcher started the process."""
    found = launched(environment)
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
