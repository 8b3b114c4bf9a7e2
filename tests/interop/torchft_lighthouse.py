#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real clients of torchft against the lighthouse that `ferry coordinator` serves.

  PYTHON torchft_lighthouse.py --ferry=build/ferry [CASE...]
  PYTHON torchft_lighthouse.py --real              [CASE...]

PYTHON is an interpreter with torch and torchft (or torchft-nightly). Without names, all cases run. With --real they run
against torchft's own LighthouseServer, to validate the expectations of the cases. Prints one line per case, as
pytorch_store.py does; the exit status is 1 if any failed, and 77 if torch or torchft is missing. (The file is not
called torchft.py, which would shadow the package.)
"""
import argparse
import datetime
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from cases import Cases, Skip
from pytorch_store import PATIENCE_S, Failure, check, equal, seconds

case = Cases()
# The heartbeat timeout of the server. Shorter than the default, since cases wait for it.
HEARTBEAT_TIMEOUT_S = 2


class Lighthouse:
    """The server under test: a coordinator, or torchft's own server in this process. A context manager."""

    def __init__(self, options, min_replicas=1, join_timeout_s=60, listen="127.0.0.1:0"):
        self.ferry, self.popen, self.real = options.ferry, None, None
        if options.real:
            self.real = LighthouseServer(bind="[::]:0", min_replicas=min_replicas,
                                         join_timeout_ms=int(join_timeout_s * 1000),
                                         heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_S * 1000)
            self.address = self.real.address()
            return
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.popen = subprocess.Popen(
            [self.ferry, "coordinator", f"--listen={listen}", "--nodes=1",
             f"--lighthouse-min-replicas={min_replicas}", f"--lighthouse-join-timeout={join_timeout_s}s",
             f"--lighthouse-heartbeat-timeout={HEARTBEAT_TIMEOUT_S}s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
        line = read_line(self.popen.stdout, "the coordinator's address")
        self.listen = re.search(r"listening on (\S+)\n", line).group(1)
        self.address = f"http://{self.listen}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.real:
            self.real.shutdown()
        elif self.popen is not None:
            is_alive = self.popen.poll() is None
            self.kill()
            if kind is None:
                check(is_alive, "the coordinator ended")

    def kill(self):
        """Kills the coordinator before the end of the context."""
        self.popen.kill()
        self.popen.wait(PATIENCE_S)
        self.popen.stdout.close()
        self.popen = None

    def client(self):
        return LighthouseClient(addr=self.address, connect_timeout=seconds(PATIENCE_S))

    def status(self):
        """The text of `ferry status`, and the lighthouse in its JSON."""
        run = [subprocess.run([self.ferry, "status", f"--coordinator={self.listen}", *flags], capture_output=True,
                              timeout=PATIENCE_S, check=True, text=True).stdout for flags in ([], ["--json"])]
        return run[0], json.loads(run[1])["lighthouse"]


def read_line(stream, what, timeout_s=PATIENCE_S):
    """Reads a line from an unbuffered pipe."""
    deadline, received = time.monotonic() + timeout_s, b""
    while not received.endswith(b"\n"):
        if not select.select([stream], [], [], max(0, deadline - time.monotonic()))[0]:
            raise Failure(f"waited {timeout_s} s for {what}")
        piece = os.read(stream.fileno(), 1)
        check(piece, f"the process ended before {what}")
        received += piece
    return received.decode(errors="replace")


def ids(quorum):
    return [member.replica_id for member in quorum.participants]


def in_threads(functions):
    """Calls all concurrently. Returns their results in order, or raises the first error."""
    results = [None] * len(functions)
    errors = []

    def run(place, function):
        try:
            results[place] = function()
        except Exception as error:  # Raised below.
            errors.append(error)
    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    check(not any(thread.is_alive() for thread in threads), f"a call has not returned in {PATIENCE_S} s")
    return results


class Heartbeats:
    """Sends heartbeats of replicas, as their managers do. A context manager."""

    def __init__(self, lighthouse, names):
        self.ended = threading.Event()
        client = lighthouse.client()

        def run():
            while not self.ended.wait(0.1):
                for name in names:
                    client.heartbeat(replica_id=name)
        for name in names:
            client.heartbeat(replica_id=name)
        self.thread = threading.Thread(target=run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join(PATIENCE_S)


class Worker:
    """A replica group in a process of its own, which prints a JSON object for each step."""

    def __init__(self, kind, lighthouse, name):
        self.name = name
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.popen = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), f"--worker={kind}", f"--lighthouse={lighthouse.address}",
             f"--name={name}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.popen.kill()
        self.popen.wait(PATIENCE_S)

    def step(self, what="a step"):
        try:
            while True:
                line = read_line(self.popen.stdout, f"{what} of {self.name}")
                if line.startswith("{"):
                    return json.loads(line)
        except Failure as failure:
            text = os.pread(self.log.fileno(), 1 << 20, max(0, os.fstat(self.log.fileno()).st_size - 1500))
            raise Failure(f"{failure}; stderr: {text.decode(errors='replace')}") from None

    def until(self, condition, what):
        """Returns the first step for which the condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            step = self.step(what)
            if condition(step):
                return step
        raise Failure(f"{self.name} ran for {PATIENCE_S} s without {what}: {step}")


@case
def client_alone(options):
    """A quorum of one, with the member's data and without; the same quorum again has the same id."""
    with Lighthouse(options) as lighthouse:
        client = lighthouse.client()
        quorum = client.quorum(replica_id="r", address="http://here:1", store_address="here:2", step=3, world_size=4,
                               timeout=seconds(60), data={"my_data": 1234, "text": "\u00fc"})
        [member] = quorum.participants
        equal((member.replica_id, member.address, member.store_address, member.step, member.world_size,
               member.shrink_only, member.data),
              ("r", "http://here:1", "here:2", 3, 4, False, {"my_data": 1234, "text": "\u00fc"}), "the member")
        check(abs(quorum.created.seconds - time.time()) < 60, f"created at {quorum.created.seconds}")
        again = client.quorum(replica_id="r", timeout=seconds(60))
        equal((again.quorum_id, ids(again), again.participants[0].data), (quorum.quorum_id, ["r"], None), "again")


@case
def heartbeats(options):
    """A quorum waits for a replica with a recent heartbeat, until its heartbeat timeout."""
    with Lighthouse(options) as lighthouse:
        client = lighthouse.client()
        client.heartbeat("other")
        start = time.monotonic()
        with Heartbeats(lighthouse, ["r"]):
            quorum = client.quorum(replica_id="r", timeout=seconds(60))
        equal(ids(quorum), ["r"], "the quorum")
        check(time.monotonic() - start > HEARTBEAT_TIMEOUT_S - 0.5, "it did not wait for the other")


@case
def threads_of_one_process(options):
    """Eight replicas, twenty steps: all get the same quorum, whose id does not change."""
    names = [f"r{number}" for number in range(8)]
    with Lighthouse(options, min_replicas=8) as lighthouse:
        clients = [lighthouse.client() for _ in names]
        seen = set()
        for step in range(20):
            quorums = in_threads([lambda name=name, client=client: client.quorum(replica_id=name, step=step,
                                                                                 timeout=seconds(60))
                                  for name, client in zip(names, clients)])
            for quorum in quorums:
                equal(ids(quorum), names, "the members")
                equal({member.step for member in quorum.participants}, {step}, "the steps")
                seen.add(quorum.quorum_id)
        equal(len(seen), 1, "the number of quorum ids")


@case
def timeout(options):
    """The error says why there is no quorum, and the call no longer counts as joined."""
    with Lighthouse(options, min_replicas=2) as lighthouse, Heartbeats(lighthouse, ["a", "b"]):
        client = lighthouse.client()
        start = time.monotonic()
        try:
            client.quorum(replica_id="a", timeout=seconds(2))
        except TimeoutError as error:
            text = str(error)
        else:
            raise Failure("a quorum of one was formed")
        check(1.5 < time.monotonic() - start < 10, f"the error came after {time.monotonic() - start} s")
        if options.real:
            return
        for expected in ("DeadlineExceeded", "a", "the minimum is 2", "--lighthouse-min-replicas", "not joined", "b"):
            check(expected in text, f"the error lacks {expected!r}: {text}")
        equal([replica["joined"] for replica in lighthouse.status()[1]["replicas"]], [False, False], "joined")


@case
def shrink_only(options):
    """A new replica is left out of a quorum with shrink_only, keeps waiting, and is in the next quorum."""
    names = ["a", "b"]
    with Lighthouse(options, min_replicas=2) as lighthouse, Heartbeats(lighthouse, ["a", "b", "c"]):
        client = lighthouse.client()

        def join(name, **more):
            return lambda: lighthouse.client().quorum(replica_id=name, timeout=seconds(60), **more)
        # c has sent heartbeats but has not joined: of three, two are more than half, but it is waited for.
        first = in_threads([join(name) for name in (*names, "c")])[0]
        equal(ids(first), ["a", "b", "c"], "the first quorum")
        newcomer = []
        thread = threading.Thread(target=lambda: newcomer.append(client.quorum(replica_id="n", timeout=seconds(60))),
                                  daemon=True)
        with Heartbeats(lighthouse, ["n"]):
            thread.start()
            time.sleep(0.5)
            second = in_threads([join("a", shrink_only=True), join("b"), join("c")])
            equal([ids(quorum) for quorum in second], [["a", "b", "c"]] * 3, "the second quorum")
            equal({quorum.quorum_id for quorum in second}, {first.quorum_id}, "its id")
            check(not newcomer, "the newcomer has a quorum")
            third = in_threads([join(name) for name in (*names, "c")])[0]
            thread.join(PATIENCE_S)
        equal(ids(third), ["a", "b", "c", "n"], "the third quorum")
        equal([(ids(quorum), quorum.quorum_id) for quorum in newcomer], [(ids(third), first.quorum_id + 1)],
              "the newcomer's quorum")


def replica_groups(options, kind):
    """Three groups form a quorum; one is killed, and the others continue; a new one takes its place."""
    with Lighthouse(options, min_replicas=2) as lighthouse:
        with Worker(kind, lighthouse, "a") as a, Worker(kind, lighthouse, "b") as b, \
             Worker(kind, lighthouse, "c") as c:
            steps = [worker.until(lambda step: step["size"] == 3, "a quorum of 3") for worker in (a, b, c)]
            equal(len({step["quorum_id"] for step in steps}), 1, "the number of quorum ids")
            if not options.real:
                text, status = lighthouse.status()
                equal((status["quorum_size"], status["quorum_id"]), (3, steps[0]["quorum_id"]), "the status")
                equal([replica["replica_id"][:2] for replica in status["replicas"]], ["a:", "b:", "c:"], "the replicas")
                check(f"quorum {steps[0]['quorum_id']} of 3 replicas" in text, f"the status says {text}")
            c.kill()
            after = [worker.until(lambda step: step["size"] == 2, "a quorum of 2") for worker in (a, b)]
            for step in after:
                check(step["quorum_id"] > steps[0]["quorum_id"], f"the quorum id is {step['quorum_id']}")
            if not options.real:
                replicas = {replica["replica_id"][:1]: replica for replica in lighthouse.status()[1]["replicas"]}
                check(not replicas["c"]["healthy"] and not replicas["c"]["in_quorum"], f"the status has {replicas}")
            with Worker(kind, lighthouse, "c") as again:
                back = [worker.until(lambda step: step["size"] == 3, "a quorum of 3 again")
                        for worker in (a, b, again)]
                equal(len({step["quorum_id"] for step in back}), 1, "the number of quorum ids")
                check(back[0]["quorum_id"] > after[0]["quorum_id"], f"the quorum id is {back[0]['quorum_id']}")
                # The new group has recovered its state from another one.
                check(back[2]["step"] >= after[0]["step"], f"it is at step {back[2]['step']}")


@case
def managers_of_three_replica_groups(options):
    """ManagerServers with two ranks each, without PyTorch's collectives."""
    replica_groups(options, "manager")


@case
def training_of_three_replica_groups(options):
    """Managers with gloo: each step is an all-reduce over the groups; the new group fetches a checkpoint."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise Skip(f"torchft's collectives need PyTorch 2.7, this is {torch.__version__}")
    replica_groups(options, "train")


@case
def coordinator_is_started_again(options):
    """The groups continue with the new coordinator, with quorum ids that were not used before."""
    if options.real:
        raise Skip("torchft's own server begins with the same ids again")
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
    with Lighthouse(options, min_replicas=2, listen=listen) as lighthouse:
        with Worker("manager", lighthouse, "a") as a, Worker("manager", lighthouse, "b") as b:
            before = [worker.until(lambda step: step["size"] == 2, "a quorum of 2") for worker in (a, b)]
            lighthouse.kill()
            with Lighthouse(options, min_replicas=2, listen=listen):
                after = [worker.until(lambda step: step["quorum_id"] > before[0]["quorum_id"], "a larger quorum id")
                         for worker in (a, b)]
                equal([step["size"] for step in after], [2, 2], "the sizes")


@case
def coordinator_is_stopped_for_a_while(options):
    """SIGSTOP of the coordinator does not count as missing heartbeats, so no group is left out of the quorum."""
    if options.real:
        raise Skip("torchft's own server counts it as missing heartbeats")
    with Lighthouse(options, min_replicas=1) as lighthouse:
        with Worker("manager", lighthouse, "a") as a, Worker("manager", lighthouse, "b") as b:
            before = [worker.until(lambda step: step["size"] == 2, "a quorum of 2") for worker in (a, b)][0]
            for _ in range(5):
                lighthouse.popen.send_signal(signal.SIGSTOP)
                # Longer than the heartbeat timeout.
                time.sleep(1.5 * HEARTBEAT_TIMEOUT_S)
                lighthouse.popen.send_signal(signal.SIGCONT)
                # The first of these steps may have been printed before the stop.
                for worker in (a, b):
                    for step in [worker.step() for _ in range(40)]:
                        equal((step["size"], step["quorum_id"]), (2, before["quorum_id"]), "the quorum")


@case
def nothing_is_shown_without_torchft(options):
    """`ferry status` shows no lighthouse until a torchft client has called it."""
    if options.real:
        raise Skip("for Ferry only")
    with Lighthouse(options) as lighthouse:
        text, status = lighthouse.status()
        equal(status, None, "the JSON")
        check("lighthouse" not in text, f"the text is {text}")
        lighthouse.client().heartbeat("r")
        text, status = lighthouse.status()
        check("no quorum so far" in text and status["quorum_id"] == 0, f"the text is {text}")


def work_as_manager(address, name):
    """A replica group of two ranks with a ManagerServer, which joins quorums until it is killed."""
    server = ManagerServer(replica_id=f"{name}:{os.getpid()}", lighthouse_addr=address, hostname="localhost",
                           bind="[::]:0", store_addr=f"{name}:1", world_size=2,
                           heartbeat_interval=datetime.timedelta(milliseconds=100), connect_timeout=seconds(60),
                           quorum_retries=100)
    clients = [ManagerClient(server.address(), connect_timeout=seconds(60)) for _ in range(2)]
    step = 0
    # A field of newer releases, which the lighthouse passes on to the other groups.
    more = {}
    if "reconfigure_handle" in ManagerClient._quorum.__text_signature__:
        more["reconfigure_handle"] = f"handle of {name}"
    while True:
        results = in_threads([lambda rank=rank: clients[rank]._quorum(
            group_rank=rank, step=step, checkpoint_metadata="", shrink_only=False, init_sync=True, commit_failures=0,
            timeout=seconds(60), **more) for rank in range(2)])
        equal(len({result.quorum_id for result in results}), 1, "the number of quorum ids of the ranks")
        if more:
            equal(len(results[0].reconfigure_handles), results[0].replica_world_size, "the number of handles")
            check(more["reconfigure_handle"] in results[0].reconfigure_handles, "this group's handle is missing")
        step = max(step, results[0].max_step) + 1
        emit(step=step, quorum_id=results[0].quorum_id, size=results[0].replica_world_size)
        time.sleep(0.05)


def work_as_trainer(address, name):
    """A replica group of one rank that trains with others until it is killed."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    state = {"steps": 0}
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=seconds(10)), min_replica_size=2, load_state_dict=state.update,
        state_dict=lambda: dict(state), replica_id=name, store_addr="localhost", store_port=store.port, rank=0,
        world_size=1, lighthouse_addr=address, use_async_quorum=False, timeout=seconds(10),
        quorum_timeout=seconds(60), connect_timeout=seconds(60), hostname="localhost")
    while True:
        manager.start_quorum()
        size = manager.num_participants()
        tensor = torch.ones(1000) * size
        manager.allreduce(tensor).wait()
        if manager.should_commit():
            # allreduce() averages over the groups.
            equal(tensor.unique().tolist(), [size], "the all-reduced tensor")
            state["steps"] += 1
            check(state["steps"] == manager.current_step(),
                  f"the state is of step {state['steps']}, the manager at {manager.current_step()}")
            emit(step=manager.current_step(), quorum_id=manager._quorum_id, size=size)
        time.sleep(0.05)


def emit(**fields):
    os.write(1, (json.dumps(fields) + "\n").encode())


def end_with_parent():
    """Exits when the parent, which has the other end of stdin, exits or is killed."""
    os.read(0, 1)
    os._exit(3)


def main():
    parser = case.parser()
    parser.add_argument("--real", action="store_true", help="the server is torchft's own")
    for hidden in ("--worker", "--lighthouse", "--name"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        threading.Thread(target=end_with_parent, daemon=True).start()
        work = {"manager": work_as_manager, "train": work_as_trainer}[options.worker]
        return work(options.lighthouse, options.name)
    if bool(options.ferry) == options.real:
        parser.error("give --ferry or --real")
    return case.run(parser, options.cases, options)


if __name__ == "__main__":
    try:
        import torch
        import torch.distributed as dist
        import torchft
        from torchft._torchft import LighthouseClient, LighthouseServer, ManagerClient, ManagerServer
    except ImportError as missing:
        print(f"SKIP: {sys.executable} has no torchft that can be used: {missing}")
        sys.exit(77)
    if "--worker" not in " ".join(sys.argv):
        from importlib import metadata
        versions = [f"{name} {metadata.version(name)}" for name in ("torchft", "torchft-nightly")
                    if any(True for _ in metadata.distributions(name=name))]
        print(f"torch {torch.__version__}, {', '.join(versions)}", flush=True)
    sys.exit(main())
