"""Functions of libibverbs and libmlx5, called through ctypes because pyverbs lacks them or discards a part of their result."""

import ctypes
import os
from typing import Any

from pgas.base.errors import TransportError

#: infiniband/mlx5dv.h: MLX5DV_OBJ_AH; the index of its pair of pointers in struct mlx5dv_obj; the words of struct mlx5dv_ah, the first of
#: which points to a struct mlx5_wqe_av; the offset of rmac in that.
_OBJ_AH, _OBJ_AH_PAIR, _AH_WORDS, _AV_RMAC = 1 << 5, 5, 2, 20


class Library:
    """Both libraries."""

    def __init__(self) -> None:
        address, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        ibverbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        mlx5 = ctypes.CDLL("libmlx5.so.1", use_errno=True)
        boxes = (ctypes.c_char_p, size, ctypes.c_char_p, size)  # in, inlen, out, outlen

        def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found

        self.get_device_list = function(ibverbs, "ibv_get_device_list", ctypes.POINTER(address), ctypes.POINTER(integer))
        self.free_device_list = function(ibverbs, "ibv_free_device_list", None, ctypes.POINTER(address))
        self.get_device_name = function(ibverbs, "ibv_get_device_name", ctypes.c_char_p, address)
        self.reg_dmabuf_mr = function(
            ibverbs, "ibv_reg_dmabuf_mr", address, address, ctypes.c_uint64, size, ctypes.c_uint64, integer, integer
        )
        self.dereg_mr = function(ibverbs, "ibv_dereg_mr", integer, address)
        self.general_cmd = function(mlx5, "mlx5dv_devx_general_cmd", integer, address, *boxes)
        self.obj_create = function(mlx5, "mlx5dv_devx_obj_create", address, address, *boxes)
        self.obj_modify = function(mlx5, "mlx5dv_devx_obj_modify", integer, address, *boxes)
        self.obj_query = function(mlx5, "mlx5dv_devx_obj_query", integer, address, *boxes)
        self.init_obj = function(mlx5, "mlx5dv_init_obj", integer, address, ctypes.c_uint64)
        self.obj_destroy = function(mlx5, "mlx5dv_devx_obj_destroy", integer, address)

    def device(self, name: str) -> int:
        """Return the address of a device's struct ibv_device, 0 if there is none. It does not change while the device is open."""
        count = ctypes.c_int()
        found = self.get_device_list(ctypes.byref(count))
        if not found:
            return 0
        try:
            return next((found[i] or 0 for i in range(count.value) if self.get_device_name(found[i]) == name.encode()), 0)
        finally:
            self.free_device_list(found)

    def mac_of(self, handle: int) -> bytes:
        """Return the MAC of the destination of an address handle.

        Args:
            handle: address of its struct ibv_ah.

        Raises:
            TransportError: libmlx5 does not return it.
        """
        vector, pairs = (ctypes.c_uint64 * _AH_WORDS)(), (ctypes.c_void_p * (2 * _OBJ_AH_PAIR + 2))()
        pairs[-2:] = [handle, ctypes.addressof(vector)]
        if refused := self.init_obj(ctypes.addressof(pairs), _OBJ_AH):
            raise TransportError(f"mlx5dv_init_obj of an address handle: {os.strerror(abs(refused))}")
        return ctypes.string_at(vector[0] + _AV_RMAC, 6)
