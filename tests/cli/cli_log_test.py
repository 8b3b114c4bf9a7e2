#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FERRY_LOG: the tool's log, and one tensor from send to acknowledgement.

    cli_log_test.py FERRY [CASE...]
"""
import re

import harness

LINE = re.compile(r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[a-z]+) (?P<component>[a-z]+) "
                  r"node=(?P<node>\S+) pid=(?P<pid>\d+) (?P<text>.*)$")
FIELD = re.compile(r"(\w+)=(\S+)")


class Line:
    def __init__(self, match):
        self.level, self.component, self.node, text = match.group("level", "component", "node", "text")
        self.stage = text.partition(":")[0]
        self.fields = dict(FIELD.findall(text))


def lines_of(process):
    return [Line(match) for match in map(LINE.match, process.err.splitlines()) if match]


def stages(lines, name="weights"):
    """The logged operations on the tensor of that name, in order."""
    return [line for line in lines if f";{name};" in line.fields.get("key", "")]


class Log(harness.Case):
    def transfer(self, *arguments, shape="3", recv="", **variables):
        """The output of node 0, which sends a tensor, and node 1; and their lines, in the order in which these
        were written: both write to one pipe."""
        address = self.coordinator(2)[1]
        place = f"--coordinator={address} --num-nodes=2 --step=7 --timeout=20s {' '.join(arguments)}"
        script = (f"'{harness.FERRY}' send weights --to=1 --node-id=0 --shape={shape} {place} & "
                  f"'{harness.FERRY}' recv weights --from=0 --node-id=1 --verify {recv} {place} && wait $!")
        both = harness.Process(["-c", script], harness.environment(**variables), program="sh")
        self.addCleanup(both.kill)
        self.assertEqual(both.wait(), 0, both.err)
        return both, lines_of(both)

    def check_tensor(self, both, lines, expected):
        """`expected`: the stages, in order, each as its node and its name."""
        seen = stages(lines)
        # Each side posts its part when it is ready.
        posted = [(line.node, line.stage) for line in seen if line.stage.endswith(" posted")]
        self.assertEqual(sorted(posted), [("0", "send posted"), ("1", "receive posted")], both.err)
        others = [(line.node, line.stage) for line in seen if not line.stage.endswith(" posted")]
        self.assertEqual(others, expected, both.err)
        for line in seen:
            self.assertEqual((line.fields["peer"], line.fields["step"], line.level),
                             ("1" if line.node == "0" else "0", "7", "debug"), vars(line))
        self.assertEqual(len({line.fields["key"] for line in seen}), 1)
        self.assertEqual(len({line.fields["request"] for line in seen if "request" in line.fields}), 1)

    def test_one_tensor_from_send_to_acknowledgement(self):
        # The receiver has a buffer, so the sender is notified of the arrival before it leaves.
        into = "--into --dtype=float --shape=64x64"
        for way, flags in (("shm", ()), ("tcp", ("--transport=tcp", "--checksum"))):
            with self.subTest(way):
                shape = "64x64" if way == "shm" else "1024x1024"
                both, lines = self.transfer(*flags, shape=shape, recv=into if way == "shm" else "",
                                            FERRY_LOG="debug")
                self.check_tensor(both, lines, [("1", "request sent"),
                                                ("0", "request received"),
                                                ("0", "descriptor sent"),
                                                ("1", "fetch started"),
                                                ("1", "fetch done"),
                                                ("1", "acknowledgement sent"),
                                                ("0", "acknowledgement received")])
                paths = [line.fields["path"] for line in stages(lines) if "path" in line.fields]
                self.assertEqual(paths, [way] * 3)
                chosen = [line.fields["path"] for line in lines if line.stage == "path chosen"]
                self.assertEqual(chosen, [way])
                closed = [(line.node, line.fields["step"]) for line in lines if line.stage == "step closed"]
                self.assertEqual(sorted(closed), [("0", "7"), ("1", "7")])

    def test_a_view_is_acknowledged_when_it_is_released(self):
        both, lines = self.transfer(shape="1024x1024", FERRY_LOG="debug")
        # The sender may have left by then.
        last = [line for line in stages(lines) if line.stage.startswith("acknowledgement ")]
        self.assertIn([(line.node, line.stage) for line in last],
                      ([], [("1", "acknowledgement sent")],
                       [("1", "acknowledgement sent"), ("0", "acknowledgement received")]))
        self.check_tensor(both, [line for line in lines if line not in last],
                          [("1", "request sent"),
                           ("0", "request received"),
                           ("0", "descriptor sent"),
                           ("1", "fetch started"),
                           ("1", "fetch done")])
        self.assertEqual(stages(lines)[len(stages(lines)) - len(last):], last, both.err)

    def test_a_small_tensor_is_sent_in_its_descriptor(self):
        both, lines = self.transfer(FERRY_LOG="rendezvous=debug,transport=debug")
        self.check_tensor(both, lines, [("1", "request sent"),
                                        ("0", "request received"),
                                        ("0", "descriptor sent"),
                                        ("1", "fetch started"),
                                        ("1", "fetch done")])
        self.assertEqual({line.component for line in lines}, {"rendezvous", "transport"})

    def test_one_tensor_over_grpc(self):
        both, lines = self.transfer("--protocol=grpc", FERRY_LOG="debug")
        # gRPC notifies the sender when all has been sent, which may be before or after it arrives.
        over = [line for line in stages(lines) if line.stage == "response over"]
        self.assertEqual([line.node for line in over], ["0"])
        self.check_tensor(both, [line for line in lines if line not in over],
                          [("1", "request sent"),
                           ("0", "request received"),
                           ("0", "response sent"),
                           ("1", "fetch done")])

    def test_info_logs_nodes_and_peers_and_no_tensors(self):
        both, lines = self.transfer(FERRY_LOG="info")
        self.assertEqual({line.level for line in lines}, {"info"}, both.err)
        for node in "01":
            told = [line.stage for line in lines if line.node == node]
            for stage in ("joined", "peer connected", "left"):
                self.assertIn(stage, told, both.err)
        # Before a process has joined, it is no node.
        before = [line.stage for line in lines if line.node == "-"]
        self.assertEqual((before.count("joining"), before.count("connected to the coordinator")), (2, 2))
        self.assertEqual(stages(lines), [])

    def test_without_it_nothing_is_logged(self):
        for variables in ({}, {"FERRY_LOG": ""}, {"FERRY_LOG": "off"}):
            both, lines = self.transfer(**variables)
            self.assertEqual(lines, [], both.err)

    def test_the_coordinator_logs_tasks_barriers_and_their_end(self):
        coordinator = self.start("coordinator", "--nodes=1", "--listen=127.0.0.1:0", FERRY_LOG="coord=info")
        address = coordinator.wait_for(r"listening on (\S+)")[1]
        worker = self.worker(address, 0, 1)
        worker.wait_for("joined at")
        coordinator.wait_for(r"info coord node=- pid=\d+ task connected: task=0 .*; connected 1 of 1\n")
        worker.signal(15)
        coordinator.wait_for(r"info coord node=- pid=\d+ task left: task=0; connected 0 of 1")
        coordinator.wait_for(r"info coord node=- pid=\d+ barrier over: ")
        self.assertEqual({line.level for line in lines_of(coordinator)}, {"info"})

    def test_mistakes_are_reported_once_and_stop_nothing(self):
        status, out, err = self.run_ferry("--version", FERRY_LOG="transports=debug,coord=loud")
        self.assertEqual(status, 0)
        self.assertRegex(out, rb"^ferry \d")
        self.assertEqual(err,
                         'ferry: FERRY_LOG: "transports" is no component, "loud" is no level; it is LEVEL or '
                         "COMPONENT=LEVEL, several with commas; components: coord, rendezvous, transport, "
                         "node, launch, gpu, tensorflow, cli; levels: trace, debug, info, warn, error, off\n")


if __name__ == "__main__":
    harness.main()
