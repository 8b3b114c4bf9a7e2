#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ferry run: its status after signals, job control, standard input, nested jobs, and where ranks of
the PyTorch convention meet.

    cli_run_test.py FERRY [CASE...]
"""
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import harness

# A fake of PyTorch's store: rank 0 listens on all addresses at MASTER_PORT, and each of the others
# connects to MASTER_ADDR and receives how many have connected.
STORE = """
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("0.0.0.0", port)) as server:
        server.settimeout(30)
        peers = [server.accept()[0] for _ in range(world - 1)]
        for peer in peers:
            peer.sendall(b"all met")
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection((host, port), timeout=5)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"rank {rank}: {host}:{port}: {error}")
            time.sleep(0.1)
    assert peer.makefile().read() == "all met"
print(f"rank {rank} met the others at {host}:{port}", flush=True)
"""


class Status(harness.Case):
    """128 + the number of the signal that stopped the job, however its processes end."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

    def test_child_that_handles_the_signal_and_fails_does_not_change_it(self):
        for number in self.SIGNALS:
            for end in ("exit 1", "exit 0", "kill -KILL $$", "kill -SEGV $$"):
                with self.subTest(signal=number, end=end):
                    run = self.start("run", "--nproc=2", "--", "sh", "-c", "ulimit -c 0; trap '"
                                     + end + "' INT TERM HUP QUIT; echo ready; "
                                     "while :; do sleep 0.05; done")
                    run.wait_for(r"(?s)ready.*ready")
                    run.signal(number)
                    self.assertEqual(run.wait(), 128 + number, run.err)

    def test_child_that_is_killed_after_the_grace_period_does_not_change_it(self):
        run = self.start("run", "--grace=200ms", "--", "sh", "-c",
                         "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        run.wait_for("ready")
        run.signal(signal.SIGTERM)
        self.assertEqual(run.wait(), 128 + signal.SIGTERM)
        self.assertIn("did not stop and was killed", run.err)

    def test_failure_before_the_signal_keeps_its_status(self):
        run = self.start("run", "--nproc=2", "--", "sh", "-c",
                         "if test $RANK = 0; then " + harness.FERRY + " kv get ready; exit 7; fi; "
                         "trap 'echo deaf' TERM; " + harness.FERRY + " kv set ready 1; "
                         "while :; do sleep 0.05; done")
        run.wait_for("deaf")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 7)

    def test_signals_that_stop_nothing_leave_the_childs_status(self):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(number):
                run = self.start("run", "--", "sh", "-c", "trap 'exit 5' USR1 USR2; echo ready; "
                                 "while :; do sleep 0.05; done")
                run.wait_for("ready")
                run.signal(number)
                self.assertEqual(run.wait(), 5)


def state(pid):
    """The letter of /proc: T is stopped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "-"


class JobControl(harness.Case):
    def test_stop_signals_stop_the_ranks_and_ferry_run_until_sigcont(self):
        for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            with self.subTest(number):
                # It starts nothing more: a shell whose child is stopped before its exec waits in
                # state D, and not in T.
                run = self.start("run", "--nproc=2", "--", "sh", "-c",
                                 'trap "kill $!; exit 0" USR1; sleep 1000 & echo "pid $$"; '
                                 'while :; do wait; done')
                run.wait_for(r"(?s)pid.*pid \d+")
                pids = [int(pid) for pid in re.findall(r"pid (\d+)", run.out)]
                run.signal(number)
                # A shell sees a job as stopped by this.
                pid, status = os.waitpid(run.popen.pid, os.WUNTRACED)
                self.assertTrue(os.WIFSTOPPED(status))
                self.eventually(lambda: [state(pid) for pid in pids] == ["T", "T"])
                self.assertEqual(state(run.popen.pid), "T")
                run.signal(signal.SIGCONT)
                self.eventually(lambda: "T" not in [state(pid) for pid in pids])
                self.assertNotEqual(state(run.popen.pid), "T")
                run.signal(signal.SIGUSR1)
                self.assertEqual(run.wait(), 0, run.err)

    def test_sigcont_alone_continues_a_stopped_rank(self):
        run = self.start("run", "--", "sh", "-c", 'echo "pid $$"; exec sleep 1000')
        pid = int(run.wait_for(r"pid (\d+)").group(1))
        os.kill(pid, signal.SIGSTOP)
        self.eventually(lambda: state(pid) == "T")
        run.signal(signal.SIGCONT)
        self.eventually(lambda: state(pid) != "T")
        run.signal(signal.SIGTERM)
        self.assertEqual(run.wait(), 128 + signal.SIGTERM)

    def test_time_while_stopped_is_not_part_of_the_grace_period(self):
        run = self.start("run", "--grace=3s", "--", "sh", "-c",
                         'trap "echo told" TERM; trap "exit 0" USR1; echo "pid $$"; '
                         "while :; do :; done")
        pid = int(run.wait_for(r"pid (\d+)").group(1))
        run.signal(signal.SIGTERM)
        run.wait_for("told")
        run.signal(signal.SIGTSTP)
        os.waitpid(run.popen.pid, os.WUNTRACED)
        time.sleep(3.5)
        run.signal(signal.SIGCONT)
        self.eventually(lambda: state(pid) != "T")
        # It has nearly all of its time to end.
        run.signal(signal.SIGUSR1)
        self.assertEqual(run.wait(), 128 + signal.SIGTERM)
        self.assertNotIn("was killed", run.err)

    def test_job_that_was_stopped_for_longer_than_the_heartbeat_timeout_continues(self):
        """The coordinator was stopped as well: no heartbeat could be sent to it."""
        coordinator, address = self.coordinator(2, "--heartbeat-timeout=2s")
        run = self.start("run", "--nproc=2", f"--coordinator={address}", "--", harness.FERRY,
                         "worker")
        run.wait_for(r"(?s)joined at.*joined at")
        run.signal(signal.SIGTSTP)
        os.waitpid(run.popen.pid, os.WUNTRACED)
        coordinator.signal(signal.SIGSTOP)
        time.sleep(5)
        # The coordinator resumes first, while the others are still stopped.
        coordinator.signal(signal.SIGCONT)
        run.signal(signal.SIGCONT)
        time.sleep(3)
        status = self.succeed("status", "--json", f"--coordinator={address}")
        self.assertNotIn(b"heartbeat timeout", status)
        run.signal(signal.SIGTERM)
        self.assertEqual(run.wait(), 128 + signal.SIGTERM)
        self.assertNotIn("silent", run.err)

    def test_job_with_its_own_coordinator_survives_a_stop(self):
        run = self.start("run", "--nproc=2", "--", harness.FERRY, "worker", "--reconnect-timeout=1s")
        run.wait_for(r"(?s)joined at.*joined at")
        run.signal(signal.SIGTSTP)
        os.waitpid(run.popen.pid, os.WUNTRACED)
        time.sleep(3)
        run.signal(signal.SIGCONT)
        time.sleep(2)
        self.assertIsNone(run.popen.poll(), run.err)
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 128 + signal.SIGINT)
        self.assertNotIn("out of reach", run.err)


class Terminal:
    """A process that leads a session whose terminal is ours."""

    def __init__(self, *command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], list(command), harness.environment(PS1="$ ", ENV="", HISTFILE=""))
        self.text = ""

    def write(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, pattern, timeout_s=harness.PATIENCE_S):
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.text):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:
                    deadline = 0
        return re.search(pattern, self.text)

    def close(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self.fd)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


class Stdin(harness.Case):
    SAY = ("sh", "-c", 'if read line; then echo "read $line"; else echo nothing; fi')

    def run_with(self, *arguments, stdin=b"a line\n"):
        status, out, err = self.run_ferry("run", *arguments, "--", *self.SAY, stdin=stdin)
        self.assertEqual(status, 0, err)
        return sorted(out.decode().splitlines())

    def terminal(self, *command):
        terminal = Terminal(*command)
        self.addCleanup(terminal.close)
        return terminal

    def test_by_default_and_with_none_nothing_is_read(self):
        for flags in ((), ("--stdin=none",)):
            self.assertEqual(self.run_with("--nproc=2", *flags), ["[0] nothing", "[1] nothing"])

    def test_the_named_rank_reads_it(self):
        self.assertEqual(self.run_with("--nproc=2", "--stdin=0"), ["[0] read a line", "[1] nothing"])
        self.assertEqual(self.run_with("--nproc=2", "--stdin=1"), ["[0] nothing", "[1] read a line"])
        self.assertEqual(self.run_with("--stdin=0", stdin=b""), ["[0] nothing"])

    def test_all_of_a_large_input_arrives_and_ends(self):
        data = os.urandom(3 << 20)
        out = self.succeed("run", "--no-prefix", "--stdin=0", "--", "cat", stdin=data)
        self.assertEqual(out, data)

    def test_machine_that_begins_when_the_first_is_done_is_answered(self):
        _, address = self.coordinator(2)
        flags = ("run", "--nodes=2", f"--coordinator={address}")
        first = self.start(*flags, "--node-id=0", "--", "echo", "one")
        first.wait_for("waiting for ferry run of machine 1 to begin")
        self.assertIn(b"two", self.succeed(*flags, "--node-id=1", "--", "echo", "two"))
        self.assertEqual(first.wait(), 0)

    def test_other_machines_of_the_job_read_nothing(self):
        _, address = self.coordinator(2)
        machines = [self.start("run", "--nodes=2", f"--node-id={machine}", "--stdin=0",
                               f"--coordinator={address}", "--", *self.SAY)
                    for machine in range(2)]
        self.assertEqual([machine.wait() for machine in machines], [0, 0])
        self.assertIn("[1] nothing", machines[1].out)

    def test_an_invalid_rank_is_wrong_usage(self):
        for value in ("2", "-1", "all", "x"):
            self.fail_with(2, "--stdin", "run", "--nproc=2", f"--stdin={value}", "--", "true")

    def test_terminal_in_the_foreground_is_read_until_ctrl_d(self):
        terminal = self.terminal(harness.FERRY, "run", "--stdin=0", "--", "sh", "-c",
                                 'echo ready; while read line; do echo "got $line"; done; echo end')
        terminal.wait_for(r"\[0\] ready")
        terminal.write("hello\n")
        terminal.wait_for(r"\[0\] got hello")
        terminal.write("\x04")
        terminal.wait_for(r"\[0\] end")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]), 0)

    def test_terminal_is_not_read_by_default(self):
        terminal = self.terminal("/bin/sh", "-c", f"{harness.FERRY} run -- sh -c "
                                 "'echo ready; read line; echo over'; read mine; echo shell $mine")
        terminal.wait_for(r"\[0\] over")
        terminal.write("hello\n")
        terminal.wait_for("shell hello")

    def test_ctrl_c_and_ctrl_z_work_at_a_terminal(self):
        terminal = self.terminal("/bin/bash", "--norc", "-i")
        terminal.wait_for(r"\$ ")
        terminal.write(f"{harness.FERRY} run --stdin=0 -- sh -c "
                       "'echo rea\"\"dy; while read x; do echo g\"\"ot $x; done'\n")
        terminal.wait_for(r"\[0\] ready")
        terminal.write("\x1a")
        terminal.wait_for(r"(?i)stopped")
        # In the background it neither reads the terminal nor is stopped for it.
        terminal.write("bg; echo in the back''ground\n")
        terminal.wait_for("in the background")
        terminal.write("echo mine is not re''ad by it\n")
        terminal.wait_for("mine is not read by it")
        terminal.write("fg\n")
        time.sleep(0.5)
        terminal.write("hello\n")
        terminal.wait_for(r"\[0\] got hello")
        self.assertNotIn("[0] got echo", terminal.text)
        terminal.write("\x03")
        # Input typed before the prompt is read by the job.
        terminal.wait_for(r"(?s)passing SIGINT on.*\$ $")
        terminal.write("echo status''=$?\n")
        terminal.wait_for("status=130")


class RefusedMachine(harness.Case):
    """One machine of a job cannot take part: the processes of the others would wait for minutes."""

    def machine(self, address, index, *flags):
        return self.start("run", f"--node-id={index}", f"--coordinator={address}", *flags, "--",
                          harness.FERRY, "worker")

    def expect_told(self, run, why):
        self.assertEqual(run.wait(), 1, run.err)
        self.assertRegex(run.err, rf"cannot take part: .*{why}")

    def test_other_counts_of_processes(self):
        _, address = self.coordinator(4)
        first = self.machine(address, 0, "--nodes=2", "--nproc=2")
        second = self.machine(address, 1, "--nodes=2", "--nproc=3")
        self.assertEqual(second.wait(), 2)
        why = "--nproc=3, which makes 6 processes, but the coordinator at .* serves a job of 4"
        self.assertRegex(second.err, why)
        self.expect_told(first, why)

    def test_a_server_that_is_no_coordinator_is_named_while_joining(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(harness.PATIENCE_S)
            ended = threading.Event()

            def answer():
                while not ended.is_set():
                    try:
                        connection, _ = server.accept()
                    except OSError:
                        return
                    with connection:
                        connection.recv(4096)
                        connection.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")

            thread = threading.Thread(target=answer)
            thread.start()
            self.addCleanup(thread.join)
            address = f"127.0.0.1:{server.getsockname()[1]}"
            try:
                for what, begin in (("looking for", self.machine(address, 0, "--nodes=2")),
                                    ("waiting for", self.worker(address, 0, 2))):
                    begin.wait_for(f"{what} the coordinator at {address}.*: the server there is "
                                   "not a Ferry coordinator")
            finally:
                ended.set()
                server.shutdown(socket.SHUT_RDWR)

    def test_a_machine_number_out_of_range(self):
        _, address = self.coordinator(2)
        first = self.machine(address, 0, "--nodes=2")
        second = self.machine(address, 2, "--nodes=2")
        self.assertEqual(second.wait(), 2)
        self.expect_told(first, "--node-id")

    def test_two_machines_with_one_number(self):
        _, address = self.coordinator(6)
        runs = [self.machine(address, index, "--nodes=3", "--nproc=2") for index in (0, 1, 1)]
        self.assertEqual([run.wait() for run in runs], [1, 1, 1])
        self.assertRegex(runs[0].err, r"cannot take part: .*node [23] has joined already")

    def test_waiting_machines_get_the_reason_of_the_first_ones_failure(self):
        _, address = self.coordinator(3)
        second = self.machine(address, 1, "--nodes=3")
        second.wait_for("waiting for ferry run of the first machine")
        first = self.machine(address, 0, "--nodes=3", "--nproc=2")
        why = "--nproc=2, which makes 6 processes, but the coordinator at .* serves a job of 3"
        first.wait_for(f"(?m)^ferry: .*{why}")
        self.expect_told(second, why)
        self.assertNotIn("telling", second.err)
        # The first one is still there for those that come a little later.
        self.expect_told(self.machine(address, 2, "--nodes=3"), why)

    def test_a_first_machine_that_is_done_gets_the_reason_of_anothers_failure(self):
        _, address = self.coordinator(2)
        first = self.start("run", "--nodes=2", "--node-id=0", f"--coordinator={address}", "--",
                           "true")
        first.wait_for("waiting for ferry run of machine 1 to begin")
        self.machine(address, 1, "--nodes=2", "--nproc=3").wait_for("serves a job of 2")
        self.assertEqual(first.wait(), 1)
        self.assertRegex(first.err, "machine 1 to begin; meanwhile .* cannot take part: .*--nproc=3")

    def test_processes_that_fail_before_the_others_have_joined(self):
        _, address = self.coordinator(3)
        first = self.machine(address, 0, "--nodes=3")
        # Only ranks that are waiting by then are notified.
        first.wait_for(r"waiting for nodes 1(-|,)2 to join")
        second = self.start("run", "--nodes=3", "--node-id=1", f"--coordinator={address}", "--",
                            "sh", "-c", "exit 7")
        self.assertEqual(second.wait(), 7)
        self.expect_told(first, "ferry run of machine 1 has ended with status 7")


class Nested(harness.Case):
    def test_run_in_a_rank_starts_a_job_of_its_own_and_reports_it(self):
        status, out, err = self.run_ferry(
            "run", "--nproc=2", "--", harness.FERRY, "run", "--nproc=2", "--no-prefix", "--",
            harness.FERRY, "worker", "--exit-after-join")
        self.assertEqual(status, 0, err)
        self.assertEqual(len(re.findall(rb"node [01] of 2 .* joined at", out)), 4)
        addresses = set(re.findall(rb"joined at (\S+);", out))
        self.assertEqual(len(addresses), 2)
        for rank in range(2):
            self.assertRegex(err, rf"ferry run: this is rank {rank} of the job at \S+; "
                             r"starting a separate job \(--coordinator=\S+ would join that one\)")

    def test_run_in_a_rank_joins_the_named_job(self):
        _, address = self.coordinator(2)
        out = self.succeed("run", "--", harness.FERRY, "run", "--nproc=2",
                           f"--coordinator={address}", "--no-prefix", "--", harness.FERRY,
                           "worker", "--exit-after-join")
        self.assertEqual(set(re.findall(rb"joined at (\S+);", out)), {address.encode()})

    def test_coordinator_set_by_hand_in_a_rank_is_used(self):
        _, address = self.coordinator(1)
        out = self.succeed("run", "--", "sh", "-c", f"FERRY_COORDINATOR={address} exec "
                           f"{harness.FERRY} run --no-prefix -- {harness.FERRY} worker "
                           "--exit-after-join")
        self.assertIn(f"joined at {address};".encode(), out)

    def test_variables_of_the_outer_job_are_removed_for_the_inner_ranks(self):
        script = f"{harness.FERRY} run --nproc=3 --no-prefix -- env | sort"
        out = self.succeed("run", "--no-prefix", "--", "sh", "-c",
                           f"echo outer $FERRY_COORDINATOR; {script}",
                           TORCHELASTIC_RUN_ID="x", TORCHELASTIC_USE_AGENT_STORE="True",
                           GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1").decode()
        outer = re.search(r"outer (\S+)", out).group(1)
        inner = out.split("\n", 1)[1]
        self.assertNotIn(outer, inner)
        self.assertNotRegex(inner, r"(?m)^(TORCHELASTIC_RUN_ID=x$|MASTER_PORT=1$)")
        self.assertEqual(sorted(re.findall(r"(?m)^(?:FERRY_NODE_ID|RANK)=(\d)", inner)),
                         list("001122"))
        self.assertEqual(set(re.findall(r"(?m)^(?:FERRY_NUM_NODES|WORLD_SIZE)=(\d)", inner)), {"3"})

    def test_launcher_in_a_rank_decides_the_identity_of_its_processes(self):
        """Like mpirun in a rank: its processes inherit FERRY_NODE_ID=0 and FERRY_COORDINATOR."""
        start = " ".join(
            f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
            f"PMIX_NAMESPACE=inner-$$@1 {harness.FERRY} worker --exit-after-join &"
            for rank in range(2))
        out = self.succeed("run", "--no-prefix", "--", "sh", "-c", f"{start} wait; wait")
        self.assertEqual(sorted(re.findall(rb"node (\d) of 2 \(OMPI", out)), [b"0", b"1"])


class BatchScript(harness.Case):
    """Launchers inside `sbatch --ntasks=4`, whose variables all of their processes inherit."""

    BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0",
             "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "localhost"}

    def setUp(self):
        super().setUp()
        self.first_job = int.from_bytes(os.urandom(3), "big")

    def slurm_job(self, nodes, number):
        """Variables of a step on this machine; jobs of different numbers derive different ports."""
        return {"SLURM_JOB_ID": str(self.first_job + number), "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": str(nodes), "SLURM_JOB_NODELIST": "localhost"}

    def join_all(self, address, rank_variables):
        workers = [self.start("worker", "--exit-after-join", FERRY_COORDINATOR=address,
                              **{**self.BATCH, **rank_variables(rank)}) for rank in range(4)]
        for rank, worker in enumerate(workers):
            self.assertEqual(worker.wait(), 0, worker.err)
            self.assertIn(f"node {rank} of 4", worker.out)

    def test_mpirun_torchrun_and_srun_decide(self):
        launchers = {
            "mpirun": lambda rank: {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "4"},
            "hydra": lambda rank: {"PMI_RANK": str(rank), "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
            "mvapich": lambda rank: {"MV2_COMM_WORLD_RANK": str(rank), "MV2_COMM_WORLD_SIZE": "4"},
            "torchrun": lambda rank: {"RANK": str(rank), "WORLD_SIZE": "4",
                                      "TORCHELASTIC_RUN_ID": "x"},
            "srun": lambda rank: {"SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0",
                                  "SLURM_STEP_NUM_TASKS": "4"}}
        _, address = self.coordinator(4)
        for name, variables in launchers.items():
            with self.subTest(name):
                self.join_all(address, variables)

    def test_ranks_that_are_refused_end_the_wait_of_the_others(self):
        """RANK=$SLURM_PROCID in the batch script is 0 everywhere: ranks 1 to 3 cannot tell who is
        right, and rank 0, whose variables agree, would wait for them."""
        job = str(int.from_bytes(os.urandom(3), "big"))
        start = time.monotonic()
        workers = [self.start("worker", SLURM_JOB_ID=job, SLURM_STEP_ID="0", RANK="0",
                              WORLD_SIZE="4", MASTER_ADDR="localhost", SLURM_PROCID=str(rank),
                              SLURM_STEP_NUM_TASKS="4") for rank in range(4)]
        for rank in range(1, 4):
            self.assertEqual(workers[rank].wait(), 2, workers[rank].err)
            self.assertIn(f"RANK=0 and SLURM_PROCID={rank} disagree", workers[rank].err)
        self.assertEqual(workers[0].wait(), 1)
        self.assertRegex(workers[0].err, r"cannot take part: .*RANK=0 and SLURM_PROCID=\d disagree")
        self.assertLess(time.monotonic() - start, 20)

    def test_ranks_that_are_refused_notify_a_separate_coordinator(self):
        _, address = self.coordinator(3)
        good = [self.start("worker", FERRY_COORDINATOR=address, OMPI_COMM_WORLD_RANK=str(rank),
                           OMPI_COMM_WORLD_SIZE="3") for rank in range(2)]
        bad = self.start("worker", FERRY_COORDINATOR=address, OMPI_COMM_WORLD_RANK="2",
                         OMPI_COMM_WORLD_SIZE="3", OMPI_COMM_WORLD_LOCAL_RANK="x")
        self.assertEqual(bad.wait(), 2)
        for worker in good:
            self.assertEqual(worker.wait(), 1)
            self.assertIn('OMPI_COMM_WORLD_LOCAL_RANK="x" is not a number', worker.err)

    def test_rank_0_that_is_refused_runs_the_coordinator_to_notify_the_others(self):
        """If rank 0 was to run it, no other process does."""
        cases = [({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 must be below WORLD_SIZE=2"),
                 ({"RANK": "1", "WORLD_SIZE": "2"}, "RANK=1 and SLURM_PROCID=0 disagree"),
                 ({"SLURM_LOCALID": "x"}, 'SLURM_LOCALID="x" is not a number'),
                 ({"FERRY_NUM_NODES": "3"}, "FERRY_NUM_NODES=3 and SLURM_STEP_NUM_TASKS=2"),
                 ({"FERRY_COORDINATOR": "nowhere"}, 'FERRY_COORDINATOR="nowhere" is not HOST:PORT'),
                 ({"FERRY_HEARTBEAT_TIMEOUT": "-1s"}, 'FERRY_HEARTBEAT_TIMEOUT: "-1s" is not')]
        started = []
        for number, (wrong, why) in enumerate(cases):
            job = self.slurm_job(2, number)
            started.append((self.start("worker", SLURM_PROCID="0", **{**job, **wrong}),
                            self.start("worker", SLURM_PROCID="1", **job), why))
        for first, second, why in started:
            with self.subTest(why):
                first.wait_for(rf"(?m)^ferry: .*{why}")
                self.assertEqual(second.wait(), 1)
                self.assertRegex(second.err, f"cannot take part: .*{why}")
                self.assertEqual(first.wait(), 2)
                self.assertEqual(len(re.findall(why, first.err)), 1, first.err)

    def test_an_error_of_one_rank_before_joining_is_reported_to_the_others(self):
        def send_to(node, dtype="float"):
            return ["send", "x", f"--to={node}", "--shape=2", f"--dtype={dtype}"]

        send, recv = send_to(1), ["recv", "x", "--from=0"]
        cases = [(0, send_to(5), recv, {}, "--to=5: there is no such node"),
                 (0, send_to(1, "nonsense"), recv, {}, "nonsense"),
                 (0, send, recv, {"FERRY_JOB_TOKEN_FILE": "/nonexistent"}, "/nonexistent"),
                 (1, ["recv", "x", "--from=7"], send, {}, "--from=7: there is no such node")]
        started = []
        for number, (rank, bad, good, wrong, why) in enumerate(cases):
            job = self.slurm_job(2, number)
            started.append((self.start(*bad, SLURM_PROCID=str(rank), **{**job, **wrong}),
                            self.start(*good, SLURM_PROCID=str(1 - rank), **job), why))
        for refused, other, why in started:
            with self.subTest(why):
                self.assertEqual(refused.wait(), 2)
                self.assertRegex(refused.err, why)
                self.assertEqual(other.wait(), 1)
                self.assertRegex(other.err, f"cannot take part: .*{why}")

    def test_a_rank_whose_variables_give_no_number_ends_the_wait_of_the_others(self):
        cases = [({"RANK": "2"}, "RANK=2 must be below WORLD_SIZE=2"),
                 ({"RANK": "-1"}, 'RANK="-1" is not a number'),
                 ({"RANK": "one"}, 'RANK="one" is not a number'),
                 ({"RANK": "1", "WORLD_SIZE": "two"}, 'WORLD_SIZE="two" is not a number')]
        started = []
        for number, (wrong, why) in enumerate(cases):
            job = {**self.slurm_job(2, number), "RANK": "0", "WORLD_SIZE": "2",
                   "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
            # Not a step: none of the launcher's own numbers.
            for name in ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"):
                del job[name]
            started.append((self.start("worker", **job), self.start("worker", **{**job, **wrong}),
                            why))
        for first, second, why in started:
            with self.subTest(why):
                self.assertEqual(second.wait(), 2)
                self.assertEqual(len(re.findall(why, second.err)), 1, second.err)
                self.assertEqual(first.wait(), 1)
                self.assertRegex(first.err, f"cannot take part: .*{why}")

    def by_hand(self, number, rank, world=2):
        """RANK in a Slurm job, but not in a step of it."""
        return {"SLURM_JOB_ID": str(self.first_job + number), "RANK": rank,
                "WORLD_SIZE": str(world), "MASTER_ADDR": "localhost"}

    def test_a_rank_that_may_be_rank_0_runs_the_coordinator_to_notify_the_others(self):
        """No other rank does: rank 0 is the one that is refused."""
        cases = [(self.by_hand(0, "1"), {"RANK": "-1"}, 'RANK="-1" is not a number'),
                 (self.by_hand(1, "1"), {"RANK": "x"}, 'RANK="x" is not a number'),
                 (self.by_hand(2, "1"), {"RANK": "2"}, "RANK=2 must be below WORLD_SIZE=2"),
                 ({**self.slurm_job(2, 3), **self.by_hand(3, "1"), "SLURM_PROCID": "1"},
                  {"RANK": "0"}, "RANK=0 and SLURM_PROCID=1 disagree")]
        started = []
        for job, wrong, why in cases:
            started.append((self.start("worker", **job), self.start("worker", **{**job, **wrong}),
                            why))
        for other, refused, why in started:
            with self.subTest(why):
                self.assertEqual(refused.wait(), 2)
                self.assertEqual(len(re.findall(why, refused.err)), 1, refused.err)
                self.assertEqual(other.wait(), 1)
                self.assertRegex(other.err, f"cannot take part: .*{why}")

    def test_rank_0_that_finds_another_rank_0_gets_the_reason(self):
        refused = self.start("worker", **self.by_hand(0, "x", 3))
        refused.wait_for(r"staying a while at .* \(0 of 2\)")
        for rank in ("0", "1"):
            worker = self.start("worker", **self.by_hand(0, rank, 3))
            self.assertEqual(worker.wait(), 1)
            self.assertRegex(worker.err, 'cannot take part: .*RANK="x" is not a number')
        self.assertEqual(refused.wait(), 2)

    def test_rank_0_that_is_refused_stays_until_all_are_notified(self):
        job = self.slurm_job(3, 0)
        first = self.start("worker", SLURM_PROCID="0", SLURM_LOCALID="x", **job)
        for rank, told in (("1", "0 of 2"), ("2", "1 of 2")):
            first.wait_for(rf"staying a while at .* \({told}\)")
            late = self.start("worker", SLURM_PROCID=rank, **job)
            self.assertEqual(late.wait(), 1)
            self.assertRegex(late.err, 'cannot take part: .*SLURM_LOCALID="x" is not a number')
        self.assertEqual(first.wait(), 2)

    def test_rank_0_that_is_refused_ends_with_a_signal(self):
        job = self.slurm_job(2, 0)
        first = self.start("worker", SLURM_PROCID="0", SLURM_LOCALID="x", **job)
        first.wait_for("staying a while")
        first.signal(signal.SIGTERM)
        self.assertEqual(first.wait(), -signal.SIGTERM)

    def test_machine_0_that_fails_before_it_runs_the_coordinator_notifies_the_others(self):
        cases = [(["--stdin=9"], {}, "--stdin: \"9\" is not"),
                 (["--nproc=0"], {}, "--nproc"),
                 (["--nproc=2"], {"FERRY_HEARTBEAT_TIMEOUT": "-1s"}, "FERRY_HEARTBEAT_TIMEOUT"),
                 ([], {"RANK": "1", "WORLD_SIZE": "2"}, "RANK=1 and SLURM_PROCID=0 disagree")]
        started = []
        for number, (flags, wrong, why) in enumerate(cases):
            job = self.slurm_job(2, number)
            started.append((
                self.start("run", "--nodes=2", "--", "true", SLURM_PROCID="1", **job),
                self.start("run", "--nodes=2", *flags, "--", "true", SLURM_PROCID="0",
                           **{**job, **wrong}), why))
        for second, first, why in started:
            with self.subTest(why):
                self.assertEqual(first.wait(), 2, first.err)
                self.assertEqual(len(re.findall(why, first.err)), 1, first.err)
                self.assertEqual(second.wait(), 1, second.err)
                self.assertRegex(second.err, f"cannot take part: .*{why}")

    def test_a_command_without_a_launcher_does_not_wait(self):
        for variables in ({}, {"FERRY_COORDINATOR": "127.0.0.1:1"}, {"FERRY_NUM_NODES": "x"}):
            with self.subTest(variables):
                status, _, err = self.run_ferry("worker", **variables)
                self.assertEqual(status, 2)
                self.assertNotRegex(err, "telling|staying")

    def test_a_failure_of_rank_0_alone_is_reported_to_the_others(self):
        cases = [(["--tensor-listen=10.1.1.1:0"], {}, 1, "cannot listen on 10.1.1.1:0"),
                 (["--graph-listen=10.1.1.1:0"], {}, 1, "cannot serve gRPC on 10.1.1.1:0"),
                 ([], {"FERRY_JOB_TOKEN_FILE": "/nonexistent"}, 2, "/nonexistent: cannot be read")]
        started = []
        for number, (flags, wrong, status, why) in enumerate(cases):
            job = self.slurm_job(2, number)
            started.append((self.start("worker", *flags, SLURM_PROCID="0", **{**job, **wrong}),
                            self.start("worker", SLURM_PROCID="1", **job), status, why))
        for first, second, status, why in started:
            with self.subTest(why):
                self.assertEqual(first.wait(), status)
                self.assertRegex(first.err, why)
                self.assertEqual(second.wait(), 1)
                self.assertRegex(second.err, why)

    def test_a_late_rank_gets_the_reason_from_the_coordinator_of_rank_0(self):
        job = {"SLURM_JOB_ID": str(int.from_bytes(os.urandom(3), "big")), "SLURM_STEP_ID": "0",
               "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_NODELIST": "localhost"}
        first = self.start("worker", SLURM_PROCID="0", **job)
        refused = self.start("worker", SLURM_PROCID="1", SLURM_LOCALID="x", **job)
        self.assertEqual(refused.wait(), 2)
        late = self.start("worker", SLURM_PROCID="2", **job)
        for worker in (late, first):
            self.assertEqual(worker.wait(), 1)
            self.assertRegex(worker.err, 'cannot take part: .*SLURM_LOCALID="x" is not a number')

    def test_a_rank_whose_number_is_in_use_ends_the_wait_of_the_others(self):
        _, address = self.coordinator(4)
        workers = [self.start("worker", f"--coordinator={address}", f"--node-id={rank}",
                              "--num-nodes=4") for rank in (0, 1, 1)]
        self.assertEqual([worker.wait() for worker in workers], [1, 1, 1])
        self.assertRegex(workers[0].err, "cannot take part: node 1 has joined already")

    def test_ferry_run_in_a_batch_script_decides(self):
        out = self.succeed("run", "--nproc=4", "--", harness.FERRY, "worker", "--exit-after-join",
                           **self.BATCH)
        self.assertEqual(len(re.findall(rb"node \d of 4 .* joined at", out)), 4)

    def test_batch_script_itself_is_refused_as_no_task(self):
        self.fail_with(2, "which node is this.*not a task of srun", "worker", **self.BATCH)


def can_unshare():
    """Whether this machine lets us make network namespaces."""
    return os.geteuid() == 0 and subprocess.run(
        ["unshare", "--net", "true"], capture_output=True).returncode == 0


class Machines:
    """Network namespaces on one bridge, each like a machine of its own."""

    def __init__(self, count):
        self.names = [f"ferry-{os.getpid()}-{i}" for i in range(count)]
        self.hub = f"ferry-{os.getpid()}-hub"
        self.ip("netns", "add", self.hub)
        self.inside(self.hub, "link", "add", "bridge", "type", "bridge")
        self.inside(self.hub, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            self.ip("netns", "add", name)
            self.inside(self.hub, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0",
                        "netns", name)
            self.inside(self.hub, "link", "set", f"port{i}", "master", "bridge", "up")
            self.inside(name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            self.inside(name, "link", "set", "eth0", "up")
            self.inside(name, "link", "set", "lo", "up")

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def inside(self, name, *arguments):
        self.ip("-n", name, *arguments)

    def close(self):
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Master(harness.Case):
    def machines(self, count):
        if not can_unshare():
            self.skipTest("this machine lets nobody make network namespaces")
        try:
            machines = Machines(count)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no network namespaces joined by veth: {error}")
        self.addCleanup(machines.close)
        return machines

    def start_on(self, machines, machine, *arguments, **variables):
        process = harness.Process(
            ["netns", "exec", machines.names[machine], harness.FERRY, *arguments],
            harness.environment(**variables), program="ip")
        self.addCleanup(process.kill)
        return process

    def store(self, machines, coordinator, places=None, nproc=2, variables=None):
        """ferry run on machines 0 and 1 with STORE, and their output."""
        places = places or [coordinator, coordinator]
        runs = [self.start_on(machines, machine, "run", "--nodes=2", f"--node-id={machine}",
                              f"--nproc={nproc}", f"--coordinator={places[machine]}",
                              *([] if variables else ["--no-store"]), "--", sys.executable, "-c",
                              STORE, **(variables or {}))
                for machine in (1, 0)]
        for run in runs:
            self.assertEqual(run.wait(60), 0, run.err)
        return runs[1], runs[0]

    def test_coordinator_on_a_third_machine_ranks_connect_to_rank_0(self):
        machines = self.machines(3)
        coordinator = self.start_on(machines, 2, "coordinator", "--nodes=4",
                                    "--listen=0.0.0.0:9470")
        coordinator.wait_for("listening on")
        first, second = self.store(machines, "10.77.0.3:9470")
        self.assertRegex(second.out, r"rank 3 met the others at 10\.77\.0\.1:\d+")
        self.assertEqual(first.err + second.err, "")
        # Nothing is left in the store, and the next job on this coordinator connects as well.
        keys = subprocess.run(["ip", "netns", "exec", machines.names[2], harness.FERRY, "kv", "ls",
                               "--coordinator=127.0.0.1:9470"], capture_output=True)
        self.assertEqual(keys.stdout, b"")
        self.store(machines, "10.77.0.3:9470")

    def test_coordinator_on_rank_0s_machine_by_loopback_ranks_connect_there(self):
        machines = self.machines(2)
        coordinator = self.start_on(machines, 0, "coordinator", "--nodes=4",
                                    "--listen=0.0.0.0:9470")
        coordinator.wait_for("listening on")
        _, second = self.store(machines, None, ["127.0.0.1:9470", "10.77.0.1:9470"])
        self.assertRegex(second.out, r"rank 3 met the others at 10\.77\.0\.1:\d+")

    def test_coordinator_on_the_other_machine_by_loopback_ranks_connect_to_rank_0(self):
        machines = self.machines(2)
        coordinator = self.start_on(machines, 1, "coordinator", "--nodes=4",
                                    "--listen=0.0.0.0:9470")
        coordinator.wait_for("listening on")
        _, second = self.store(machines, None, ["10.77.0.2:9470", "127.0.0.1:9470"])
        self.assertRegex(second.out, r"rank 3 met the others at 10\.77\.0\.1:\d+")

    def test_master_of_the_environment_is_kept_or_the_reason_is_printed(self):
        machines = self.machines(3)
        coordinator = self.start_on(machines, 2, "coordinator", "--nodes=2",
                                    "--listen=0.0.0.0:9470")
        coordinator.wait_for("listening on")
        kept = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
        first, second = self.store(machines, "10.77.0.3:9470", nproc=1, variables=kept)
        self.assertIn("rank 1 met the others at 10.77.0.1:29500", second.out)
        self.assertEqual(first.err + second.err, "")
        for variables, reason in (
                ({"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "tcp://10.96.0.7:443"},
                 r'MASTER_PORT="tcp://10\.96\.0\.7:443" is not a port number \(Kubernetes'),
                ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
                 r"MASTER_ADDR=127\.0\.0\.1 is a different machine on each")):
            with self.subTest(variables):
                first, second = self.store(machines, "10.77.0.3:9470", nproc=1, variables=variables)
                self.assertEqual(len(re.findall(reason, first.err)), 1, first.err)
                self.assertRegex(first.err, r"; ranks get 10\.77\.0\.1:\d+\n")
                self.assertRegex(second.out, r"rank 1 met the others at 10\.77\.0\.1:\d+")

    def test_missing_port_of_the_environment_is_found(self):
        machines = self.machines(3)
        coordinator = self.start_on(machines, 2, "coordinator", "--nodes=2",
                                    "--listen=0.0.0.0:9470")
        coordinator.wait_for("listening on")
        _, second = self.store(machines, "10.77.0.3:9470", nproc=1,
                               variables={"MASTER_ADDR": "10.77.0.1"})
        self.assertRegex(second.out, r"rank 1 met the others at 10\.77\.0\.1:\d+")

    def test_two_runs_of_one_machine_connect_on_loopback(self):
        _, address = self.coordinator(4)
        runs = [self.start("run", "--nodes=2", f"--node-id={machine}", "--nproc=2",
                           f"--coordinator={address}", "--no-store", "--", sys.executable, "-c",
                           STORE)
                for machine in (1, 0)]
        self.assertEqual([run.wait() for run in runs], [0, 0], runs[0].err + runs[1].err)
        self.assertRegex(runs[0].out, r"rank 3 met the others at 127\.0\.0\.1:\d+")

    def test_one_machine_keeps_a_usable_pair_and_reports_why_not_another(self):
        command = ("sh", "-c", "echo $MASTER_ADDR $MASTER_PORT")
        status, out, err = self.run_ferry("run", "--", *command, MASTER_ADDR="127.0.0.2",
                                          MASTER_PORT="29511")
        self.assertEqual((status, out), (0, b"[0] 127.0.0.2 29511\n"), err)
        self.assertNotIn("MASTER", err)
        _, out, err = self.run_ferry("run", "--nproc=2", "--", *command, MASTER_ADDR="192.0.2.7",
                                     MASTER_PORT="tcp://1.2.3.4:5")
        self.assertRegex(out, rb"127\.0\.0\.1 \d+\n")
        self.assertEqual(err.count("MASTER_ADDR=192.0.2.7 is not an address of this machine"), 1)
        self.assertEqual(err.count('MASTER_PORT="tcp://1.2.3.4:5" is not a port number'), 1)

    def test_port_in_use_is_not_used(self):
        import socket
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            _, out, err = self.run_ferry("run", "--", "sh", "-c", "echo $MASTER_PORT",
                                         MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        self.assertNotEqual(out, f"[0] {port}\n".encode())
        self.assertIn(f"MASTER_PORT={port} cannot be listened on by rank 0", err)

    def test_missing_first_machine_is_waited_for_and_named(self):
        _, address = self.coordinator(2)
        run = self.start("run", "--nodes=2", "--node-id=1", f"--coordinator={address}", "--", "true")
        run.wait_for(r"waiting for ferry run of the first machine \(--node-id=0\)")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(2), -signal.SIGINT)


if __name__ == "__main__":
    harness.main()
