#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's TCPStore protocol on the coordinator's port: requests that wait, and what ends them.

    waits_test.py FERRY [CASE...]
"""
import itertools

from store_client import (NOT_READY, STOP_WAITING, V1_13, V2_1, V2_2, WAIT_CANCELED, Case,
                          Client,
                          i64, in_dialects, in_each_dialect, main)


@in_each_dialect
class Waits:
    def setUp(self):
        super().setUp()
        self.other = self.connect()

    def test_keys_that_exist_end_a_wait_at_once(self):
        keys = [self.key(name) for name in "abc"]
        for key in keys:
            self.client.set(key, b"")
        self.client.send(self.dialect.wait(*keys))
        self.assertEqual(self.client.read(1), STOP_WAITING)
        self.assertQuiet(self.client)

    def test_last_of_three_keys_ends_a_wait_with_one_answer(self):
        for order in itertools.permutations("abc"):
            with self.subTest(order):
                name = "".join(order)
                keys = {letter: self.key(f"{name} {letter}") for letter in order}
                setters = {letter: self.connect() for letter in order}
                self.client.park(self.dialect.wait(*(keys[letter] for letter in "abc")), self.other)
                for letter in order:
                    setters[letter].set(keys[letter], b"v")
                    setters[letter].round_trip()
                self.assertEqual(self.client.read(1), STOP_WAITING)
                self.assertQuiet(self.client)

    def test_two_of_three_keys_do_not_end_a_wait(self):
        for missing in "abc":
            with self.subTest(missing):
                keys = {letter: self.key(f"{missing} {letter}") for letter in "abc"}
                waiter = self.connect()
                waiter.park(self.dialect.wait(*keys.values()), self.other)
                for letter in set("abc") - {missing}:
                    self.other.set(keys[letter], b"v")
                    # The same key once more is no second one.
                    self.other.set(keys[letter], b"w")
                self.other.round_trip()
                self.assertWaits(waiter)

    def test_key_that_is_listed_twice_ends_a_wait_with_one_answer(self):
        k, there = self.key(), self.key("there")
        self.client.set(there, b"v")
        for keys in ((k, k), (there, there)):
            self.client.park(self.dialect.wait(*keys), self.other)
            self.other.set(k, b"v")
            self.assertEqual(self.client.read(1), STOP_WAITING)
            self.assertQuiet(self.client)

    def test_key_that_was_set_and_deleted_counts_as_arrived(self):
        first, second = self.key("first"), self.key("second")
        self.client.park(self.dialect.wait(first, second), self.other)
        self.other.set(first, b"v")
        self.assertEqual(self.other.delete(first), 1)
        self.other.set(second, b"v")
        self.assertEqual(self.client.read(1), STOP_WAITING)
        self.assertQuiet(self.client)
        self.assertEqual(self.client.check(first), NOT_READY)

    def test_key_that_was_deleted_before_the_wait_does_not_count(self):
        k = self.key()
        self.other.set(k, b"v")
        self.assertEqual(self.other.delete(k), 1)
        self.client.park(self.dialect.wait(k), self.other)
        self.assertWaits(self.client)

    def test_every_operation_that_creates_a_key_ends_a_wait_for_it(self):
        d = self.dialect
        makers = {"SET": lambda key: d.set(key, b""), "COMPARE_SET": lambda key: d.compare_set(key, b"", b"v"),
                  "ADD": lambda key: d.add(key, 0)}
        if d.has("APPEND"):
            makers["APPEND"] = lambda key: d.append(key, b"")
            makers["MULTI_SET"] = lambda key: d.multi_set([(self.key("x"), b""), (key, b"")])
        if d.has("BARRIER"):
            makers["BARRIER"] = lambda key: d.barrier(key, 2)
            makers["QUEUE_PUSH"] = lambda key: d.push(key, b"v")
        for name, make in makers.items():
            with self.subTest(name):
                waiter, maker = self.connect(), self.connect()
                waiter.park(d.wait(self.key(name)), self.other)
                maker.send(make(self.key(name)))
                self.assertEqual(waiter.read(1), STOP_WAITING)
                self.assertQuiet(waiter)

    def test_comparison_that_stores_nothing_does_not_end_a_wait(self):
        k = self.key()
        self.client.park(self.dialect.wait(k), self.other)
        self.assertEqual(self.other.compare_set(k, b"expected", b"v"), b"expected")
        self.assertWaits(self.client)

    def test_one_key_ends_the_waits_of_all_clients(self):
        k, waiters = self.key(), [self.connect() for _ in range(64)]
        for waiter in waiters:
            waiter.send(self.dialect.wait(k))
        self.other.set(k, b"v")
        for waiter in waiters:
            self.assertEqual(waiter.read(1), STOP_WAITING)
        self.assertQuiet(*waiters)

    def test_wait_of_one_client_does_not_delay_the_others(self):
        k = self.key()
        self.client.park(self.dialect.wait(k), self.other)
        for number in range(100):
            self.assertEqual(self.other.add(self.key("n"), 1), number + 1)
        self.other.set(k, b"v")
        self.assertEqual(self.client.read(1), STOP_WAITING)

    def test_client_that_dies_in_a_wait_leaves_nothing_behind(self):
        k = self.key()
        self.assertQuiet(self.client, self.other)
        before = self.server.descriptors()
        for end in ("close", "reset"):
            waiters = [self.connect() for _ in range(20)]
            for waiter in waiters:
                waiter.park(self.dialect.wait(k), self.other)
            for waiter in waiters:
                getattr(waiter, end)()
            self.eventually(lambda: self.server.descriptors() <= before)
            # They have the numbers of those that are closed, in the server's table.
            successors = [self.connect() for _ in range(20)]
            self.assertQuiet(*successors)
            self.other.set(k, b"v")
            self.other.round_trip()
            self.assertQuiet(*successors)
            self.assertEqual(self.other.delete(k), 1)
            for successor in successors:
                successor.close()
            self.eventually(lambda: self.server.descriptors() <= before)


@in_dialects(V2_1, V2_2)
class Cancels:
    def setUp(self):
        super().setUp()
        self.other = self.connect()

    def test_cancelled_wait_is_answered_once_and_never_woken(self):
        k = self.key()
        self.client.park(self.dialect.wait(k), self.other)
        self.assertEqual(self.client.cancel(), WAIT_CANCELED)
        self.other.set(k, b"v")
        self.other.round_trip()
        self.assertQuiet(self.client)

    def test_cancel_without_a_wait_is_answered(self):
        self.assertEqual(self.client.cancel(), WAIT_CANCELED)
        self.client.send(self.dialect.cancel(), self.dialect.cancel())
        self.assertEqual(self.client.read(2), WAIT_CANCELED * 2)
        self.assertQuiet(self.client)

    def test_cancel_after_the_wait_has_ended_comes_second(self):
        k = self.key()
        self.client.set(k, b"v")
        self.client.send(self.dialect.wait(k), self.dialect.cancel())
        self.assertEqual(self.client.read(2), STOP_WAITING + WAIT_CANCELED)
        self.assertQuiet(self.client)

    def test_client_can_wait_again_after_a_cancel(self):
        k = self.key()
        for _ in range(3):
            self.client.send(self.dialect.wait(k))
            self.assertEqual(self.client.cancel(), WAIT_CANCELED)
        self.client.park(self.dialect.wait(k), self.other)
        self.other.set(k, b"v")
        self.assertEqual(self.client.read(1), STOP_WAITING)
        self.assertQuiet(self.client)

    def test_key_that_comes_with_the_cancel_answers_one_or_both_in_order(self):
        d, both = self.dialect, STOP_WAITING + WAIT_CANCELED
        waiters = [self.connect() for _ in range(100)]
        keys = [self.key(str(number)) for number in range(len(waiters))]
        seen = {both: 0, WAIT_CANCELED: 0}
        for attempt in range(100 if d is V2_2 else 20):
            for waiter, key in zip(waiters, keys):
                waiter.send(d.wait(key))
            if attempt % 20 == 0:
                # All keys have come, so both answers are certain.
                self.other.send(*(d.set(key, b"v") for key in keys))
                self.other.round_trip()
            for number, (waiter, key) in enumerate(zip(waiters, keys)):
                pieces = (self.other, d.set(key, b"v")), (waiter, d.cancel())
                for client, request in pieces if (number + attempt) % 2 else pieces[::-1]:
                    client.send(request)
            for waiter in waiters:
                got = waiter.read(1)
                if got == STOP_WAITING:
                    got += waiter.read(1)
                self.assertIn(got, seen if attempt % 20 else [both])
                seen[got] += 1
            self.other.round_trip()
            self.assertQuiet(*waiters)
            self.other.send(*map(d.delete, keys))
            self.assertEqual(self.other.read(8 * len(keys)), i64(1) * len(keys))
        self.assertEqual(sum(seen.values()), 10000 if d is V2_2 else 2000)

    def test_multi_set_ends_a_wait_for_its_keys_with_one_answer(self):
        d, keys = self.dialect, [self.key(str(number)) for number in range(10)]
        pairs = [(key, b"v") for key in keys]
        # All of the keys, two inside, and one between the first and the last.
        for awaited in (keys, keys[3:5], keys[7:8]):
            waiter = self.connect()
            waiter.park(d.wait(*awaited), self.other)
            self.other.send(d.multi_set(pairs))
            self.assertEqual(waiter.read(1), STOP_WAITING)
            self.assertQuiet(waiter)
            self.assertEqual(waiter.multi_get(*awaited), [b"v"] * len(awaited))
            for key in keys:
                self.assertEqual(self.other.delete(key), 1)

    def test_multi_set_of_some_keys_does_not_end_a_wait(self):
        d, keys = self.dialect, [self.key(str(number)) for number in range(10)]
        self.client.park(d.wait(*keys, self.key("other")), self.other)
        self.other.send(d.multi_set([(key, b"v") for key in keys]))
        self.other.round_trip()
        self.assertWaits(self.client)


class AbandonedWaits(Case):
    """Release 1.13 cannot cancel: its client gives up, and sends its next request."""

    dialect = V1_13

    def test_next_request_ends_an_abandoned_wait_without_an_answer(self):
        k, there, other = self.key(), self.key("there"), self.connect()
        self.client.set(there, b"value")
        self.client.park(self.dialect.wait(k), other)
        self.assertEqual(self.client.get(there), b"value")
        other.set(k, b"v")
        other.round_trip()
        self.assertQuiet(self.client)

    def test_wait_can_follow_an_abandoned_wait(self):
        first, second, other = self.key("first"), self.key("second"), self.connect()
        self.client.park(self.dialect.wait(first), other)
        self.client.park(self.dialect.wait(second), other)
        other.set(first, b"v")
        other.round_trip()
        self.assertWaits(self.client)
        other.set(second, b"v")
        self.assertEqual(self.client.read(1), STOP_WAITING)
        self.assertQuiet(self.client)

    def test_wait_can_abandon_a_wait_by_itself(self):
        first, second, other = self.key("first"), self.key("second"), self.connect()
        self.client.park(self.dialect.wait(first), other)
        self.client.send(self.dialect.wait(second))
        # The first key does not exist until this answer has arrived, so that it cannot be for the first wait.
        other.set(second, b"v")
        self.assertEqual(self.client.read(1), STOP_WAITING)
        other.set(first, b"v")
        other.round_trip()
        self.assertQuiet(self.client)


class QueueWaits(Case):
    def setUp(self):
        super().setUp()
        self.other = self.connect()

    def test_each_push_wakes_exactly_one_of_two_waiters(self):
        q, d = self.key(), self.dialect
        waiters = [self.connect() for _ in range(2)]
        for waiter in waiters:
            waiter.park(d.wait(q), self.other)
        for value in (b"one", b"two"):
            self.other.send(d.push(q, value))
            self.other.round_trip()
            woken = self.eventually(lambda: [waiter for waiter in waiters if waiter.readable()])
            self.assertEqual(len(woken), 1)
            self.assertEqual(woken[0].read(1), STOP_WAITING)
            self.assertQuiet(*woken)
            waiters.remove(woken[0])
            self.assertEqual(woken[0].pop(q), (1, value))

    def test_waiter_that_was_not_woken_still_waits(self):
        q, d = self.key(), self.dialect
        waiters = [self.connect() for _ in range(2)]
        for waiter in waiters:
            waiter.park(d.wait(q), self.other)
        self.other.send(d.push(q, b"v"))
        self.other.round_trip()
        self.eventually(lambda: any(waiter.readable() for waiter in waiters))
        woken, waiting = sorted(waiters, key=Client.readable, reverse=True)
        self.assertWaits(waiting)
        self.assertEqual(woken.read(1), STOP_WAITING)
        self.assertEqual(woken.pop(q), (1, b"v"))

    def test_waiter_that_was_cancelled_gets_no_element(self):
        q, d = self.key(), self.dialect
        first, second = self.connect(), self.connect()
        first.park(d.wait(q), self.other)
        second.park(d.wait(q), self.other)
        self.assertEqual(first.cancel(), WAIT_CANCELED)
        self.other.send(d.push(q, b"v"))
        self.assertEqual(second.read(1), STOP_WAITING)
        self.assertQuiet(first, second)
        self.assertEqual(second.pop(q), (1, b"v"))

    def test_waiter_that_died_gets_no_element(self):
        q, d = self.key(), self.dialect
        first, second = self.connect(), self.connect()
        first.park(d.wait(q), self.other)
        second.park(d.wait(q), self.other)
        before = self.server.descriptors()
        first.close()
        self.eventually(lambda: self.server.descriptors() < before)
        self.other.send(d.push(q, b"v"))
        self.assertEqual(second.read(1), STOP_WAITING)
        self.assertEqual(second.pop(q), (1, b"v"))

    def test_eight_waiters_get_eight_elements(self):
        # As QUEUE_POP with blocking: each woken client finds an element.
        q, d = self.key(), self.dialect
        waiters = [self.connect() for _ in range(8)]
        for waiter in waiters:
            waiter.park(d.wait(q), self.other)
        self.other.send(*(d.push(q, b"%d" % number) for number in range(8)))
        got = []
        for waiter in waiters:
            self.assertEqual(waiter.read(1), STOP_WAITING)
            got.append(waiter.pop(q)[1])
        self.assertEqual(sorted(got), [b"%d" % number for number in range(8)])

    def test_wait_for_a_key_and_a_queue_ends_once_when_both_are_there(self):
        k, q, d = self.key("key"), self.key("queue"), self.dialect
        for is_queue_first in (True, False):
            for order in ((k, q), (q, k)):
                with self.subTest(is_queue_first=is_queue_first, order=order):
                    if is_queue_first:
                        self.other.send(d.push(q, b"v"))
                        self.other.round_trip()
                    self.client.park(d.wait(*order), self.other)
                    self.assertFalse(self.client.readable())
                    if not is_queue_first:
                        self.other.send(d.push(q, b"v"))
                    self.other.set(k, b"v")
                    self.assertEqual(self.client.read(1), STOP_WAITING)
                    self.assertQuiet(self.client)
                    self.assertEqual(self.other.pop(q), (1, b"v"))
                    self.other.delete(k)

    def test_queue_alone_does_not_end_a_wait_for_a_key_too(self):
        k, q, d = self.key("key"), self.key("queue"), self.dialect
        self.client.park(d.wait(k, q), self.other)
        self.other.send(d.push(q, b"v"))
        self.other.round_trip()
        self.assertWaits(self.client)


class Barriers(Case):
    def setUp(self):
        super().setUp()
        self.other = self.connect()

    def test_last_of_four_ends_the_barrier_for_all(self):
        k, request = self.key(), self.dialect.barrier(self.key(), 4)
        clients = [self.connect() for _ in range(4)]
        for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
            for place in order:
                self.assertFalse(any(client.readable() for client in clients))
                clients[place].send(request)
            for client in clients:
                self.assertEqual(client.read(1), STOP_WAITING)
            self.assertQuiet(*clients)
            self.assertEqual(self.client.get(k), b"4")
            self.assertEqual(self.client.delete(k), 1)

    def test_three_of_four_wait(self):
        request = self.dialect.barrier(self.key(), 4)
        clients = [self.connect() for _ in range(3)]
        for client in clients:
            client.park(request, self.other)
        for client in clients:
            self.assertWaits(client)

    def test_client_that_cancelled_stays_counted(self):
        k, request = self.key(), self.dialect.barrier(self.key(), 4)
        clients = [self.connect() for _ in range(3)]
        for client in clients:
            client.park(request, self.other)
        self.assertEqual(clients[0].cancel(), WAIT_CANCELED)
        self.assertEqual(self.client.get(k), b"3")
        self.client.send(request)
        for client in (self.client, *clients[1:]):
            self.assertEqual(client.read(1), STOP_WAITING)
        self.assertQuiet(self.client, *clients)

    def test_second_use_of_a_key_passes_at_once(self):
        k, request = self.key(), self.dialect.barrier(self.key(), 2)
        clients = [self.connect() for _ in range(2)]
        for count in (2, 4):
            for client in clients:
                client.send(request)
            for client in clients:
                self.assertEqual(client.read(1), STOP_WAITING)
            self.assertEqual(self.client.get(k), b"%d" % count)
        clients[0].send(request)
        self.assertEqual(clients[0].read(1), STOP_WAITING)
        self.assertEqual(self.client.get(k), b"5")

    def test_barrier_of_one_passes_at_once(self):
        self.client.send(self.dialect.barrier(self.key(), 1))
        self.assertEqual(self.client.read(1), STOP_WAITING)
        self.assertQuiet(self.client)

    def test_barrier_shares_its_counter_with_add(self):
        self.assertEqual(self.client.add(self.key(), 2), 2)
        self.client.send(self.dialect.barrier(self.key(), 3))
        self.assertEqual(self.client.read(1), STOP_WAITING)
        self.assertEqual(self.client.add(self.key(), 1), 4)


if __name__ == "__main__":
    main()
