# SPDX-License-Identifier: Apache-2.0
"""What needs NumPy or another array package: imported on first use."""
import typing

from ferry import _core

# Types that NumPy has by ml_dtypes, and those of the same size by which their bits pass the buffer protocol.
_BITS = {
    "bfloat16": "uint16",
    "float8_e5m2": "uint8",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e4m3b11fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float4_e2m1fn": "uint8",
    "int4": "int8",
    "uint4": "uint8",
    "int2": "int8",
    "uint2": "uint8",
}


def as_plain_array(array: typing.Any, is_destination: bool) -> typing.Tuple[typing.Any, str]:
    """A contiguous array of the same elements whose type the buffer protocol has, and the name of the elements' type."""
    import numpy

    name = array.dtype.name
    if not array.flags.c_contiguous:
        if is_destination:
            raise BufferError("out= must be contiguous (C order)")
        array = numpy.ascontiguousarray(array)
    if is_destination and not array.flags.writeable:
        raise BufferError("out= is read-only")
    if not array.dtype.isnative:
        raise BufferError(f"the array's byte order is not this machine's ({array.dtype.str}); convert it first")
    bits = _BITS.get(name)
    if bits is None:
        if array.dtype.kind in "biufc":
            return array, name
        raise TypeError(f"Ferry has no type {array.dtype}")
    return array.view(bits), name


def from_tensor(tensor: "_core.Tensor") -> typing.Any:
    """A numpy.ndarray of the same memory."""
    import numpy

    if tensor.dtype == "bytes":
        return numpy.array(tensor.strings(), dtype=object).reshape(tensor.shape)
    if tensor.device != "cpu":
        raise BufferError(f"the tensor is on {tensor.device}; NumPy has arrays in host memory only")
    array = numpy.asarray(memoryview(tensor))  # type: ignore[arg-type]
    if tensor.dtype not in _BITS:
        return array
    try:
        import ml_dtypes
    except ImportError as error:
        raise TypeError(f"NumPy has the type {tensor.dtype} by the package ml_dtypes, which is not installed") from error
    return array.view(getattr(ml_dtypes, tensor.dtype))


def to_jax(tensor: "_core.Tensor") -> typing.Any:
    """A jax.Array of the tensor's elements."""
    import jax

    if tensor.device == "cpu" and tensor.data_ptr % 64 != 0:
        # JAX views aligned memory only.
        return jax.numpy.array(from_tensor(tensor))
    return jax.dlpack.from_dlpack(tensor)


def convert(received: typing.Any, like: typing.Any) -> typing.Any:
    """The received array as `like=` says."""
    if not isinstance(received, _core.Tensor):
        raise TypeError("like= and out= exclude each other")
    name = like if isinstance(like, str) else getattr(like, "__name__", None)
    if name in ("numpy", "torch", "jax"):
        return getattr(received, name)()
    if callable(like):
        return like(received)
    raise TypeError('like= is "numpy", "torch", "jax", one of these modules, or a function of a ferry.Tensor')
