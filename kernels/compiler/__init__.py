"""All code that depends on the device-code compiler: device functions, PTX primitives and their CPU twins, and the binding of public names.

Only this module selects the compiler. ``backend`` is the module that implements interface.Backend; this package has its members under the
same names. ``compiler`` is the same module as an interface.Compiler, which makes machine code; on GPUs only.
"""

from typing import cast

from pgas.base.backend import SIMULATOR
from pgas.base.remedies import explain, mend
from pgas.kernels.compiler.interface import Backend, Compiler

try:
    import numba
except ImportError as error:  # the message contains the remedy, because doctor cannot run without Numba
    known = explain(str(error))
    raise ImportError(f"{error}; {known[0].remedy if known else mend('versions')}") from error

backend: Backend
compiler: Compiler
if SIMULATOR:
    numba.core.config.ENABLE_CUDASIM = 1  # Numba read the environment when it was imported, perhaps before pgas

    from pgas.kernels.compiler import simulator

    backend, compiler = simulator, cast(Compiler, simulator)
else:
    from pgas.kernels.compiler import numba_cuda

    backend = compiler = numba_cuda

#: The module ``numba.cuda``, also in the simulator: CUDA's names in kernels (``cuda.threadIdx``, ``cuda.shared.array``, ``cuda.atomic``)
#: and on the host (``cuda.stream()``). After ``from pgas import cuda``, the order of imports does not matter.
cuda = backend.cuda
types, KernelTypeError = backend.types, backend.KernelTypeError
u32, u64, i64, constant = backend.u32, backend.u64, backend.i64, backend.constant
cpu = backend.cpu
device, primitive, element_primitive = backend.device, backend.primitive, backend.element_primitive
address_of, address_of_element, outlier = backend.address_of, backend.address_of_element, backend.outlier
element_words, element_of_word, bits_of, caster = backend.element_words, backend.element_of_word, backend.bits_of, backend.caster
element_size, is_float8, numpy_dtype = backend.element_size, backend.is_float8, backend.numpy_dtype

__all__ = [
    "KernelTypeError", "address_of", "address_of_element", "backend", "bits_of", "caster", "constant", "cpu", "cuda", "device",
    "element_of_word", "element_primitive", "element_size", "element_words", "i64", "is_float8", "numpy_dtype", "outlier", "primitive",
    "types", "u32", "u64",
]  # fmt: skip
