#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every wait of every verb ends within a second of SIGINT and of SIGTERM, also when the coordinator
or another node has been stopped.

    cli_signals_test.py FERRY [CASE...]
"""
import os
import signal
import socket
import time

import harness

# Slack for a loaded machine, beyond the promised second.
LIMIT_S = 1 + 0.5
# For waits that print nothing: they have begun by then.
BEGUN_S = 1

GRAPH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/crossing.pbtxt")
NODE = ("--num-nodes=2", "--node-id=0")


class Wait:
    """One row of the table: the waiting verb, its peer, and the processes that have been stopped.

    nodes: of the coordinator; 0: there is none, but a listener that accepts connections.
    peers: workers of the job, from node 1 on.
    says: printed by the verb when the wait has begun; None: waiting BEGUN_S is enough.
    stops: "coordinator", "peer", both or nothing.
    """

    def __init__(self, name, verb, nodes=2, peers=0, says=None, stops=()):
        self.name, self.verb, self.nodes, self.peers = name, verb, nodes, peers
        self.says, self.stops = says, stops


def with_stops(name, verb, stops, **options):
    """The same wait with each of these stopped."""
    return [Wait(f"{name}, {' and '.join(each) or 'nothing'} stopped", verb, stops=each, **options)
            for each in stops]


NONE, COORDINATOR, PEER = (), ("coordinator",), ("peer",)

WAITS = [
    *with_stops("worker that joins", ("worker", *NODE), (NONE, COORDINATOR),
                says="waiting for node 1 to join"),
    Wait("worker without a coordinator", ("worker", *NODE), nodes=0,
         says="waiting for the coordinator"),
    *with_stops("worker that stays", ("worker", *NODE), (NONE, COORDINATOR, PEER), peers=1,
                says="joined at"),
    *with_stops("worker that leaves with the others", ("worker", "--exit-after-join", *NODE),
                (NONE, COORDINATOR, PEER, COORDINATOR + PEER), peers=1, says="joined at"),
    *with_stops("send", ("send", "x", "--to=1", *NODE), (NONE, COORDINATOR, PEER), peers=1,
                says="waiting for node 1 to take"),
    *with_stops("recv", ("recv", "x", "--from=1", *NODE), (NONE, COORDINATOR, PEER), peers=1,
                says="waiting for \"x\" from node 1"),
    *with_stops("joined bench", ("bench", "sendrecv", *NODE), (NONE, COORDINATOR, PEER), peers=1),
    *with_stops("kv get", ("kv", "get", "k", "--timeout=60s"), (NONE, COORDINATOR),
                says="waiting for key"),
    *with_stops("kv watch", ("kv", "watch"), (NONE, COORDINATOR)),
    Wait("kv watch without a coordinator", ("kv", "watch"), nodes=0, says="looking for"),
    *with_stops("status --watch", ("status", "--watch"), (NONE, COORDINATOR), says="NODE|node"),
    Wait("status --watch without a coordinator", ("status", "--watch"), nodes=0,
         says="looking for"),
    Wait("step without workers", ("step", f"--graph={GRAPH}", "--feed=x=[1, 2]", "--fetch=z"),
         says="waiting for steps"),
    *with_stops("step", ("step", f"--graph={GRAPH}", "--feed=x=[1, 2]", "--fetch=z",
                         "--count=10000000"), (NONE, COORDINATOR, PEER), peers=2,
                says="waiting for steps"),
    Wait("step without a coordinator", ("step", f"--graph={GRAPH}", "--feed=x=[1, 2]",
                                        "--fetch=z"), nodes=0, says="waiting for steps"),
    Wait("run that waits for the first machine", ("run", "--nodes=2", "--node-id=1", "--", "true"),
         says="waiting for ferry run of the first machine"),
    Wait("run without a coordinator", ("run", "--nodes=2", "--node-id=1", "--", "true"), nodes=0,
         says="looking for the coordinator"),
    *with_stops("run", ("run", "--", "sleep", "1000"), (NONE, COORDINATOR)),
    # Requests to a coordinator that has been stopped, or does not answer: these verbs have no other
    # wait.
    *[Wait(f"{verb[0]} {' '.join(verb[1:])} without a coordinator", verb, nodes=0)
      for verb in (("status",), ("status", "--pending"), ("kv", "set", "a", "1"), ("kv", "ls"),
                   ("kv", "rm", "a"), ("topo",), ("trace", "-o", "/dev/null"),
                   ("bench", "barrier", *NODE), ("bench", "sendrecv", *NODE))],
    Wait("demo", ("demo",), nodes=None, says="barriers"),
    Wait("bench of its own processes", ("bench", "sendrecv", "--iters=1000000"), nodes=None),
    Wait("kv bench of its own processes", ("bench", "kv"), nodes=None),
    Wait("step with its own job", ("step", f"--graph={GRAPH}", "--feed=x=[1, 2]", "--fetch=z",
                                   "--count=10000000"), nodes=None, says="waiting for steps"),
]


class Signals(harness.Case):
    def silent_server(self):
        """An address that accepts connections and sends nothing."""
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        return f"127.0.0.1:{server.getsockname()[1]}"

    def stop(self, process):
        process.signal(signal.SIGSTOP)
        os.waitpid(process.popen.pid, os.WUNTRACED)
        self.addCleanup(process.signal, signal.SIGCONT)

    def ends_in_time(self, wait, number):
        arguments = list(wait.verb)
        stoppable = {}
        if wait.nodes is not None:
            if wait.nodes:
                stoppable["coordinator"], address = self.coordinator(max(wait.nodes, wait.peers))
            else:
                address = self.silent_server()
            at = arguments.index("--") if "--" in arguments else len(arguments)
            arguments.insert(at, f"--coordinator={address}")
        first = wait.nodes - wait.peers if wait.nodes else 0
        for node in range(first, first + wait.peers):
            stoppable["peer"] = self.worker(address, node, wait.nodes)
        if wait.peers and not first:
            stoppable["peer"].wait_for("joined at")
        process = self.start(*arguments)
        if wait.says:
            process.wait_for(wait.says)
        else:
            time.sleep(BEGUN_S)
            self.assertIsNone(process.popen.poll(), process.err)
        for name in wait.stops:
            self.stop(stoppable[name])
        start = time.monotonic()
        process.signal(number)
        process.wait(10)
        taken = time.monotonic() - start
        if taken < LIMIT_S:
            return ""
        return f"{taken:.1f} s: {process.out!r} {process.err!r}"

    def in_one_of_three(self, attempt):
        """`attempt` returns what took too long. The machine may delay one end, and a verb that waits for its timeout
        is late each time."""
        late = []
        while len(late) < 3:
            why = attempt()
            if not why:
                return
            late.append(why)
            # The processes of one attempt do not slow the next one down.
            self.doCleanups()
        self.fail(f"{LIMIT_S} s were exceeded three times: {late}")

    def test_every_wait_ends_within_a_second(self):
        for row, wait in enumerate(WAITS):
            # Alternating, since every verb takes both in one place.
            number = (signal.SIGINT, signal.SIGTERM)[row % 2]
            with self.subTest(wait.name, signal=signal.Signals(number).name):
                self.in_one_of_three(lambda wait=wait, number=number: self.ends_in_time(wait, number))
            # The processes of one row do not slow the next one down.
            self.doCleanups()

    def test_coordinator_ends_within_a_second_also_with_clients_that_were_stopped(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for stops in (False, True):
                with self.subTest(number, stops=stops):
                    self.in_one_of_three(
                        lambda number=number, stops=stops: self.coordinator_ends_in_time(number, stops))
                self.doCleanups()

    def coordinator_ends_in_time(self, number, stops):
        coordinator, address = self.coordinator(3)
        worker = self.worker(address, 0, 3)
        worker.wait_for("waiting for nodes 1,2")
        watch = self.start("kv", "watch", f"--coordinator={address}")
        time.sleep(BEGUN_S)
        if stops:
            self.stop(worker)
            self.stop(watch)
        start = time.monotonic()
        coordinator.signal(number)
        self.assertEqual(coordinator.wait(10), 0)
        taken = time.monotonic() - start
        return "" if taken < LIMIT_S else f"{taken:.1f} s"

    def test_worker_that_hosts_the_coordinator_ends_within_a_second(self):
        """The other nodes are not asked to leave."""
        self.in_one_of_three(self.host_ends_in_time)

    def host_ends_in_time(self):
        job = str(int.from_bytes(os.urandom(3), "big"))
        workers = [self.start("worker", SLURM_JOB_ID=job, SLURM_STEP_ID="0",
                              SLURM_PROCID=str(node), SLURM_STEP_NUM_TASKS="2",
                              SLURM_JOB_NODELIST="localhost") for node in range(2)]
        for worker in workers:
            worker.wait_for("joined at")
        start = time.monotonic()
        workers[0].signal(signal.SIGTERM)
        self.assertEqual(workers[0].wait(10), 0, workers[0].err)
        taken = time.monotonic() - start
        return "" if taken < LIMIT_S else f"{taken:.1f} s"

    def test_worker_that_leaves_with_the_others_reports_its_signal(self):
        _, address = self.coordinator(2)
        first = self.worker(address, 0, 2, "--exit-after-join")
        second = self.worker(address, 1, 2)
        for worker in (first, second):
            worker.wait_for("joined at")
        first.signal(signal.SIGTERM)
        self.assertEqual(first.wait(), 1)
        self.assertRegex(first.err, "stopped by SIGTERM")
        self.assertEqual(second.wait(), 1)
        self.assertRegex(second.err, "stopped by SIGTERM")


if __name__ == "__main__":
    harness.main()
