# SPDX-License-Identifier: Apache-2.0
"""Processes of peers: each has a time limit, and none of them, nor their children, is left when it is over."""
import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
# The limit of the recorded output of one that fails.
LAST_WORDS = 300
# For it to end its own processes before all of them are killed.
GRACE_S = 2
START_S = 30


class Failed(Exception):
    """Why a peer has no figure."""


def adopt():
    """Orphans become our children, also those that have left their group."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents():
    """The parent of each process there is."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                words = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                found[int(entry)] = int(words[1])
    return found


def descendants(root, of):
    found, edge = [], [root]
    while edge:
        parent = edge.pop()
        children = [pid for pid, its in of.items() if its == parent]
        found += children
        edge += children
    return found


def sweep(keep=()):
    """Ends all that descend from us but `keep` and theirs."""
    for _ in range(100):
        of = parents()
        kept = {pid for each in keep for pid in [each, *descendants(each, of)]}
        left = [pid for pid in descendants(os.getpid(), of) if pid not in kept]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            # Only our own children can be waited for; the others become so when their parents have
            # ended.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


class Others:
    """How much of a core other processes take on these cores, from its construction until the query."""

    def __init__(self, cores):
        self.cores = cores
        self.start = self.now()

    def now(self):
        names = {f"cpu{core}" for core in self.cores}
        busy = 0
        for line in pathlib.Path("/proc/stat").read_text().splitlines():
            words = line.split()
            if words and words[0] in names:
                # The fields are user, nice, system, idle, iowait, irq, softirq, steal: all but idle
                # and iowait count.
                busy += sum(int(word) for word in words[1:4] + words[6:9])
        own = os.times()
        return time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), sum(own[:4])

    def share(self):
        wall, busy, own = (end - start for start, end in zip(self.start, self.now()))
        return max(0.0, busy - own) / max(wall, 1e-9)


def wait_for_quiet(cores, most, patience_s):
    """Waits until others take less than `most` of a core for a moment, or the timeout expires."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        others = Others(cores)
        time.sleep(0.3)
        if others.share() <= most:
            return


def words_of(log):
    log.seek(0)
    return log.read().decode(errors="replace")


def last_words(text):
    return " ".join(text.split())[-LAST_WORDS:]


def environment(extra):
    # Proxies and the like between processes of one machine only slow them down.
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, **(extra or {})}


def run(command, limit_s, extra=None, keep=()):
    """Returns its output. Failed if it fails, or times out; none of its processes is left, but `keep`."""
    command = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       env=environment(extra), start_new_session=True)
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}") from error
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            sweep(keep)
        if status is None:
            raise Failed(f"still ran after {limit_s:g} s: {last_words(words_of(err) or words_of(out))}")
        if status != 0:
            raise Failed(f"ended with {status}: {last_words(words_of(err) or words_of(out))}")
        return words_of(out)


def free_port(count=1):
    """The first of `count` consecutive free ports."""
    for _ in range(100):
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
        others = [socket.socket() for _ in range(count)]
        try:
            for index, other in enumerate(others):
                other.bind(("127.0.0.1", port + index))
            return port
        except (OSError, OverflowError):
            continue
        finally:
            for other in others:
                other.close()
    raise Failed(f"no {count} free ports in a row")


def listens(port):
    """Looks without connecting, which some servers would take for their only client."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    return True
    return False


@contextlib.contextmanager
def server(command, port, extra=None):
    """A process that listens on `port`; gives its id."""
    command = [str(word) for word in command]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env=environment(extra), start_new_session=True)
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}") from error
        try:
            deadline = time.monotonic() + START_S
            while not listens(port):
                if process.poll() is not None:
                    raise Failed(f"{command[0]} ended with {process.returncode}: {last_words(words_of(log))}")
                if time.monotonic() > deadline:
                    raise Failed(f"{command[0]} does not listen after {START_S} s: {last_words(words_of(log))}")
                time.sleep(0.01)
            yield process.pid
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            if process.poll() is None:
                process.kill()
                process.wait()
            sweep()
