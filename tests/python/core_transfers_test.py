# SPDX-License-Identifier: Apache-2.0
"""Sends and receives from Python, with the standard library's buffers alone. Run as: core_transfers_test.py FERRY"""
import array
import collections
import ctypes
import dataclasses
import datetime
import gc
import random
import sys
import threading
import time
import tracemalloc
import weakref

import job
from job import PATIENCE_S, SHORT_S, Later

import ferry

MIB = 1 << 20


def rss_kib():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


@dataclasses.dataclass
class Layer:
    weight: object
    bias: object
    name: str


Pair = collections.namedtuple("Pair", "first second")


class TransfersTest(job.Case):
    def setUp(self):
        self.first_node, self.second_node = self.nodes(2)
        self.first, self.second = self.first_node.step(1), self.second_node.step(1)

    def recv(self, key="t", **options):
        return self.second.recv(key, source=0, **{"timeout": PATIENCE_S, **options})

    def test_buffers_of_every_kind(self):
        numbers = array.array("d", [1.5, -2.5, 3.0])
        grid = memoryview(bytes(range(24))).cast("B", [2, 3, 4])
        for number, (sent, dtype, shape) in enumerate((
                (b"bytes", "uint8", (5,)), (b"", "uint8", (0,)), (bytearray(b"array"), "uint8", (5,)),
                (memoryview(b"view"), "uint8", (4,)), (numbers, "float64", (3,)), (grid, "uint8", (2, 3, 4)),
                (array.array("i", [1, -1]), "int32", (2,)), (array.array("q", [1 << 60]), "int64", (1,)),
                (array.array("H", [65535]), "uint16", (1,)), (array.array("f", []), "float32", (0,)),
                ((ctypes.c_int16 * 3)(1, 2, 3), "int16", (3,)), ((ctypes.c_double * 2 * 2)(), "float64", (2, 2)),
                (memoryview(bytes(10))[::2], "uint8", (5,)), (memoryview(b"\1\0").cast("?"), "bool", (2,)),
                (b"x" * 70000, "uint8", (70000,)), (bytearray(3 * MIB), "uint8", (3 * MIB,)))):
            receive = Later(self.recv, f"t{number}")
            self.first.send(sent, f"t{number}", to=1)
            tensor = receive.result()
            self.assertEqual((tensor.dtype, tensor.shape, tensor.device), (dtype, shape, "cpu"))
            self.assertEqual(tensor.tobytes(), memoryview(sent).tobytes())
            self.assertEqual((tensor.nbytes, tensor.ndim), (memoryview(sent).nbytes, len(shape)))
            self.assertEqual(bytes(memoryview(tensor)), tensor.tobytes())

    def test_refuses_what_is_no_array(self):
        for garbage in (None, 1, 1.5, "text", [1, 2], (), {}, object(), print, type, Ellipsis, {1}, lambda: 1):
            for call in (self.first.send, self.first.isend):
                with self.assertRaises((TypeError, ValueError, BufferError), msg=repr(garbage)):
                    call(garbage, "t", to=1)
            with self.assertRaises((TypeError, ValueError, BufferError), msg=repr(garbage)):
                if garbage is None:
                    raise TypeError
                self.second.recv("t", source=0, timeout=1, out=garbage)

    def test_refuses_wrong_keys_and_peers(self):
        for key in (None, 1, b"t", "", "a;b", "x" * 40000, [], "\ud800", object()):
            with self.assertRaises((TypeError, ValueError), msg=repr(key)[:50]):
                self.first.send(b"x", key, to=1, timeout=1)
            with self.assertRaises((TypeError, ValueError), msg=repr(key)[:50]):
                self.recv(key, timeout=1)
        for peer in (None, 2, -1, "1", 1.0, 1 << 31, 1 << 64, (1,), (1, 2, 3), (1, None), (1, "gpu"), (1, "cuda:-1"),
                     (1, "cuda:" + "9" * 30), ("1", "cpu"), [], object()):
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=repr(peer)):
                self.first.send(b"x", "t", to=peer, timeout=1)
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=repr(peer)):
                self.second.recv("t", source=peer, timeout=1)
        self.first.send(b"x", "t", to=(1, "cpu"))
        self.assertEqual(self.second.recv("t", source=(0, "cpu"), timeout=PATIENCE_S).tobytes(), b"x")
        for wrong in (None, "", "1", 1.5, 1 << 63, -(1 << 63) - 1, []):
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=repr(wrong)):
                self.first_node.step(wrong)

    def test_one_key_in_order(self):
        for number in range(100):
            self.first.isend(b"%d" % number, "t", to=1)
        self.assertEqual([self.recv().tobytes() for _ in range(100)], [b"%d" % number for number in range(100)])

    def test_to_itself(self):
        self.first.send(b"self", "t", to=0)
        transfer = self.first.irecv("t", source=0, timeout=PATIENCE_S)
        self.assertEqual(transfer.wait(PATIENCE_S).tobytes(), b"self")
        self.assertEqual(transfer.path, "local")

    def test_send_may_be_overwritten_on_return(self):
        for size in (1, 1000, 64 << 10, (64 << 10) + 1, MIB, 5 * MIB):
            for kind in (bytearray, lambda content: array.array("B", content)):
                data = kind(b"\1" * size)
                receive = Later(self.recv, f"t{size}{kind}")
                self.first.send(data, f"t{size}{kind}", to=1)
                data[:] = kind(b"\2" * size)
                self.assertEqual(receive.result().tobytes(), b"\1" * size)

    def test_small_sends_are_copied_before_they_return(self):
        data = bytearray(b"\1" * (64 << 10))
        start = time.monotonic()
        self.first.send(data, "t", to=1)
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        data[:] = b"\2" * len(data)
        # A resize needs that nothing holds the buffer.
        data.clear()
        self.assertEqual(self.recv().tobytes(), b"\1" * (64 << 10))

    def test_large_send_waits_for_the_receiver(self):
        data = bytearray(b"\1" * MIB)
        error = self.raises(ferry.FerryTimeoutError, self.first.send, data, "t", to=1, timeout=SHORT_S)
        self.assertEqual((error.key, error.rank), ("t", 1))
        self.assertAlmostEqual(error.waited, SHORT_S)
        self.assertIn("t", str(error))
        transfer = self.first.isend(data, "u", to=1)
        time.sleep(SHORT_S)
        self.assertFalse(transfer.done() or transfer.buffer_released)
        self.raises(ferry.FerryTimeoutError, transfer.wait, SHORT_S)
        receive = self.second.irecv("u", source=0, timeout=PATIENCE_S)
        tensor = receive.wait(PATIENCE_S)
        self.assertEqual(tensor.nbytes, MIB)
        self.assertIsNone(transfer.wait(PATIENCE_S))
        self.assertTrue(transfer.done() and transfer.buffer_released)
        self.assertEqual((transfer.key, transfer.peer), ("u", 1))
        self.assertIsNone(transfer.path)

    def test_bytes_are_not_copied_and_not_waited_for(self):
        data = bytes(2 * MIB)
        start = time.monotonic()
        self.first.send(data, "t", to=1)
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        del data
        self.assertEqual(self.recv().nbytes, 2 * MIB)

    def test_transfer_states(self):
        transfer = self.second.irecv("t", source=0, timeout=PATIENCE_S)
        self.assertFalse(transfer.done())
        self.assertIsNone(transfer.path)
        self.assertEqual((transfer.key, transfer.peer), ("t", 0))
        start = time.monotonic()
        error = self.raises(ferry.FerryTimeoutError, transfer.wait, timeout=SHORT_S)
        self.assertGreaterEqual(time.monotonic() - start, SHORT_S)
        self.assertEqual((error.key, error.rank), ("t", 0))
        self.assertTrue(error.phase)
        self.assertFalse(transfer.done())
        self.first.send(b"1", "t", to=1)
        tensor = transfer.wait(timeout=datetime.timedelta(seconds=PATIENCE_S))
        self.assertTrue(transfer.done())
        self.assertEqual(tensor.tobytes(), b"1")
        self.assertEqual(transfer.wait().tobytes(), b"1")
        self.assertIn(transfer.path, ("eager", "inline"))
        transfer.cancel()
        self.assertEqual(transfer.wait(0).tobytes(), b"1")
        for wrong in (None, -1, float("nan"), float("inf"), "1"):
            with self.assertRaises((TypeError, ValueError)):
                transfer.wait(wrong)

    def test_timeout_of_a_receive(self):
        start = time.monotonic()
        error = self.raises(ferry.FerryTimeoutError, self.second.recv, "t", source=0, timeout=SHORT_S)
        self.assertGreaterEqual(time.monotonic() - start, SHORT_S)
        self.assertEqual((error.key, error.rank, error.code), ("t", 0, "DEADLINE_EXCEEDED"))
        self.assertAlmostEqual(error.waited, SHORT_S)
        self.assertTrue(error.phase)
        transfer = self.second.irecv("t", source=0, timeout=SHORT_S)
        self.raises(ferry.FerryTimeoutError, transfer.wait, PATIENCE_S)
        self.assertTrue(transfer.done())
        for wrong in (None, -1, float("nan"), float("inf"), "1"):
            with self.assertRaises((TypeError, ValueError)):
                self.second.irecv("t", source=0, timeout=wrong)

    def test_default_timeout_is_the_jobs(self):
        node, = self.nodes(1, timeout=SHORT_S)
        with node.step(1) as step:
            error = self.raises(ferry.FerryTimeoutError, step.recv, "t", source=0)
            self.assertAlmostEqual(error.waited, SHORT_S)
            self.raises(ferry.FerryTimeoutError, step.irecv("t", source=0).wait)
            self.raises(ferry.FerryTimeoutError, node.store.get, "k")

    def test_cancel(self):
        out = bytearray(5)
        transfer = self.second.irecv("t", source=0, out=out, timeout=PATIENCE_S)
        self.assertFalse(transfer.buffer_released)
        waiting = Later(transfer.wait, PATIENCE_S)
        time.sleep(SHORT_S)
        transfer.cancel()
        transfer.cancel()
        error = self.raises(ferry.TransferCancelledError, waiting.result)
        self.assertEqual((error.key, error.rank, error.code), ("t", 0, "CANCELLED"))
        self.assertTrue(transfer.done())
        self.eventually(lambda: transfer.buffer_released)
        self.assertIsNone(transfer.path)
        out.clear()
        self.raises(ferry.TransferCancelledError, transfer.wait, PATIENCE_S)

    def test_dropping_a_transfer_cancels_it(self):
        out = bytearray(5)
        transfer = self.second.irecv("t", source=0, out=out, timeout=PATIENCE_S)
        del transfer
        gc.collect()
        self.eventually(lambda: self.can_be_resized(out))
        # The next receive of the key gets the value.
        self.first.send(b"value", "t", to=1)
        self.assertEqual(self.recv().tobytes(), b"value")
        self.assertEqual(bytes(out), b"")

    @staticmethod
    def can_be_resized(data):
        try:
            data.clear()
            return True
        except BufferError:
            return False

    def test_out(self):
        for size in (5, 5000, MIB):
            out = bytearray(size)
            receive = Later(self.recv, f"t{size}", out=out)
            self.first.send(b"\7" * size, f"t{size}", to=1)
            self.assertIs(receive.result(), out)
            self.assertEqual(out, b"\7" * size)
            del receive
            gc.collect()
            self.eventually(lambda out=out: self.can_be_resized(out))
        out = array.array("d", [0, 0, 0])
        self.first.send(array.array("d", [1, 2, 3]), "d", to=1)
        self.assertIs(self.recv("d", out=out), out)
        self.assertEqual(list(out), [1, 2, 3])
        out = (ctypes.c_int * 2)()
        self.first.send(array.array("i", [4, 5]), "c", to=1)
        self.assertIs(self.recv("c", out=out), out)
        self.assertEqual(list(out), [4, 5])
        whole = bytearray(10)
        self.first.send(b"mid", "m", to=1)
        self.recv("m", out=memoryview(whole)[3:6])
        self.assertEqual(whole, b"\0\0\0mid\0\0\0\0")

    def test_out_that_does_not_fit(self):
        for out in (bytearray(4), bytearray(6), bytearray(), array.array("b", bytes(5)), array.array("i", [0, 0])):
            before = bytes(out)
            self.first.send(b"bytes", "t", to=1)
            with self.assertRaises(ValueError) as caught:
                self.recv(out=out)
            self.assertEqual(bytes(out), before)
            self.assertIn("t", str(caught.exception))
        for out in (bytes(5), memoryview(b"bytes"), memoryview(bytearray(10))[::2]):
            with self.assertRaises((TypeError, ValueError, BufferError)):
                self.recv(out=out)
        with self.assertRaises((TypeError, ValueError)):
            self.recv(out=bytearray(5), like="numpy", timeout=SHORT_S)
        self.first.send(b"bytes", "t", to=1)
        self.assertEqual(self.recv(out=bytearray(5)), b"bytes")

    def test_require(self):
        self.first.send(b"1", "t", to=1)
        with self.assertRaises(ferry.FerryError) as caught:
            self.recv(require="nccl")
        self.assertIn("nccl", str(caught.exception))
        for wrong in (1, b"shm", [], "pigeon"):
            with self.assertRaises((TypeError, ValueError), msg=repr(wrong)):
                self.recv(require=wrong, timeout=1)
        tensor = self.first_node.empty(MIB, "uint8")
        self.first.isend(tensor, "big", to=1)
        self.assertEqual(self.recv("big", require="shm").nbytes, MIB)

    def test_flush_and_close(self):
        self.first.flush(timeout=PATIENCE_S)
        self.first.send(b"1", "t", to=1)
        with self.assertRaises(ferry.FerryTimeoutError) as caught:
            # An eager value has arrived, but was not received.
            self.first.flush(timeout=SHORT_S)
        self.assertIn("t", str(caught.exception))
        waiting = Later(self.first.flush, timeout=PATIENCE_S)
        self.recv()
        waiting.result()
        self.first.send(b"2", "t", to=1)
        pending = self.first.irecv("never", source=1, timeout=PATIENCE_S)
        closing = Later(self.first.close, timeout=PATIENCE_S)
        self.recv()
        closing.result()
        error = self.raises(ferry.StepClosedError, pending.wait, PATIENCE_S)
        self.assertEqual((error.key, error.rank), ("never", 1))
        for call in (lambda: self.first.send(b"3", "t", to=1), lambda: self.first.recv("t", source=1),
                     lambda: self.first.isend(b"3", "t", to=1), lambda: self.first.irecv("t", source=1).wait(),
                     lambda: self.first_node.step(1)):
            with self.assertRaises(ferry.StepClosedError):
                call()
        self.first.close(timeout=PATIENCE_S)
        self.assertEqual(self.first.id, 1)

    def test_close_that_times_out(self):
        self.first.send(b"1", "t", to=1)
        error = self.raises(ferry.FerryTimeoutError, self.first.close, timeout=SHORT_S)
        self.assertIn("t", str(error))
        with self.assertRaises(ferry.StepClosedError):
            self.first.send(b"1", "t", to=1)

    def test_abort(self):
        pending = self.second.irecv("t", source=0, timeout=PATIENCE_S)
        blocked = Later(self.recv, "u")
        time.sleep(SHORT_S)
        self.second.abort("disk full")
        for call in (lambda: pending.wait(PATIENCE_S), blocked.result):
            with self.assertRaises(ferry.FerryError) as caught:
                call()
            self.assertIn("disk full", str(caught.exception))
        with self.assertRaises(ferry.FerryError):
            self.second.send(b"1", "t", to=0)

    def test_context_managers(self):
        with self.first_node.step(2) as first, self.second_node.step(2) as second:
            self.assertEqual((first.id, second.id), (2, 2))
            first.send(b"1", "t", to=1)
            second.recv("t", source=0, timeout=PATIENCE_S)
        with self.assertRaises(ferry.StepClosedError):
            first.send(b"1", "t", to=1)
        with self.assertRaises(KeyError):
            with self.first_node.step(3) as step:
                pending = step.irecv("t", source=1, timeout=PATIENCE_S)
                step.send(b"never received", "t", to=1)
                raise KeyError("mine")
        with self.assertRaises(ferry.FerryError) as caught:
            pending.wait(PATIENCE_S)
        self.assertIn("mine", str(caught.exception))
        # The end of a block reports what was not received.
        node, = self.nodes(1, timeout=SHORT_S)
        with self.assertRaises(ferry.FerryTimeoutError):
            with node.step(1) as step:
                step.send(b"1", "t", to=0)

    def test_wait_all(self):
        transfers = [self.second.irecv(f"t{number}", source=0, timeout=PATIENCE_S) for number in range(10)]
        self.raises(ferry.FerryTimeoutError, ferry.wait_all, transfers, timeout=SHORT_S)
        sends = [self.first.isend(b"%d" % number, f"t{number}", to=1) for number in reversed(range(10))]
        self.assertEqual([tensor.tobytes() for tensor in ferry.wait_all(iter(transfers), timeout=PATIENCE_S)],
                         [b"%d" % number for number in range(10)])
        self.assertEqual(ferry.wait_all(sends, timeout=PATIENCE_S), [None] * 10)
        self.assertEqual(ferry.wait_all([]), [])
        transfers = [self.second.irecv(f"t{number}", source=0, timeout=PATIENCE_S) for number in range(3)]
        transfers[1].cancel()
        self.first.send(b"0", "t0", to=1)
        error = self.raises(ferry.TransferCancelledError, ferry.wait_all, transfers, timeout=PATIENCE_S)
        self.assertEqual(error.key, "t1")
        self.assertFalse(transfers[2].done())
        for wrong in (None, 1, [1], [None], transfers[0]):
            with self.assertRaises((TypeError, AttributeError), msg=repr(wrong)):
                ferry.wait_all(wrong, timeout=1)

    def test_many(self):
        sent = {f"k{number}": b"%d" % number * number for number in range(50)}
        receive = Later(self.second.recv_many, (key for key in sent), source=0, timeout=PATIENCE_S)
        self.first.send_many(sent, to=1, timeout=PATIENCE_S)
        got = receive.result()
        self.assertEqual(list(got), list(sent))
        self.assertEqual({key: tensor.tobytes() for key, tensor in got.items()}, sent)
        outs = [bytearray(1), bytearray(2)]
        transfers = self.first.isend_many({"a": b"1", "b": bytearray(b"22")}, to=1)
        self.assertEqual(len(transfers), 2)
        got = self.second.recv_many(["a", "b"], source=0, out=outs, timeout=PATIENCE_S)
        self.assertEqual(outs, [b"1", b"22"])
        self.assertIs(got["b"], outs[1])
        ferry.wait_all(transfers, timeout=PATIENCE_S)
        self.assertEqual(self.second.recv_many([], source=0), {})
        self.first.send_many({}, to=1)
        with self.assertRaises((TypeError, ValueError)):
            self.second.recv_many(["a", "b"], source=0, out=[bytearray(1)], timeout=1)
        with self.assertRaises(TypeError):
            self.first.send_many({"good": b"1", "bad": object()}, to=1, timeout=1)
        error = self.raises(ferry.FerryTimeoutError, self.second.recv_many, ["c", "d"], source=0, timeout=SHORT_S)
        self.assertEqual(error.key, "c")

    def test_tree(self):
        tree = {"layers": [{"w": array.array("f", [1, 2]), "b": b"bias"}, (bytearray(b"x"), None, True)],
                "n": 3, "f": 0.5, "big": 1 << 100, "text": "käse", "nothing": {}, "empty": [], "nested": ((),),
                "inf": float("inf"), "minus": -0.0}
        receive = Later(self.second.recv_tree, "params", source=0, timeout=PATIENCE_S)
        self.first.send_tree(tree, "params", to=1)
        got = receive.result()
        self.assertEqual(list(got), list(tree))
        self.assertEqual(got["layers"][0]["w"].tobytes(), tree["layers"][0]["w"].tobytes())
        self.assertEqual(got["layers"][0]["w"].dtype, "float32")
        self.assertIsInstance(got["layers"][1], tuple)
        self.assertEqual(got["layers"][1][1:], (None, True))
        self.assertIs(got["layers"][1][2], True)
        self.assertEqual(bytes(got["layers"][1][0]), b"x")
        self.assertEqual(bytes(got["layers"][0]["b"]), b"bias")
        for key in ("n", "f", "big", "text", "nothing", "empty", "nested", "inf"):
            self.assertEqual(got[key], tree[key])
            self.assertIs(type(got[key]), type(tree[key]))
        for number, leaf in enumerate((None, 5, b"only", array.array("i", [1]), {}, [])):
            receive = Later(self.second.recv_tree, f"leaf{number}", source=0, timeout=PATIENCE_S)
            self.first.send_tree(leaf, f"leaf{number}", to=1)
            got = receive.result()
            self.assertEqual(bytes(got) if isinstance(leaf, (bytes, array.array)) else got,
                             bytes(leaf) if isinstance(leaf, (bytes, array.array)) else leaf)

    def test_tree_refuses_with_the_path(self):
        for tree, path in (({"a": [1, {"b": object()}]}, "b"), ([1, {2, 3}], "1"), ({"deep": (lambda: 1,)}, "deep")):
            with self.assertRaises(TypeError) as caught:
                self.first.send_tree(tree, "t", to=1, timeout=1)
            self.assertIn(path, str(caught.exception))
        cycle = []
        cycle.append(cycle)
        with self.assertRaises((ValueError, TypeError, RecursionError)):
            self.first.send_tree(cycle, "t", to=1, timeout=1)
        self.raises(ferry.FerryTimeoutError, self.second.recv_tree, "none", source=0, timeout=SHORT_S)

    def test_tree_from_a_plain_send_is_refused(self):
        # A malformed description is no crash, nor code that is run.
        for number, content in enumerate((b"", b"garbage", b"{}", b"[", b"\x80\x04.", b"null", b"[" * 20000,
                                            b'{"version":1,"leaves":0,"root":{"a":0}}',
                                            b'{"version":1,"leaves":0,"root":{"a":"x"}}',
                                            b'{"version":1,"leaves":0,"root":{"n":7}}',
                                            b'{"version":1,"leaves":0,"root":{"n":"x"}}',
                                            b'{"version":1,"leaves":0,"root":{"b":"x"}}',
                                            b'{"version":1,"leaves":0,"root":{"d":[[[],{"v":1}]]}}',
                                            b'{"version":1,"leaves":0,"root":{"d":5}}',
                                            b'{"version":1,"leaves":Infinity,"root":{"v":5}}',
                                            b'{"version":1,"leaves":-1,"root":{"v":5}}',
                                            b'{"version":1,"leaves":1000000000000,"root":{"v":5}}',
                                            b'{"version":2,"leaves":0,"root":{"v":5}}')):
            self.first.send(content, f"t{number}/tree", to=1)
            with self.assertRaises(ValueError, msg=content[:20]):
                self.second.recv_tree(f"t{number}", source=0, timeout=PATIENCE_S)

    def test_tensor(self):
        self.first.send(memoryview(array.array("i", range(6))).cast("B").cast("i", [3, 2]), "t", to=1)
        tensor = self.recv()
        self.assertEqual((tensor.shape, tensor.size, tensor.nbytes, tensor.ndim, len(tensor)), ((3, 2), 6, 24, 2, 3))
        # It came eagerly, and is the receiver's own.
        self.assertFalse(tensor.readonly)
        view = memoryview(tensor)
        self.assertFalse(view.readonly)
        self.assertEqual((view.shape, view.format, view.itemsize, view.c_contiguous), ((3, 2), "i", 4, True))
        self.assertEqual(view.tolist(), [[0, 1], [2, 3], [4, 5]])
        self.assertEqual(tensor.rows(1, 2).tobytes(), array.array("i", [2, 3, 4, 5]).tobytes())
        self.assertEqual(tensor.rows(1, 1).data_ptr, tensor.data_ptr + 8)
        self.assertEqual(tensor.rows(3, 0).shape, (0, 2))
        self.assertEqual(tensor.reshape([6]).shape, (6,))
        self.assertEqual(tensor.reshape((1, 6, 1)).data_ptr, tensor.data_ptr)
        for wrong in ([5], [-1], [7], [2, -3], ["6"], 1.5, None, [1 << 62, 4], [1 << 70]):
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=repr(wrong)):
                tensor.reshape(wrong)
        for wrong in ((-1, 1), (0, 4), (4, 0), (1, -1), (1 << 62, 1 << 62), (None, 1), ("0", 1)):
            with self.assertRaises((TypeError, ValueError, IndexError, OverflowError), msg=repr(wrong)):
                tensor.rows(*wrong)
        with self.assertRaises((TypeError, ferry.FerryError)):
            import pickle
            pickle.dumps(tensor)
        text = repr(tensor)
        self.assertIn("int32", text)

    def test_released_tensors(self):
        self.first.send(b"12345", "t", to=1)
        tensor = self.recv()
        view = memoryview(tensor)
        rows = tensor.rows(1, 2)
        with tensor as same:
            self.assertIs(same, tensor)
        tensor.release()
        for call in (lambda: memoryview(tensor), lambda: tensor.tobytes(), lambda: tensor.rows(0, 1),
                     lambda: tensor.reshape([5]), lambda: tensor.data_ptr, lambda: tensor.__dlpack__(),
                     lambda: self.second.isend(tensor, "back", to=0)):
            with self.assertRaises((ValueError, BufferError, ferry.FerryError)):
                call()
        repr(tensor)
        self.assertEqual((bytes(view), rows.tobytes()), (b"12345", b"23"))

    def test_tensors_outlive_all(self):
        node = self.second_node
        self.first.isend(b"x" * 100000, "t", to=1)
        tensor = self.recv()
        view = memoryview(tensor)
        del tensor
        self.second.abort()
        node.close()
        self.first_node.close()
        del node, self.second, self.first, self.first_node, self.second_node
        gc.collect()
        self.assertEqual(bytes(view), b"x" * 100000)

    def test_empty(self):
        for shape, expected in ((3, (3,)), ((), ()), ([2, 3], (2, 3)), ((0, 5), (0, 5))):
            tensor = self.first_node.empty(shape, "float32")
            self.assertEqual((tensor.shape, tensor.dtype, tensor.readonly, tensor.device),
                             (expected, "float32", False, "cpu"))
        for wrong in (dict(shape=-1), dict(shape=[1, -1]), dict(shape=None), dict(shape="3"), dict(shape=[1 << 62, 8]),
                      dict(shape=3, dtype="float33"), dict(shape=3, dtype=None), dict(shape=3, dtype=3),
                      dict(shape=3, device="gpu"), dict(shape=3, device=0), dict(shape=[1.5]), dict(shape=1 << 70),
                      dict(shape=[1] * 1000)):
            with self.assertRaises((TypeError, ValueError, OverflowError, MemoryError, ferry.FerryError),
                                   msg=repr(wrong)[:60]):
                self.first_node.empty(**wrong)
        with self.assertRaises(MemoryError):
            self.first_node.empty(1 << 50, "uint8")
        tensor = self.first_node.empty(4, "uint8")
        memoryview(tensor)[:] = b"abcd"
        self.first.send(tensor, "t", to=1)
        self.assertTrue(tensor.readonly)
        with self.assertRaises(TypeError):
            memoryview(tensor)[0] = 1
        self.assertEqual(self.recv().tobytes(), b"abcd")
        out = self.second_node.empty(4, "uint8")
        self.first.send(b"efgh", "t", to=1)
        self.assertIs(self.recv(out=out), out)
        self.assertEqual(out.tobytes(), b"efgh")
        with self.assertRaises((TypeError, ValueError, BufferError)):
            self.recv(out=tensor, timeout=1)

    def test_forwarding_a_view(self):
        self.first.isend(b"x" * MIB, "t", to=1)
        tensor = self.recv()
        self.second.isend(tensor, "back", to=0)
        del tensor
        self.assertEqual(self.first.recv("back", source=1, timeout=PATIENCE_S).tobytes(), b"x" * MIB)

    def test_threads(self):
        def exchange(number):
            for turn in range(100):
                key = f"{number}/{turn % 7}"
                send = self.first.isend(bytearray(b"%d" % turn * (turn * 37 + 1)), key, to=1)
                got = self.second.recv(key, source=0, timeout=PATIENCE_S)
                self.assertEqual(got.tobytes(), b"%d" % turn * (turn * 37 + 1))
                send.wait(PATIENCE_S)
        job.in_threads(*(lambda number=number: exchange(number) for number in range(8)))
        self.first.close(timeout=PATIENCE_S)

    def test_many_wait_for_one_transfer(self):
        transfer = self.second.irecv("t", source=0, timeout=PATIENCE_S)
        waiting = [Later(transfer.wait, PATIENCE_S) for _ in range(8)]
        time.sleep(SHORT_S)
        self.first.send(b"1", "t", to=1)
        self.assertEqual({call.result().tobytes() for call in waiting}, {b"1"})

    def test_after_the_node_has_closed(self):
        send = self.first.isend(bytearray(MIB), "t", to=1)
        pending = self.first.irecv("t", source=1, timeout=PATIENCE_S)
        blocked = Later(self.first.recv, "u", source=1, timeout=PATIENCE_S)
        time.sleep(SHORT_S)
        start = time.monotonic()
        self.first_node.close()
        for call in (lambda: pending.wait(PATIENCE_S), blocked.result, lambda: self.first.recv("t", source=1),
                     lambda: self.first.send(b"1", "t", to=1), lambda: self.first.flush(timeout=1)):
            with self.assertRaises(ferry.FerryError, msg=call):
                call()
        # Its memory was released; or it was not, in time.
        try:
            send.wait(PATIENCE_S)
        except ferry.FerryError:
            pass
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        self.eventually(lambda: send.buffer_released)
        self.first.abort()
        with self.assertRaises(ferry.FerryError) as caught:
            self.recv()
        self.assertEqual(caught.exception.rank, 0)


class Counted(bytearray):
    """Can be referred to weakly."""


class LeaksTest(job.Case):
    def setUp(self):
        self.first_node, self.second_node = self.nodes(2)

    def test_no_reference_and_no_byte_over_100000_transfers(self):
        first, second = self.first_node.step(1), self.second_node.step(1)
        data, out, key = bytearray(b"12345678"), bytearray(8), "".join(["k", "ey"])

        def turns(count):
            for _ in range(count):
                first.send(data, key, to=1)
                second.recv(key, source=0, out=out, timeout=PATIENCE_S)
        turns(5000)
        gc.collect()
        counts = [sys.getrefcount(one) for one in (data, out, key, first, second, self.first_node, None)]
        memory = rss_kib()
        tracemalloc.start()
        turns(500)
        gc.collect()
        traced = tracemalloc.get_traced_memory()[0]
        turns(500)
        gc.collect()
        self.assertLess(tracemalloc.get_traced_memory()[0] - traced, 16 << 10)
        tracemalloc.stop()
        turns(100000)
        gc.collect()
        self.assertEqual([sys.getrefcount(one) for one in (data, out, key, first, second, self.first_node)],
                         counts[:-1])
        self.assertLess(abs(sys.getrefcount(None) - counts[-1]), 100)
        self.assertLess(rss_kib() - memory, 4 << 10)

    def test_no_leak_of_tensors_transfers_steps_and_errors(self):
        def turns(count):
            for number in range(count):
                with self.first_node.step(self.turn) as first, self.second_node.step(self.turn) as second:
                    self.turn += 1
                    pending = second.irecv("t", source=0, timeout=PATIENCE_S)
                    first.isend(bytes(1000), "t", to=1)
                    pending.wait().rows(0, 5).reshape([5, 1]).tobytes()
                    cancelled = second.irecv("u", source=0, timeout=PATIENCE_S)
                    cancelled.cancel()
                    for call in (lambda: cancelled.wait(1), lambda: first.send(object(), "t", to=1),
                                 lambda: first.send(b"", "", to=1), lambda: second.recv("v", source=0, timeout=0),
                                 lambda: self.first_node.store["none"]):
                        with self.assertRaises((TypeError, ValueError, KeyError, ferry.FerryError)):
                            call()
                    self.first_node.store["k"] = b"%d" % number
        self.turn = 1
        turns(300)
        gc.collect()
        memory, objects = rss_kib(), len(gc.get_objects())
        turns(3000)
        gc.collect()
        self.assertLess(len(gc.get_objects()) - objects, 200)
        self.assertLess(rss_kib() - memory, 6 << 10)

    def test_large_arrays_are_let_go(self):
        first, second = self.first_node.step(1), self.second_node.step(1)
        memory = None
        for turn in range(60):
            data = Counted(4 * MIB)
            alive = weakref.ref(data)
            send = first.isend(data, "t", to=1)
            del data
            self.assertIsNotNone(alive())
            second.recv("t", source=0, timeout=PATIENCE_S).release()
            send.wait(PATIENCE_S)
            del send
            gc.collect()
            self.eventually(lambda alive=alive: alive() is None)
            if turn == 10:
                memory = rss_kib()
        self.assertLess(rss_kib() - memory, 16 << 10)

    def test_cycles_are_collected(self):
        class Holder:
            pass
        first = self.first_node.step(1)
        holder = Holder()
        holder.data = Counted(MIB)
        holder.transfer = first.isend(holder.data, "t", to=1)
        holder.data.holder = holder
        gone = weakref.ref(holder)
        del holder
        gc.collect()
        second = self.second_node.step(1)
        self.assertEqual(second.recv("t", source=0, timeout=PATIENCE_S).nbytes, MIB)
        first.flush(timeout=PATIENCE_S)

        def collected():
            gc.collect()
            return gone() is None
        self.eventually(collected)


class HostileTest(job.Case):
    def setUp(self):
        self.first_node, self.second_node = self.nodes(2)
        self.first, self.second = self.first_node.step(1), self.second_node.step(1)

    def test_random_arguments_raise(self):
        class Lies:
            """Has every hook, and lies in each."""
            def __index__(self):
                return "no"

            def __float__(self):
                raise ZeroDivisionError

            def __len__(self):
                return -1

            def __iter__(self):
                return 5

            def __str__(self):
                return 3

            def __bool__(self):
                raise ZeroDivisionError

            def __eq__(self, other):
                raise ZeroDivisionError

            def __hash__(self):
                raise ZeroDivisionError

            def __dlpack__(self, **_):
                return self

            def __dlpack_device__(self):
                return self

            __cuda_array_interface__ = 5

            def __getattr__(self, name):
                raise ZeroDivisionError(name)

        garbage = [None, 0, -1, 1 << 80, 1.5, float("nan"), "", "x", "\0", b"", b"x", [], (), {}, set(), object(),
                   Lies(), Lies, type, print, Ellipsis, NotImplemented, slice(1), range(3), iter([]), lambda *_: 1,
                   memoryview(b"1"), self.first, self.first_node, self.first_node.store, ferry, ferry.Tensor,
                   datetime.timedelta(seconds=1), self.first_node.empty(3), True, 1j, "x" * 100000]
        draw = random.Random(7)
        targets = [(self.first, "send isend recv irecv send_many isend_many recv_many send_tree recv_tree"),
                   (self.first_node.store, "get set add wait compare_set delete keys items get_many"),
                   (self.first_node, "step empty watch prepare_gpu"),
                   (self.first_node.topology, "find_device link same_host"),
                   (self.first_node.empty((2, 2)), "rows reshape __dlpack__"), (ferry, "wait_all")]
        names = ("timeout", "out", "like", "stream", "device", "require", "to", "source", "max_version", "copy",
                 "dl_device", "dtype", "overwrite", "subtree", "nonsense")
        for _ in range(4000):
            target, methods = draw.choice(targets)
            method = draw.choice(methods.split())
            arguments = [draw.choice(garbage) for _ in range(draw.randint(0, 3))]
            options = {draw.choice(names): draw.choice(garbage) for _ in range(draw.randint(0, 2))}
            if method in ("recv", "get", "get_many", "wait", "recv_many", "recv_tree", "send", "send_many", "send_tree"):
                options["timeout"] = draw.choice([0, 0.001, None, "x", -1])
            try:
                getattr(target, method)(*arguments, **options)
            except (SystemError, KeyboardInterrupt) as error:
                self.fail(f"{method}{arguments}{options}: {error!r}")
            except Exception:  # pylint: disable=broad-except
                pass
        del garbage
        gc.collect()
        self.first_node.store.set("alive", b"1")

    def test_arrays_that_call_ferry_again(self):
        outer = self

        class Reentrant:
            def __init__(self, key):
                self.key = key

            def __dlpack_device__(self):
                outer.first.isend(b"inner", self.key, to=1)
                outer.first_node.store["inner"] = self.key
                return (1, 0)

            def __dlpack__(self, **_):
                outer.second.recv(self.key, source=0, timeout=PATIENCE_S)
                raise BufferError("after all")
        for number in range(20):
            with self.assertRaises(Exception) as caught:
                self.first.isend(Reentrant(f"k{number}"), "t", to=1)
            self.assertIn("after all", str(caught.exception) + str(caught.exception.__cause__))

    def test_finalisers_that_call_ferry(self):
        outer, ran = self, []

        class Last(bytearray):
            def __del__(self):
                try:
                    outer.first.isend(b"from __del__", "d", to=1)
                    outer.first_node.store["d"] = b"1"
                    ran.append(1)
                except BaseException as error:  # pylint: disable=broad-except
                    ran.append(error)
                raise ZeroDivisionError("ignored by Python")
        unraisable, sys.unraisablehook = sys.unraisablehook, lambda *_: None
        try:
            for number in range(20):
                transfer = self.first.isend(Last(100000), f"t{number}", to=1)
                self.second.recv(f"t{number}", source=0, timeout=PATIENCE_S).release()
                transfer.wait(PATIENCE_S)
                del transfer
                gc.collect()
            self.eventually(lambda: len(ran) == 20)
        finally:
            sys.unraisablehook = unraisable
        self.assertEqual(ran, [1] * 20)
        for _ in range(20):
            self.second.recv("d", source=0, timeout=PATIENCE_S)

    def test_index_that_closes_the_step(self):
        outer = self

        class Closer:
            def __index__(self):
                outer.first.abort("from __index__")
                return 1
        with self.assertRaises((TypeError, ferry.FerryError)):
            self.first.send(b"1", "t", to=Closer())
        with self.assertRaises((ferry.StepClosedError, ferry.TransferCancelledError)):
            self.first.send(b"1", "t", to=1)
        step = self.first_node.step(2)

        class NodeCloser:
            def __index__(self):
                outer.first_node.close()
                return 1
        try:
            step.send(b"1", "t", to=NodeCloser())
        except ferry.FerryError:
            pass
        with self.assertRaises(ferry.FerryError):
            step.send(b"1", "t", to=1)

    def test_closing_and_using_at_once(self):
        # In every order, each call returns or raises.
        for turn in range(10):
            node, = self.nodes(1)
            step = node.step(1)
            start = threading.Barrier(5)

            def use(number, node=node, step=step, start=start):
                start.wait(PATIENCE_S)
                for _ in range(200):
                    try:
                        step.isend(b"1" * number, f"k{number}", to=0)
                        step.recv(f"k{number}", source=0, timeout=PATIENCE_S)
                        node.store.add("n")
                    except (ferry.FerryError, ValueError):
                        return

            def end(node=node, step=step, start=start, turn=turn):
                start.wait(PATIENCE_S)
                time.sleep(turn * 0.002)
                (step.abort if turn % 2 else node.close)()
            job.in_threads(end, *(lambda number=number: use(number) for number in range(1, 5)))
            node.close()

    def test_two_closers(self):
        for _ in range(5):
            node, = self.nodes(1)
            step = node.step(1)
            step.isend(b"1", "t", to=0)
            pending = step.irecv("none", source=0, timeout=PATIENCE_S)
            job.in_threads(node.close, node.close, step.abort, node.close)
            with self.assertRaises(ferry.FerryError):
                pending.wait(PATIENCE_S)


if __name__ == "__main__":
    job.main()
