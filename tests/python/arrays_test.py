# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy and of whatever speaks DLPack, in and out. Run as: arrays_test.py FERRY

With NumPy and ml_dtypes; PyTorch and JAX where the interpreter has them.
"""
import ctypes
import gc
import importlib.util
import sys
import unittest
import weakref

import job
from job import PATIENCE_S, Later

import ferry
import ml_dtypes
import numpy

MIB = 1 << 20
PLAIN = ("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128").split()
SMALL = ("bfloat16 float8_e5m2 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz float4_e2m1fn "
         "int4 uint4 int2 uint2").split()


def dtype_of(name):
    return numpy.dtype(getattr(ml_dtypes, name)) if name in SMALL else numpy.dtype(name)


class ArraysCase(job.Case):
    def setUp(self):
        self.first_node, self.second_node = self.nodes(2)
        self.first, self.second = self.first_node.step(1), self.second_node.step(1)

    def exchange(self, array, **options):
        receive = Later(self.second.recv, "t", source=0, timeout=PATIENCE_S, **options)
        self.first.send(array, "t", to=1, timeout=PATIENCE_S)
        return receive.result()


class NumpyTest(ArraysCase):
    def test_every_type_both_ways(self):
        for name in PLAIN + SMALL:
            dtype = dtype_of(name)
            for shape in ((), (0,), (1,), (3, 0, 2), (2, 3), (2, 1, 3, 1)):
                count = int(numpy.prod(shape))
                array = (numpy.arange(count) % 2).astype(dtype).reshape(shape)
                tensor = self.exchange(array)
                self.assertEqual((tensor.dtype, tensor.shape), (name, shape))
                back = tensor.numpy()
                self.assertEqual((back.dtype, back.shape), (dtype, shape))
                self.assertEqual(back.tobytes(), array.tobytes())
                out = numpy.zeros(shape, dtype)
                self.assertIs(self.exchange(array, out=out), out)
                self.assertEqual(out.tobytes(), array.tobytes())
                like = self.exchange(array, like="numpy")
                self.assertEqual((like.dtype, like.shape), (dtype, shape))
            mine = self.first_node.empty((2, 3), name)
            self.assertEqual(mine.nbytes, 6 * dtype.itemsize)
            self.assertEqual(mine.numpy().dtype, dtype)
            self.assertEqual(self.first_node.empty(3, dtype).dtype, name)
            self.assertEqual(self.first_node.empty(3, dtype.type).dtype, name)

    def test_layouts(self):
        grid = numpy.arange(24, dtype="int32").reshape(2, 3, 4)
        for array in (grid[:, ::2], grid[::-1], grid.T, numpy.asfortranarray(grid), grid[:, 1:2, :],
                      numpy.broadcast_to(numpy.int32(7), (3, 4)), grid[..., None], grid[0, 1], grid.swapaxes(0, 1)):
            tensor = self.exchange(array)
            numpy.testing.assert_array_equal(tensor.numpy(), array)
            small = array.astype(ml_dtypes.bfloat16)
            numpy.testing.assert_array_equal(self.exchange(small).numpy(), small)
        read_only = grid.copy()
        read_only.flags.writeable = False
        numpy.testing.assert_array_equal(self.exchange(read_only).numpy(), grid)
        large = numpy.arange(MIB, dtype="int64")[::2]
        numpy.testing.assert_array_equal(self.exchange(large).numpy(), large)
        self.assertEqual(self.exchange(numpy.float32(1.5)).numpy(), numpy.float32(1.5))

    def test_types_that_are_refused(self):
        for array in (numpy.zeros(3, ">i4"), numpy.zeros(3, ">f8"), numpy.zeros(3, [("a", "i4"), ("b", "f4")]),
                      numpy.array(["text"]), numpy.array([b"bytes"]), numpy.array([object()]),
                      numpy.zeros(3, "M8[s]"), numpy.zeros(3, "m8[s]"), numpy.zeros(3, "V4"),
                      numpy.zeros(3, "longdouble"), numpy.zeros(3, "clongdouble")):
            with self.assertRaises((TypeError, BufferError, ValueError), msg=array.dtype) as caught:
                self.first.isend(array, "t", to=1)
            self.assertNotIn("bad_cast", str(caught.exception))
            with self.assertRaises((TypeError, BufferError, ValueError), msg=array.dtype):
                self.second.irecv("t", source=0, out=array, timeout=1)
        # Nothing was sent.
        self.first.flush(timeout=PATIENCE_S)

    def test_bool_that_is_neither(self):
        array = numpy.array([0, 1, 2], "uint8").view("bool")
        with self.assertRaises((ValueError, ferry.FerryError)):
            self.exchange(array)

    def test_out_that_does_not_fit(self):
        array = numpy.arange(6, dtype="float32")
        for out in (numpy.zeros(5, "float32"), numpy.zeros(7, "float32"), numpy.zeros(6, "float64"),
                    numpy.zeros(6, "int32"), numpy.zeros(24, "uint8")):
            with self.assertRaises(ValueError, msg=out.dtype):
                self.exchange(array, out=out)
            self.assertFalse(out.any())
        read_only = numpy.zeros(6, "float32")
        read_only.flags.writeable = False
        for out in (read_only, numpy.zeros(12, "float32")[::2], numpy.zeros((3, 2), "float32").T,
                    numpy.broadcast_to(numpy.float32(0), (6,)), numpy.zeros((3, 4), ml_dtypes.bfloat16)[:, :2],
                    numpy.float32(0)):
            with self.assertRaises((TypeError, ValueError, BufferError)):
                self.second.irecv("t", source=0, out=out, timeout=1)
        # Fortran order in one dimension is C order; and another shape of the same size.
        out = numpy.zeros((2, 3), "float32")
        try:
            self.assertIs(self.exchange(array, out=out), out)
            numpy.testing.assert_array_equal(out.ravel(), array)
        except ValueError:
            self.assertFalse(out.any())

    def test_overwritten_after_send(self):
        for count in (10, 100000):
            array = numpy.arange(count)
            receive = Later(self.second.recv, "t", source=0, timeout=PATIENCE_S)
            self.first.send(array, "t", to=1)
            array[:] = -1
            numpy.testing.assert_array_equal(receive.result().numpy(), numpy.arange(count))

    def test_views_outlive_everything(self):
        array = numpy.arange(MIB, dtype="uint8")
        tensor = self.first_node.empty(MIB, "uint8")
        tensor.numpy()[:] = array
        self.first.isend(tensor, "t", to=1)
        received = self.second.recv("t", source=0, timeout=PATIENCE_S)
        views = [received.numpy(), numpy.asarray(received), numpy.from_dlpack(received), received.rows(0, MIB).numpy()]
        addresses = {view.__array_interface__["data"][0] for view in views}
        self.assertEqual(addresses, {received.data_ptr})
        for view in views:
            self.assertFalse(view.flags.writeable)
            with self.assertRaises(ValueError):
                view[0] = 1
            with self.assertRaises(ValueError):
                view.flags.writeable = True
        with received:
            pass
        del tensor, received
        self.second_node.close()
        self.first_node.close()
        gc.collect()
        for view in views:
            numpy.testing.assert_array_equal(view, array)

    def test_buffer_protocol_with_all_flags(self):
        tensor = self.first_node.empty((2, 3), "float32")
        numpy.asarray(tensor)[:] = [[0, 1, 2], [3, 4, 5]]
        api = ctypes.pythonapi

        class Buffer(ctypes.Structure):
            _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                        ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
                        ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.c_void_p),
                        ("internal", ctypes.c_void_p)]
        simple, writable, form, nd, strides = 0, 1, 4, 8, 0x18
        c_order, f_order, any_order, indirect = 0x38, 0x58, 0x98, 0x118
        for flags in (simple, writable, nd, strides, form | nd, c_order, any_order, indirect | form | writable,
                      form | strides, c_order | form | writable):
            view = Buffer()
            self.assertEqual(api.PyObject_GetBuffer(ctypes.py_object(tensor), ctypes.byref(view), flags), 0)
            self.assertEqual((view.buf, view.len, view.itemsize, view.readonly), (tensor.data_ptr, 24, 4, 0))
            self.assertEqual(view.format, b"f" if flags & form else None)
            self.assertEqual(bool(view.shape), bool(flags & nd))
            self.assertEqual(bool(view.strides), flags & strides == strides)
            self.assertIsNone(view.suboffsets)
            if view.shape:
                self.assertEqual(view.shape[:view.ndim], [2, 3])
            if view.strides:
                self.assertEqual(view.strides[:view.ndim], [12, 4])
            api.PyBuffer_Release(ctypes.byref(view))
        with self.assertRaises(BufferError):
            api.PyObject_GetBuffer(ctypes.py_object(tensor), ctypes.byref(Buffer()), f_order)
        self.first.isend(tensor, "t", to=1)
        for flags in (writable, writable | c_order):
            with self.assertRaises(BufferError):
                api.PyObject_GetBuffer(ctypes.py_object(tensor), ctypes.byref(Buffer()), flags)

    def test_zero_copy_between_processes(self):
        two = self.job(2)
        process = two.process(1, """
            import mmap
            with ferry.join() as node:
                step = node.step(1)
                transfer = step.irecv("big", source=0)
                tensor = transfer.wait()
                view = memoryview(tensor)
                say("path", transfer.path, "readonly", tensor.readonly, view.readonly, "sum", sum(view[:100]))
                # The sender breaks the rule, which shows that the memory is one.
                node.store["received"] = b""
                node.store.get("written")
                say("then", view[0], view[len(view) - 1])
                with open("/proc/self/maps") as maps:
                    for line in maps:
                        first, last = (int(part, 16) for part in line.split()[0].split("-"))
                        if first <= tensor.data_ptr < last:
                            say("maps", line.split()[1])
                del view
                tensor.release()
                step.close()
                node.store["done"] = b""
                node.store.get("end")
            """)
        node = two.join(0)
        tensor = node.empty(4 * MIB, "uint8")
        mine = tensor.numpy()
        mine[:] = 1
        step = node.step(1)
        step.isend(tensor, "big", to=1)
        node.store.get("received")
        self.assertIn("path shm readonly True True sum 100", process.out or process.wait_for("path .*\n").string)
        with self.assertRaises(BufferError):
            memoryview(tensor).cast("B")[0] = 3 if not memoryview(tensor).readonly else self.fail_read_only()
        mine[0] = mine[-1] = 9
        node.store["written"] = b""
        process.wait_for("then 9 9")
        process.wait_for("maps r--s|maps rw-s")
        node.store.get("done")
        step.flush(timeout=PATIENCE_S)
        node.store["end"] = b""
        self.ends_well(process)

    @staticmethod
    def fail_read_only():
        raise BufferError("it is read-only, as it should be")


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", DLDevice), ("ndim", ctypes.c_int32), ("dtype", DLDataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Plain(ctypes.Structure):
    pass


class Versioned(ctypes.Structure):
    pass


PLAIN_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Plain))
VERSIONED_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Versioned))
Plain._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", PLAIN_DELETER)]
Versioned._fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                      ("deleter", VERSIONED_DELETER), ("flags", ctypes.c_uint64), ("tensor", DLTensor)]

PY = ctypes.PyDLL(None)
PY.PyCapsule_New.restype = ctypes.py_object
PY.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
PY.PyCapsule_GetPointer.restype = ctypes.c_void_p
PY.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
PY.PyCapsule_GetName.restype = ctypes.c_char_p
PY.PyCapsule_GetName.argtypes = [ctypes.py_object]
PY.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Producer:
    """An array that speaks DLPack, and counts the calls of its deleter."""

    def __init__(self, content=(1, 2, 3, 4), *, versioned=True, major=1, minor=1, flags=0, strides=None, offset=0,
                 shape=None, device=(1, 0), dtype=(0, 32, 1), with_max_version=True, data=True):
        self.content = (ctypes.c_int32 * len(content))(*content)
        self.shape = (ctypes.c_int64 * 8)(*(shape if shape is not None else (len(content),)))
        self.ndim = len(shape) if shape is not None else 1
        self.strides = (ctypes.c_int64 * 8)(*strides) if strides is not None else None
        self.device, self.with_max_version, self.versioned = device, with_max_version, versioned
        self.deleted, self.asked, self.capsules = 0, [], []
        self.managed = Versioned() if versioned else Plain()
        if versioned:
            self.managed.major, self.managed.minor, self.managed.flags = major, minor, flags
            self.managed.deleter = VERSIONED_DELETER(self.delete)
        else:
            self.managed.deleter = PLAIN_DELETER(self.delete)
        tensor = self.managed.tensor
        tensor.data = ctypes.addressof(self.content) if data else None
        tensor.device = DLDevice(*device)
        tensor.ndim, tensor.dtype, tensor.byte_offset = self.ndim, DLDataType(*dtype), offset
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if self.strides is not None:
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))

    def delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        if not self.with_max_version and "max_version" in arguments:
            raise TypeError("unexpected keyword argument 'max_version'")
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        # Kept by ctypes' objects here: no destructor.
        capsule = PY.PyCapsule_New(ctypes.addressof(self.managed), name, None)
        self.capsules.append(capsule)
        return capsule

    def name(self):
        return PY.PyCapsule_GetName(self.capsules[-1])


class DlpackInTest(ArraysCase):
    def released(self, producer):
        def check():
            gc.collect()
            # Releases run in calls of the module.
            self.first_node.store.keys("none")
            return producer.deleted
        self.eventually(check)
        self.assertEqual(producer.deleted, 1)

    def test_both_capsules(self):
        for versioned in (True, False):
            for with_max_version in (True, False):
                producer = Producer(versioned=versioned, with_max_version=with_max_version)
                tensor = self.exchange(producer)
                self.assertEqual((tensor.dtype, tensor.numpy().tolist()), ("int32", [1, 2, 3, 4]))
                self.assertEqual(producer.asked[0].get("stream"), None)
                self.assertEqual(producer.asked[0]["max_version"][0], 1)
                self.assertEqual(len(producer.asked), 1 if with_max_version else 2)
                self.assertEqual(producer.name(), b"used_dltensor_versioned" if versioned else b"used_dltensor")
                self.released(producer)

    def test_large_is_held_until_received(self):
        producer = Producer([7] * MIB)
        transfer = self.first.isend(producer, "t", to=1)
        self.assertFalse(transfer.done())
        self.assertEqual(producer.deleted, 0)
        self.assertEqual(self.second.recv("t", source=0, timeout=PATIENCE_S).numpy().sum(), 7 * MIB)
        transfer.wait(PATIENCE_S)
        self.released(producer)

    def test_minor_versions_and_unknown_flags(self):
        for options in ({"minor": 0}, {"minor": 9}, {"flags": 1}, {"flags": 1 << 40}, {"flags": 2}):
            producer = Producer(**options)
            self.assertEqual(self.exchange(producer).numpy().tolist(), [1, 2, 3, 4])
            self.released(producer)

    def test_refused_and_deleted_once(self):
        for options in ({"major": 2}, {"major": 0}, {"strides": (2,)}, {"strides": (-1,)}, {"device": (1 << 20, 0)},
                        {"device": (10, 0)}, {"dtype": (0, 32, 2)}, {"dtype": (99, 32, 1)}, {"dtype": (0, 31, 1)},
                        {"shape": (-1,)}, {"shape": (1 << 62, 1 << 62)}, {"offset": 1}, {"offset": (1 << 64) - 1},
                        {"data": False}, {"dtype": (6, 8, 1), "content": (0x02020202,), "shape": (4,)}):
            for versioned in (True, False):
                if "major" in options and not versioned:
                    continue
                producer = Producer(versioned=versioned, **options)
                with self.assertRaises((BufferError, ValueError, TypeError), msg=options):
                    self.first.isend(producer, "t", to=1)
                self.released(producer)
        self.first.flush(timeout=PATIENCE_S)

    def test_layouts(self):
        for options, expected in (({"strides": (1,)}, [1, 2, 3, 4]), ({"offset": 4, "shape": (3,)}, [2, 3, 4]),
                                  ({"shape": (2, 2), "strides": (2, 1)}, [[1, 2], [3, 4]]),
                                  ({"shape": ()}, 1), ({"shape": (0,), "data": False}, []),
                                  ({"shape": (1, 4), "strides": (77, 1)}, [[1, 2, 3, 4]]),
                                  ({"shape": (0, 4), "strides": (0, 0)}, [])):
            for versioned in (True, False):
                producer = Producer(versioned=versioned, **options)
                self.assertEqual(self.exchange(producer).numpy().tolist(), expected)
                self.released(producer)

    def test_out(self):
        producer = Producer([0] * 4)
        self.assertIs(self.exchange(numpy.arange(4, dtype="int32"), out=producer), producer)
        self.assertEqual(list(producer.content), [0, 1, 2, 3])
        self.released(producer)
        producer = Producer([0] * 4, flags=1)
        with self.assertRaises((BufferError, ValueError)):
            self.second.irecv("t", source=0, out=producer, timeout=1)
        self.released(producer)

    def test_garbage(self):
        class Garbage:
            def __init__(self, device, capsule):
                self.device, self.capsule = device, capsule

            def __dlpack_device__(self):
                if isinstance(self.device, Exception):
                    raise self.device
                return self.device

            def __dlpack__(self, **_):
                if isinstance(self.capsule, Exception):
                    raise self.capsule
                return self.capsule
        wrong = PY.PyCapsule_New(1, b"another", None)
        used = Producer()
        self.first.send(used, "used", to=1)
        for capsule in (None, 5, "x", object(), wrong, used.capsules[0], BufferError("b"), KeyError("k"),
                        TypeError("t"), MemoryError("m"), KeyboardInterrupt()):
            expected = type(capsule) if isinstance(capsule, BaseException) else (TypeError, BufferError, ValueError)
            if isinstance(capsule, KeyboardInterrupt):
                continue
            with self.assertRaises(expected, msg=repr(capsule)):
                self.first.isend(Garbage((1, 0), capsule), "t", to=1)
        for device in (None, 5, (), (1,), ("x", "y"), (1, 0, 0), ValueError("v"), (1 << 80, 0), [1, 0], "ab"):
            with self.assertRaises((TypeError, ValueError, BufferError), msg=repr(device)):
                self.first.isend(Garbage(device, None), "t", to=1)
        self.second.recv("used", source=0, timeout=PATIENCE_S)
        self.released(used)

    def test_exchange_api_of_another_package(self):
        deleted, calls = [], []

        class Header(ctypes.Structure):
            _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("prev", ctypes.c_void_p)]
        export = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(Versioned)))
        current = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))

        class Api(ctypes.Structure):
            _fields_ = [("header", Header), ("allocate", ctypes.c_void_p), ("export", export),
                        ("make", ctypes.c_void_p), ("borrow", ctypes.c_void_p), ("current", current)]
        producer = Producer()

        def from_object(_, out):
            calls.append(1)
            if len(calls) > 3:
                # Without an exception, against the rules.
                return -1
            out[0] = ctypes.pointer(producer.managed)
            return 0
        api = Api(Header(1, 3, None), None, export(from_object), None, None, current(lambda *_: 0))

        class Fast:
            __dlpack_c_exchange_api__ = PY.PyCapsule_New(ctypes.addressof(api), b"dlpack_exchange_api", None)

            def __dlpack__(self, **_):
                raise AssertionError("the capsule's way")
        for _ in range(3):
            self.assertEqual(self.exchange(Fast()).numpy().tolist(), [1, 2, 3, 4])
        self.assertEqual(len(calls), 3)
        self.eventually(lambda: self.first_node.store.keys("none") == [] and producer.deleted == 3)
        with self.assertRaises(BufferError):
            self.first.isend(Fast(), "t", to=1)
        # A major version that Ferry does not know, and an older one behind it.
        newer = Api(Header(2, 0, None), None, export(lambda *_: -1), None, None, current(lambda *_: -1))

        class Newer(Producer):
            __dlpack_c_exchange_api__ = PY.PyCapsule_New(ctypes.addressof(newer), b"dlpack_exchange_api", None)
        self.assertEqual(self.exchange(Newer()).numpy().tolist(), [1, 2, 3, 4])
        for value in (5, None, "text", PY.PyCapsule_New(1, b"another", None)):
            kind = type("Kind", (Producer,), {"__dlpack_c_exchange_api__": value})
            self.assertEqual(self.exchange(kind()).numpy().tolist(), [1, 2, 3, 4])
        del deleted


class DlpackOutTest(ArraysCase):
    def test_capsule_that_is_taken(self):
        for versioned in (True, False):
            tensor = self.first_node.empty(4, "int32")
            tensor.numpy()[:] = [1, 2, 3, 4]
            capsule = tensor.__dlpack__(max_version=(1, 1)) if versioned else tensor.__dlpack__()
            name = b"dltensor_versioned" if versioned else b"dltensor"
            self.assertEqual(PY.PyCapsule_GetName(capsule), name)
            kind = Versioned if versioned else Plain
            managed = ctypes.cast(PY.PyCapsule_GetPointer(capsule, name), ctypes.POINTER(kind)).contents
            if versioned:
                self.assertEqual((managed.major, managed.flags & 1), (1, 0))
            inner = managed.tensor
            self.assertEqual((inner.data + inner.byte_offset, inner.ndim, inner.shape[0], inner.strides[0]),
                             (tensor.data_ptr, 1, 4, 1))
            self.assertEqual((inner.device.type, inner.device.id), (1, 0))
            self.assertEqual((inner.dtype.code, inner.dtype.bits, inner.dtype.lanes), (0, 32, 1))
            self.used = b"used_" + name
            PY.PyCapsule_SetName(capsule, self.used)
            del capsule
            address = tensor.data_ptr
            tensor.release()
            self.assertEqual(list((ctypes.c_int32 * 4).from_address(address)), [1, 2, 3, 4])
            managed.deleter(ctypes.pointer(managed))

    def test_unconsumed_capsules_are_freed(self):
        tensor = self.first_node.empty(MIB, "uint8")
        before = job_rss()
        for _ in range(20000):
            tensor.__dlpack__()
            tensor.__dlpack__(max_version=(1, 3))
        gc.collect()
        self.assertLess(job_rss() - before, 8 << 10)

    def test_arguments(self):
        tensor = self.first_node.empty(4, "int32")
        tensor.numpy()[:] = [1, 2, 3, 4]
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        for max_version, name in ((None, b"dltensor"), ((0, 9), b"dltensor"), ((1, 0), b"dltensor_versioned"),
                                  ((7, 0), b"dltensor_versioned")):
            self.assertEqual(PY.PyCapsule_GetName(tensor.__dlpack__(max_version=max_version)), name)
        copy = numpy.from_dlpack(tensor, copy=True)
        self.assertNotEqual(copy.__array_interface__["data"][0], tensor.data_ptr)
        self.assertTrue(copy.flags.writeable)
        self.assertEqual(numpy.from_dlpack(tensor, copy=False).__array_interface__["data"][0], tensor.data_ptr)
        tensor.__dlpack__(dl_device=(1, 0))
        for device in ((2, 0), (1 << 20, 0)):
            with self.assertRaises((BufferError, ValueError)):
                tensor.__dlpack__(dl_device=device)
        for options in ({"max_version": "xx"}, {"max_version": 1}, {"max_version": ()}, {"max_version": (None, 1)},
                        {"dl_device": "ab"}, {"dl_device": 1}, {"dl_device": (1,)}, {"copy": "yes"}, {"stream": 5},
                        {"stream": "x"}, {"nonsense": 1}):
            with self.assertRaises((TypeError, ValueError, BufferError), msg=options):
                tensor.__dlpack__(**options)

    def test_read_only_is_flagged_or_copied(self):
        tensor = self.first_node.empty(4, "int32")
        tensor.numpy()[:] = [1, 2, 3, 4]
        self.first.isend(tensor, "t", to=1)
        capsule = tensor.__dlpack__(max_version=(1, 0))
        managed = ctypes.cast(PY.PyCapsule_GetPointer(capsule, b"dltensor_versioned"), ctypes.POINTER(Versioned))
        self.assertEqual(managed.contents.flags & 3, 1)
        old = tensor.__dlpack__()
        inner = ctypes.cast(PY.PyCapsule_GetPointer(old, b"dltensor"), ctypes.POINTER(Plain)).contents.tensor
        self.assertNotEqual(inner.data + inner.byte_offset, tensor.data_ptr)
        with self.assertRaises(BufferError):
            tensor.__dlpack__(copy=False)
        view = numpy.from_dlpack(tensor)
        self.assertFalse(view.flags.writeable)

    def test_exchange_api(self):
        capsule = ferry.Tensor.__dlpack_c_exchange_api__
        self.assertEqual(PY.PyCapsule_GetName(capsule), b"dlpack_exchange_api")
        address = PY.PyCapsule_GetPointer(capsule, b"dlpack_exchange_api")
        words = (ctypes.c_void_p * 8).from_address(address)
        version = (ctypes.c_uint32 * 2).from_address(address)
        self.assertEqual(version[0], 1)
        export = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Versioned)))(words[3])
        make = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Versioned), ctypes.POINTER(ctypes.py_object))(words[4])
        borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(words[5])
        current = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32,
                                    ctypes.POINTER(ctypes.c_void_p))(words[6])
        tensor = self.first_node.empty((2, 2), "int32")
        tensor.numpy()[:] = [[1, 2], [3, 4]]
        managed = ctypes.POINTER(Versioned)()
        self.assertEqual(export(tensor, ctypes.byref(managed)), 0)
        self.assertEqual(managed.contents.tensor.data + managed.contents.tensor.byte_offset, tensor.data_ptr)
        managed.contents.deleter(managed)
        view = DLTensor()
        self.assertEqual(borrow(tensor, ctypes.byref(view)), 0)
        self.assertEqual((view.ndim, view.shape[1], view.data + view.byte_offset), (2, 2, tensor.data_ptr))
        stream = ctypes.c_void_p(1)
        self.assertEqual(current(1, 0, ctypes.byref(stream)), 0)
        self.assertIsNone(stream.value)
        for wrong in (5, None, "x"):
            with self.assertRaises(Exception):
                export(wrong, ctypes.byref(managed))
        producer = Producer()
        made = ctypes.py_object()
        self.assertEqual(make(ctypes.pointer(producer.managed), ctypes.byref(made)), 0)
        self.assertEqual(made.value.numpy().tolist(), [1, 2, 3, 4])
        self.assertEqual(producer.deleted, 0)
        PY.Py_DecRef(made)
        del made
        gc.collect()
        self.first_node.store.keys("none")
        self.assertEqual(producer.deleted, 1)


def job_rss():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


class CudaArrayTest(ArraysCase):
    def test_without_a_gpu_and_malformed(self):
        good = {"version": 3, "shape": (4,), "typestr": "<f4", "data": (4096, False), "strides": None, "stream": None}

        class Array:
            def __init__(self, interface):
                self.interface = interface

            @property
            def __cuda_array_interface__(self):
                return self.interface
        # Nothing is read of the address: this process has no GPU, or the address is not one of it.
        with self.assertRaises((ferry.FerryError, BufferError, ValueError)):
            self.first.send(Array(good), "t", to=1, timeout=1)
        for change in ({"version": 1}, {"version": "x"}, {"shape": 4}, {"shape": ("x",)}, {"shape": (-1,)},
                       {"typestr": ">f4"}, {"typestr": "<f16"}, {"typestr": "<f1"}, {"typestr": "<c4"},
                       {"typestr": "V4"}, {"typestr": 5}, {"typestr": ""}, {"data": (4096,)}, {"data": ()},
                       {"data": None}, {"data": ("x", False)}, {"data": (-1, False)}, {"strides": (8,)},
                       {"strides": ()}, {"strides": "x"}, {"mask": object()}, {"stream": "x"}, {"shape": (1 << 70,)}):
            with self.assertRaises((TypeError, ValueError, BufferError, ferry.FerryError), msg=change):
                self.first.send(Array({**good, **change}), "t", to=1, timeout=1)
        for missing in ("version", "shape", "typestr", "data"):
            interface = dict(good)
            del interface[missing]
            with self.assertRaises((TypeError, ValueError, BufferError, KeyError), msg=missing):
                self.first.send(Array(interface), "t", to=1, timeout=1)
        for interface in (None, 5, [], "x"):
            with self.assertRaises((TypeError, ValueError, BufferError)):
                self.first.send(Array(interface), "t", to=1, timeout=1)
        tensor = self.first_node.empty(3)
        self.assertFalse(hasattr(tensor, "__cuda_array_interface__"))


@unittest.skipUnless(importlib.util.find_spec("jax"), "no JAX")
class JaxTest(ArraysCase):
    def test_both_ways(self):
        import jax
        for dtype in ("float32", "int32", "bfloat16", "uint8", "bool", "complex64"):
            array = (jax.numpy.arange(100000) % 2).astype(dtype).reshape(100, 1000)
            received = self.exchange(array)
            self.assertEqual((received.dtype, received.shape), (dtype, (100, 1000)))
            back = received.jax()
            self.assertIsInstance(back, jax.Array)
            self.assertTrue((back == array).all())
            self.assertIsInstance(self.exchange(array, like=jax), jax.Array)
        with self.assertRaises((TypeError, ValueError, BufferError)):
            # Its arrays are immutable.
            self.second.irecv("t", source=0, out=jax.numpy.zeros(4), timeout=1)


@unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch")
class TorchTest(ArraysCase):
    def test_both_ways(self):
        import torch
        for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64, torch.uint8):
            array = (torch.arange(100000) % 2).to(dtype).reshape(100, 1000)
            received = self.exchange(array)
            self.assertEqual(f"torch.{received.dtype}", str(dtype))
            self.assertTrue(torch.equal(received.torch(), array))
            out = torch.zeros_like(array)
            self.assertIs(self.exchange(array, out=out), out)
            self.assertTrue(torch.equal(out, array))


class LifetimeTest(ArraysCase):
    def test_arrays_are_kept_while_they_are_used_and_no_longer(self):
        class Array(numpy.ndarray):
            pass
        for size in (10, MIB):
            array = numpy.zeros(size, "uint8").view(Array)
            gone = weakref.ref(array)
            transfer = self.first.isend(array, "t", to=1)
            del array
            if size == MIB:
                gc.collect()
                self.assertIsNotNone(gone())
            self.second.recv("t", source=0, timeout=PATIENCE_S).release()
            transfer.wait(PATIENCE_S)
            del transfer

            def check(gone=gone):
                gc.collect()
                self.first_node.store.keys("none")
                return gone() is None
            self.eventually(check)

    def test_none_of_numpy_is_imported_by_ferry(self):
        process = self.python("""
            say("numpy" in sys.modules, hasattr(ferry, "join"), "numpy" in sys.modules)
            """)
        self.ends_well(process)
        self.assertEqual(process.out, "False True False\n")


if __name__ == "__main__":
    sys.exit(job.main())
