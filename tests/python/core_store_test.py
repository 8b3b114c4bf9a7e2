# SPDX-License-Identifier: Apache-2.0
"""Joining, the store, barriers and membership, from Python. Run as: core_store_test.py FERRY"""
import datetime
import threading
import time

import job
from job import PATIENCE_S, SHORT_S, Later

import ferry

TEXTS = ["", "a", "käse", "x" * 5000, "a/b/c", "with space", "tab\t"]


class StoreTest(job.Case):
    def setUp(self):
        # One that moves no tensors has no keys of its own in the store.
        self.node, = self.nodes(1, transfers=False)
        self.store = self.node.store

    def test_values_are_bytes_and_text_is_utf8(self):
        for key in ("k", b"raw", "käse"):
            for value in (b"", b"\0\xff", "text", "käse", b"x" * 100000):
                self.store.set(key, value)
                expected = value.encode() if isinstance(value, str) else value
                self.assertEqual(self.store.get(key), expected)
                self.assertEqual(self.store[key], expected)
        self.assertEqual(self.store["käse".encode()], b"x" * 100000)

    def test_is_a_mapping(self):
        self.assertEqual(len(self.store), 0)
        self.store["b"] = b"2"
        self.store["a"] = "1"
        self.assertIn("a", self.store)
        self.assertIn(b"a", self.store)
        self.assertNotIn("c", self.store)
        self.assertEqual(list(self.store), ["a", "b"])
        self.assertEqual(dict(self.store), {"a": b"1", "b": b"2"})
        self.assertEqual(dict(self.store.items()), {"a": b"1", "b": b"2"})
        self.assertEqual(len(self.store), 2)
        del self.store["a"]
        self.assertEqual(self.store.keys(), ["b"])
        with self.assertRaises(KeyError) as caught:
            self.store["a"]  # pylint: disable=pointless-statement
        self.assertIn("a", str(caught.exception))
        with self.assertRaises(KeyError):
            del self.store["a"]

    def test_lists_a_prefix_in_order(self):
        for key in ("p/2", "p/10", "q", "p", "p/1"):
            self.store[key] = key
        self.assertEqual(self.store.keys("p/"), ["p/1", "p/10", "p/2"])
        self.assertEqual(self.store.keys(b"p"), ["p", "p/1", "p/10", "p/2"])
        self.assertEqual(self.store.items("p/1"), [("p/1", b"p/1"), ("p/10", b"p/10")])

    def test_keys_that_are_no_utf8(self):
        key = b"\xff\xfe/\x80"
        self.store[key] = b"v"
        self.assertEqual(self.store[key], b"v")
        listed, = self.store.keys(b"\xff")
        # The listed form finds the key again.
        self.assertEqual(self.store[listed], b"v")
        self.assertIn(key, self.store)
        change = self.node.watch(b"\xff").next(timeout=PATIENCE_S)
        self.assertEqual(self.store[change.key], b"v")
        self.store.delete(key)
        self.assertNotIn(key, self.store)

    def test_set_without_overwriting(self):
        self.store.set("k", b"1", overwrite=False)
        error = self.raises(ferry.KeyExistsError, self.store.set, "k", b"2", overwrite=False)
        self.assertEqual(error.key, "k")
        self.assertEqual(error.code, "ALREADY_EXISTS")
        self.assertEqual(self.store["k"], b"1")
        self.store.set("k", b"3")
        self.assertEqual(self.store["k"], b"3")

    def test_add(self):
        self.assertEqual(self.store.add("n"), 1)
        self.assertEqual(self.store.add("n", 41), 42)
        self.assertEqual(self.store.add("n", -50), -8)
        self.assertEqual(self.store["n"], b"-8")
        self.store["text"] = "seven"
        with self.assertRaises(ferry.FerryError) as caught:
            self.store.add("text", 1)
        self.assertEqual(caught.exception.key, "text")
        for wrong in (1.5, "1", None, 1 << 63, -(1 << 63) - 1):
            with self.assertRaises((TypeError, ValueError, OverflowError)):
                self.store.add("n", wrong)
        self.assertEqual(self.store["n"], b"-8")

    def test_add_of_many_threads(self):
        job.in_threads(*(lambda: [self.store.add("n") for _ in range(50)] for _ in range(8)))
        self.assertEqual(self.store["n"], b"400")

    def test_compare_set(self):
        self.assertTrue(self.store.compare_set("k", None, b"1"))
        self.assertFalse(self.store.compare_set("k", None, b"2"))
        self.assertFalse(self.store.compare_set("k", b"2", b"3"))
        self.assertTrue(self.store.compare_set("k", "1", b"3"))
        self.assertEqual(self.store["k"], b"3")

    def test_delete(self):
        for key in ("a", "a/1", "a/1/2", "ab"):
            self.store[key] = b""
        self.store.delete("a")
        self.assertEqual(self.store.keys(), ["a/1", "a/1/2", "ab"])
        self.store.delete("a", subtree=True)
        self.assertEqual(self.store.keys(), ["ab"])
        self.store.delete("was never there")

    def test_get_waits_for_the_key(self):
        waiting = Later(self.store.get, "late", timeout=PATIENCE_S)
        many = Later(self.store.get_many, ["late", "later"], timeout=PATIENCE_S)
        both = Later(self.store.wait, ["late", "later"], timeout=PATIENCE_S)
        one = Later(self.store.wait, "late")
        time.sleep(SHORT_S)
        self.assertFalse(waiting.future.done() or many.future.done() or both.future.done() or one.future.done())
        self.store["late"] = b"1"
        self.assertEqual(waiting.result(), b"1")
        self.assertIsNone(one.result())
        self.assertFalse(many.future.done())
        self.store["later"] = b"2"
        self.assertEqual(many.result(), [b"1", b"2"])
        self.assertIsNone(both.result())
        self.assertEqual(self.store.get_many([]), [])
        self.assertEqual(self.store.get_many(key for key in ("later", b"late")), [b"2", b"1"])

    def test_timeout_names_the_key(self):
        for call in (lambda: self.store.get("nobody", timeout=SHORT_S),
                     lambda: self.store.get_many(["nobody"], timeout=datetime.timedelta(seconds=SHORT_S)),
                     lambda: self.store.wait("nobody", timeout=SHORT_S)):
            start = time.monotonic()
            error = self.raises(ferry.FerryTimeoutError, call)
            self.assertGreaterEqual(time.monotonic() - start, SHORT_S)
            self.assertIsInstance(error, TimeoutError)
            self.assertIsInstance(error, RuntimeError)
            self.assertEqual(error.code, "DEADLINE_EXCEEDED")
            self.assertIn("nobody", str(error))
            self.assertEqual(error.key, "nobody")
            self.assertAlmostEqual(error.waited, SHORT_S)
            self.assertEqual(list(error.missing), [])

    def test_forms_of_timeouts(self):
        self.store["k"] = b"v"
        for timeout in (1, 1.5, True, datetime.timedelta(seconds=2), 1e12, 1 << 40):
            self.assertEqual(self.store.get("k", timeout=timeout), b"v")
        for timeout in (None, "1", b"1", [], 1j, object()):
            with self.assertRaises(TypeError, msg=repr(timeout)):
                self.store.get("k", timeout=timeout)
        for timeout in (-1, -0.001, float("nan"), float("inf"), -float("inf"), datetime.timedelta(seconds=-1)):
            with self.assertRaises((ValueError, OverflowError), msg=repr(timeout)):
                self.store.get("k", timeout=timeout)
        start = time.monotonic()
        with self.assertRaises(ferry.FerryTimeoutError):
            self.store.get("nobody", timeout=0)
        self.assertLess(time.monotonic() - start, 5)

    def test_rejects_what_is_no_key_or_value(self):
        for key in (None, 1, 1.0, object(), [], ["a"], [1], {}, "\ud800"):
            for call in (lambda: self.store[key], lambda: self.store.get(key, timeout=1), lambda: key in self.store,
                         lambda: self.store.set(key, b""), lambda: self.store.add(key),
                         lambda: self.store.delete(key), lambda: self.store.compare_set(key, None, b"")):
                with self.assertRaises((TypeError, ValueError), msg=repr(key)):
                    call()
        self.store["buffer"] = bytearray(b"1")
        self.assertEqual(self.store[memoryview(b"buffer")], b"1")
        del self.store["buffer"]
        for value in (None, 1, object(), [], [1], "\ud800"):
            with self.assertRaises((TypeError, ValueError), msg=repr(value)):
                self.store["k"] = value
        self.assertEqual(len(self.store), 0)

    def test_watch(self):
        self.store["w/1"] = b"a"
        with self.node.watch("w/") as watch:
            change = watch.next(timeout=PATIENCE_S)
            self.assertEqual((change.key, change.value), ("w/1", b"a"))
            error = self.raises(ferry.FerryTimeoutError, watch.next, timeout=SHORT_S)
            self.assertIn("w/", str(error))
            waiting = Later(watch.next, timeout=PATIENCE_S)
            self.store["other"] = b""
            self.store["w/2"] = b"b"
            second = waiting.result()
            self.assertEqual(second[:2], ("w/2", b"b"))
            self.assertGreater(second.revision, change.revision)
            del self.store["w/1"]
            gone = watch.next(timeout=PATIENCE_S)
            self.assertEqual(gone.key, "w/1")
            self.assertIsNone(gone.value)
            for number in range(100):
                self.store["w/n"] = str(number)
            self.assertEqual([watch.next(timeout=PATIENCE_S).value for _ in range(100)],
                             [b"%d" % number for number in range(100)])
        with self.assertRaises((ferry.FerryError, ValueError)):
            watch.next(timeout=1)
        watch.close()

    def test_watch_that_is_closed_ends_its_waiter(self):
        watch = self.node.watch("w/")
        waiting = Later(watch.next, timeout=PATIENCE_S)
        time.sleep(SHORT_S)
        watch.close()
        with self.assertRaises((ferry.FerryError, ValueError)):
            waiting.result()

    def test_node_that_is_closed_ends_watches_and_waits(self):
        watch = self.node.watch("w/")
        waiting = [Later(watch.next, timeout=PATIENCE_S), Later(self.store.get, "nobody", timeout=PATIENCE_S)]
        time.sleep(SHORT_S)
        start = time.monotonic()
        self.node.close()
        for call in waiting:
            with self.assertRaises((ferry.FerryError, ValueError)):
                call.result()
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)

    def test_after_close(self):
        self.node.close()
        self.node.close()
        self.assertTrue(self.node.closed)
        for call in (lambda: self.store["k"], lambda: self.store.get("k", timeout=1), lambda: self.store.set("k", b""),
                     lambda: self.store.keys(), lambda: self.node.barrier("b", timeout=1), lambda: self.node.step(1),
                     self.node.alive, self.node.status, lambda: self.node.empty(3), self.node.live_ranks, self.node.job_error,
                     lambda: self.node.watch("").next(timeout=1)):
            self.assertRegex(str(self.raises(ferry.JobFailedError, call)), "left the job")
        self.assertEqual((self.node.rank, self.node.world_size), (0, 1))
        repr(self.node)


class MembershipTest(job.Case):
    def test_identity(self):
        nodes = self.nodes(3, timeout=17)
        for rank, node in enumerate(nodes):
            self.assertEqual((node.rank, node.world_size, node.timeout, node.closed), (rank, 3, 17, False))
            self.assertIsNone(node.job_error())
            self.assertEqual(sorted(node.alive()), [0, 1, 2])
            self.assertEqual([one.rank for one in node.topology.nodes], [0, 1, 2])
            self.assertTrue(node.topology.same_host(0, 2))
            for one in node.topology.nodes:
                for device in one.devices:
                    self.assertEqual(node.topology.devices[device].rank, one.rank)
            cpu = node.topology.find_device(1, "cpu")
            self.assertEqual(node.topology.devices[cpu].device, "cpu")
            self.assertEqual(node.topology.link(cpu, cpu).type, "LOC")
            self.assertIsNone(node.topology.find_device(1, "cuda:99"))
            for wrong in (-1, 10000):
                with self.assertRaises(ValueError):
                    node.topology.link(cpu, wrong)
            states = node.status()
            self.assertEqual([(one.rank, one.state, one.error) for one in states],
                             [(rank, "joined", None) for rank in range(3)])
            self.assertGreaterEqual(states[0].heartbeat_age, 0)
        self.assertEqual(job.in_threads(*(lambda node=node: node.live_ranks(timeout=PATIENCE_S) for node in nodes)),
                         [[0, 1, 2]] * 3)
        self.assertEqual(nodes[1].live_ranks([1], timeout=PATIENCE_S), [1])

    def test_barrier(self):
        nodes = self.nodes(3)
        for _ in range(3):
            job.in_threads(*(lambda node=node: node.barrier("b", timeout=PATIENCE_S) for node in nodes))
        job.in_threads(*(lambda node=node: node.barrier("two", ranks=[2, 0], timeout=PATIENCE_S)
                         for node in (nodes[0], nodes[2])))
        waiting = [Later(node.barrier, "c", timeout=PATIENCE_S) for node in nodes[:2]]
        time.sleep(SHORT_S)
        self.assertFalse(any(call.future.done() for call in waiting))
        nodes[2].barrier("c", timeout=PATIENCE_S)
        for call in waiting:
            call.result()

    def test_barrier_timeout_has_the_missing_ranks(self):
        nodes = self.nodes(4)
        waiting = [Later(nodes[rank].barrier, "ckpt", timeout=1) for rank in (0, 2)]
        for call in waiting:
            error = self.raises(ferry.BarrierTimeout, call.result)
            self.assertEqual(list(error.missing), [1, 3])
            self.assertIn("ckpt", str(error))
            self.assertEqual(error.key, "ckpt")
            self.assertIsInstance(error, (TimeoutError, ferry.FerryTimeoutError))

    def test_barrier_rejects_garbage(self):
        node = self.nodes(1)[0]
        for name in (None, 1, [], object()):
            with self.assertRaises(TypeError):
                node.barrier(name, timeout=1)
        for ranks in ([1], [-1], ["0"], [0.5], 3, [1 << 40], [1 << 80]):
            with self.assertRaises((TypeError, ValueError, OverflowError, ferry.FerryError), msg=repr(ranks)):
                node.barrier("b", timeout=1, ranks=ranks)
        node.barrier("c", timeout=PATIENCE_S, ranks=(0,))

    def test_a_failure_reaches_the_others_with_its_text(self):
        nodes = self.nodes(3)
        step = nodes[2].step(1)
        # They are connected, and one has asked for the tensor.
        first = nodes[0].step(1)
        first.send(b"1", "hello", to=2)
        step.recv("hello", source=0, timeout=PATIENCE_S)
        pending = step.irecv("t", source=0, timeout=PATIENCE_S)
        nodes[0].fail("loss is not finite")
        with self.assertRaises(ferry.FerryError):
            pending.wait(PATIENCE_S)
        self.eventually(lambda: "loss is not finite" in (nodes[1].job_error() or ""))

    def test_an_exception_that_leaves_the_block_fails_the_job(self):
        first, second = self.nodes(2)
        with self.assertRaises(ZeroDivisionError):
            with first:
                raise ZeroDivisionError("by chance")
        self.assertTrue(first.closed)
        self.eventually(lambda: "by chance" in (second.job_error() or ""))

    def test_leaving_tells_those_that_wait(self):
        nodes = self.nodes(3)
        step = nodes[1].step(1)
        waiting = Later(step.recv, "t", source=0, timeout=PATIENCE_S)
        time.sleep(SHORT_S)
        with nodes[0]:
            pass
        with self.assertRaises(ferry.FerryError) as caught:
            waiting.result()
        self.assertIn("0", str(caught.exception))
        self.eventually(lambda: sorted(nodes[1].alive()) == [1, 2])
        self.assertEqual(nodes[1].status()[0].state, "left")
        self.assertIsNone(nodes[1].job_error())

    def test_shutdown_waits_for_all(self):
        nodes = self.nodes(2)
        waiting = Later(nodes[0].shutdown)
        time.sleep(SHORT_S)
        self.assertFalse(waiting.future.done())
        nodes[1].shutdown()
        waiting.result()
        self.assertTrue(nodes[0].closed and nodes[1].closed)
        nodes[0].close()

    def test_join_tells_who_is_missing(self):
        three = self.job(3)
        error = self.raises(ferry.BarrierTimeout, three.join, 1, connect_timeout=1)
        self.assertEqual(list(error.missing), [0, 2])
        self.assertAlmostEqual(error.waited, 1)

    def test_join_twice_with_one_rank(self):
        two = self.job(2)
        first = two.process(0, """
            with ferry.join(timeout=30) as node:
                say("joined")
                node.store.get("end")
            """)
        other = two.join(1)
        first.wait_for("joined")
        with self.assertRaises((ferry.KeyExistsError, ferry.JobFailedError)):
            two.join(0, connect_timeout=3)
        other.store["end"] = b""
        other.close()
        first.wait()

    def test_join_rejects_garbage(self):
        address = self.job(1).address
        for wrong in (dict(rank=1, world_size=1), dict(rank=-1, world_size=1), dict(rank=0, world_size=0),
                      dict(rank="0", world_size=1), dict(rank=0, world_size=1, timeout=None),
                      dict(rank=0, world_size=1, timeout=-1), dict(rank=0, world_size=1, timeout=float("nan")),
                      dict(rank=0, world_size=1, transport="pigeon"), dict(rank=0, world_size=1, transport=3),
                      dict(rank=0, world_size=1, listen="nowhere:at:all"), dict(rank=0, world_size=1, nonsense=1),
                      dict(rank=1 << 70, world_size=1), dict(rank=0, world_size=1, connect_timeout=None)):
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=repr(wrong)):
                # A process with wrong options waits that long for others to hear of it.
                ferry.join(address, **{"connect_timeout": 1, **wrong})
        for wrong in ("", "nowhere", "host:port", "127.0.0.1:99999", 9470, b"127.0.0.1:1"):
            with self.assertRaises((TypeError, ValueError), msg=repr(wrong)):
                ferry.join(wrong, rank=0, world_size=1, connect_timeout=2)
        error = self.raises(ferry.FerryTimeoutError, ferry.join, "127.0.0.1:1", rank=0, world_size=1,
                            connect_timeout=0.5)
        self.assertIn("127.0.0.1:1", str(error))
        # The coordinator is none the worse.
        ferry.join(address, rank=0, world_size=1).close()

    def test_join_says_what_the_environment_lacks(self):
        lost = self.python("""
            try:
                ferry.join(timeout=5)
            except ValueError as error:
                say(type(error).__name__, error)
            """)
        self.ends_well(lost)
        self.assertRegex(lost.out, "InvalidArgumentError .*FERRY_NODE_ID")

    def test_from_the_environment(self):
        process = self.job(1).process(0, """
            with ferry.join() as node:
                say(node.rank, node.world_size, node.timeout)
            say(node.closed)
            """)
        self.ends_well(process)
        self.assertEqual(process.out.split(), ["0", "1", "300.0", "True"])

    def test_without_transfers(self):
        node, = self.nodes(1, transfers=False)
        node.store["k"] = b"v"
        with self.assertRaises(ferry.FerryError):
            node.step(1)

    def test_recoverable_may_fail(self):
        two = self.job(2)
        nodes = two.nodes(recoverable=True)
        nodes[0].fail("restarts")
        time.sleep(SHORT_S)
        self.assertIsNone(nodes[1].job_error())
        nodes[0].close()
        again = two.join(0, recoverable=True)
        again.store["k"] = b"v"
        self.assertEqual(nodes[1].store.get("k"), b"v")


class ErrorsTest(job.Case):
    def test_classes_are_built_ins_too(self):
        for error, built_in in ((ferry.FerryError, RuntimeError), (ferry.FerryTimeoutError, TimeoutError),
                                (ferry.BarrierTimeout, ferry.FerryTimeoutError),
                                (ferry.InvalidArgumentError, ValueError), (ferry.PeerDiedError, ConnectionError),
                                (ferry.ResourceExhaustedError, MemoryError), (ferry.KeyExistsError, ferry.FerryError),
                                (ferry.StepClosedError, ferry.FerryError), (ferry.JobFailedError, ferry.FerryError),
                                (ferry.TransferCancelledError, ferry.FerryError)):
            self.assertTrue(issubclass(error, built_in), error)
            self.assertTrue(issubclass(error, ferry.FerryError), error)
            self.assertEqual(error.__module__, "ferry", error)
            made = error("text", code="UNAVAILABLE", key="k", rank=3, host="h", waited=1.5)
            self.assertEqual((str(made), made.code, made.key, made.rank, made.host, made.waited),
                             ("text", "UNAVAILABLE", "k", 3, "h", 1.5))

    def test_errors_can_be_pickled_and_copied(self):
        import copy
        import pickle
        made = ferry.BarrierTimeout("text", code="DEADLINE_EXCEEDED", key="k", waited=1.5, missing=[1, 3])
        for other in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
            self.assertIs(type(other), ferry.BarrierTimeout)
            self.assertEqual((str(other), other.key, other.waited, list(other.missing)), ("text", "k", 1.5, [1, 3]))

    def test_objects_cannot_be_made_by_hand(self):
        for name in ("Node", "Step", "Store", "Tensor", "Transfer", "Watch", "Topology"):
            with self.assertRaises((TypeError, ferry.FerryError), msg=name):
                getattr(ferry, name)()

    def test_threads_are_gone_after_close(self):
        before = threading.active_count()
        node, = self.nodes(1)
        node.close()
        self.assertLessEqual(threading.active_count(), before)


if __name__ == "__main__":
    job.main()
