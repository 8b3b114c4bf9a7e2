# SPDX-License-Identifier: Apache-2.0
"""Transfers in coroutines. Run as: core_asyncio_test.py FERRY"""
import asyncio
import gc
import threading
import time

import job
from job import PATIENCE_S, SHORT_S

import ferry


class AsyncioTest(job.Case):
    def setUp(self):
        self.first_node, self.second_node = self.nodes(2)
        self.first, self.second = self.first_node.step(1), self.second_node.step(1)

    def run_async(self, coroutine, **options):
        return asyncio.run(asyncio.wait_for(coroutine, PATIENCE_S), debug=True, **options)

    def test_await(self):
        async def program():
            pending = asyncio.create_task(self.second.arecv("a", source=0))
            await asyncio.sleep(0)
            await self.first.asend(b"1", "a", to=1)
            self.assertEqual((await pending).tobytes(), b"1")
            transfer = self.second.irecv("b", source=0, timeout=PATIENCE_S)
            send = self.first.isend(bytearray(100000), "b", to=1)
            self.assertEqual((await transfer).nbytes, 100000)
            self.assertIsNone(await send)
            # Once more, when it is done.
            self.assertEqual((await transfer).nbytes, 100000)
            out = bytearray(3)
            await self.first.asend(b"out", "c", to=1, timeout=PATIENCE_S)
            self.assertIs(await self.second.arecv("c", source=0, out=out, timeout=PATIENCE_S), out)
            self.assertEqual(out, b"out")
            await self.first.aflush(timeout=PATIENCE_S)
            await asyncio.gather(self.first.aclose(timeout=PATIENCE_S), self.second.aclose(timeout=PATIENCE_S))
            await asyncio.gather(self.first_node.abarrier("b"), self.second_node.abarrier("b", timeout=PATIENCE_S))
        self.run_async(program())

    def test_large_asend_both_ways(self):
        async def program():
            for key, source, target, to in (("a", self.first, self.second, 1), ("b", self.second, self.first, 0)):
                send = asyncio.create_task(source.asend(bytearray(b"\1") * (1 << 20), key, to=to))
                await asyncio.sleep(SHORT_S)
                self.assertFalse(send.done())
                self.assertEqual((await target.arecv(key, source=1 - to)).nbytes, 1 << 20)
                await send
        self.run_async(program())

    def test_the_loop_runs_on_meanwhile(self):
        async def program():
            pending = [asyncio.create_task(self.second.arecv("t", source=0)),
                       asyncio.create_task(self.second_node.abarrier("b")),
                       asyncio.create_task(self.first.asend(bytearray(1 << 20), "u", to=1)),
                       asyncio.create_task(self.first.aflush())]
            turns, start = 0, time.monotonic()
            while time.monotonic() - start < SHORT_S:
                await asyncio.sleep(0)
                turns += 1
            self.assertGreater(turns, 20)
            self.assertFalse(any(task.done() for task in pending))
            await self.first.asend(b"1", "t", to=1)
            await asyncio.gather(self.first_node.abarrier("b"), self.second.arecv("u", source=0), *pending)
        self.run_async(program())

    def test_thousand_awaits_in_one_loop(self):
        async def program():
            threads = threading.active_count()
            pending = [asyncio.create_task(self.second.arecv(f"k{number}", source=0)) for number in range(1000)]
            bare = [self.second.irecv(f"b{number}", source=0, timeout=PATIENCE_S) for number in range(1000)]

            async def wait_for(transfer):
                return await transfer
            pending += [asyncio.create_task(wait_for(transfer)) for transfer in bare]
            await asyncio.sleep(0.01)
            self.assertLess(threading.active_count() - threads, 50)
            for number in range(1000):
                self.first.isend(b"%d" % number, f"k{number}", to=1)
                self.first.isend(b"%d" % number, f"b{number}", to=1)
            got = await asyncio.gather(*pending)
            self.assertEqual([tensor.tobytes() for tensor in got], [b"%d" % number for number in range(1000)] * 2)
        self.run_async(program())

    def test_cancelling_the_task_cancels_the_receive(self):
        async def program():
            out = bytearray(3)
            task = asyncio.create_task(self.second.arecv("t", source=0, out=out))
            await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            del task
            while True:
                gc.collect()
                try:
                    out.clear()
                    break
                except BufferError:
                    await asyncio.sleep(0.01)
            await self.first.asend(b"new", "t", to=1)
            self.assertEqual((await self.second.arecv("t", source=0)).tobytes(), b"new")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.second.arecv("t", source=0), SHORT_S)
            await self.first.asend(b"two", "t", to=1)
            self.assertEqual((await self.second.arecv("t", source=0)).tobytes(), b"two")
            barrier = asyncio.create_task(self.first_node.abarrier("b", timeout=1))
            await asyncio.sleep(0.01)
            barrier.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await barrier
        self.run_async(program())

    def test_cancelling_one_of_two_awaits(self):
        async def program():
            transfer = self.second.irecv("t", source=0, timeout=PATIENCE_S)

            async def wait():
                return (await transfer).tobytes()
            one, two = asyncio.create_task(wait()), asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            one.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await one
            await self.first.asend(b"1", "t", to=1)
            try:
                self.assertEqual(await two, b"1")
            except ferry.TransferCancelledError:
                self.assertTrue(transfer.done())
        self.run_async(program())

    def test_errors(self):
        async def program():
            with self.assertRaises(ferry.FerryTimeoutError) as caught:
                await self.second.arecv("t", source=0, timeout=SHORT_S)
            self.assertEqual((caught.exception.key, caught.exception.rank), ("t", 0))
            with self.assertRaises(TypeError):
                await self.first.asend(object(), "t", to=1)
            with self.assertRaises(ferry.BarrierTimeout) as caught:
                await self.first_node.abarrier("b", timeout=SHORT_S)
            self.assertEqual(list(caught.exception.missing), [1])
            with self.assertRaises(ferry.FerryTimeoutError) as caught:
                await self.first.asend(bytearray(1 << 20), "big", to=1, timeout=SHORT_S)
            self.assertAlmostEqual(caught.exception.waited, SHORT_S)
            transfer = self.second.irecv("t", source=0, timeout=PATIENCE_S)
            task = asyncio.ensure_future(transfer)
            await asyncio.sleep(0)
            transfer.cancel()
            with self.assertRaises(ferry.TransferCancelledError):
                await task
            task = asyncio.create_task(self.second.arecv("t", source=0))
            await asyncio.sleep(0)
            self.second.abort("stopped by hand")
            with self.assertRaises(ferry.FerryError) as caught:
                await task
            self.assertIn("stopped by hand", str(caught.exception))
        self.run_async(program())

    def test_async_with(self):
        async def program():
            async with self.first_node.step(2) as first, self.second_node.step(2) as second:
                await first.asend(b"1", "t", to=1)
                await second.arecv("t", source=0)
            with self.assertRaises(ferry.StepClosedError):
                await first.asend(b"1", "t", to=1)
            with self.assertRaises(KeyError):
                async with self.first_node.step(3) as step:
                    raise KeyError("mine")
            with self.assertRaises(ferry.StepClosedError):
                self.first_node.step(3)
            del step
            async with self.first_node as node:
                self.assertIs(node, self.first_node)
            self.assertTrue(self.first_node.closed)
            with self.assertRaises(ferry.FerryError):
                await self.second.arecv("t", source=0)
            waiting = asyncio.create_task(self.second_node.abarrier("b"))
            with self.assertRaises(ZeroDivisionError):
                async with self.second_node:
                    raise ZeroDivisionError("by chance")
            with self.assertRaises(ferry.FerryError):
                await waiting
        self.run_async(program())

    def test_async_with_join(self):
        one = self.job(1)

        async def program():
            async with ferry.join(one.address, rank=0, world_size=1) as node:
                async with node.step(1) as step:
                    await step.asend(b"1", "t", to=0)
                    return (await step.arecv("t", source=0)).tobytes()
        self.assertEqual(self.run_async(program()), b"1")

    def test_watch(self):
        async def program():
            got = []
            with self.first_node.watch("w/") as watch:
                async def write():
                    for number in range(100):
                        self.second_node.store[f"w/{number}"] = b"%d" % number
                        await asyncio.sleep(0)
                writer = asyncio.create_task(write())
                async for change in watch:
                    got.append(change.value)
                    if len(got) == 100:
                        break
                await writer
                self.assertEqual(got, [b"%d" % number for number in range(100)])
                idle = asyncio.ensure_future(watch.__anext__())
                await asyncio.sleep(SHORT_S)
                self.assertFalse(idle.done())
                idle.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await idle
                self.second_node.store["w/last"] = b"last"
                async for change in watch:
                    self.assertEqual(change.value, b"last")
                    break
        self.run_async(program())

    def test_loop_that_is_closed_with_transfers_pending(self):
        # Neither a crash nor a complaint when they are done later.
        transfers = [self.second.irecv(f"k{number}", source=0, timeout=PATIENCE_S) for number in range(20)]

        async def program():
            async def wait(transfer):
                return await transfer
            tasks = [asyncio.create_task(wait(transfer)) for transfer in transfers]
            await asyncio.sleep(0.01)
            return tasks
        loop = asyncio.new_event_loop()
        complaints = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        tasks = loop.run_until_complete(program())
        loop.close()
        for task in tasks:
            task._log_destroy_pending = False  # pylint: disable=protected-access
        for number in range(20):
            self.first.isend(b"1", f"k{number}", to=1)
        self.assertEqual([transfer.wait(PATIENCE_S).tobytes() for transfer in transfers], [b"1"] * 20)
        del tasks
        gc.collect()
        self.assertEqual(complaints, [])
        # And the next loop works.
        self.test_await()

    def test_loops_in_several_threads(self):
        def work(number):
            async def program():
                for turn in range(50):
                    key = f"{number}/{turn}"
                    receive = asyncio.create_task(self.second.arecv(key, source=0))
                    await asyncio.sleep(0)
                    await self.first.asend(key.encode(), key, to=1)
                    self.assertEqual((await receive).tobytes(), key.encode())
            asyncio.run(asyncio.wait_for(program(), PATIENCE_S))
        job.in_threads(*(lambda number=number: work(number) for number in range(6)))

    def test_await_in_one_loop_what_another_has_begun(self):
        transfer = self.second.irecv("t", source=0, timeout=PATIENCE_S)

        def work():
            async def program():
                return (await transfer).tobytes()
            return asyncio.run(asyncio.wait_for(program(), PATIENCE_S))
        calls = [job.Later(work) for _ in range(4)]
        time.sleep(SHORT_S)
        self.first.send(b"1", "t", to=1)
        self.assertEqual([call.result() for call in calls], [b"1"] * 4)

    def test_await_without_a_loop(self):
        transfer = self.second.irecv("t", source=0, timeout=PATIENCE_S)
        with self.assertRaises(RuntimeError):
            next(iter(transfer.__await__()))
        self.first.send(b"1", "t", to=1)
        self.assertEqual(transfer.wait(PATIENCE_S).tobytes(), b"1")

    def test_no_leak_over_10000_awaits(self):
        async def turns(count):
            for _ in range(count):
                pending = self.second.irecv("t", source=0, timeout=PATIENCE_S)
                self.first.isend(b"1", "t", to=1)
                await pending
                await self.first.asend(b"2", "u", to=1)
                await self.second.arecv("u", source=0)

        async def program():
            await turns(300)
            gc.collect()
            objects = len(gc.get_objects())
            await turns(3000)
            gc.collect()
            self.assertLess(len(gc.get_objects()) - objects, 100)
        asyncio.run(asyncio.wait_for(program(), 3 * PATIENCE_S))


if __name__ == "__main__":
    job.main()
