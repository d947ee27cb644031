"""All that knows the compiler: device functions, PTX primitives and their CPU twins, and how public names are bound to them."""

from pgas.kernels.compiler.numba_cuda import (
    KernelTypeError,
    address_of,
    address_of_element,
    bits_of,
    caster,
    constant,
    device,
    element_of_word,
    element_size,
    element_words,
    i64,
    numpy_dtype,
    outlier,
    primitive,
    u32,
    u64,
)

__all__ = [
    "KernelTypeError", "address_of", "address_of_element", "bits_of", "caster", "constant", "device", "element_of_word", "element_size",
    "element_words", "i64", "numpy_dtype", "outlier", "primitive", "u32", "u64",
]  # fmt: skip
