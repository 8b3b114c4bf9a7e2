#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verbs that need no job: run, topo, demo, coordinator's start, help and usage.

    cli_local_test.py FERRY [CASE...]
"""
import json
import os
import re
import signal
import subprocess
import tempfile
import time

import harness

TWO_GPUS = """<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0000:12:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
</system>
"""


class Usage(harness.Case):
    def test_help_and_version_succeed(self):
        self.assertRegex(self.succeed("--version"), rb"^ferry \d+\.\d+\.\d+\n$")
        for arguments in (("--help",), ("help",), ("help", "kv"), ("run", "--help")):
            self.assertIn(b"Usage: ferry", self.succeed(*arguments))
        for hidden in (b"demo-worker", b"doctor-helper"):
            self.assertNotIn(hidden, self.succeed("help"))

    def test_every_verb_in_the_help_has_help(self):
        text = self.succeed("help").decode()
        verbs = re.findall(r"^  (\w+) {2,}[A-Z]", text.split("Subcommands:")[1], re.MULTILINE)
        self.assertGreaterEqual(len(verbs), 8)
        for verb in verbs:
            self.assertIn(b"Usage: ferry " + verb.encode(), self.succeed("help", verb))

    def test_wrong_usage_is_status_2_and_one_line(self):
        for arguments in ((), ("bogus",), ("--bogus",), ("kv",), ("kv", "get"), ("topo", "--x"),
                          ("run", "--nproc=2"), ("run", "--nporc=2", "--", "true"),
                          ("run", "--nproc=0", "--", "true"), ("demo", "--nproc=1"),
                          ("coordinator",), ("coordinator", "--nodes=1", "--listen=nowhere"),
                          ("help", "nope"), ("kv", "get", "k", "--timeout=soon"),
                          ("topo", "--json", "--dot"), ("run", "--nodes=2", "--", "true")):
            with self.subTest(arguments):
                self.fail_with(2, ".", *arguments)

    def test_a_flag_without_its_value_is_named(self):
        for arguments in (("status", "--coordinator=", "--json"), ("topo", "--nccl-xml="),
                          ("run", "--nproc=", "2", "true"), ("kv", "get", "k", "--timeout="),
                          ("run", "--grace", "1s", "--nproc=", "true")):
            with self.subTest(arguments):
                self.fail_with(2, "--[a-z-]+= has no value", *arguments)
        # Flags of the command itself are not checked.
        for arguments in (("--", "echo", "--a="), ("--nproc", "1", "echo", "--a="),
                          ("--no-prefix", "echo", "--a=")):
            self.assertIn(b"--a=\n", self.succeed("run", *arguments))

    def test_values_out_of_range_are_refused_with_the_flag_and_its_limits(self):
        coordinator = ("coordinator", "--listen=127.0.0.1:0")
        one = (*coordinator, "--nodes=1")
        for pattern, arguments in (
                ("--heartbeat-timeout: 99ms is too short; at least 100ms",
                 (*one, "--heartbeat-timeout=99ms")),
                ("--keepalive-time: 0 is too short", (*one, "--keepalive-time=0")),
                ('--max-keys: "-1" is not a whole number', (*one, "--max-keys=-1")),
                ('--max-value-bytes: "-5" is not a whole number', (*one, "--max-value-bytes=-5")),
                ("--nodes and --job=NAME:COUNT", (*one, "--job=worker:4")),
                ('--job: "a b" is no name', (*one, "--job=a b")),
                ('--job: "" is no name', (*coordinator, "--job=worker:4,:2")),
                ('--job: "1a" is no name', (*coordinator, "--job=1a:4"))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, *arguments, timeout_s=5)

    def test_wrong_numbers_of_run_start_nothing(self):
        for pattern, flag in (("--nproc is 0, not a number from 1 to 4096", "--nproc=0"),
                              ("--nodes is 0, not a number from 1 to 65536", "--nodes=0"),
                              ("--node-id is 5; here it can only be 0", "--node-id=5"),
                              ("--gpus-per-proc is -1, not .* 0 to", "--gpus-per-proc=-1")):
            status, out, err = self.run_ferry("run", flag, "--", "echo", "started")
            self.assertEqual((status, out, len(err.splitlines())), (2, b"", 1), err)
            self.assertRegex(err, pattern)

    def test_a_heartbeat_timeout_is_for_a_coordinator_that_is_started(self):
        run = ("run", "--", "echo", "started")
        self.fail_with(2, "the one at 127.0.0.1:1 has its own", "run", "--coordinator=127.0.0.1:1",
                       "--heartbeat-timeout=5s", "--", "echo", "started")
        self.fail_with(2, "--heartbeat-timeout: 5ms is too short", "run",
                       "--heartbeat-timeout=5ms", "--", "echo", "started")
        self.fail_with(2, "FERRY_HEARTBEAT_TIMEOUT: \"soon\" is not a duration", *run,
                       FERRY_HEARTBEAT_TIMEOUT="soon")
        # It matters only where it is used.
        self.succeed("topo", FERRY_HEARTBEAT_TIMEOUT="soon")

    def test_an_unknown_verb_is_named(self):
        self.fail_with(2, "no verb or flag bogus", "bogus", "x")
        self.fail_with(2, "no verb or flag bogus", "kv", "bogus")
        self.fail_with(2, "say what to do", "kv")

    def test_a_value_for_a_flag_without_values_is_refused(self):
        self.fail_with(2, "--json takes no value: it prints, so say --json >FILE",
                       "bench", "kv", "--json=out.json")
        self.fail_with(2, "--csv takes no value: .*--csv >FILE", "bench", "kv", "--csv=out.csv")
        self.fail_with(2, "--checksum takes no value;", "send", "--checksum=maybe")
        # Words that the parser would take for "off".
        for value in ("-", "0", "false", "no"):
            self.fail_with(2, "--json takes no value: .*; see ferry topo --help",
                           "topo", f"--json={value}")
        # The flags of a command are its own.
        out = self.succeed("run", "echo", "--json=-", "--empty=")
        self.assertIn(b"--json=- --empty=", out)
        self.fail_with(2, "--iters.*many", "bench", "keyed", "--iters=many")

    def test_output_that_cannot_be_written_is_a_failure(self):
        for arguments in ("topo", "--help", "help", "--version", "demo --nproc=2"):
            for target, reason in (("/dev/full", "No space left on device"),
                                   ("&-", "Bad file descriptor")):
                with self.subTest(arguments, target=target):
                    self.assertEqual(self.shell(f"{harness.FERRY} {arguments} >{target}"),
                                     (1, f"ferry: cannot write the output: {reason}\n"))


class Coordinator(harness.Case):
    def test_a_port_in_use_is_named(self):
        address = self.coordinator(1)[1]
        self.fail_with(1, f"cannot listen on {address}.*in use", "coordinator", "--nodes=1",
                       f"--listen={address}")

    def test_an_address_of_another_host_is_reported_as_such(self):
        # For documentation, and on no host. Source: RFC 5737.
        elsewhere = "192.0.2.1:0"
        hint = r"it is no address of this host \(`ferry doctor` lists them\)"
        self.fail_with(1, f"cannot listen on {elsewhere}: {hint}", "coordinator", "--nodes=1",
                       f"--listen={elsewhere}")
        for flag, option in (("--tensor-listen", ", in programs TransferOptions::listen_address"),
                             ("--graph-listen", "")):
            with self.subTest(flag):
                at = self.coordinator(1)[1]
                self.fail_with(1, f"cannot .* on {elsewhere}: .*"
                                  rf"{hint} \({flag}{option}\)",
                               "worker", f"--coordinator={at}", "--node-id=0", "--num-nodes=1",
                               f"{flag}={elsewhere}")

    def test_sigint_ends_it_well(self):
        process = self.coordinator(1)[0]
        process.signal(signal.SIGINT)
        self.assertEqual(process.wait(), 0)


class Run(harness.Case):
    def test_its_processes_get_the_heartbeat_timeout(self):
        show = ("--", "sh", "-c", "echo ${FERRY_HEARTBEAT_TIMEOUT-none}")
        self.assertEqual(self.succeed("run", *show), b"[0] none\n")
        self.assertEqual(self.succeed("run", "--heartbeat-timeout=5m", *show), b"[0] 300s\n")
        self.assertEqual(self.succeed("run", *show, FERRY_HEARTBEAT_TIMEOUT="1.5s"),
                         b"[0] 1.5s\n")

    def test_its_coordinator_has_the_heartbeat_timeout(self):
        script = """
            "$0" worker >out.$RANK & worker=$!
            if [ $RANK = 1 ]; then
                until grep -q joined out.$RANK; do sleep 0.05; done
                kill -STOP $worker
            fi
            wait $worker"""
        with tempfile.TemporaryDirectory() as folder:
            status, _, err = self.run_ferry("run", "--nproc=2", "--heartbeat-timeout=1s", "--",
                                            "sh", "-c", f"cd {folder};{script}", harness.FERRY)
        self.assertEqual(status, 1)
        self.assertRegex(err, "task 1 has been silent for over 1s")

    def test_each_line_names_its_rank(self):
        out = self.succeed("run", "--nproc=3", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assertEqual(sorted(out.splitlines()), [b"[0] 0 of 3", b"[1] 1 of 3", b"[2] 2 of 3"])

    def test_without_prefix_the_output_is_unchanged(self):
        self.assertEqual(self.succeed("run", "--no-prefix", "--", "echo", "plain"), b"plain\n")
        self.assertEqual(self.succeed("run", "--no-prefix", "--", "printf", r"a\r\nb\r\n\nc\000"),
                         b"a\r\nb\r\n\nc\0")

    def test_all_conventions_are_set_and_agree(self):
        out = self.succeed("run", "--nproc=2", "--gpus-per-proc=2", "--", "env").decode()
        env = dict(line[4:].split("=", 1) for line in out.splitlines()
                   if line.startswith("[1] ") and "=" in line)
        for name in ("RANK", "LOCAL_RANK", "FERRY_NODE_ID", "FERRY_LOCAL_RANK", "JAX_PROCESS_ID"):
            self.assertEqual(env[name], "1", name)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "FERRY_NUM_NODES", "JAX_NUM_PROCESSES"):
            self.assertEqual(env[name], "2", name)
        self.assertEqual(env["CUDA_VISIBLE_DEVICES"], "2,3")
        self.assertEqual(env["JAX_COORDINATOR_ADDRESS"], env["FERRY_COORDINATOR"])
        self.assertNotEqual(f'{env["MASTER_ADDR"]}:{env["MASTER_PORT"]}', env["FERRY_COORDINATOR"])

    def test_dashes_of_the_command_are_kept(self):
        self.assertEqual(self.succeed("run", "printf", "%s;", "a", "--", "-b"), b"[0] a;--;-b;\n")
        self.assertEqual(self.succeed("run", "--", "printf", "%s;", "--", "-b"), b"[0] --;-b;\n")

    def test_the_first_to_fail_is_named_with_status_and_last_lines(self):
        status, _, err = self.run_ferry(
            "run", "--nproc=3", "--", "sh", "-c",
            "test $RANK != 1 || { echo one; echo two >&2; exit 7; }; sleep 60")
        self.assertEqual(status, 7)
        self.assertRegex(err, r"ferry run: rank 1 \(pid \d+\) exited with status 7 .*last 2 lines")
        self.assertIn("    one\n", err)
        self.assertIn("    two\n", err)

    def test_death_by_signal_is_128_and_the_number(self):
        status, _, err = self.run_ferry("run", "--", "sh", "-c", "kill -SEGV $$")
        self.assertEqual(status, 128 + signal.SIGSEGV)
        self.assertIn("SIGSEGV", err)

    def test_processes_that_ignore_the_first_signal_are_killed_after_the_grace_period(self):
        start = time.monotonic()
        status, _, err = self.run_ferry(
            "run", "--nproc=2", "--grace=500ms", "--", "sh", "-c",
            # Rank 1 fails once rank 0 has shut its ears.
            'if test $RANK = 0; then trap "" TERM; ' + harness.FERRY + ' kv set deaf 1; sleep 60; '
            "sleep 60; else " + harness.FERRY + " kv get deaf; exit 3; fi")
        self.assertEqual(status, 3)
        self.assertLess(time.monotonic() - start, 20)
        self.assertIn("rank 0 did not stop and was killed", err)

    def test_sigterm_reaches_the_processes(self):
        run = self.start("run", "--nproc=2", "--", "sh", "-c",
                         'trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.05; done')
        run.wait_for(r"(?s)ready.*ready")
        run.signal(signal.SIGTERM)
        run.wait()
        self.assertEqual(sorted(re.findall(r"\[\d\] bye", run.out)), ["[0] bye", "[1] bye"])

    def test_an_interrupted_job_has_not_succeeded(self):
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            with self.subTest(number):
                run = self.start("run", "--", "sh", "-c",
                                 'trap "exit 0" INT QUIT TERM; echo ready; '
                                 "while :; do sleep 0.05; done")
                run.wait_for("ready")
                run.signal(number)
                self.assertEqual(run.wait(), 128 + number)

    def test_daemons_of_the_processes_are_stopped_in_the_end(self):
        _, out, err = self.run_ferry("run", "--", "sh", "-c",
                                     "setsid sleep 1000 & echo $!; sleep 0.2")
        pid = int(out.decode()[4:])
        self.assertIn(f"rank processes left behind: pid {pid}; stopping them", err)
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_daemons_of_an_interrupted_job_are_stopped_too(self):
        run = self.start("run", "--", "sh", "-c", "setsid sleep 1000 & echo $!; exec sleep 1000")
        pid = int(run.wait_for(r"\[0\] (\d+)\n").group(1))
        # Once it has left its group.
        self.eventually(lambda: os.getsid(pid) == pid)
        run.signal(signal.SIGQUIT)
        self.assertEqual(run.wait(), 128 + signal.SIGQUIT)
        self.assertIn(f"rank processes left behind: pid {pid}; stopping them", run.err)
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_a_full_disk_is_a_failure_with_its_reason(self):
        status, err = self.shell(f"{harness.FERRY} run -- sh -c 'echo x; sleep 60' >/dev/full")
        self.assertEqual(status, 1)
        self.assertIn("cannot write the output any more: No space left on device", err)
        self.assertEqual(self.shell(f"{harness.FERRY} run -- echo x >/dev/full")[0], 1)

    def test_the_processes_find_each_other(self):
        out = self.succeed("run", "--nproc=2", "--", harness.FERRY, "worker", "--exit-after-join")
        self.assertEqual(len(re.findall(rb"joined at", out)), 2)

    def test_two_machines_share_a_coordinator(self):
        address = self.coordinator(4)[1]
        machines = [self.start("run", "--nproc=2", "--nodes=2", f"--node-id={machine}",
                               f"--coordinator={address}", "--", harness.FERRY, "worker",
                               "--exit-after-join") for machine in range(2)]
        self.assertEqual([machine.wait() for machine in machines], [0, 0])
        self.assertIn("[3] ferry worker: node 3 of 4", machines[1].out)

    def test_standard_streams_that_are_closed_are_dev_null(self):
        """For the tool and its ranks, whatever libraries open before main."""
        with tempfile.TemporaryDirectory() as folder:
            command = f"readlink /proc/self/fd/0 >{folder}/stdin; cat; echo out; echo err >&2"
            for closed in ("<&- >/dev/null", "<&- >&-", "<&- >/dev/null 2>&-", "<&- >&- 2>&-"):
                with self.subTest(closed):
                    run = (f"{harness.FERRY} run --nproc=1 --stdin=0 -- sh -c '{command}' {closed}")
                    status, _ = self.shell(run)
                    # Output that cannot be written is a failure; missing input is not.
                    if "2>&-" not in closed:
                        self.assertEqual(status, 1 if ">&-" in closed else 0)
                    with open(f"{folder}/stdin", encoding="ascii") as file:
                        self.assertEqual(file.read(), "/dev/null\n")
        with subprocess.Popen([harness.FERRY, "coordinator", "--nodes=1", "--listen=127.0.0.1:0"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              preexec_fn=lambda: os.close(0), env=harness.environment()) as popen:
            popen.stdout.readline()
            stdin = os.readlink(f"/proc/{popen.pid}/fd/0")
            popen.kill()
        self.assertEqual(stdin, "/dev/null")

    def test_a_missing_command_is_reported_in_one_line(self):
        self.fail_with(1, '"/no/such" is not there', "run", "--nproc=2", "--", "/no/such")
        self.fail_with(1, '"/tmp" is a directory', "run", "--", "/tmp")
        self.fail_with(1, '"/etc/passwd" is not executable', "run", "--", "/etc/passwd")

    def test_the_last_lines_cannot_write_to_the_terminal(self):
        err = self.run_ferry("run", "--", "sh", "-c", r"printf 'a\033[31m'; exit 1")[2]
        self.assertIn("    a\\033[31m\n", err)


class Topo(harness.Case):
    def file(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "topo.xml")
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_this_machine_has_a_host_and_a_reason_for_having_no_gpu(self):
        status, out, err = self.run_ferry("topo")
        self.assertEqual(status, 0)
        self.assertIn(b"host:0", out)
        self.assertTrue(b"gpu:0" in out or "no GPUs: " in err, err)

    def test_the_matrix_is_aligned_and_its_title_gives_the_direction(self):
        out = self.succeed("topo", f"--nccl-xml={self.file(TWO_GPUS)}").decode().splitlines()
        title = next(i for i, line in enumerate(out) if "from row" in line and "to column" in line)
        header, *rows = out[title + 1:title + 4]
        self.assertEqual(header.split(), ["gpu:0", "gpu:1"])
        self.assertEqual([row.split() for row in rows],
                         [["gpu:0", "X", "PIX"], ["gpu:1", "PIX", "X"]])
        for row in rows:
            self.assertNotEqual(row[header.index("gpu:1")], " ")
            self.assertEqual(row[header.index("gpu:1") - 1], " ")

    def test_json_and_dot_parse(self):
        path = self.file(TWO_GPUS)
        topology = json.loads(self.succeed("topo", f"--nccl-xml={path}", "--json"))
        self.assertEqual(len(topology["devices"]), 2)
        dot = self.succeed("topo", f"--nccl-xml={path}", "--dot").decode()
        self.assertTrue(dot.startswith("graph "))
        self.assertEqual(dot.count("{"), dot.count("}"))

    def test_written_files_round_trip(self):
        path = self.file(TWO_GPUS)
        written = self.succeed("topo", f"--nccl-xml={path}", "--write-nccl-xml=-").decode()
        again = self.file(written)
        self.assertEqual(self.succeed("topo", f"--nccl-xml={again}"),
                         self.succeed("topo", f"--nccl-xml={path}"))

    def test_a_bad_file_is_refused_with_line_and_element(self):
        bad = TWO_GPUS.replace('numaid="0"', 'numaid="zero"')
        self.fail_with(1, "line 2: <cpu ", "topo", f"--nccl-xml={self.file(bad)}")
        self.fail_with(1, "line ", "topo", f"--nccl-xml={self.file(TWO_GPUS[:200])}")
        self.fail_with(1, "/no/such/file", "topo", "--nccl-xml=/no/such/file")

    def test_a_file_that_cannot_be_written_is_a_failure(self):
        self.fail_with(1, "cannot write.*/no/such/file", "topo",
                       f"--nccl-xml={self.file(TWO_GPUS)}", "--write-nccl-xml=/no/such/file")


class Demo(harness.Case):
    def test_every_step_succeeds(self):
        status, out, err = self.run_ferry("demo", timeout_s=60)
        text = out.decode()
        self.assertEqual((status, err), (0, ""), text)
        self.assertEqual(len(set(re.findall(r"worker \d holds ([0-9a-f]{16})", text))), 1, text)
        self.assertRegex(text, r"missing 3\n")
        self.assertRegex(text, r"nodes 0-2 got, .* later: .*heartbeat timeout.* 3 ")
        self.assertLessEqual(len(text.splitlines()), 40)

    def test_the_quick_start_shows_its_output(self):
        page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/quickstart.md")
        with open(page) as file:
            shown = re.search(r"(?s)\n(ferry demo: .*?)```", file.read()).group(1)
        # The steps; their output contains times, pids and the machine's devices.
        def steps(text):
            return re.findall(r"^  (\S.{9}) \S", text.split("\nNext:")[0], re.MULTILINE)
        self.assertGreater(len(steps(shown)), 6)
        self.assertEqual(steps(shown), steps(self.succeed("demo", timeout_s=60).decode()))

    def test_two_workers_are_enough(self):
        self.succeed("demo", "--nproc=2", timeout_s=60)


if __name__ == "__main__":
    harness.main()
