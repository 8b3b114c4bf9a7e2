#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's TCPStore protocol on the coordinator's port: operations that do not wait.

    operations_test.py FERRY [CASE...]
"""
import selectors
import struct

from store_client import (MIB, NOT_READY, READY, STOP_WAITING, V1_13, V2_1, V2_2, Case, i64,
                          in_dialects, in_each_dialect, main, text, u64)

INT64_MAX, INT64_MIN = 2**63 - 1, -2**63


@in_each_dialect
class Values:
    def test_set_wait_and_get_in_one_segment_are_answered_in_order(self):
        k, d = self.key(), self.dialect
        self.client.send(d.set(k, b"v"), d.wait(k), d.get(k))
        self.assertEqual(self.client.read(1), STOP_WAITING)
        self.assertEqual(self.client.vector(), b"v")
        self.assertQuiet(self.client)

    def test_value_replaces_an_earlier_one(self):
        k = self.key()
        for value in (b"first", b"second, and longer", b""):
            self.client.set(k, value)
            self.assertEqual(self.client.get(k), value)

    def test_keys_and_values_are_any_bytes(self):
        every = bytes(range(256))
        for key in (b"", b"\0", b"/\xff\xfe\0\x80", every, b"a" * 8192):
            for value in (b"", b"\0", every, b"\xc3\x28"):
                with self.subTest(key=key[:20], value=value[:20]):
                    self.client.set(key, value)
                    self.assertEqual(self.client.check(key), READY)
                    self.assertEqual(self.client.get(key), value)
            self.assertEqual(self.client.delete(key), 1)

    def test_absent_key_has_an_empty_value(self):
        self.assertEqual(self.client.get(self.key()), b"")
        self.assertEqual(self.client.check(self.key()), NOT_READY)

    def test_value_of_8_mib_comes_back_unchanged(self):
        k, value = self.key(), b"0123456789abcde\n" * (8 * MIB // 16)
        self.client.set(k, value)
        self.assertTrue(self.client.get(k) == value)
        self.assertEqual(self.client.delete(k), 1)

    def test_value_over_8_mib_is_stored_or_ends_the_connection(self):
        k, value = self.key(), b"v" * (8 * MIB + 1)
        other = self.connect()
        try:
            self.client.set(k, value)
            is_stored = self.client.get(k) == value
        except (ConnectionError, EOFError):
            is_stored = False
        self.assertEqual(other.check(k), READY if is_stored else NOT_READY)
        other.delete(k)
        self.assertQuiet(other)

    def test_set_with_a_pause_before_the_value_is_stored_when_it_is_complete(self):
        # The pause is the condition itself: longer than any time in which a server decides that no more bytes come.
        k, d, other = self.key(), self.dialect, self.connect()
        before = other.num_keys()
        request = d.set(k, b"value")
        self.client.send(request[:-5 - 8])
        self.pause(1)
        self.assertEqual(other.check(k), NOT_READY)
        self.client.send(request[-5 - 8:])
        self.assertEqual(self.client.get(k), b"value")
        self.assertEqual(other.num_keys(), before + 1)

    def test_request_in_single_bytes_is_handled_once(self):
        k, d = self.key(), self.dialect
        for byte in d.set(k, b"v") + d.add(k + b"n", 5) + d.get(k):
            self.client.send(bytes([byte]))
        self.assertEqual(self.client.i64(), 5)
        self.assertEqual(self.client.vector(), b"v")
        self.assertEqual(self.client.get(k + b"n"), b"5")

    def test_delete_answers_how_many_it_deleted(self):
        k = self.key()
        self.client.set(k, b"v")
        self.assertEqual(self.client.delete(k), 1)
        self.assertEqual(self.client.check(k), NOT_READY)
        self.assertEqual(self.client.delete(k), 0)

    def test_check_is_ready_only_when_all_keys_exist(self):
        here, there = self.key("here"), self.key("there")
        self.client.set(here, b"")
        self.assertEqual(self.client.check(here, there), NOT_READY)
        self.assertEqual(self.client.check(there, here), NOT_READY)
        self.client.set(there, b"v")
        self.assertEqual(self.client.check(here, there), READY)
        self.assertEqual(self.client.check(here, here), READY)

    def test_check_of_no_keys_is_ready(self):
        self.assertEqual(self.client.check(), READY)

    def test_number_of_keys_counts_raw_keys_too(self):
        before = self.client.num_keys()
        self.client.set(self.key(), b"v")
        self.assertEqual(self.client.num_keys(), before + 1)
        # The counter of a job's clients, which has no slash before it. A second addition is no second key.
        for count in (1, 2):
            self.assertEqual(self.client.add(b"init/", 1), count)
            self.assertEqual(self.client.num_keys(), before + 2)
        self.client.delete(b"init/")
        self.client.delete(self.key())
        self.assertEqual(self.client.num_keys(), before)

    def test_128_ki_keys_in_a_request_are_answered(self):
        k = self.key()
        self.client.set(k, b"v")
        request = self.dialect.op("CHECK") + u64(128 << 10) + text(k) * (128 << 10)
        self.client.send(request)
        self.assertEqual(self.client.read(1), READY)
        self.client.send(request[:-1] + b"?")
        self.assertEqual(self.client.read(1), NOT_READY)


@in_each_dialect
class CompareSet:
    def test_absent_key_expected_empty_is_set(self):
        k = self.key()
        self.assertEqual(self.client.compare_set(k, b"", b"new"), b"new")
        self.assertEqual(self.client.get(k), b"new")

    def test_absent_key_expected_otherwise_stays_absent_and_answers_the_expectation(self):
        k = self.key()
        self.assertEqual(self.client.compare_set(k, b"old", b"new"), b"old")
        self.assertEqual(self.client.check(k), NOT_READY)

    def test_equal_value_is_replaced(self):
        k = self.key()
        self.client.set(k, b"old")
        self.assertEqual(self.client.compare_set(k, b"old", b"new"), b"new")
        self.assertEqual(self.client.get(k), b"new")
        self.client.set(k, b"")
        self.assertEqual(self.client.compare_set(k, b"", b"again"), b"again")

    def test_different_value_stays_and_is_answered(self):
        k = self.key()
        self.client.set(k, b"there")
        self.assertEqual(self.client.compare_set(k, b"old", b"new"), b"there")
        self.assertEqual(self.client.get(k), b"there")

    def test_present_key_expected_empty_stays(self):
        k = self.key()
        self.client.set(k, b"there")
        self.assertEqual(self.client.compare_set(k, b"", b"new"), b"there")
        self.assertEqual(self.client.get(k), b"there")

    def test_two_clients_that_expect_no_value_agree_on_one(self):
        one, two = self.connect(), self.connect()
        for attempt in range(200):
            k = self.key(str(attempt))
            one.send(self.dialect.compare_set(k, b"", b"one"))
            two.send(self.dialect.compare_set(k, b"", b"two"))
            answers = {one.vector(), two.vector()}
            self.assertEqual(len(answers), 1, answers)
            self.assertEqual({self.client.get(k)}, answers)
            self.assertIn(answers.pop(), (b"one", b"two"))


@in_each_dialect
class Adds:
    def test_absent_key_counts_from_zero(self):
        self.assertEqual(self.client.add(self.key("a"), 5), 5)
        self.assertEqual(self.client.add(self.key("b"), 0), 0)
        self.assertEqual(self.client.get(self.key("b")), b"0")

    def test_negative_numbers_are_added(self):
        k = self.key()
        self.assertEqual(self.client.add(k, -3), -3)
        self.assertEqual(self.client.get(k), b"-3")
        self.assertEqual(self.client.add(k, 1), -2)
        self.assertEqual(self.client.add(k, 12), 10)

    def test_decimal_text_is_a_number(self):
        k = self.key()
        for value, total in ((b"7", 10), (b"-7", -4), (b"0", 3)):
            self.client.set(k, value)
            self.assertEqual(self.client.add(k, 3), total)

    def test_sum_is_stored_as_decimal_text(self):
        k = self.key()
        self.client.add(k, 1)
        self.client.add(k, 2)
        self.assertEqual(self.client.get(k), b"3")
        self.assertEqual(self.client.compare_set(k, b"3", b"4"), b"4")
        self.assertEqual(self.client.add(k, 1), 5)

    def test_other_text_ends_the_connection_and_no_other(self):
        k, other = self.key(), self.connect()
        for value in (b"x", b"-", b"\0"):
            with self.subTest(value):
                other.set(k, value)
                other.round_trip()
                client = self.connect()
                self.assertEqual(client.refused(self.dialect.add(k, 1)), b"")
                self.assertEqual(other.get(k), value)

    def test_sum_wraps_at_64_bits(self):
        k = self.key()
        self.assertEqual(self.client.add(k, INT64_MAX), INT64_MAX)
        self.assertEqual(self.client.add(k, 1), INT64_MIN)
        self.assertEqual(self.client.get(k), b"%d" % INT64_MIN)
        self.assertEqual(self.client.add(k, -1), INT64_MAX)

    def test_64_clients_that_add_one_draw_each_number_once(self):
        clients, k = [self.connect() for _ in range(64)], self.key()
        each = 1000 if self.dialect is V2_2 else 100
        request = self.dialect.add(k, 1)
        drawn = []
        with selectors.DefaultSelector() as selector:
            for client in clients:
                selector.register(client.socket, selectors.EVENT_READ, [client, each - 1])
                client.send(request)
            while len(drawn) < len(clients) * each:
                ready = selector.select(30)
                self.assertTrue(ready, f"no answer to an ADD in 30 s, after {len(drawn)}")
                for event, _ in ready:
                    drawn.append(event.data[0].i64())
                    if event.data[1]:
                        event.data[1] -= 1
                        event.data[0].send(request)
        self.assertTrue(sorted(drawn) == list(range(1, len(drawn) + 1)),
                        f"{len(set(drawn))} numbers from {min(drawn)} to {max(drawn)} in {len(drawn)} answers")
        self.assertEqual(self.client.get(k), b"%d" % (64 * each))


@in_dialects(V2_1, V2_2)
class Appends:
    def test_append_creates_and_extends(self):
        k, d = self.key(), self.dialect
        self.client.send(d.append(k, b"one"))
        self.assertEqual(self.client.get(k), b"one")
        self.client.send(d.append(k, b""), d.append(k, b", two"), d.append(k, b"\0"))
        self.assertEqual(self.client.get(k), b"one, two\0")

    def test_append_of_nothing_creates_an_empty_value(self):
        k = self.key()
        self.client.send(self.dialect.append(k, b""))
        self.assertEqual(self.client.check(k), READY)
        self.assertEqual(self.client.get(k), b"")

    def test_multi_set_and_multi_get_in_one_segment_keep_the_order(self):
        d = self.dialect
        keys = [self.key(str(number)) for number in range(100)]
        values = [b"v" * number for number in range(100)]
        absent = self.key("absent")
        asked = keys[::-1] + [absent] + keys[:1] * 2
        self.client.send(d.multi_set(list(zip(keys, values))), d.multi_get(*asked))
        self.assertEqual([self.client.vector() for _ in asked], values[::-1] + [b""] + values[:1] * 2)
        self.assertQuiet(self.client)
        self.assertEqual(self.client.check(absent), NOT_READY)

    def test_multi_set_of_one_key_twice_keeps_the_last_value(self):
        k = self.key()
        self.client.send(self.dialect.multi_set([(k, b"1"), (k, b"2")]))
        self.assertEqual(self.client.get(k), b"2")

    def test_multi_get_and_multi_set_of_no_keys_have_no_answer(self):
        self.client.send(self.dialect.multi_set([]), self.dialect.multi_get())
        self.assertQuiet(self.client)


class Queues(Case):
    def test_elements_leave_in_the_order_of_arrival(self):
        q, d = self.key(), self.dialect
        self.client.send(*(d.push(q, value) for value in (b"one", b"", b"three")))
        self.assertEqual(self.client.queue_len(q), 3)
        self.assertEqual([self.client.pop(q) for _ in range(3)], [(3, b"one"), (2, b""), (1, b"three")])
        self.assertEqual(self.client.queue_len(q), 0)

    def test_pop_of_an_empty_queue_answers_the_length_alone(self):
        q = self.key()
        self.assertEqual(self.client.pop(q), (0, None))
        self.assertQuiet(self.client)
        self.client.send(self.dialect.push(q, b"v"))
        self.assertEqual(self.client.pop(q), (1, b"v"))
        self.assertEqual(self.client.pop(q), (0, None))
        self.assertQuiet(self.client)

    def test_queue_exists_for_check_while_it_is_not_empty(self):
        q = self.key()
        self.assertEqual(self.client.check(q), NOT_READY)
        self.client.send(self.dialect.push(q, b"v"))
        self.assertEqual(self.client.check(q), READY)
        self.client.pop(q)
        self.assertEqual(self.client.check(q), NOT_READY)

    def test_queues_are_not_counted_as_keys(self):
        before = self.client.num_keys()
        self.client.send(self.dialect.push(self.key(), b"v"))
        self.assertEqual(self.client.num_keys(), before)
        self.assertNotIn(self.key(), self.client.list_keys())


class ListedKeys(Case):
    def setUp(self):
        super().setUp()
        self.delete_all_keys()

    def test_empty_store_has_no_keys(self):
        self.assertEqual(self.client.list_keys(), [])
        self.assertQuiet(self.client)

    def test_one_key_is_listed_as_it_was_sent(self):
        for key in (b"/a/k", b"init/", b"", b"\xff\0"):
            self.client.set(key, b"v")
            self.assertEqual(self.client.list_keys(), [key])
            self.client.delete(key)
        self.assertEqual(self.client.list_keys(), [])

    def test_ten_thousand_keys_are_listed_once_each(self):
        keys = [b"/%d" % number for number in range(10000)]
        self.client.send(self.dialect.multi_set([(key, b"v") for key in keys]))
        listed = self.client.list_keys()
        self.assertEqual((len(listed), set(keys) - set(listed)), (10000, set()))
        self.assertEqual(self.client.num_keys(), 10000)


@in_each_dialect
class HostileLengths:
    """Each in the first field that it can be in, and in the last."""

    def refused_without_allocating(self, requests):
        before = self.server.resident_bytes()
        for name, request in requests.items():
            with self.subTest(name):
                self.assertEqual(self.connect().refused(request), b"")
        self.assertLess(self.server.resident_bytes() - before, 256 * MIB)
        self.assertQuiet(self.client)

    def test_length_of_2_to_63_and_more_ends_the_connection_without_allocating(self):
        d, k = self.dialect, text(self.key())
        for size in (2**63, 2**64 - 1, 2**62, 2**40):
            huge = u64(size) + b"some bytes"
            requests = {"SET key": d.op("SET") + huge, "SET value": d.op("SET") + k + huge,
                        "COMPARE_SET expected": d.op("COMPARE_SET") + k + huge,
                        "COMPARE_SET desired": d.op("COMPARE_SET") + k + k + huge,
                        "GET": d.op("GET") + huge, "ADD": d.op("ADD") + huge,
                        "CHECK": d.op("CHECK") + u64(2) + k + huge, "WAIT": d.op("WAIT") + u64(1) + huge,
                        "DELETE_KEY": d.op("DELETE_KEY") + huge}
            if d.has("APPEND"):
                requests["APPEND"] = d.op("APPEND") + k + huge
                requests["MULTI_GET"] = d.op("MULTI_GET") + u64(1) + huge
                requests["MULTI_SET value"] = d.op("MULTI_SET") + i64(1) + k + huge
            if d.has("BARRIER"):
                requests["QUEUE_PUSH"] = d.op("QUEUE_PUSH") + k + huge
                requests["QUEUE_POP"] = d.op("QUEUE_POP") + huge
                requests["QUEUE_LEN"] = d.op("QUEUE_LEN") + huge
                requests["BARRIER"] = d.op("BARRIER") + huge
            self.refused_without_allocating(requests)
        self.assertEqual(self.client.check(self.key()), NOT_READY)

    def test_number_of_keys_of_2_to_40_ends_the_connection_without_allocating(self):
        names = ["CHECK", "WAIT"] + (["MULTI_GET", "MULTI_SET"] if self.dialect.has("MULTI_GET") else [])
        for count in (2**40, 2**62, 2**63 - 1):
            self.refused_without_allocating({name: self.dialect.op(name) + u64(count) + text(b"k") * 3
                                             for name in names})

    def test_announced_values_that_never_come_occupy_no_memory(self):
        before = self.server.resident_bytes()
        clients = [self.connect() for _ in range(100)]
        for client in clients:
            client.send(self.dialect.op("SET") + text(self.key()) + u64(8 * MIB) + b"few bytes")
        self.assertQuiet(self.client)
        for client in clients:
            client.close()
        self.assertQuiet(self.client)
        self.assertLess(self.server.resident_bytes() - before, 256 * MIB)
        self.assertEqual(self.client.check(self.key()), NOT_READY)


class Pings(Case):
    def test_nonce_comes_back(self):
        for nonce in (0, 1, 0x12345678, 0xFFFFFFFF):
            self.client.send(self.dialect.ping(nonce))
            self.assertEqual(self.client.read(4), struct.pack("<I", nonce))


class Dialects(Case):
    """Whole conversations, byte by byte as the releases have them."""

    def setUp(self):
        super().setUp()
        self.delete_all_keys()

    def conversation(self, dialect, *turns):
        client = self.connect(dialect)
        for sent, expected in turns:
            client.send(bytes.fromhex(sent))
            got = client.read(len(bytes.fromhex(expected)))
            self.assertEqual(got.hex(), expected.replace(" ", ""), f"after {sent}")
        self.assertQuiet(client)

    def test_release_1_13_has_its_operations_in_its_numbers(self):
        self.conversation(
            V1_13,
            ("00 0200000000000000 2f61 0100000000000000 76", ""),                   # SET /a = v
            ("02 0200000000000000 2f61", "0100000000000000 76"),                    # GET
            ("01 0200000000000000 2f61 0100000000000000 76 0100000000000000 77", "0100000000000000 77"),
            ("03 0200000000000000 2f6e feffffffffffffff", "feffffffffffffff"),      # ADD -2
            ("04 0200000000000000 0200000000000000 2f61 0200000000000000 2f78", "01"),
            ("04 0100000000000000 0200000000000000 2f61", "00"),                    # CHECK
            ("05 0100000000000000 0200000000000000 2f61", "00"),                    # WAIT
            ("06", "0200000000000000"),                                             # GETNUMKEYS
            ("08 0200000000000000 2f61", "0100000000000000"),                       # DELETE_KEY
            ("08 0200000000000000 2f61", "0000000000000000"),
            ("08 0200000000000000 2f6e", "0100000000000000"),
            ("06", "0000000000000000"))

    def test_release_2_1_has_its_operations_in_its_numbers(self):
        self.conversation(
            V2_1,
            ("00 0200000000000000 2f62 0100000000000000 76", ""),                   # SET /b = v
            ("02 0200000000000000 2f62", "0100000000000000 76"),                    # GET
            ("07 0200000000000000 2f62", "0100000000000000"),                       # DELETE_KEY
            ("08 0200000000000000 2f62 0100000000000000 31", ""),                   # APPEND 1
            ("08 0200000000000000 2f62 0100000000000000 32", ""),                   # APPEND 2
            ("03 0200000000000000 2f62 0100000000000000", "0d00000000000000"),      # ADD 1
            ("0a 0100000000000000 0200000000000000 2f63 0100000000000000 77", ""),  # MULTI_SET /c = w
            ("09 0200000000000000 0200000000000000 2f63 0200000000000000 2f62",     # MULTI_GET
             "0100000000000000 77 0200000000000000 3133"),
            ("05 0100000000000000 0200000000000000 2f64", ""),                      # WAIT
            ("0b", "01"),                                                           # CANCEL_WAIT
            ("07 0200000000000000 2f62", "0100000000000000"),
            ("07 0200000000000000 2f63", "0100000000000000"),
            ("06", "0000000000000000"))

    def test_release_2_15_has_its_operations_in_its_numbers(self):
        self.conversation(
            V2_2,
            ("0d 39300000", "39300000"),                                            # PING
            ("01 0200000000000000 2f64 0100000000000000 76", ""),                   # SET /d = v
            ("02 0200000000000000 2f64 0100000000000000 76 0100000000000000 77", "0100000000000000 77"),
            ("03 0200000000000000 2f64", "0100000000000000 77"),                    # GET
            ("04 0200000000000000 2f6e 0300000000000000", "0300000000000000"),      # ADD
            ("05 0100000000000000 0200000000000000 2f64", "00"),                    # CHECK
            ("06 0100000000000000 0200000000000000 2f64", "00"),                    # WAIT
            ("07", "0200000000000000"),                                             # GETNUMKEYS
            ("08 0200000000000000 2f6e", "0100000000000000"),                       # DELETE_KEY
            ("09 0200000000000000 2f64 0100000000000000 78", ""),                   # APPEND
            ("0a 0100000000000000 0200000000000000 2f64", "0200000000000000 7778"),  # MULTI_GET
            ("0b 0100000000000000 0200000000000000 2f64 0100000000000000 79", ""),  # MULTI_SET
            ("0c", "01"),                                                           # CANCEL_WAIT
            ("0e 0200000000000000 2f71 0100000000000000 7a", ""),                   # QUEUE_PUSH
            ("10 0200000000000000 2f71", "0100000000000000"),                       # QUEUE_LEN
            ("0f 0200000000000000 2f71", "0100000000000000 0100000000000000 7a"),   # QUEUE_POP
            ("0f 0200000000000000 2f71", "0000000000000000"),
            ("11", "0100000000000000 0200000000000000 2f64"),                       # LIST_KEYS
            ("12 0200000000000000 2f72 0100000000000000", "00"),                    # BARRIER
            ("08 0200000000000000 2f72", "0100000000000000"),
            ("08 0200000000000000 2f64", "0100000000000000"))

    def test_delete_is_the_first_request_of_release_1_13(self):
        k = self.key()
        self.client.set(k, b"v")
        self.client.round_trip()
        self.assertEqual(self.connect(V1_13).delete(k), 1)
        self.assertEqual(self.client.check(k), NOT_READY)

    def test_append_is_the_first_request_of_release_2_1(self):
        k = self.key()
        client = self.connect(V2_1)
        client.send(V2_1.append(k, b"value"))
        self.assertEqual(client.get(k), b"value")
        self.assertEqual(self.client.get(k), b"value")

    def test_delete_is_the_first_request_of_release_2_1(self):
        k = self.key()
        self.client.set(k, b"v")
        self.client.round_trip()
        self.assertEqual(self.connect(V2_1).delete(k), 1)

    def test_append_whose_value_comes_later_is_an_append_once_release_2_1_is_known(self):
        # Only 2.1 has number 11. The pause is longer than the time in which a request with number 8 is a DELETE_KEY.
        k, client = self.key(), self.connect(V2_1)
        self.assertEqual(client.cancel(), b"\1")
        request = V2_1.append(k, b"value")
        client.send(request[:-5 - 8])
        self.pause(0.8)
        client.send(request[-5 - 8:])
        self.assertEqual(client.get(k), b"value")

    def test_append_of_release_2_1_whose_second_half_is_lost_once_is_an_append(self):
        # A lost packet is sent again after some 200 ms.
        k, client = self.key(), self.connect(V2_1)
        client.send(V2_1.set(k, b"some"))
        request = V2_1.append(k, b"value")
        client.send(request[:-5 - 8])
        self.pause(0.25)
        client.send(request[-5 - 8:])
        self.assertEqual(client.get(k), b"somevalue")

    def test_release_1_13_sends_the_number_alone_and_the_fields_a_second_later(self):
        k, client = self.key(), self.connect(V1_13)
        for request, read, answer in ((V1_13.set(k, b"v"), None, None), (V1_13.get(k), client.vector, b"v"),
                                      (V1_13.delete(k), client.i64, 1)):
            client.send(request[:1])
            self.pause(1)
            client.send(request[1:])
            if read:
                self.assertEqual(read(), answer)
        self.assertQuiet(client)

    def test_release_1_13_sends_each_field_by_itself(self):
        k, client = self.key(), self.connect(V1_13)
        for piece in (b"\0", u64(len(k)), k, u64(5), b"value"):
            client.send(piece)
        for piece in (b"\2", u64(len(k)), k):
            client.send(piece)
        self.assertEqual(client.vector(), b"value")
        for piece in (b"\5", u64(2), u64(len(k)), k, u64(len(k)), k):
            client.send(piece)
        self.assertEqual(client.read(1), STOP_WAITING)
        self.assertQuiet(client)

    def test_clients_of_all_releases_share_their_keys(self):
        k = self.key()
        clients = [self.connect(dialect) for dialect in (V1_13, V2_1, V2_2)]
        for setter in clients:
            setter.set(k, setter.d.name.encode())
            setter.round_trip()
            for getter in clients:
                self.assertEqual(getter.get(k), setter.d.name.encode())
        self.assertEqual([client.add(self.key("n"), 1) for client in clients], [1, 2, 3])


if __name__ == "__main__":
    main()
