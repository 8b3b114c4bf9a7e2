#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peers that are stopped for longer than a host may be silent, and hosts that vanish.

    cli_pause_test.py FERRY [CASE...]
"""
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time

import harness

BYTES = 256 << 20
# More than anything but the tensor has in flight.
MUCH = 200 << 10
# A host that acknowledges nothing for so long counts as vanished (kVanishLimit).
VANISH_S = 10
# gRPC's servers close a connection whose window stays closed for so long, if left to themselves.
GRPC_CLOSED_WINDOW_S = 20

# A worker whose connection to the master did not answer gRPC's probe was once given up after this.
GRPC_PROBE_S = 30
# A step that takes a feed of 16 MiB and returns its size.
GRAPH = """
node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } }
       attr { key: "shape" value { shape { dim { size: 4194304 } } } } }
node { name: "y" op: "Shape" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
"""


def unsent(pid):
    """Bytes queued in the TCP sockets of a process for the peer."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    total = 0
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        total += sum(int(row[4].split(":")[0], 16) for row in rows
                     if f"socket:[{row[9]}]" in inodes)
    return total


class Pair(harness.Case):
    """A node that sends BYTES to another one, which is stopped in the middle."""

    def start_pair(self, address, *arguments, prefixes=((), ())):
        common = (f"--coordinator={address}", "--num-nodes=2", *arguments)
        if not any(argument.startswith("--timeout") for argument in arguments):
            common += ("--timeout=100s",)
        # Any verb, in any namespace: the tool is an argument there.
        sender = self.start_in(prefixes[0], "send", "weights", "--to=1", "--node-id=0",
                               "--dtype=int8", f"--shape={BYTES}", *common)
        receiver = self.start_in(prefixes[1], "recv", "weights", "--from=0", "--node-id=1",
                                 "--verify", *common)
        return sender, receiver

    def start_in(self, prefix, *arguments):
        command = [*prefix, harness.FERRY, *arguments]
        process = harness.Process(command[1:], harness.environment(), program=command[0])
        self.addCleanup(process.kill)
        self.addCleanup(process.popen.send_signal, signal.SIGCONT)
        return process

    def stopped_in_the_middle(self, address, *arguments, prefixes=((), ())):
        """A pair of which the receiver is stopped, with more to come than the kernels hold."""
        for _ in range(10):
            sender, receiver = self.start_pair(address(), *arguments, prefixes=prefixes)
            deadline = time.monotonic() + harness.PATIENCE_S
            while sender.popen.poll() is None and time.monotonic() < deadline:
                if unsent(sender.popen.pid) > MUCH:
                    break
            receiver.signal(signal.SIGSTOP)
            # Bytes that the receiver's kernel can still buffer meanwhile.
            time.sleep(0.5)
            # gRPC's own flow control may leave the kernel with nothing more to send.
            is_grpc = "--protocol=grpc" in arguments
            if sender.popen.poll() is None and (is_grpc or unsent(sender.popen.pid) > MUCH):
                return sender, receiver
            receiver.signal(signal.SIGCONT)
            for process in (sender, receiver):
                process.kill()
        raise self.failureException("it was never stopped in the middle")

    def new_coordinator(self):
        # No node is declared dead for missing heartbeats.
        return self.coordinator(2, "--heartbeat-timeout=120s")[1]


class StoppedReceiver(Pair):
    def finish(self, sender, receiver):
        receiver.signal(signal.SIGCONT)
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)
        self.assertRegex(receiver.out, "verified")

    def test_transfers_and_steps_continue_when_their_receivers_do(self):
        """Over both carriers and from the master, longer than any would wait for a lost host."""
        pairs = [self.stopped_in_the_middle(self.new_coordinator, *carrier)
                 for carrier in (("--transport=tcp",), ("--protocol=grpc",))]
        step, worker = self.step_of_a_stopped_worker()
        # The test waits for timers of the kernel and of gRPC, which it cannot set.
        time.sleep(max(VANISH_S, GRPC_CLOSED_WINDOW_S, GRPC_PROBE_S) + 4)
        for process in (step, *(sender for sender, _ in pairs)):
            self.assertIsNone(process.popen.poll(), process.err)
        for sender, receiver in pairs:
            self.finish(sender, receiver)
        worker.signal(signal.SIGCONT)
        self.assertEqual(step.wait(timeout_s=100), 0, step.err)
        self.assertRegex(step.out, r"y = int32\[1\] \[4194304\]")

    def step_of_a_stopped_worker(self):
        """Steps whose worker is stopped while the master feeds it."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        graph, feed = f"{folder.name}/graph", f"{folder.name}/feed"
        with open(graph, "w", encoding="ascii") as file:
            file.write(GRAPH)
        with open(feed, "wb") as file:
            file.truncate(16 << 20)
        coordinator, address = self.coordinator(1, "--heartbeat-timeout=120s")
        worker = self.start_in((), "worker", "--node-id=0", f"--coordinator={address}",
                               "--num-nodes=1")
        worker.wait_for("joined")
        for _ in range(10):
            step = self.start_in((), "step", f"--coordinator={address}", f"--graph={graph}",
                                 f"--feed=x=@{feed}", "--fetch=y", "--count=200",
                                 "--timeout=100s")
            deadline = time.monotonic() + harness.PATIENCE_S
            while step.popen.poll() is None and time.monotonic() < deadline:
                if unsent(coordinator.popen.pid) > MUCH:
                    break
            worker.signal(signal.SIGSTOP)
            if step.popen.poll() is None:
                return step, worker
            worker.signal(signal.SIGCONT)
        raise self.failureException("its worker was never stopped before its end")

    def test_the_senders_timeout_names_the_stopped_process(self):
        sender, _ = self.stopped_in_the_middle(self.new_coordinator, "--transport=tcp",
                                               "--timeout=8s")
        self.assertEqual(sender.wait(), 1)
        self.assertRegex(sender.err.splitlines()[-1],
                         "being sent to node 1 by tcp; not all there yet, since its host answers, "
                         "but its process is not reading; it may be stopped or busy")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def why_no_namespaces():
    if shutil.which("ip") is None:
        return "there is no ip"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    probe = f"ferry-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespaces: {made.stderr.strip()}"
    veth = subprocess.run(["ip", "-n", probe, "link", "add", "name", "one", "type", "veth", "peer",
                           "name", "other"],
                          capture_output=True, text=True)
    ip("netns", "del", probe)
    return "" if veth.returncode == 0 else f"no veth: {veth.stderr.strip()}"


class VanishedHost(Pair):
    """Two hosts, played by network namespaces, of which one becomes unreachable."""
    numbers = itertools.count()

    def setUp(self):
        why = why_no_namespaces()
        if why:
            self.skipTest(why)
        self.names = [f"ferry-{os.getpid()}-{next(self.numbers)}{side}" for side in "ab"]
        for name in self.names:
            ip("netns", "add", name)
            self.addCleanup(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.names[0], "link", "add", "name", "wire", "type", "veth", "peer", "name",
           "wire", "netns", self.names[1])
        for number, name in enumerate(self.names, 1):
            ip("-n", name, "addr", "add", f"10.231.7.{number}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")

    def inside(self, side):
        return ("ip", "netns", "exec", self.names[side])

    def new_coordinator(self):
        process = self.start_in(self.inside(0), "coordinator", "--nodes=2",
                                "--listen=10.231.7.1:0", "--heartbeat-timeout=120s")
        return process.wait_for(r"ferry coordinator listening on (\S+)\n").group(1)

    def vanish(self):
        ip("-n", self.names[1], "link", "set", "wire", "down")
        return time.monotonic()

    def expect_found(self, process, since):
        self.assertEqual(process.wait(timeout_s=VANISH_S + 20), 1)
        self.assertLess(time.monotonic() - since, VANISH_S + 8)
        self.assertRegex(process.err.splitlines()[-1],
                         "its host (has acknowledged nothing for 1|does not answer)")

    def test_a_vanished_receiver_is_detected(self):
        sender, receiver = self.start_pair(self.new_coordinator(), "--transport=tcp",
                                           prefixes=(self.inside(0), self.inside(1)))
        deadline = time.monotonic() + harness.PATIENCE_S
        while unsent(sender.popen.pid) <= MUCH and time.monotonic() < deadline:
            pass
        since = self.vanish()
        self.expect_found(sender, since)
        # It also tries to notify the coordinator, which it cannot reach.
        self.assertEqual(receiver.wait(timeout_s=60), 1)
        self.assertRegex(receiver.err.splitlines()[-1], "its host does not answer")

    def test_a_vanished_host_with_a_stopped_receiver_is_detected(self):
        sender, _ = self.stopped_in_the_middle(self.new_coordinator, "--transport=tcp",
                                               prefixes=(self.inside(0), self.inside(1)))
        # A window that has been closed for a while is probed less and less often.
        time.sleep(8)
        self.expect_found(sender, self.vanish())


if __name__ == "__main__":
    harness.main()
