# SPDX-License-Identifier: Apache-2.0
"""Runs the ferry binary with deadlines on everything, and kills processes that a test leaves behind."""
import os
import re
import select
import signal
import subprocess
import sys
import time
import unittest

FERRY = os.path.abspath(sys.argv[1])
# The timeout of everything that should end by itself. Generous, for loaded machines.
PATIENCE_S = 30
# The tool prints this on a slow machine; the elapsed time follows.
PROGRESS = (r"ferry: (asking|looking|measuring|starting|trying|waiting) .*"
            r" \(\d[\d.]*[a-z][\da-z.]*\)$")

# Variables that launchers of the machine that runs the tests may have set.
FOREIGN = re.compile(r"^(FERRY_|SLURM_|OMPI_|PMIX?_|MPI_|MV[2P]_|TORCHELASTIC_|TF_CONFIG$|"
                     r"JOB_COMPLETION|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_|JAX_|"
                     r"CUDA_VISIBLE_DEVICES$)")


def environment(**variables):
    env = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
    return {**env, **variables}


class Process:
    """A process, of ferry's mostly, whose output is read as it comes."""

    def __init__(self, arguments, env, program=FERRY):
        self.popen = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        self.streams = {self.popen.stdout.fileno(): "", self.popen.stderr.fileno(): ""}
        self.open = set(self.streams)

    @property
    def out(self):
        return self.streams[self.popen.stdout.fileno()]

    @property
    def err(self):
        return self.streams[self.popen.stderr.fileno()]

    def pump(self, timeout_s):
        for fd in select.select(list(self.open), [], [], timeout_s)[0]:
            data = os.read(fd, 65536)
            self.streams[fd] += data.decode(errors="replace")
            if not data:
                self.open.discard(fd)

    def wait_for(self, pattern, timeout_s=PATIENCE_S):
        """The match of `pattern` in stdout or stderr."""
        deadline = time.monotonic() + timeout_s
        while True:
            match = re.search(pattern, self.out) or re.search(pattern, self.err)
            if match:
                return match
            if not self.open or time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in {self.out!r} or {self.err!r}")
            self.pump(deadline - time.monotonic())

    def wait(self, timeout_s=PATIENCE_S):
        """The exit status, once all output is read."""
        deadline = time.monotonic() + timeout_s
        while self.open:
            if time.monotonic() > deadline:
                raise AssertionError(f"still there: {self.popen.args}, {self.out!r} {self.err!r}")
            self.pump(max(0, deadline - time.monotonic()))
        return self.popen.wait(timeout_s)

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.popen.stdout.close()
        self.popen.stderr.close()


class Case(unittest.TestCase):
    maxDiff = None

    def start(self, *arguments, **variables):
        process = Process(arguments, environment(**variables))
        self.addCleanup(process.kill)
        return process

    def run_ferry(self, *arguments, stdin=b"", timeout_s=PATIENCE_S, **variables):
        """(exit status, stdout as bytes, stderr as text)."""
        done = subprocess.run([FERRY, *arguments], input=stdin, capture_output=True,
                              timeout=timeout_s, env=environment(**variables))
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def shell(self, script, timeout_s=PATIENCE_S, **variables):
        """(exit status, stderr) of a shell's command line."""
        done = subprocess.run(["sh", "-c", script], stdin=subprocess.DEVNULL, timeout=timeout_s,
                              stderr=subprocess.PIPE, env=environment(**variables))
        return done.returncode, done.stderr.decode(errors="replace")

    def succeed(self, *arguments, **options):
        status, out, err = self.run_ferry(*arguments, **options)
        self.assertEqual(status, 0, f"{arguments}: {err}")
        return out

    def fail_with(self, status, pattern, *arguments, **options):
        """Ends with this status and one line of complaint, beside progress."""
        got, _, err = self.run_ferry(*arguments, **options)
        lines = [line for line in err.splitlines() if not re.match(PROGRESS, line)
                 and not line.startswith("ferry run: ")]
        self.assertEqual((got, len(lines)), (status, 1), err)
        self.assertRegex(lines[0], "^ferry: ")
        self.assertRegex(lines[0], pattern)

    def coordinator(self, nodes, *flags):
        """A coordinator process and its address."""
        process = self.start("coordinator", f"--nodes={nodes}", "--listen=127.0.0.1:0", *flags)
        return process, process.wait_for(r"ferry coordinator listening on (\S+)\n").group(1)

    def worker(self, address, node, nodes, *flags, **variables):
        return self.start("worker", f"--coordinator={address}", f"--node-id={node}",
                          f"--num-nodes={nodes}", *flags, **variables)

    def workers(self, address, nodes, *flags):
        """All of a job, joined."""
        workers = [self.worker(address, node, nodes, *flags) for node in range(nodes)]
        for worker in workers:
            worker.wait_for("joined at")
        return workers

    def eventually(self, check, timeout_s=PATIENCE_S):
        """Waits until check() is true and returns that."""
        deadline = time.monotonic() + timeout_s
        while True:
            result = check()
            if result or time.monotonic() > deadline:
                self.assertTrue(result)
                return result
            time.sleep(0.05)


def main():
    """Runs all cases of the calling module, a line for each."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
