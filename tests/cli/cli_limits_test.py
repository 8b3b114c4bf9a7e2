#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tool where a container refuses system calls, or gives little memory and few threads.

    REFUSE_SYSCALLS=.../refuse_syscalls cli_limits_test.py FERRY [CASE...]
"""
import os
import re
import resource
import shutil
import subprocess
import tempfile

import harness

REFUSE = os.environ.get("REFUSE_SYSCALLS", "")
# System calls that nothing but shared memory may depend on.
OPTIONAL = ("fallocate,get_mempolicy,getcpu,io_uring_setup,kcmp,mbind,membarrier,mincore,mlock,"
            "mlock2,perf_event_open,pidfd_getfd,pidfd_open,process_vm_readv,process_vm_writev,"
            "ptrace,rseq:ENOSYS,sched_getaffinity,sched_setaffinity,sched_setscheduler,"
            "timerfd_create,userfaultfd")
# Threads fail, processes do not.
NO_THREADS = "clone3:ENOSYS,clone&0x10000:EAGAIN"
# A user that has no processes of its own.
NOBODY = 54731


class Refusing(harness.Case):
    """Runs the tool under a filter of system calls."""

    def setUp(self):
        if not REFUSE:
            self.skipTest("refuse_syscalls was not built for this machine")
        probe = subprocess.run([REFUSE, "kcmp", "--", "true"], capture_output=True, text=True)
        if probe.returncode == 125:
            self.skipTest(probe.stderr.strip())

    def start_without(self, calls, *arguments):
        process = harness.Process([calls, "--", harness.FERRY, *arguments],
                                  harness.environment(), program=REFUSE)
        self.addCleanup(process.kill)
        return process

    def run_without(self, calls, *arguments):
        process = self.start_without(calls, *arguments)
        return process.wait(), process.out, process.err

    def exchange_without(self, calls, *arguments):
        """The receiver's report of a tensor that is moved between two such processes."""
        process = self.start_without(calls, "coordinator", "--nodes=2", "--listen=127.0.0.1:0")
        address = process.wait_for(r"ferry coordinator listening on (\S+)\n").group(1)
        common = (f"--coordinator={address}", "--num-nodes=2", *arguments)
        sender = self.start_without(calls, "send", "weights", "--to=1", "--node-id=0",
                                    "--shape=1024x1024", *common)
        receiver = self.start_without(calls, "recv", "weights", "--from=0", "--node-id=1",
                                      "--verify", *common)
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)
        return receiver.out


class NoSharedMemory(Refusing):
    def test_tensors_use_tcp_and_the_reason_is_printed(self):
        for error in ("EPERM", "ENOSYS"):
            with self.subTest(error):
                out = self.exchange_without(f"memfd_create:{error},madvise:{error}")
                self.assertRegex(out, r"verified, .* by tcp: not shm: memfd_create is refused here "
                                      r"\(.*\)")

    def test_tcp_can_be_required(self):
        out = self.exchange_without("memfd_create,madvise", "--transport=tcp")
        self.assertRegex(out, "verified, .* by tcp")

    def test_advice_alone_is_not_needed(self):
        self.assertRegex(self.exchange_without("madvise"), "verified, .* by shm")

    def test_commands_that_need_it_fail_with_the_reason(self):
        process, address = self.coordinator(2)
        common = (f"--coordinator={address}", "--num-nodes=2", "--transport=shm", "--timeout=20s")
        sender = self.start_without("memfd_create", "send", "weights", "--to=1", "--node-id=0",
                                    "--shape=1024x1024", *common)
        receiver = self.start_without("memfd_create", "recv", "weights", "--from=0",
                                      "--node-id=1", *common)
        self.assertEqual((receiver.wait(), sender.wait()), (1, 1))
        self.assertRegex(receiver.err, "memfd_create is refused here")

    def test_the_demo_and_the_doctor_continue(self):
        calls = "memfd_create:ENOSYS,madvise:ENOSYS"
        status, out, err = self.run_without(calls, "demo")
        self.assertEqual(status, 0, out + err)
        _, out, _ = self.run_without(calls, "doctor")
        self.assertRegex(out, r"warning +host arena +shm: not possible: memfd_create is refused here")

    def test_a_worker_joins(self):
        _, address = self.coordinator(1)
        worker = self.start_without("memfd_create,madvise", "worker", f"--coordinator={address}",
                                    "--node-id=0", "--num-nodes=1")
        worker.wait_for("joined at")


class OptionalCalls(Refusing):
    def test_nothing_depends_on_them(self):
        self.assertRegex(self.exchange_without(OPTIONAL), "verified, .* by shm")
        self.assertRegex(self.exchange_without(OPTIONAL, "--transport=tcp"), "verified, .* by tcp")
        self.assertRegex(self.exchange_without(OPTIONAL, "--protocol=grpc"), "verified, .* by grpc")
        status, out, err = self.run_without(OPTIONAL, "demo")
        self.assertEqual(status, 0, out + err)


class FewThreads(Refusing):
    def expect_one_line(self, status, err):
        lines = [line for line in err.splitlines() if not re.match(harness.PROGRESS, line)
                 and not line.startswith("ferry run: ")]
        self.assertEqual((status, len(lines)), (1, 1), err)
        self.assertRegex(lines[0], r"^ferry: .*ulimit -u\) .*pids\.max")

    def test_each_verb_reports_it_in_one_line(self):
        _, address = self.coordinator(1)
        at = f"--coordinator={address}"
        node = (at, "--node-id=0", "--num-nodes=1")
        for arguments in (("coordinator", "--nodes=1", "--listen=127.0.0.1:0"),
                          ("worker", *node),
                          ("send", "x", "--to=1", *node[:2], "--num-nodes=2"),
                          ("recv", "x", "--from=1", *node[:2], "--num-nodes=2"),
                          ("status", at), ("kv", "get", "x", at), ("topo", at),
                          ("run", "--nproc=1", "--", "true"),
                          ("bench", "kv"), ("demo",)):
            with self.subTest(arguments[0]):
                status, _, err = self.run_without(NO_THREADS, *arguments)
                self.expect_one_line(status, err)

    def test_a_coordinator_has_all_of_its_threads_or_ends_with_one_line(self):
        """With room for one thread, for two, ... until there is room for all."""
        if os.geteuid() != 0:
            self.skipTest("only root becomes another user, and ulimit -u does not bind root")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        tool = shutil.copy(harness.FERRY, folder.name)

        def become_nobody(threads):
            resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        for threads in range(1, 100):
            popen = subprocess.Popen(
                [tool, "coordinator", "--nodes=1", "--listen=127.0.0.1:0"], cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                preexec_fn=lambda: become_nobody(threads), env=harness.environment())
            self.addCleanup(popen.stdout.close)
            self.addCleanup(popen.stderr.close)
            self.addCleanup(popen.wait)
            self.addCleanup(popen.kill)
            if popen.stdout.readline():
                self.assertGreater(threads, 5)
                return
            self.expect_one_line(popen.wait(), popen.stderr.read().decode())
        self.fail("100 threads are not enough")


class FewDescriptors(harness.Case):
    """A process that cannot open what it needs ends with one line that names the limit."""

    def run_with(self, descriptors, *arguments):
        """(exit status, stderr), with so many descriptors at most, standard streams included."""
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        done = subprocess.run([harness.FERRY, *arguments], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, preexec_fn=limit,
                              timeout=harness.PATIENCE_S, env=harness.environment())
        return done.returncode, done.stderr

    def expect_one_line(self, descriptors, *arguments):
        with self.subTest(arguments[0], descriptors=descriptors):
            status, err = self.run_with(descriptors, *arguments)
            lines = [line for line in err.splitlines() if not re.match(harness.PROGRESS, line)
                     and not line.startswith("ferry run: ")]
            self.assertEqual((status, len(lines)), (1, 1), err)
            self.assertRegex(lines[0], r"^ferry: .*Too many open files")
            self.assertRegex(lines[0], r"ulimit -n")
            self.assertNotRegex(lines[0], "killed by|RAW|Bad file")

    def test_each_verb_that_starts_a_coordinator(self):
        # With one more than the last of them there is room for a coordinator, but for no rank.
        for descriptors in (*range(4, 15), 20, 22):
            self.expect_one_line(descriptors, "run", "--nproc=2", "--", "true")
        for descriptors in range(4, 15):
            self.expect_one_line(descriptors, "coordinator", "--nodes=1", "--listen=127.0.0.1:0")
        for descriptors in range(4, 15):
            self.expect_one_line(descriptors, "bench", "kv")
        for descriptors in (*range(4, 15), 18, 22, 26):
            self.expect_one_line(descriptors, "demo")

    def test_nodes(self):
        at = f"--coordinator={self.coordinator(2)[1]}"
        for descriptors in range(4, 26, 3):
            self.expect_one_line(descriptors, "worker", at, "--node-id=0", "--num-nodes=2")
            self.expect_one_line(descriptors, "send", "x", "--to=1", at, "--node-id=0",
                                 "--num-nodes=2")
            self.expect_one_line(descriptors, "recv", "x", "--from=1", at, "--node-id=0",
                                 "--num-nodes=2")

    def test_clients(self):
        at = f"--coordinator={self.coordinator(1)[1]}"
        for arguments in (("status", at), ("kv", "get", "x", at), ("topo", at)):
            self.expect_one_line(4, *arguments)

    def test_the_doctor_counts_it(self):
        # With fewer not even the dynamic linker can run.
        for descriptors in (8, 10):
            with self.subTest(descriptors):
                status, err = self.run_with(descriptors, "doctor")
                self.assertEqual(status, 1)
                self.assertRegex(err, r"found something wrong: .*\bgrpc\b")


class DoctorOfLimits(Refusing):
    """A condition that would make gRPC abort is wrong, with the text of the coordinator's error."""

    def test_refused_calls(self):
        for call, name in (("epoll_create1", "epoll_create1"), ("eventfd2", "eventfd"),
                           ("epoll_create1:ENOSYS", "epoll_create1"), ("eventfd2:ENOSYS", "eventfd")):
            with self.subTest(call):
                status, out, err = self.run_without(call, "doctor")
                self.assertEqual(status, 1, out + err)
                self.assertRegex(out, rf"wrong +grpc +gRPC cannot run here: {name} is refused \(")
                self.assertRegex(err, r"found something wrong: .*\bgrpc\b")
                status, _, err = self.run_without(call, "coordinator", "--nodes=1",
                                                  "--listen=127.0.0.1:0")
                self.assertEqual((status, err.count("\n")), (1, 1), err)

    def test_no_threads(self):
        status, out, err = self.run_without(NO_THREADS, "doctor")
        self.assertEqual(status, 1, out + err)
        self.assertRegex(out, r"wrong +grpc +only 0 more threads can be created.*ulimit -u")


class OwnMemoryLimits(harness.Case):
    def doctor_with(self, which, value):
        def limit():
            resource.setrlimit(which, (value, value))
        return subprocess.run([harness.FERRY, "doctor"], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, preexec_fn=limit, timeout=harness.PATIENCE_S,
                              env=harness.environment())

    def test_each_is_named(self):
        for which, name in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
            with self.subTest(name):
                out = self.doctor_with(which, 300 << 20).stdout
                self.assertRegex(out, rf"warning +memory +300 MiB of the machine's .* \({name}\)"
                                      rf".*-> raise it \({name} unlimited\)")

    def test_too_little_for_grpcs_threads_is_wrong(self):
        done = self.doctor_with(resource.RLIMIT_AS, 120000 << 10)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"wrong +grpc +only \d+ more threads can be created.*"
                                      r"ulimit -v\) 122880000 bytes")
        self.assertRegex(done.stderr, r"found something wrong: .*\bgrpc\b")


def made_group(controller, limits):
    """A control group of this machine with these limits; or the reason why there is none."""
    name = f"ferry-test-{os.getpid()}"
    for root in (f"/sys/fs/cgroup/{controller}", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        folder = f"{root}/{name}"
        try:
            os.mkdir(folder)
        except OSError as error:
            why = str(error)
            continue
        try:
            for file, value in limits:
                if os.path.exists(f"{folder}/{file}"):
                    with open(f"{folder}/{file}", "w", encoding="ascii") as opened:
                        opened.write(value)
                    return folder, ""
            why = f"{root} does not control {controller}"
        except OSError as error:
            why = str(error)
        os.rmdir(folder)
    return None, why


class ControlGroups(harness.Case):
    def group(self, controller, *limits):
        folder, why = made_group(controller, limits)
        if folder is None:
            self.skipTest(f"no control group can be made: {why}")
        self.addCleanup(os.rmdir, folder)
        return folder

    def inside(self, folder, *arguments):
        def enter():
            with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as procs:
                procs.write(str(os.getpid()))
        return subprocess.run([harness.FERRY, *arguments], capture_output=True, text=True,
                              timeout=harness.PATIENCE_S, preexec_fn=enter,
                              stdin=subprocess.DEVNULL, env=harness.environment())

    def test_a_memory_limit_bounds_the_budgets(self):
        folder = self.group("memory", ("memory.max", str(1 << 30)),
                            ("memory.limit_in_bytes", str(1 << 30)))
        self.assertRegex(self.inside(folder, "doctor").stdout,
                         r"memory +1 GiB of the machine's .*/ferry-test-\d+/memory\.")
        self.assertRegex(self.inside(folder, "send", "--help").stdout,
                         rf"--arena-budget-bytes N={1 << 29}\b")

    def test_a_limit_of_threads_is_named(self):
        folder = self.group("pids", ("pids.max", "6"))
        done = self.inside(folder, "coordinator", "--nodes=1", "--listen=127.0.0.1:0")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"\Aferry: .*pids\.max 6 \(/.*/ferry-test-\d+/pids\.max\).*\n\Z")


if __name__ == "__main__":
    harness.main()
