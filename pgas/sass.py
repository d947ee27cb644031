"""Compile kernels to PTX and SASS without a GPU, with libnvvm, ptxas, and nvdisasm, which the extras ``cu12`` and ``cu13`` install."""

import dataclasses
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda import pathfinder

from pgas.base import config
from pgas.base.errors import PgasError
from pgas.base.model import COMPUTE_CAPABILITY
from pgas.kernels import compiler, window
from pgas.transports import registry

#: Kernels (plain functions) and the types of their arguments, by name.
Kernels = dict[str, tuple[Callable[..., None], tuple[Any, ...]]]


@dataclass(frozen=True)
class Built:
    """A compiled kernel: its PTX, its SASS instructions in order, and its resources as reported by ptxas."""

    ptx: str
    instructions: tuple[str, ...]
    registers: int
    spills: int
    stack: int

    def count(self, opcode: str) -> int:
        """Return the number of instructions whose opcode starts with a text, including predicated ones."""
        return sum(self.opcode(i).startswith(opcode) for i in self.instructions)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the table, the counts of memory and fence opcodes, and the constants in instructions."""
        opcodes = Counter(self.opcode(i) for i in self.instructions)
        memory = {o: n for o, n in sorted(opcodes.items()) if o.startswith(("ST", "LD", "ATOM", "RED", "MEMBAR", "CCTL"))}
        numbers = {"instructions": len(self.instructions), "registers": self.registers, "spills": self.spills, "stack": self.stack}
        immediates = sorted({int(value, 16) for i in self.instructions for value in re.findall(r"(?<!\[)\b0x[0-9a-f]+", i)})
        return {**numbers, "memory": memory, "immediates": [f"{value:#x}" for value in immediates]}

    @staticmethod
    def opcode(instruction: str) -> str:
        """Return the opcode of an instruction without its predicate."""
        return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]


def _tool(name: str) -> str:
    path = pathfinder.find_nvidia_binary_utility(name)
    if path is None:
        raise PgasError(f"{name} not found: pip install 'pgas[cu13]', or 'pgas[cu12]' for CUDA 12")
    return path


def _ran(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        cause = next(iter(done.stderr.splitlines()), f"exit status {done.returncode}")  # Later lines report only that it ended.
        remedy = ": pip install --upgrade 'pgas[cu13]' brings one that is as new as libnvvm" if "Unsupported .version" in cause else ""
        raise PgasError(f"{command[0]} failed ({cause}){remedy}")
    return done


#: Constants that kernels are compiled with, by transport: the defaults of the variables.
_DEFAULTS = {name: variable.parse(variable.default) for name, variable in config.VARIABLES.items()}
CONSTANTS = {name: window.Constants.of(_DEFAULTS, registry.get(name), 0) for name in (*registry.names(), *registry.pairs())}


def build(kernel: Callable[..., Any], argument_types: tuple[Any, ...], cc: tuple[int, int] = COMPUTE_CAPABILITY) -> Built:
    """Compile a kernel (a plain function) for a compute capability, with the frozen constants, or those of p2p if none are frozen."""
    return assemble({"": compile_ptx(kernel, argument_types, cc)}, cc)[""]


def build_all(kernels: Kernels, cc: tuple[int, int] = COMPUTE_CAPABILITY) -> dict[str, Built]:
    """Compile several kernels. This is faster than build() for each."""
    return assemble({name: compile_ptx(*kernel, cc) for name, kernel in kernels.items()}, cc)


def compile_ptx(kernel: Callable[..., Any], argument_types: tuple[Any, ...], cc: tuple[int, int] = COMPUTE_CAPABILITY) -> str:
    """Compile a kernel to PTX."""
    if window._frozen is None:
        window.freeze(CONSTANTS["p2p"])
    return compiler.compiler.ptx(kernel, argument_types, cc)


def assemble(ptx: dict[str, str], cc: tuple[int, int] = COMPUTE_CAPABILITY, max_registers: int = 0) -> dict[str, Built]:
    """Assemble and disassemble modules of one kernel each together, because the disassembler takes half a second to start.

    max_registers: limit per thread, like that of ``cuda.jit``; 0: none.
    """
    entries = {name: re.search(r"\.entry (\w+)\(", text)[1] for name, text in ptx.items()}  # type: ignore[index]
    # One module must have a single header, and no Numba environments, which are unused and defined in several modules.
    header = re.compile(r"^\.(version|target|address_size) .*$", re.MULTILINE)
    bodies = [header.sub("", re.sub(r"^\.common .*NumbaEnv.*$", "", text, flags=re.MULTILINE)) for text in ptx.values()]
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernels.ptx"), Path(folder, "kernels.cubin")
        source.write_text("\n".join([*(m[0] for m in header.finditer(next(iter(ptx.values())))), *bodies]))
        limit = [f"-maxrregcount={max_registers}"] if max_registers else []
        limit += ["-c"] if any(".extern .func" in text for text in ptx.values()) else []  # The compiler links such functions later.
        command = [_tool("ptxas"), "-v", "-O3", f"-arch=sm_{cc[0]}{cc[1]}", *limit, str(source), "-o", str(cubin)]
        log = _ran(command).stderr
        listing = _ran([_tool("nvdisasm"), "-c", str(cubin)]).stdout
    sections = dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", listing, re.MULTILINE | re.DOTALL))
    notes = dict(re.findall(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", log, re.DOTALL))
    return {name: _built(text, sections[entries[name]], notes[entries[name]]) for name, text in ptx.items()}


def _built(ptx: str, section: str, notes: str) -> Built:
    instructions = [m[1].strip() for m in re.finditer(r"/\*[0-9a-f]{4,5}\*/\s+([^;]+);", section)]
    while instructions and Built.opcode(instructions[-1]) in ("NOP", "BRA"):
        instructions.pop()  # Padding.
    numbers = {key: int(m[1]) if (m := re.search(pattern, notes)) else 0 for key, pattern in _PTXAS.items()}
    return Built(ptx, tuple(instructions), **numbers)


_PTXAS = {"registers": r"Used (\d+) registers", "spills": r"(\d+) bytes spill stores", "stack": r"(\d+) bytes stack frame"}


def configure(transport: str, map_by: str = "cta", *, check: bool = False, settles: bool = False, big_endian: bool = False) -> None:
    """Freeze the constants that kernels are compiled with.

    Args:
        transport: name of a transport, or of a pair.
        map_by: the threads that share a queue pair: cta, sm, or warp.
        check: whether PEs and addresses are checked.
        settles: whether waits make NIC writes visible with a read by the NIC.
        big_endian: whether the NIC returns old values of atomics big-endian.
    """
    constants = CONSTANTS[transport]
    constants = dataclasses.replace(constants, check=check, settles=settles and constants.num_qps > 0)
    window.freeze(dataclasses.replace(constants, map_by=map_by) if constants.map_by else constants)
    window.learn(big_endian=big_endian, rung_by_cpu=False)
