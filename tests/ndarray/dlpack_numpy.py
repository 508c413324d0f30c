#!/usr/bin/env python3
"""Arrays shared between NumPy and Sluice by DLPack, both ways: dlpack_numpy.py LIBRARY (programs/dlpack_bridge.cc)."""
import ctypes
import sys
import numpy as np

bridge = ctypes.CDLL(sys.argv[1])
for name, result, arguments in (("make", None, []), ("take", ctypes.c_int, [ctypes.c_void_p]),
                                ("give", ctypes.c_void_p, []), ("address", ctypes.c_void_p, []),
                                ("stride", ctypes.c_int64, [ctypes.c_int]), ("sum", ctypes.c_double, []),
                                ("add", None, [ctypes.c_double]), ("drop", None, [])):
    function = getattr(bridge, "bridge_" + name)
    function.restype, function.argtypes = result, arguments
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NEW, USED = b"dltensor", b"used_dltensor"


class Given:
    """What np.from_dlpack asks of a producer."""

    def __dlpack__(self, stream=None):
        return python.PyCapsule_New(bridge.bridge_give(), NEW, None)

    def __dlpack_device__(self):
        return (1, 0)


def take(x):
    capsule = x.__dlpack__()
    pointer = python.PyCapsule_GetPointer(capsule, NEW)
    python.PyCapsule_SetName(capsule, USED)
    return bridge.bridge_take(pointer)


# From Sluice to NumPy: the same memory and strides, and a value that stays when Sluice writes.
bridge.bridge_make()
address = bridge.bridge_address()
x = np.from_dlpack(Given())
assert x.__array_interface__["data"][0] == address
assert x.shape == (4, 3) and x.strides == (4, 16) and x.dtype == np.float32, (x.shape, x.strides)
assert (x == np.arange(12, dtype=np.float32).reshape(3, 4).T).all()
bridge.bridge_add(100)
assert bridge.bridge_sum() == 66 + 1200
assert bridge.bridge_address() != address, "the write gave Sluice's array other memory"
assert (x == np.arange(12, dtype=np.float32).reshape(3, 4).T).all()
bridge.bridge_drop()
assert x.sum() == 66, "it outlives Sluice's array"
del x

# From NumPy to Sluice: every dtype, views with strides, one memory, writes seen, and the reference given back.
for code in ("f2", "f4", "f8", "i1", "u1", "i4", "i8"):
    x = np.arange(24, dtype=code).reshape(4, 6)
    for view in (x, x[1:, ::2], x.T, x[::-1], x[2, 3:4], x[1, 1]):
        view = np.asarray(view) if view.shape else x[1:2, 1:2].reshape(())
        before = sys.getrefcount(view)
        assert take(view) == 1
        assert sys.getrefcount(view) == before + 1
        assert bridge.bridge_address() == view.__array_interface__["data"][0]
        for axis in range(view.ndim):
            if view.shape[axis] > 1:
                assert bridge.bridge_stride(axis) * view.itemsize == view.strides[axis]
        assert bridge.bridge_sum() == view.sum()
        total = float(view.sum())
        bridge.bridge_add(1)
        assert float(view.sum()) == total + view.size, "NumPy sees what Sluice writes"
        bridge.bridge_drop()
        assert sys.getrefcount(view) == before, "Sluice let go of NumPy's array"
assert take(np.zeros((0, 3), np.float32)) == 1
assert bridge.bridge_sum() == 0

# What Sluice has no dtype for is refused, and given back.
for code in ("u2", "u4", "u8", "i2", "c8"):
    x = np.zeros(3, code)
    before = sys.getrefcount(x)
    assert take(x) == 0
    bridge.bridge_drop()
    assert sys.getrefcount(x) == before
print("ok")
