#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real PyTorch clients against the store that `ferry coordinator` serves.

  PYTHON pytorch_store.py --ferry=build/ferry [CASE...]

PYTHON is an interpreter with torch 1.13 or later. Without names, all cases run. Each prints one line,
`ok CASE`, `SKIPPED CASE: why` or `FAILED CASE: why`; the exit status is 1 if any failed, and 77 if torch is missing.
Ranks are forks of this process, so torch is imported once; torchrun starts its own.
"""
import argparse
import ctypes
import datetime
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from cases import Cases, Skip

# The timeout of each operation that should complete by itself. Generous, for loaded machines.
PATIENCE_S = 120
RANKS = 4
case = Cases()


class Failure(Exception):
    """An expectation that did not hold."""


def check(condition, why):
    if not condition:
        raise Failure(why)


def equal(got, expected, name):
    check(got == expected, f"{name}: {got!r} instead of {expected!r}")


def raises(function, name):
    """Returns the message of the exception that the function raises."""
    try:
        result = function()
    except Exception as error:  # The type differs between releases.
        return str(error)
    raise Failure(f"{name} returned {result!r} instead of raising an error")


def seconds(number):
    return datetime.timedelta(seconds=number)


class Coordinator:
    """`ferry coordinator` on a free port. A context manager."""

    def __init__(self, ferry, before=(), listen="127.0.0.1:0"):
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.popen = subprocess.Popen([*before, ferry, "coordinator", f"--listen={listen}", "--nodes=1"],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
        deadline, received = time.monotonic() + PATIENCE_S, b""
        while b"\n" not in received:
            if not select.select([self.popen.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Failure(f"the coordinator printed no address within {PATIENCE_S} s")
            piece = os.read(self.popen.stdout.fileno(), 4096)
            check(piece, "the coordinator ended")
            received += piece
        self.port = int(re.search(rb"listening on \S+:(\d+)\n", received).group(1))
        self.host = "127.0.0.1"
        self.ferry = ferry

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        is_alive = self.popen.poll() is None
        self.popen.kill()
        self.popen.wait(PATIENCE_S)
        self.popen.stdout.close()
        if kind is None:
            check(is_alive, "the coordinator ended: " + self.text()[-500:])

    def text(self):
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")

    def wait_for_cleared_keys(self):
        """Waits until the shared scope has been removed, --store-idle-timeout after its last client."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run([self.ferry, "status", f"--coordinator={self.host}:{self.port}", "--json"],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
            scopes = json.loads(done.stdout)["store_scopes"]
            if not scopes:
                return
            check(time.monotonic() < deadline, f"the keys still exist after {PATIENCE_S} s: {scopes}")
            time.sleep(0.1)

    def wait_for_takeovers(self, count):
        """Waits until it has replaced its program `count` times."""
        deadline = time.monotonic() + PATIENCE_S
        while self.text().count("has taken over") < count:
            check(time.monotonic() < deadline and "goes on" not in self.text(),
                  f"it was not replaced {count} times: {self.text()[-500:]}")
            time.sleep(0.01)

    def store(self, **options):
        options = {"is_master": False, "wait_for_workers": False, "timeout": seconds(60), **options}
        return dist.TCPStore(self.host, self.port, **options)


def in_processes(functions):
    """Runs each in a forked process. Returns their outputs; fails if one does not exit in time."""
    children = []
    for function in functions:
        log = tempfile.TemporaryFile("w+", errors="replace")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                function()
                status = 0
            except BaseException:  # The child must not return into the parent's code.
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append((pid, log))
    deadline, statuses = time.monotonic() + PATIENCE_S, {}
    while len(statuses) < len(children):
        for pid, _ in children:
            if pid not in statuses and os.waitpid(pid, os.WNOHANG)[0]:
                statuses[pid] = None
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    late = [pid for pid, _ in children if pid not in statuses]
    for pid in late:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    outputs = []
    for place, (pid, log) in enumerate(children):
        log.seek(0)
        outputs.append(log.read())
        check(pid not in late,
              f"process {place} of {len(children)} still ran after {PATIENCE_S} s: {outputs[-1][-1000:]}")
    return outputs


def run_ranks(functions):
    """Runs each in a forked process, and fails if one of them raises an error."""
    def report(function):
        def run():
            function()
            print("\ndone")
        return run
    outputs = in_processes([report(function) for function in functions])
    failed = [(rank, output) for rank, output in enumerate(outputs) if not output.endswith("\ndone\n")]
    check(not failed, "; ".join(f"process {rank}: {output.strip()[-700:]}" for rank, output in failed))


def in_group(coordinator, rank, body, **variables):
    """Returns a function that joins a gloo group, with the environment of `ferry run`, and calls body(rank)."""
    def run():
        os.environ.update(MASTER_ADDR=coordinator.host, MASTER_PORT=str(coordinator.port), RANK=str(rank),
                          WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS), GROUP_RANK="0",
                          TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",
                          TORCHELASTIC_RUN_ID="job", GLOO_SOCKET_IFNAME="lo", **variables)
        dist.init_process_group("gloo", timeout=seconds(60))
        body(rank)
        dist.destroy_process_group()
    return run


def group(coordinator, body, **variables):
    run_ranks([in_group(coordinator, rank, body, **variables) for rank in range(RANKS)])


# Tensors of collectives, until the process ends. Gloo's threads may release theirs last, which takes the GIL, while
# destroy_process_group waits for these threads with the GIL held (seen with 2.6).
KEPT_TENSORS = []


def sum_of_ranks(group=None, world=RANKS):
    """An all-reduce and a barrier."""
    tensor = torch.full((1000,), float(dist.get_rank()))
    KEPT_TENSORS.append(tensor)
    dist.all_reduce(tensor, group=group)
    equal(tensor.unique().tolist(), [world * (world - 1) / 2], "the sum of the ranks")
    dist.barrier(group=group)


@case
def operations(ferry):
    """All operations of the release."""
    def run(store, other):
        store.set("k", "value")
        equal(store.get("k"), b"value", "get")
        equal(other.get("k"), b"value", "get of another client")
        store.set("empty", "")
        equal(store.get("empty"), b"", "get of an empty value")
        store.set("large", "v" * 5000000)
        equal(len(other.get("large")), 5000000, "get of a large value")
        equal([store.add("n", 5), other.add("n", -7), store.add("n", 0)], [5, -2, -2], "add")
        equal(store.get("n"), b"-2", "get after add")
        equal([store.compare_set("c", "x", "y"), store.compare_set("c", "", "y"), other.compare_set("c", "z", "w"),
               other.compare_set("c", "y", "w")], [b"x", b"y", b"y", b"w"], "compare_set")
        store.wait(["k", "n"])
        store.wait(["k", "n"], seconds(60))
        equal(store.num_keys(), 5, "num_keys")
        equal([store.delete_key("k"), other.delete_key("k"), store.num_keys()], [True, False, 4], "delete_key")
        if hasattr(store, "check"):
            equal([store.check(["n"]), store.check(["n", "absent"]), store.check([])], [True, False, True], "check")
        if hasattr(store, "append"):
            check(store.has_extended_api(), "has_extended_api is false")
            store.append("a", "one")
            store.append("a", "two")
            equal(store.get("a"), b"onetwo", "append")
            store.multi_set(["m1", "m2"], ["first", "second"])
            equal(other.multi_get(["m2", "m1", "a"]), [b"second", b"first", b"onetwo"], "multi_get")
            many = [f"many {number}" for number in range(3000)]
            store.multi_set(many, [name * 3 for name in many])
            equal(other.multi_get(many), [(name * 3).encode() for name in many], "multi_get of 3000 keys")
        if hasattr(store, "queue_push"):
            # queue_push has no reply, so queue_len is called to wait until it has been executed.
            store.queue_push("q", "one")
            equal(store.queue_len("q"), 1, "length after a push")
            other.queue_push("q", "two")
            equal([other.queue_len("q"), other.queue_pop("q"), store.queue_pop("q"), store.queue_len("q")],
                  [2, b"one", b"two", 0], "queues")
            raises(lambda: store.queue_pop("q", False), "queue_pop of an empty queue")
            threading.Timer(0.2, lambda: other.queue_push("q", "late")).start()
            equal(store.queue_pop("q"), b"late", "queue_pop that blocks")
        if hasattr(store, "list_keys"):
            names = store.list_keys()
            equal({"a", "n", "empty", "large", "c"} - set(names), set(), "list_keys")
        if hasattr(store, "clone"):
            clone = store.clone()
            clone.set("clone", "v")
            equal(store.get("clone"), b"v", "set of a clone")
        if hasattr(store, "barrier"):
            passed = threading.Thread(target=lambda: other.barrier("b", 2))
            passed.start()
            store.barrier("b", 2)
            passed.join(PATIENCE_S)
            check(not passed.is_alive(), "the barrier has not completed for the first client")
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda: run(coordinator.store(), coordinator.store())])


@case
def operations_through_prefixes(ferry):
    """PrefixStore, also nested; two prefixes have separate keys."""
    def run(store):
        one, two = dist.PrefixStore("one", store), dist.PrefixStore("two", dist.PrefixStore("one", store))
        one.set("k", "1")
        two.set("k", "2")
        equal([one.get("k"), two.get("k"), store.get("one/k")], [b"1", b"2", b"1"], "get")
        equal([one.add("n", 1), two.add("n", 5), store.add("one/n", 1)], [1, 5, 2], "add")
        equal(one.compare_set("k", "1", "3"), b"3", "compare_set")
        one.wait(["k"], seconds(60))
        raises(lambda: one.wait(["absent"], seconds(1)), "wait for an absent key")
        equal([one.delete_key("k"), one.delete_key("k")], [True, False], "delete_key")
        equal(two.get("k"), b"2", "get after a delete under the other prefix")
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda: run(coordinator.store())])


@case
def wait_that_times_out(ferry):
    """The client remains usable, also when the key is set later, and can wait again."""
    def run(store, other):
        store.set("k", "v")
        for attempt in range(3):
            name = f"late {attempt}"
            raises(lambda: store.wait([name], seconds(1)), "wait for an absent key")
            # get() has the timeout of the store, which is longer.
            equal(store.get("k"), b"v", "get after a timeout")
            other.set(name, "value")
            equal(other.get(name), b"value", "get of the other client")
            equal([store.get("k"), store.add("n", 1), store.get(name)], [b"v", attempt + 1, b"value"],
                  "replies after the key has been set")
        store.set_timeout(seconds(1))
        raises(lambda: store.get("never"), "get of an absent key")
        store.set_timeout(seconds(60))
        threading.Timer(0.3, lambda: other.set("soon", "here")).start()
        store.wait(["soon", "k"])
        equal(store.get("soon"), b"here", "get after a wait")
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda: run(coordinator.store(), coordinator.store())])


@case
def client_that_is_silent_for_12_seconds(ferry):
    """A client that connects and sends its first request much later."""
    def run(fresh, used):
        used.set("k", "v")
        time.sleep(12)
        equal([used.get("k"), fresh.get("k")], [b"v", b"v"], "get")
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda: run(coordinator.store(), coordinator.store())])


@case
def clients_that_wait_for_workers(ferry):
    """wait_for_workers=True: the constructors of four clients wait for each other."""
    def run(coordinator, rank):
        store = coordinator.store(world_size=RANKS, wait_for_workers=True)
        equal(store.add("n", 1) in range(1, RANKS + 1), True, "add")
        store.set(f"rank {rank}", "here")
        store.wait([f"rank {other}" for other in range(RANKS)])
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda rank=rank: run(coordinator, rank) for rank in range(RANKS)])


@case
def gloo_group(ferry):
    """init_process_group() by env:// with TORCHELASTIC_USE_AGENT_STORE."""
    with Coordinator(ferry) as coordinator:
        group(coordinator, lambda rank: sum_of_ranks())


@case
def two_jobs_on_one_port(ferry):
    """Later jobs do not see the keys of earlier ones."""
    def body(rank):
        sum_of_ranks()
        dist.new_group([0, 1])
        # Without it, a rank could exit and close its connections before another rank has set up its own.
        dist.barrier()
    with Coordinator(ferry) as coordinator:
        for job in range(3):
            group(coordinator, body)
            coordinator.wait_for_cleared_keys()


@case
def hundred_new_groups(ferry):
    """Creates 100 groups, some of which are used and destroyed."""
    def body(rank):
        for number in range(100):
            made = dist.new_group(list(range(RANKS)))
            if number % 10 == 0:
                sum_of_ranks(made)
            if number % 2:
                dist.destroy_process_group(made)
        sum_of_ranks()
    with Coordinator(ferry) as coordinator:
        group(coordinator, body)


@case
def monitored_barrier(ferry):
    """It completes, and its error names a rank that does not call it."""
    with Coordinator(ferry) as coordinator:
        def body(rank):
            dist.monitored_barrier(timeout=seconds(60))
            store = coordinator.store()
            if rank == 3:
                store.wait(["all others have an error"])
                return
            error = raises(lambda: dist.monitored_barrier(timeout=seconds(3)), "a barrier without rank 3")
            if rank == 0:
                check(re.search(r"\b3\b", error), f"the error does not name rank 3: {error}")
            if store.add("errors", 1) == 3:
                store.set("all others have an error", "")
        group(coordinator, body)


@case
def barrier_after_init(ferry):
    """TORCH_DIST_INIT_BARRIER=1, which counts in the store."""
    with Coordinator(ferry) as coordinator:
        group(coordinator, lambda rank: sum_of_ranks(), TORCH_DIST_INIT_BARRIER="1")


@case
def gloo_group_while_the_coordinator_is_upgraded(ferry):
    """The coordinator replaces its program while all ranks but one wait for a key."""
    with Coordinator(ferry) as coordinator:
        def body(rank):
            store = dist.distributed_c10d._get_default_store()
            for upgrade in range(1, 4):
                key = f"upgrade/{upgrade}"
                if rank == 0:
                    store.wait([f"{key}/{other}" for other in range(1, RANKS)])
                    os.kill(coordinator.popen.pid, signal.SIGUSR2)
                    coordinator.wait_for_takeovers(upgrade)
                    store.set(key, "done")
                else:
                    store.set(f"{key}/{rank}", "waits")
                    store.wait([key])
                store.add("passed", 1)
                dist.new_group(list(range(RANKS)))
                sum_of_ranks()
            equal(store.add("passed", 0), 3 * RANKS, "passes")
        group(coordinator, body)


@case
def gloo_group_in_two_network_namespaces(ferry):
    """init_process_group("tcp://...") with the coordinator's address: rank 0, on another machine, starts its own
    server on the same port, which no client uses."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise Skip("needs root and the command ip")
    near, far = (f"ferry{os.getpid()}{side}" for side in "nf")
    made = []

    def ip(*arguments):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise Skip(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    try:
        for name in (near, far):
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "ferry0", "netns", near, "type", "veth", "peer", "name", "ferry0", "netns", far)
        for name, address in ((near, "10.93.77.1/24"), (far, "10.93.77.2/24")):
            ip("-n", name, "addr", "add", address, "dev", "ferry0")
            for device in ("lo", "ferry0"):
                ip("-n", name, "link", "set", device, "up")

        def run(rank, coordinator):
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{far if rank == 0 else near}", encoding="ascii") as namespace:
                check(libc.setns(namespace.fileno(), 0x40000000) == 0, f"setns: {os.strerror(ctypes.get_errno())}")
            os.environ["GLOO_SOCKET_IFNAME"] = "ferry0"
            dist.init_process_group("gloo", f"tcp://10.93.77.1:{coordinator.port}", rank=rank, world_size=RANKS,
                                    timeout=seconds(60))
            sum_of_ranks()
            dist.destroy_process_group()
        with Coordinator(ferry, ["ip", "netns", "exec", near], "0.0.0.0:0") as coordinator:
            run_ranks([lambda rank=rank: run(rank, coordinator) for rank in range(RANKS)])
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], timeout=PATIENCE_S, check=False)


def worker(folder):
    """A worker of torchrun. With FAIL_ONCE, the first process with rank 1 fails before the sum. (It cannot depend on
    the restart count, which each agent counts for itself.)"""
    dist.init_process_group("gloo", timeout=seconds(60))
    if "FAIL_ONCE" in os.environ and dist.get_rank() == 1:
        try:
            os.close(os.open(os.path.join(folder, "failed"), os.O_CREAT | os.O_EXCL))
            sys.exit(1)
        except FileExistsError:
            pass
    sum_of_ranks(world=dist.get_world_size())
    with open(os.path.join(folder, str(dist.get_rank())), "x", encoding="ascii"):
        pass
    dist.destroy_process_group()


def torchrun(coordinator, run_id, *flags, **variables):
    """Runs two agents with two workers each. Returns the ranks that succeeded, and "failed" if one has failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2",
                   "--rdzv_backend=c10d", f"--rdzv_endpoint={coordinator.host}:{coordinator.port}",
                   f"--rdzv_id={run_id}", "--monitor_interval=0.2", *flags]
        if torch.__version__.startswith("1.") and sys.version_info >= (3, 11):
            # The defaults of these two flags fail with Python 3.11 and later.
            command += ["--redirects=1", "--tee=1"]
        command += [os.path.abspath(__file__), f"--worker={folder}"]
        agents, env = [], {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **variables}
        try:
            for _ in range(2):
                log = tempfile.TemporaryFile("w+", errors="replace")
                agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                         start_new_session=True, env=env)
                agents.append((agent, log))
            deadline = time.monotonic() + 2 * PATIENCE_S
            for place, (agent, log) in enumerate(agents):
                try:
                    status = agent.wait(max(0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    status = "still running at the timeout"
                log.seek(0)
                check(status == 0, f"agent {place} of {run_id}: {status}: {log.read().strip()[-1500:]}")
            return sorted(os.listdir(folder))
        finally:
            for agent, _ in agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
                    agent.wait(PATIENCE_S)


@case
def torchrun_with_two_agents(ferry):
    """Two jobs with different ids, one after the other, on the same port."""
    with Coordinator(ferry) as coordinator:
        for run_id in ("first", "second"):
            equal(torchrun(coordinator, run_id), list("0123"), f"ranks that succeeded in {run_id}")


@case
def torchrun_with_the_id_of_a_job_that_has_ended(ferry):
    with Coordinator(ferry) as coordinator:
        for attempt in ("first", "second"):
            equal(torchrun(coordinator, "same"), list("0123"), f"ranks that succeeded in the {attempt} job")
            coordinator.wait_for_cleared_keys()


@case
def torchrun_restarts_a_worker_that_fails_once(ferry):
    """The workers of the second attempt form a group. Without TORCH_DISABLE_SHARE_RDZV_TCP_STORE, releases from 2.4 on
    reuse the store of the first attempt, hosted by an agent, with its keys, and fail with any rendezvous store."""
    with Coordinator(ferry) as coordinator:
        ended = torchrun(coordinator, "restarts", "--max_restarts=2", FAIL_ONCE="1",
                         TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        equal(ended, [*"0123", "failed"], "ranks that succeeded")


def main():
    parser = case.parser()
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    if not arguments.ferry:
        parser.error("--ferry is missing")
    return case.run(parser, arguments.cases, arguments.ferry)


if __name__ == "__main__":
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        print(f"SKIP: {sys.executable} has no torch")
        sys.exit(77)
    print(f"torch {torch.__version__}", flush=True)
    sys.exit(main())
