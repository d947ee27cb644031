"""Executes the PTX of a kernel for lanes of one warp in simulated memory, to check the stores of compiled code without a GPU.

It knows the instructions of pgas's kernels and refuses all others. Between two collective instructions, which all lanes must reach
together, lanes run one after another. Memory order is not modeled.
"""

import functools
import re
import struct

_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_STEPS = 20_000  #: limit for a lane, more than any kernel takes whose waits end at once


class Memory:
    """Regions of bytes by address, with the interface of pgas.sim's memory; an access elsewhere is an error."""

    def __init__(self):
        self._regions = []

    def region(self, address, nbytes, fill=0):
        data = bytearray([fill]) * nbytes
        self._regions.append((address, data))
        return data

    def load(self, address, nbytes):
        data, offset = self._find(address, nbytes)
        return int.from_bytes(data[offset : offset + nbytes], "little")

    def store(self, address, value, nbytes):
        data, offset = self._find(address, nbytes)
        data[offset : offset + nbytes] = (value & ((1 << 8 * nbytes) - 1)).to_bytes(nbytes, "little")

    load_acquire, store_release = load, store

    def _find(self, address, nbytes):
        for start, data in self._regions:
            if start <= address <= start + len(data) - nbytes:
                return data, address - start
        raise LookupError(f"{nbytes} bytes at {address:#x}: no memory there")

    def update(self, address, nbytes, change):
        old = self.load(address, nbytes)
        self.store(address, change(old), nbytes)
        return old

    def atomic_add(self, address, value, nbytes):
        return self.update(address, nbytes, lambda old: old + value)

    def atomic_or(self, address, value, nbytes):
        return self.update(address, nbytes, lambda old: old | value)

    def atomic_compare_swap(self, address, compare, swap, nbytes):
        return self.update(address, nbytes, lambda old: swap if old == compare else old)

    def fence(self, scope):
        """Do nothing: all accesses are in order."""


def run(ptx, arguments, memory, lanes=1):
    """Run the kernel. Arguments are integers in the order of its parameters; an array has seven, of which the fifth is its address."""
    program, labels = _parse(ptx)
    waiting = {number: _lane(program, labels, arguments, memory, number, lanes) for number in range(lanes)}
    answers = dict.fromkeys(waiting)
    while waiting:
        brought = {}
        for number, lane in list(waiting.items()):
            try:
                brought[number] = lane.send(answers[number])
            except StopIteration:
                del waiting[number]
        if brought:
            places = {place for place, _ in brought.values()}
            if len(places) != 1 or len(brought) != lanes:
                raise RuntimeError(f"lanes {sorted(brought)} of {lanes} wait, at {len(places)} places")
            values = {number: value for number, (_, value) in brought.items()}
            answers = dict.fromkeys(waiting, values)


def reaches(ptx, begin, end, past):
    """Whether a path leads from an instruction to another one without a third. Predicates on the parts of opcodes select them."""
    program, labels = _parse(ptx)
    ahead = {i + 1 for i, (_, _, opcode, _) in enumerate(program) if begin(opcode)}
    if not ahead:
        raise LookupError("no instruction begins a path")
    seen = set()
    while ahead:
        at = ahead.pop()
        if at in seen or at == len(program):
            continue
        seen.add(at)
        predicate, _, opcode, operands = program[at]
        if end(opcode):
            return True
        if past(opcode):
            continue
        if opcode[0] == "bra":
            ahead.add(labels[operands[0]])
        if predicate or opcode[0] not in ("bra", "ret", "exit"):
            ahead.add(at + 1)
    return False


@functools.cache
def _parse(ptx):
    """Return the statements (predicate, negated, parts of the opcode, operands), and the positions of the labels."""
    body = ptx[ptx.index("{", ptx.index(".entry")) + 1 : ptx.rindex("}")]
    program, labels = [], {}
    for statement in re.sub(r"//.*", "", body).split(";"):
        statement = statement.strip()
        while m := re.match(r"(\$\w+):\s*|[{}]\s*", statement):
            if m[1]:
                labels[m[1]] = len(program)
            statement = statement[m.end() :]
        if statement and not statement.startswith("."):
            predicate, negated, opcode, operands = re.match(r"(?:@(!?)(%?\w+)\s+)?([\w.:]+)\s*(.*)", statement, re.DOTALL).group(2, 1, 3, 4)
            program.append((predicate, negated == "!", opcode.split("."), _OPERAND.findall(operands)))
    return program, labels


def _width(kind):
    return 1 if kind == "pred" else int(kind[1:])


def _signed(value, width):
    return value - (1 << width) if value >> (width - 1) else value


def _number(bits, kind):
    """Return the number that some bits represent."""
    if kind[0] == "f":
        return struct.unpack("<f" if kind == "f32" else "<d", bits.to_bytes(_width(kind) // 8, "little"))[0]
    return _signed(bits, _width(kind)) if kind[0] == "s" else bits


def _bits(number, kind):
    if kind[0] == "f":
        return int.from_bytes(struct.pack("<f" if kind == "f32" else "<d", number), "little")
    return int(number) & ((1 << _width(kind)) - 1)


_ARITHMETIC = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "min": min, "max": max,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip
_COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "neu": lambda a, b: a != b, "equ": lambda a, b: a == b,
}  # fmt: skip


def _lane(program, labels, arguments, memory, number, lanes):
    """Run one lane. Yields (position, value) at each collective instruction, and receives all lanes' values."""
    special = {
        "%tid.x": number, "%laneid": number, "%ntid.x": lanes, "%lanemask_lt": (1 << number) - 1, "%lanemask_eq": 1 << number,
        "%globaltimer": 0, "%clock64": 0, "%smid": 0,
        **{f"%{name}.{axis}": value for name, value in (("tid", 0), ("ntid", 1)) for axis in "yz"},
        **{f"%{name}.{axis}": value for name, value in (("ctaid", 0), ("nctaid", 1)) for axis in "xyz"},
    }  # fmt: skip
    registers = {}

    def get(operand, width=64):
        if operand in special:
            return special[operand]
        if re.match(r"0[fd][0-9A-Fa-f]{8}", operand):
            return int(operand[2:], 16)
        if re.match(r"-?\d", operand):
            return int(operand, 0) & ((1 << width) - 1)
        return registers[operand]

    def place(operand):
        base, offset = re.fullmatch(r"\[([%\w]+)\+?(-?\d+)?\]", operand).groups()
        return get(base) + int(offset or 0)

    def parts(operand):
        return operand.strip("{} ").replace(",", " ").split()

    at = 0
    for _ in range(_STEPS):
        predicate, negated, opcode, operands = program[at]
        at += 1
        if predicate and registers[predicate] == negated:
            continue
        name, kind = opcode[0], opcode[-1]
        first = operands[0] if operands else None
        if name in ("ret", "exit"):
            return
        if name == "fence":
            memory.fence(opcode[-1])
            continue
        if name == "bra":
            at = labels[operands[0]]
        elif name in ("bar", "match", "shfl", "vote"):
            values = yield at, get(operands[1], 64) if name != "bar" else None
            if name == "match":
                registers[first] = sum(1 << lane for lane, value in values.items() if value == get(operands[1]))
            elif name == "shfl":
                registers[first] = values[get(operands[2])]
            elif name == "vote":
                registers[first] = int({"all": all, "any": any}[opcode[2]](values.values()))
        elif name == "activemask":
            registers[first] = (1 << lanes) - 1
        elif opcode[:2] == ["ld", "param"]:
            registers[first] = arguments[int(re.search(r"_param_(\d+)\]", operands[1])[1])]
        elif name in ("ld", "st"):
            nbytes, outer, inner = _width(kind) // 8, *(operands if name == "st" else operands[::-1])
            for i, register in enumerate(parts(inner)):
                if name == "ld":
                    load = memory.load_acquire if "acquire" in opcode else memory.load
                    registers[register] = load(place(outer) + i * nbytes, nbytes)
                else:
                    store = memory.store_release if "release" in opcode else memory.store
                    store(place(outer) + i * nbytes, get(register), nbytes)
        elif name in ("atom", "red"):
            target, *values = operands[name == "atom" :]
            values = [get(value) for value in values]
            if opcode[-2] == "cas":
                old = memory.atomic_compare_swap(place(target), *values, _width(kind) // 8)
            else:
                change = _ARITHMETIC[opcode[-2]]
                old = memory.update(place(target), _width(kind) // 8, lambda old: change(old, values[0]))  # noqa: B023
            if name == "atom":
                registers[first] = old
        elif name == "mov" and first[0] == "{":
            value = get(operands[1])
            for register in parts(first):
                registers[register] = value & 0xFFFF_FFFF
                value >>= 32
        elif name == "mov" and operands[1][0] == "{":
            low, high = parts(operands[1])
            registers[first] = get(low) | get(high) << 32
        elif name in ("mov", "cvta", "not", "neg"):
            value = get(operands[1], _width(kind))
            registers[first] = _bits({"not": ~value, "neg": -value}.get(name, value), f"u{_width(kind)}" if kind != "pred" else kind)
        elif name == "cvt":
            registers[first] = _bits(_number(get(operands[1]) & ((1 << _width(kind)) - 1), kind), opcode[-2])
        elif name == "setp":
            a, b = (_number(get(operand, _width(kind)), kind) for operand in operands[1:])
            registers[first] = int(_COMPARE[opcode[1]](a, b))
        elif name == "selp":
            registers[first] = get(operands[1 if registers[operands[3]] else 2], _width(kind))
        elif name in ("mul", "mad"):
            a, b = (_number(get(operand, _width(kind)), kind) for operand in operands[1:3])
            wide = 2 * _width(kind) if opcode[1] == "wide" else _width(kind)
            if opcode[1] not in ("wide", "lo"):
                raise NotImplementedError(".".join(opcode))
            more = get(operands[3], wide) if name == "mad" else 0
            registers[first] = (a * b + more) & ((1 << wide) - 1)
        elif name in ("shl", "shr"):
            value, shift, width = get(operands[1], _width(kind)), get(operands[2], 32), _width(kind)
            moved = value << shift if name == "shl" else _number(value, kind) >> min(shift, width)
            registers[first] = moved & ((1 << width) - 1)
        elif name == "bfi":
            field, into, position, length = (get(operand, _width(kind)) for operand in operands[1:])
            mask = ((1 << length) - 1) << position & ((1 << _width(kind)) - 1)
            registers[first] = into & ~mask | field << position & mask
        elif name == "prmt" and len(opcode) == 2:
            source = (get(operands[1], 32) | get(operands[2], 32) << 32).to_bytes(8, "little")
            selector = get(operands[3], 32)
            registers[first] = int.from_bytes(bytes(source[selector >> 4 * i & 7] for i in range(4)), "little")
        elif name == "popc":
            registers[first] = get(operands[1]).bit_count()
        elif name == "brev":
            registers[first] = int(f"{get(operands[1]):0{_width(kind)}b}"[::-1], 2)
        elif name == "clz":
            registers[first] = _width(kind) - get(operands[1]).bit_length()
        elif name in _ARITHMETIC:
            a, b = (_number(get(operand, _width(kind)), kind) for operand in operands[1:])
            registers[first] = _bits(_ARITHMETIC[name](a, b), kind)
        else:
            raise NotImplementedError(".".join(opcode))
    raise RuntimeError(f"lane {number} has not ended after {_STEPS} steps")
