"""The disk cache of the bodies of public functions, such as reduce_block, for kernels that call them. For numba-cuda.

A collective is up to 60 device functions, for which Numba's front end takes seconds: whenever the file of a kernel that calls it changes,
and in every process that has no cached kernel. Therefore, the LLVM IR of such a function and of all that it calls is kept on disk. It
depends on pgas, its constants, and the types of its operands, not on the kernel that calls it.

Numba numbers functions in the order in which a process compiles them, so that names of two processes may coincide by accident. Kept
functions have hashes of their code for names.
"""

import functools
import hashlib
import re
import types as python
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from numba.cuda import dispatcher as dispatchers
from numba.cuda import types as types
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.core.funcdesc import ExternalFunctionDescriptor
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.cudadrv.nvvm import NVVM
from numba.cuda.typing import signature

from pgas.base import disk_cache
from pgas.base.errors import PgasError

_NAME = re.compile(r'@"([^"]+)"')
_EXTERNAL = "", "linkonce_odr", "external"


class _Text:
    """LLVM IR in the role of a module of llvmlite. Its functions already have the linkage that a caller's library would give them."""

    functions: tuple[Any, ...] = ()

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class _KeptLibrary(CUDACodeLibrary):  # type: ignore[misc, no-any-unimported]
    """A library of kept modules."""

    def __init__(self, codegen: Any, name: str, texts: list[str]) -> None:
        super().__init__(codegen, name)
        self._texts = [_Text(text) for text in texts]
        self._finalized = True

    @property
    def modules(self) -> list[Any]:
        return list(self._texts)


def named(typing: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a typing function whose bodies know the name of their public function, and are therefore kept."""

    def typed(*args: Any, **kwargs: Any) -> Any:
        body = typing(*args, **kwargs)
        if not isinstance(body, python.FunctionType):
            return body
        # A copy, because two public functions may share a body.
        copy = python.FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__)
        copy.__kwdefaults__, copy.__qualname__, copy.__module__ = body.__kwdefaults__, body.__qualname__, body.__module__
        copy.__dict__.update(body.__dict__, _pgas_public_name=name)
        return copy

    return typed


def keep(key: Callable[[], tuple[Any, ...]], mark: Callable[..., Any]) -> None:
    """Keep bodies from now on.

    Args:
        key: returns what all bodies depend on; the first part is a hash of their source.
        mark: the setup function of libraries that depend on the key.
    """
    dispatchers.CUDADispatcher.compile_device = _keeping(dispatchers.CUDADispatcher.compile_device, key, mark)


def _keeping(compile_device: Callable[..., Any], key: Callable[[], tuple[Any, ...]], mark: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_device)
    def compiled(self: Any, args: tuple[Any, ...], return_type: Any = None) -> Any:
        name, flags = getattr(self.py_func, "_pgas_public_name", None), ConfigStack.top_or_none()
        if name is None or args in self.overloads or None in (operands := list(map(_description, args))):
            return compile_device(self, args, return_type)
        if self.targetoptions.get("debug") or (flags is not None and flags.debuginfo):  # Numba links such modules in another way.
            return compile_device(self, args, return_type)
        try:
            library, *other = key()
            files = disk_cache.files_of(dispatchers.CUDACacheImpl, keep, name, library)  # one directory for all
        except (PgasError, disk_cache.NoPlace):  # PgasError: there is no job, whose constants code depends on
            return compile_device(self, args, return_type)
        options = sorted((option, repr(value)) for option, value in self.targetoptions.items())
        target = dispatchers.get_current_device().compute_capability, NVVM().get_ir_version()
        full = name, operands, options, target, library, *other
        if (kept := files.load(full)) is not None:
            result = _restored(kept, args, mark)
            self.overloads[args] = result
            result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
            return result
        result = compile_device(self, args, return_type)
        if (code := _code_of(result, mark)) is not None:
            files.save(full, code)
        return result

    return compiled


def _description(type_: Any) -> str | None:
    """Return a text that says everything about a type that a body can depend on, None for types that have no such text."""
    if type(type_) is types.Array:
        element = _description(type_.dtype)
        return element and f"{element}[{type_.ndim}, {type_.layout}, {type_.mutable}, {type_.aligned}]"
    if isinstance(type_, types.BaseTuple):
        parts = list(map(_description, type_))
        return None if None in parts else f"{type_.name}: {parts}"
    if isinstance(type_, types.EnumMember):  # of pgas, such as the reductions, which have a class each
        kind = type_.instance_class
        return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__.startswith("pgas.") else None
    if isinstance(type_, types.Omitted):
        return type_.name if type_.value is None or isinstance(type_.value, (bool, int, float, str)) else None
    return type_.name if isinstance(type_, (types.Number, types.Boolean, types.Literal, types.NoneType, types.Record)) else None


def _code_of(result: Any, mark: Callable[..., Any]) -> tuple[Any, ...] | None:
    """Return what _restored() needs, None for code that is more than IR."""
    library = result.library
    if any(isinstance(module, _Text) for module in library.modules):  # Their callers would have to come first.
        return None
    if library._linking_files or library.needs_cudadevrt or library.referenced_objects or {*library._setup_functions} - {mark}:
        return None
    modules = list(dict.fromkeys(library.modules))
    defined = {f.name: m for m in modules for f in m.functions if not f.is_declaration and f.linkage in _EXTERNAL}
    names, texts = dict[str, str](), dict[Any, str]()

    def rename(module: Any) -> None:
        """Give the functions of a module their names, after those that they call."""
        if module in texts:
            return
        own = dict[str, str]()
        for function in module.functions:
            if defined.get(function.name) is module:
                function.linkage = "linkonce_odr"  # as a caller's library does
                own[function.name] = str(len(own))
            elif function.name in defined:
                rename(defined[function.name])
        text = _renamed(str(module), names | own)
        own = {name: f"pgas_{hashlib.sha256(text.encode()).hexdigest()[:40]}_{number}" for name, number in own.items()}
        names.update(own)
        texts[module] = _renamed(str(module), names)

    for module in modules:
        rename(module)
    callers_first = list(texts.values())[::-1]  # NVVM takes only those functions from a module that the modules before it call.
    entry = names[result.fndesc.mangled_name]
    return result.signature.return_type, entry, library.use_cooperative, zlib.compress("\0".join(callers_first).encode(), 1)


def _renamed(text: str, names: dict[str, str]) -> str:
    return _NAME.sub(lambda found: f'@"{names.get(found[1], found[1])}"', text)


def _restored(kept: tuple[Any, ...], args: tuple[Any, ...], mark: Callable[..., Any]) -> Any:
    """Return kept code in the form of Numba's result of a compilation."""
    from numba.cuda.descriptor import cuda_target

    returned, entry, cooperative, modules = kept
    context = cuda_target.target_context
    description = ExternalFunctionDescriptor(entry, returned, args, CUDACallConv(context))
    library = _KeptLibrary(context.codegen(), entry, zlib.decompress(modules).decode().split("\0"))
    library._setup_functions.append(mark)
    library.use_cooperative = cooperative
    return SimpleNamespace(
        signature=signature(returned, *args), fndesc=description, library=library, target_context=context, entry_point=object(),
        objectmode=False,
    )  # fmt: skip
