#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of real PyTorch with the Python package: `torchrun --rdzv-backend=ferry` and init_process_group("ferry://...").

  PYTHON pytorch_elastic.py --ferry=build/ferry [CASE...]

Usage and output are those of pytorch_store.py, which has the common code. Cases with torchrun need PyTorch 2.4 or
later. Each agent has one worker, so the world size is the number of nodes.
"""
import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytorch_store
from cases import Cases, Skip
from pytorch_store import PATIENCE_S, RANKS, Coordinator, check, equal, raises, run_ranks, seconds, sum_of_ranks

PACKAGE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "python"))
# The last call timeout of agents: longer than `import torch` takes.
LAST_CALL_S = 10
case = Cases()


def install(folder):
    """Makes the package visible to torchrun like an installed one, by its metadata. Returns the search path."""
    with open(os.path.join(PACKAGE, "pyproject.toml"), encoding="utf-8") as file:
        text = file.read()
    version = re.search(r'^version = "(.*)"$', text, re.MULTILINE).group(1)
    name, target = re.search(r'^\[project\.entry-points\."torchrun\.handlers"\]\n(\w+) = "(.*)"$', text,
                             re.MULTILINE).groups()
    metadata = os.path.join(folder, f"ferry_runtime-{version}.dist-info")
    os.mkdir(metadata)
    for file_name, content in (("METADATA", f"Metadata-Version: 2.1\nName: ferry-runtime\nVersion: {version}\n"),
                               ("entry_points.txt", f"[torchrun.handlers]\n{name} = {target}\n")):
        with open(os.path.join(metadata, file_name), "w", encoding="utf-8") as file:
            file.write(content)
    return os.pathsep.join([folder, PACKAGE])


def status(ferry, coordinator):
    """Returns the output of `ferry status --json`."""
    done = subprocess.run([ferry, "status", "--json", f"--coordinator={coordinator.host}:{coordinator.port}"],
                          capture_output=True, text=True, timeout=PATIENCE_S)
    equal(done.returncode, 0, f"the exit status of ferry status: {done.stderr}")
    return json.loads(done.stdout)


class Job:
    """Agents of torchrun, each a process group, and the folder where workers report progress by creating files."""

    def __init__(self, coordinator, folder, run_id, nodes, *flags, **variables):
        if not hasattr(rendezvous_api, "RendezvousInfo"):
            raise Skip("torchrun of this release has no entry points")
        self.folder = os.path.join(folder, f"{run_id} {time.monotonic()}")
        os.mkdir(self.folder)
        self.command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc_per_node=1",
                        "--rdzv_backend=ferry", f"--rdzv_endpoint={coordinator.host}:{coordinator.port}",
                        f"--rdzv_id={run_id}", "--monitor_interval=0.2", *flags,
                        os.path.abspath(__file__), f"--worker={self.folder}"]
        self.env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH, **variables}
        self.agents = []
        self.killed = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent, _ in self.agents:
            try:
                os.killpg(agent.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            agent.wait(PATIENCE_S)

    def start(self, count=1):
        for _ in range(count):
            log = tempfile.TemporaryFile("w+", errors="replace")
            env = {**self.env, "AGENT": str(len(self.agents))}
            agent = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                     start_new_session=True, env=env)
            self.agents.append((agent, log))

    def kill(self, place):
        """Kills an agent and its workers, as if its machine had failed."""
        self.killed.add(place)
        os.killpg(self.agents[place][0].pid, signal.SIGKILL)

    def log(self, place):
        file = self.agents[place][1]
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace").strip()

    def words(self):
        """The names of the files: "up WORLD STORE RANK AGENT" for each worker after its first sum."""
        return [os.path.basename(path) for path in glob.glob(os.path.join(self.folder, "*"))]

    def wait_until_up(self, world, without=()):
        """Waits until a world of this size is up, whose store is not in `without`. Returns {rank: agent} and the port
        of its store."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            stores = {}
            for word in self.words():
                if word.startswith(f"up {world} "):
                    port, rank, agent = map(int, word.split()[2:])
                    stores.setdefault(port, {})[rank] = agent
            for port, agents in stores.items():
                if port not in without and sorted(agents) == list(range(world)):
                    return agents, port
            logs = "; ".join(f"agent {place}: {self.log(place)[-700:]}" for place in range(len(self.agents)))
            check(time.monotonic() < deadline, f"no world of {world} in {PATIENCE_S} s, but {self.words()}; {logs}")
            for place, (agent, _) in enumerate(self.agents):
                check(place in self.killed or agent.poll() in (None, 0),
                      f"agent {place} has ended: {self.log(place)[-1500:]}")
            time.sleep(0.1)

    def finish(self):
        """Lets the workers exit. Returns the ranks that succeeded."""
        with open(os.path.join(self.folder, "finish"), "w", encoding="ascii"):
            pass
        return self.wait()

    def wait(self):
        deadline = time.monotonic() + PATIENCE_S
        for place, (agent, _) in enumerate(self.agents):
            if place in self.killed:
                continue
            try:
                ended = agent.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                ended = "still running at the timeout"
            check(ended == 0, f"agent {place}: {ended}: {self.log(place)[-1500:]}")
        return sorted(int(word.split()[1]) for word in self.words() if word.startswith("done "))


def worker(folder):
    """A worker of torchrun. With FAIL_ONCE, the first process with rank 1 fails; with HOLD, all run until the file
    "finish" exists."""
    equal(os.environ["TORCHELASTIC_USE_AGENT_STORE"], "True", "TORCHELASTIC_USE_AGENT_STORE")
    dist.init_process_group("gloo", timeout=seconds(60))
    rank, world = dist.get_rank(), dist.get_world_size()
    if "FAIL_ONCE" in os.environ and rank == 1:
        try:
            os.close(os.open(os.path.join(folder, "failed"), os.O_CREAT | os.O_EXCL))
            sys.exit(1)
        except FileExistsError:
            pass
    sum_of_ranks(world=world)
    with open(os.path.join(folder, f"up {world} {os.environ['MASTER_PORT']} {rank} {os.environ['AGENT']}"), "w",
              encoding="ascii"):
        pass
    while "HOLD" in os.environ:
        is_over = torch.tensor(float(rank == 0 and os.path.exists(os.path.join(folder, "finish"))))
        dist.all_reduce(is_over)
        if is_over.item():
            break
        time.sleep(0.1)
    with open(os.path.join(folder, f"done {rank}"), "w", encoding="ascii"):
        pass
    dist.destroy_process_group()


@case
def torchrun_with_two_agents(ferry):
    """The coordinator hosts the workers' store, and closes it when the job has ended."""
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        with Job(coordinator, folder, "job", 2, HOLD="1") as job:
            job.start(2)
            _, port = job.wait_until_up(2)
            shown = status(ferry, coordinator)
            equal([scope["port"] for scope in shown["store_scopes"]], [port], "the ports of stores")
            run, = shown["elastic_runs"]
            equal((run["run_id"], run["round"], sorted(agent["rank"] for agent in run["agents"])), ("job", 0, [0, 1]),
                  "the run")
            equal(job.finish(), [0, 1], "ranks that succeeded")
        deadline = time.monotonic() + PATIENCE_S
        while status(ferry, coordinator)["elastic_runs"] or status(ferry, coordinator)["store_scopes"]:
            check(time.monotonic() < deadline, "the run, or its store, still exists")
            time.sleep(0.1)


@case
def torchrun_with_the_id_of_a_job_that_has_ended(ferry):
    """Three jobs in immediate succession, with different sizes."""
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        for nodes in (2, 1, 2):
            with Job(coordinator, folder, "same", nodes) as job:
                job.start(nodes)
                equal(job.wait(), list(range(nodes)), "ranks that succeeded")


@case
def torchrun_restarts_a_worker_that_fails_once(ferry):
    """The workers of the second attempt form a group in a store without the keys of the first."""
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        with Job(coordinator, folder, "restarts", 2, "--max_restarts=2", FAIL_ONCE="1") as job:
            job.start(2)
            equal(job.wait(), [0, 1], "ranks that succeeded")
            check("failed" in job.words(), "no worker has failed")


def goes_on_without_a_node(ferry, victim):
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        with Job(coordinator, folder, "elastic", "1:3", "--max_restarts=3",
                 f"--rdzv_conf=last_call_timeout={LAST_CALL_S}", HOLD="1") as job:
            job.start(3)
            agents, port = job.wait_until_up(3)
            job.kill(agents[victim])
            survivors, _ = job.wait_until_up(2, without=[port])
            check(agents[victim] not in survivors.values(), "the killed agent is in the next round")
            # Survivors keep their ranks, if those are less than the new world size.
            for rank in {0, 1} - {victim}:
                equal(survivors[rank], agents[rank], f"the agent with rank {rank}")
            equal(job.finish(), [0, 1], "ranks that succeeded")


@case
def torchrun_goes_on_without_a_killed_node(ferry):
    """--nnodes=1:3, and SIGKILL for the last node."""
    goes_on_without_a_node(ferry, 2)


@case
def torchrun_goes_on_without_the_first_node(ferry):
    """--nnodes=1:3, and SIGKILL for the node with rank 0, which hosts the store with other backends."""
    goes_on_without_a_node(ferry, 0)


@case
def torchrun_takes_in_a_node_that_comes_late(ferry):
    """The restart of the workers does not count for --max-restarts."""
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        with Job(coordinator, folder, "late", "1:2", "--max_restarts=0", "--rdzv_conf=last_call_timeout=1",
                 HOLD="1") as job:
            job.start()
            agents, port = job.wait_until_up(1)
            job.start()
            both, _ = job.wait_until_up(2, without=[port])
            equal(both, {0: agents[0], 1: 1}, "the agents by their ranks")
            equal(job.finish(), [0, 1], "ranks that succeeded")


@case
def torchrun_replaces_a_killed_node(ferry):
    """--nnodes=2: the remaining node waits for the new one, which gets the free rank."""
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        with Job(coordinator, folder, "replace", 2, "--max_restarts=3", HOLD="1") as job:
            job.start(2)
            agents, port = job.wait_until_up(2)
            job.kill(agents[0])
            job.start()
            both, _ = job.wait_until_up(2, without=[port])
            equal(both, {0: 2, 1: agents[1]}, "the agents by their ranks")
            equal(job.finish(), [0, 1], "ranks that succeeded")


@case
def torchrun_without_a_node_names_those_that_came(ferry):
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        with Job(coordinator, folder, "missing", 2, "--rdzv_conf=join_timeout=3") as job:
            job.start()
            agent = job.agents[0][0]
            check(agent.wait(PATIENCE_S) != 0, "an agent without the other has succeeded")
            for words in ("RendezvousTimeoutError", "1 of 2 nodes has joined", os.uname().nodename,
                          "1 node is missing"):
                check(words in job.log(0), f"no {words!r} in {job.log(0)[-1500:]}")


@case
def torchrun_with_other_sizes_is_refused(ferry):
    with Coordinator(ferry) as coordinator, tempfile.TemporaryDirectory() as folder:
        with Job(coordinator, folder, "sizes", 2) as job, Job(coordinator, folder, "sizes", 3) as other:
            job.start()
            deadline = time.monotonic() + PATIENCE_S
            while not status(ferry, coordinator)["elastic_runs"]:
                check(time.monotonic() < deadline, "the first node has not joined")
                time.sleep(0.1)
            other.start()
            check(other.agents[0][0].wait(PATIENCE_S) != 0, "an agent with other sizes has succeeded")
            check("asks for 3" in other.log(0), f"the sizes are not in {other.log(0)[-1500:]}")


@case
def torchrun_without_a_coordinator_says_so(ferry):
    del ferry
    with tempfile.TemporaryDirectory() as folder:
        nowhere = argparse.Namespace(host="127.0.0.1", port=1)
        with Job(nowhere, folder, "nowhere", 1, "--rdzv_conf=connect_timeout=2") as job:
            job.start()
            check(job.agents[0][0].wait(PATIENCE_S) != 0, "an agent without a coordinator has succeeded")
            for words in ("RendezvousConnectionError", "127.0.0.1:1", "refused"):
                check(words in job.log(0), f"no {words!r} in {job.log(0)[-1500:]}")


def launched():
    """The function that elastic_launch() runs in its workers, which import this file."""
    import torch.distributed
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", timeout=seconds(60))
    everything = torch.ones(1)
    torch.distributed.all_reduce(everything)
    torch.distributed.destroy_process_group()
    return everything.item()


@case
def launcher_after_register(ferry):
    """elastic_launch() in a program, also with releases without entry points."""
    def run(coordinator):
        import ferry.torch
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
        ferry.torch.register()
        ferry.torch.register()
        options = {}
        if torch.__version__.startswith("1."):
            # As in pytorch_store.py: the defaults fail with Python 3.11 and later.
            from torch.distributed.elastic.multiprocessing import Std
            options = {"redirects": Std.OUT, "tee": Std.OUT}
        config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="launcher", rdzv_backend="ferry",
                              rdzv_endpoint=f"{coordinator.host}:{coordinator.port}", monitor_interval=0.2,
                              max_restarts=0, **options)
        equal(elastic_launch(config, launched)(), {0: 2.0, 1: 2.0}, "the results")
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda: run(coordinator)])


def join_by_url(coordinator, rank, query="", **options):
    import ferry.torch  # noqa: F401 (registers ferry://)
    options = {"rank": rank, "world_size": RANKS, "timeout": seconds(60), **options}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"ferry://{coordinator.host}:{coordinator.port}{query}", **options)


@case
def four_ranks_of_a_url_twice(ferry):
    """Two groups in the same processes, then two in others, all with one run id and separate stores."""
    def run(coordinator, rank):
        for _ in range(2):
            join_by_url(coordinator, rank)
            sum_of_ranks()
            dist.new_group([0, 1])
            # All ranks must have used new_group's store before one destroys the group.
            sum_of_ranks()
            dist.destroy_process_group()
    with Coordinator(ferry) as coordinator:
        for _ in range(2):
            run_ranks([lambda rank=rank: run(coordinator, rank) for rank in range(RANKS)])


@case
def two_groups_of_urls_at_once(ferry):
    """Different run ids, with ranks from the environment and from the URL."""
    def run(coordinator, name, rank):
        if name == "environment":
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), TORCHELASTIC_RUN_ID=name)
            join_by_url(coordinator, -1, world_size=-1)
        else:
            join_by_url(coordinator, -1, f"?rank={rank}&world_size={RANKS}&run_id={name}", world_size=-1)
        sum_of_ranks()
        dist.destroy_process_group()
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda rank=rank, name=name: run(coordinator, name, rank)
                   for name in ("environment", "url") for rank in range(RANKS)])


@case
def missing_rank_of_a_url_is_named(ferry):
    def run(coordinator, rank):
        error = raises(lambda: join_by_url(coordinator, rank, timeout=seconds(3)), "a group without rank 2")
        check("rank 2 is missing" in error and " of 4 nodes" in error, f"the error does not name rank 2: {error}")
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda rank=rank: run(coordinator, rank) for rank in (0, 1, 3)])


@case
def rank_of_a_url_that_is_taken_is_refused(ferry):
    def run(coordinator):
        import threading
        first = threading.Thread(target=lambda: raises(
            lambda: join_by_url(coordinator, 0, timeout=seconds(30)), "a group without other ranks"), daemon=True)
        first.start()
        deadline = time.monotonic() + PATIENCE_S
        while not any(agent["is_waiting"] for run in status(ferry, coordinator)["elastic_runs"]
                      for agent in run["agents"]):
            check(time.monotonic() < deadline, "the first rank has not joined")
            time.sleep(0.1)
        pid = os.fork()
        if pid == 0:
            error = raises(lambda: join_by_url(coordinator, 0, timeout=seconds(30)), "a second rank 0")
            os._exit(0 if "rank 0" in error and "joined already" in error else 1)
        equal(os.waitpid(pid, 0)[1], 0, "the status of the second rank 0")
    with Coordinator(ferry) as coordinator:
        run_ranks([lambda: run(coordinator)])


def main():
    parser = case.parser()
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    if not arguments.ferry:
        parser.error("--ferry is missing")
    sys.path.insert(0, PACKAGE)
    return case.run(parser, arguments.cases, arguments.ferry)


if __name__ == "__main__":
    try:
        import torch
        import torch.distributed as dist
        import torch.distributed.elastic.rendezvous.api as rendezvous_api
    except ImportError:
        print(f"SKIP: {sys.executable} has no torch")
        sys.exit(77)
    pytorch_store.torch, pytorch_store.dist = torch, dist
    print(f"torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as made:
        PATH = "" if any(argument.startswith("--worker") for argument in sys.argv) else install(made)
        result = main()
    sys.exit(result)
