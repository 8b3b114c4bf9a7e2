#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tool between machines with several addresses, of one family or both, and where the kernel has
no IPv6. Machines are network namespaces.

    REFUSE_SYSCALLS=.../refuse_syscalls cli_network_test.py FERRY [CASE...]
"""
import json
import os
import socket
import subprocess
import tempfile
import unittest

import harness

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/crossing.pbtxt")
REFUSE = os.environ.get("REFUSE_SYSCALLS", "")
# socket(AF_INET6) as a kernel without IPv6 answers it.
NO_IPV6 = ("socket@10:EAFNOSUPPORT", "--")
PORT = 9470


class Machine:
    """A network namespace with a loopback and a file of hosts of its own."""

    def __init__(self, case, hosts):
        folder = tempfile.TemporaryDirectory()
        case.addCleanup(folder.cleanup)
        path = f"{folder.name}/hosts"
        with open(path, "w", encoding="ascii") as file:
            file.write(hosts)
        self.case = case
        # The process that keeps the namespaces alive.
        self.holder = subprocess.Popen(
            ["unshare", "-n", "-m", "sh", "-c",
             'mount --make-rprivate / && mount --bind "$0" /etc/hosts && ip link set lo up && '
             "echo ready && exec sleep 600", path],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        case.addCleanup(self.end)
        if self.holder.stdout.readline() != "ready\n":
            case.skipTest("no network namespaces here: " + self.holder.stderr.read().strip())

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
        self.holder.stderr.close()

    def inside(self, *command):
        return ["-t", str(self.holder.pid), "-n", "-m", "--", *command]

    def run(self, *command, check=True):
        done = subprocess.run(["nsenter", *self.inside(*command)], capture_output=True, text=True,
                              timeout=harness.PATIENCE_S)
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.stderr}")
        return done

    def start(self, *arguments, **variables):
        process = harness.Process(self.inside(harness.FERRY, *arguments),
                                  harness.environment(**variables), program="nsenter")
        self.case.addCleanup(process.kill)
        return process

    def add_bridge(self):
        """docker0, before anything else and so the kernel's first."""
        for kind in (("dummy",), ("bridge",), ("veth", "peer", "name", "docker1")):
            if self.run("ip", "link", "add", "docker0", "type", *kind, check=False).returncode == 0:
                break
        else:
            self.case.skipTest("this kernel makes no second interface")
        self.run("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        self.run("ip", "link", "set", "docker0", "up")
        self.run("ip", "link", "set", "docker1", "up", check=False)

    def add_address(self, address):
        option = ("nodad",) if ":" in address else ()
        self.run("ip", "addr", "add", address, "dev", "eth0", *option)

    def listeners(self, port):
        """Addresses with a listening process there."""
        lines = self.run("ss", "-Hltn", f"sport = :{port}").stdout.splitlines()
        return sorted(line.split()[3].rpartition(":")[0] for line in lines)


class Network(harness.Case):
    def machine(self, hosts="127.0.0.1 localhost\n::1 localhost\n"):
        return Machine(self, hosts)

    def two_machines(self, *kinds, hosts=("", "")):
        """Joined by eth0, with a container bridge each that is older."""
        self.machines = [self.machine("127.0.0.1 localhost\n" + each) for each in hosts]
        first, second = self.machines
        for each in self.machines:
            each.add_bridge()
        done = first.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
                         "netns", str(second.holder.pid), check=False)
        if done.returncode != 0:
            self.skipTest("no pairs of interfaces here: " + done.stderr.strip())
        for number, each in enumerate(self.machines, 1):
            for kind in kinds:
                each.add_address({4: f"10.77.0.{number}/24", 6: f"fd77::{number}/64"}[kind])
            each.run("ip", "link", "set", "eth0", "up")
        for each in self.machines:
            # The kernel notices a carrier a moment later.
            self.eventually(lambda m=each: " UP " in m.run("ip", "-br", "link", "show", "eth0").stdout)
        return first, second

    def joined(self, address, *flags, verb="worker"):
        """A coordinator on the first machine and a worker on each."""
        first, second = self.machines
        # Long enough for gRPC to give up an address, which takes it 10 s.
        first.start("coordinator", "--nodes=2", "--heartbeat-timeout=120s").wait_for("listening on")
        workers = []
        for node, machine in enumerate((first, second)):
            more = flags[node] if flags else ()
            workers.append(machine.start(verb, f"--coordinator={address}", f"--node-id={node}",
                                         "--num-nodes=2", *more))
        for worker in workers:
            worker.wait_for("joined at")
        return workers

    def expect_step(self, machine, address):
        step = machine.start("step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]", "--fetch=z",
                             f"--coordinator={address}")
        self.assertEqual(step.wait(), 0, step.err)
        self.assertIn("\nz = float[2] [10, 40]\n", step.out)

    def expect_transfer(self, address, *flags):
        first, second = self.machines
        common = (f"--coordinator={address}", "--num-nodes=2", *flags)
        first.start("coordinator", "--nodes=2").wait_for("listening on")
        sender = first.start("send", "w", "--to=1", "--node-id=0", "--shape=300x1000", *common)
        receiver = second.start("recv", "w", "--from=0", "--node-id=1", "--verify", *common)
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)
        return receiver.out


class Machines(Network):
    def test_a_session_and_tensors_avoid_a_container_bridge(self):
        self.two_machines(4)
        address = f"10.77.0.1:{PORT}"
        workers = self.joined(address)
        for number, worker in enumerate(workers, 1):
            self.assertRegex(worker.wait_for(r"WorkerService at (.*)\n").group(1),
                             rf"^10\.77\.0\.{number}:\d+$")
        self.expect_step(self.machines[0], address)
        self.expect_step(self.machines[1], address)

    def test_grpc_carries_tensors_between_machines_with_container_bridges(self):
        self.two_machines(4)
        self.assertIn(" by grpc", self.expect_transfer(f"10.77.0.1:{PORT}", "--protocol=grpc"))

    def test_control_channels_work_between_machines_with_container_bridges(self):
        self.two_machines(4)
        self.assertIn(" by tcp", self.expect_transfer(f"10.77.0.1:{PORT}", "--transport=tcp"))

    def test_a_job_over_ipv6_alone(self):
        self.two_machines(6)
        address = f"[fd77::1]:{PORT}"
        workers = self.joined(address)
        self.assertRegex(workers[1].wait_for(r"WorkerService at (.*)\n").group(1),
                         r"^\[fd77::2\]:\d+$")
        self.expect_step(self.machines[1], address)

    def test_tensors_over_ipv6_alone(self):
        self.two_machines(6)
        self.assertIn(" by grpc", self.expect_transfer(f"[fd77::1]:{PORT}", "--protocol=grpc"))

    def test_grpc_tries_the_next_address_where_one_family_is_cut(self):
        # The coordinator is reached by IPv4, and all other addresses of the workers are IPv6.
        _, second = self.two_machines(4, 6)
        address = f"10.77.0.1:{PORT}"
        self.joined(address)[1].wait_for(r"WorkerService at 10\.77\.0\.2:\d+, \[fd77::2\]:\d+\n")
        second.run("ip", "addr", "del", "10.77.0.2/24", "dev", "eth0")
        step = self.machines[0].start("step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]",
                                      "--fetch=z", f"--coordinator={address}")
        self.assertEqual(step.wait(60), 0, step.err)

    def test_an_unreachable_worker_is_not_reported_dead(self):
        self.two_machines(4)
        address = f"10.77.0.1:{PORT}"
        self.joined(address, (), ("--advertise=172.17.0.1",))
        step = self.machines[0].start("step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]",
                                      "--fetch=z", f"--coordinator={address}", "--timeout=5s")
        self.assertEqual(step.wait(60), 1)
        self.assertRegex(step.err, r"cannot be reached at 172\.17\.0\.1:\d+ \(.*--advertise=")
        self.assertNotIn("has died", step.err)

    def test_an_unreachable_sender_is_not_reported_dead(self):
        first, second = self.two_machines(4)
        first.start("coordinator", "--nodes=2").wait_for("listening on")
        common = (f"--coordinator=10.77.0.1:{PORT}", "--num-nodes=2", "--protocol=grpc")
        sender = first.start("send", "w", "--to=1", "--node-id=0", "--shape=300x1000",
                             "--advertise=172.17.0.1", *common)
        receiver = second.start("recv", "w", "--from=0", "--node-id=1", "--timeout=20s", *common)
        self.assertEqual((receiver.wait(60), sender.wait(60)), (1, 1))
        for error in (receiver.err, sender.err):
            self.assertRegex(error, r"node 0 cannot be reached at 172\.17\.0\.1:\d+ .*--advertise=")
            self.assertNotIn("has died", error)


class DerivedCoordinator(Network):
    """Node 0 runs the coordinator at MASTER_ADDR."""

    def variables(self, rank, master):
        return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": master}

    def expect_joined(self, machines, master, listens=None):
        workers = [machine.start("worker", "--exit-after-join", **self.variables(rank, master))
                   for rank, machine in enumerate(machines)]
        if listens is not None:
            self.assertEqual(self.eventually(lambda: machines[0].listeners(PORT)), listens)
        for worker in workers:
            self.assertEqual(worker.wait(), 0, worker.err)

    def test_a_loopback_address_is_listened_on_alone(self):
        for master, listens in (("::1", ["[::1]"]), ("[::1]", ["[::1]"]),
                                ("127.0.0.1", ["127.0.0.1"]),
                                ("localhost", ["127.0.0.1", "[::1]"])):
            with self.subTest(master):
                machine = self.machine()
                self.expect_joined([machine, machine], master)
                alone = machine.start("worker", **self.variables(0, master))
                self.assertEqual(self.eventually(lambda m=machine: m.listeners(PORT)), listens)
                alone.kill()

    def test_names_and_addresses_of_one_family_or_both(self):
        hosts = ("10.77.0.1 four\nfd77::1 six\n10.77.0.1 both\nfd77::1 both\n"
                 "10.77.0.9 half\nfd77::1 half\n")
        machines = self.two_machines(4, 6, hosts=(hosts, hosts))
        for master in ("10.77.0.1", "fd77::1", "four", "six", "both", "half"):
            with self.subTest(master):
                self.expect_joined(machines, master)

    def test_a_link_local_address(self):
        first, second = self.two_machines(4)
        for number, machine in enumerate((first, second), 1):
            machine.add_address(f"fe80::77:{number}/64")
        self.expect_joined((first, second), "fe80::77:1%eth0")

    def test_bindv6only_makes_no_difference(self):
        first, second = self.two_machines(4, 6)
        setting = "/proc/sys/net/ipv6/bindv6only"
        if first.run("sh", "-c", f"echo 1 > {setting}", check=False).returncode != 0:
            self.skipTest(f"{setting} cannot be written here")
        second.run("sh", "-c", f"echo 1 > {setting}")
        for master in ("10.77.0.1", "fd77::1"):
            with self.subTest(master):
                self.expect_joined((first, second), master)
        self.assertIn(" by grpc", self.expect_transfer(f"10.77.0.1:{PORT}", "--protocol=grpc"))
        doctor = first.start("doctor")
        doctor.wait()
        self.assertRegex(doctor.out, r"\nok +ip families +IPv4 and IPv6; bindv6only is 1")

    def test_a_node_that_waits_for_itself_reports_it(self):
        first, _ = self.two_machines(4)
        # An address that leads elsewhere.
        worker = first.start("worker", "--connect-timeout=3s", **self.variables(0, "10.77.0.9"))
        self.assertEqual(worker.wait(), 1)
        self.assertRegex(worker.err.splitlines()[-1],
                         rf"^ferry: .*; the coordinator is at 10\.77\.0\.9:{PORT}, which is this "
                         rf"process itself, listening on \[::\]:{PORT}$")
        other = first.start("worker", "--connect-timeout=3s", **self.variables(1, "10.77.0.9"))
        self.assertEqual(other.wait(), 1)
        self.assertIn("which node 0 runs", other.err.splitlines()[-1])


class WrongPort(harness.Case):
    """TensorFlow's servers have sessions and workers at one port."""

    def test_a_session_at_a_workers_port_is_redirected_to_the_coordinator(self):
        address = self.coordinator(1)[1]
        worker = self.worker(address, 0, 1, "--graph-listen=127.0.0.1:0")
        port = worker.wait_for(r"WorkerService at (\S+)\n").group(1)
        self.fail_with(1, rf"this is node 0's worker port; sessions are opened at the coordinator, "
                       rf"{address} ", "step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]",
                       "--fetch=z", f"--coordinator={port}")

    def test_a_tool_at_a_workers_port_gets_a_clear_error(self):
        address = self.coordinator(1)[1]
        worker = self.worker(address, 0, 1, "--graph-listen=127.0.0.1:0")
        port = worker.wait_for(r"WorkerService at (\S+)\n").group(1)
        self.fail_with(1, "not a Ferry coordinator, or an older one .it may be a worker's port.",
                       "status", f"--coordinator={port}")

    def test_a_tool_at_a_control_channel_port_gets_a_clear_error(self):
        address = self.coordinator(1)[1]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{probe.getsockname()[1]}"
        self.worker(address, 0, 1, f"--tensor-listen={listen}").wait_for("joined at")
        for arguments in (("status",), ("kv", "get", "x"), ("topo",)):
            with self.subTest(arguments[0]):
                self.fail_with(1, "not a Ferry coordinator, or an older one .it may be a worker's "
                                  "port.", *arguments, f"--coordinator={listen}")


@unittest.skipUnless(REFUSE, "no REFUSE_SYSCALLS")
class WithoutIpv6(harness.Case):
    def ferry(self, *arguments, **variables):
        process = harness.Process([*NO_IPV6, harness.FERRY, *arguments],
                                  harness.environment(**variables), program=REFUSE)
        self.addCleanup(process.kill)
        return process

    def setUp(self):
        probe = subprocess.run([REFUSE, *NO_IPV6, "true"], capture_output=True, text=True)
        if probe.returncode == 125:
            self.skipTest(probe.stderr.strip())

    def test_the_demo_runs(self):
        demo = self.ferry("demo")
        self.assertEqual(demo.wait(60), 0, demo.err + demo.out)

    def test_defaults_fall_back_to_ipv4(self):
        coordinator = self.ferry("coordinator", "--nodes=2", "--listen=:0")
        address = coordinator.wait_for(r"listening on 0\.0\.0\.0:(\d+)\n").group(1)
        workers = [self.ferry("worker", f"--coordinator=127.0.0.1:{address}",
                              f"--node-id={node}", "--num-nodes=2") for node in (0, 1)]
        for worker in workers:
            self.assertNotIn("[", worker.wait_for(r"WorkerService at (.*)\n").group(1))
        step = self.ferry("step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]", "--fetch=z",
                          f"--coordinator=127.0.0.1:{address}")
        self.assertEqual(step.wait(), 0, step.err)

    def test_tensors_move_by_every_wire_protocol(self):
        for flags in ((), ("--transport=tcp",), ("--protocol=grpc",)):
            with self.subTest(flags):
                address = self.coordinator(2)[1]
                common = (f"--coordinator={address}", "--num-nodes=2", *flags)
                sender = self.ferry("send", "w", "--to=1", "--node-id=0", "--shape=300x1000",
                                    *common)
                receiver = self.ferry("recv", "w", "--from=0", "--node-id=1", "--verify", *common)
                self.assertEqual((receiver.wait(), sender.wait()), (0, 0),
                                 receiver.err + sender.err)

    def test_requested_addresses_are_not_replaced(self):
        coordinator = self.ferry("coordinator", "--nodes=1", "--listen=[::]:0")
        self.assertEqual(coordinator.wait(), 1)
        self.assertRegex(coordinator.err, r"cannot listen on \[::\]:0: Address family not supported "
                         r"by protocol; this kernel has no IPv6: listen on 0\.0\.0\.0:0")
        for flag in ("--tensor-listen=[::]:0", "--graph-listen=[::]:0"):
            with self.subTest(flag):
                address = self.coordinator(1)[1]
                worker = self.ferry("worker", f"--coordinator={address}", "--node-id=0",
                                    "--num-nodes=1", flag)
                self.assertEqual(worker.wait(), 1)
                self.assertRegex(worker.err, r"\[::\]:0.*this kernel has no IPv6")

    def test_the_doctor_reports_it(self):
        found = json.loads(self.output_of(self.ferry("doctor", "--json")))["findings"]
        families = next(each for each in found if each["name"] == "ip families")
        self.assertEqual(families["status"], "ok")
        self.assertRegex(families["seen"], "^IPv4; the kernel has no IPv6")

    def output_of(self, process):
        process.wait(60)
        return process.out


if __name__ == "__main__":
    harness.main()
