#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real jaxlib clients against a coordinator.

  run_interop.py --ferry=build/ferry --python=VENV/bin/python --jaxlib=0.10.2
  run_interop.py --real              --python=VENV/bin/python --jaxlib=0.10.2
  run_interop.py ... --jaxlib=0.4.13 --service=drs      (or coordination)

With --real the server is jaxlib's own; a case that fails there has a wrong
expectation.  Some cases drive both servers, and compare their answers.  Prints
`ok NAME` or `FAILED NAME: why` per case and ends non-zero if any failed.
--only=a,b picks cases; --brief leaves out what does not differ between
neighbouring releases, for those that stand between two that run everything.

The dialects covered, and the operations of their clients:
  drs     0.4.13, xla.DistributedRuntimeService: set, blocking get, barriers
  old     0.4.13 and 0.4.30, tensorflow.CoordinationService of 2023: also
          directories and delete; no overwrite, try-get, subset barriers or
          error polling
  new     0.6.2 to 0.9.0 (tensorflow.CoordinationService), 0.10.2 and 0.12.0.1
          (xla.coordination.CoordinationService): everything
"""
import argparse
import concurrent.futures
import functools
import os
import re
import signal
import subprocess
import sys
import time

from harness import (HEARTBEAT_S, HERE, Cluster, Failure, Log, Server,
                     check, spawn, wait_exit)

CASES = []
# Names of cases.
WAITING = set()
ALL = ("drs", "old", "new")
# A lost client is detected within the heartbeat timeout; the real server checks once a second, and
# a survivor is notified with one of its next heartbeats.
NOTICE_S = 2 * HEARTBEAT_S + 6


# The oldest tested release whose client has the feature of a case.
SINCE = {"key_value_increment": (0, 8, 1)}
# The services of later releases return the nodes' topologies unchanged, one by one.
UNTIL = {"device_partitions": (0, 4, 13)}
# With --brief. A release that has two ways to run a psum needs one.
NOT_BRIEF = {"drs": set(), "old": {"key_value_large_directory", "new_incarnation_refused"},
             "new": {"barrier_lists", "key_value_large_directory", "new_incarnation_refused",
                     "psum_patch"}}


def case(*dialects):
    def register(function):
        CASES.append((function.__name__, dialects or ALL, function))
        return function
    return register


def waits(function):
    """A case that waits for most of its time: it runs beside the others."""
    WAITING.add(function.__name__)
    return function


def of_ferry_alone(function):
    """A case that does not apply to jaxlib's own service."""
    @functools.wraps(function)
    def run(options):
        if not options.real:
            function(options)
    return run


@case()
def connect(options):
    """No connect returns before the last one called it."""
    with Cluster(options, 4, connect=False) as cluster:
        early = [client.call("connect") for client in cluster.clients[:3]]
        check(not early[0].done.wait(1), "connect returned before all had called")
        cluster.clients[3].call("connect").value()
        for call in early:
            call.value()


@case()
def key_values(options):
    with Cluster(options, 2) as cluster:
        a, b = cluster.clients
        a.call("key_value_set", "a/b", "v").value()
        check(b.call("blocking_key_value_get", "a/b", 5000).value() == "v", "wrong value")
        waiting = b.call("blocking_key_value_get", "late", 20000)
        check(not waiting.done.wait(0.5), "get of a missing key returned at once")
        a.call("key_value_set", "late", "now").value()
        check(waiting.value() == "now", "wrong late value")
        timed_out = b.call("blocking_key_value_get", "never", 700)
        # In drs the server's NOT_FOUND and the client's own deadline race.
        timed_out.error(r"^(DEADLINE_EXCEEDED|NOT_FOUND: never)" if options.dialect == "drs"
                        else r"^DEADLINE_EXCEEDED")
        check(timed_out.reply["seconds"] < 5, "a 0.7 s wait took far longer")
        again = a.call("key_value_set", "a/b", "w")
        if options.dialect == "drs":
            # That service overwrites silently.
            again.value()
            check(b.call("blocking_key_value_get", "a/b", 5000).value() == "w", "not replaced")
        else:
            # The 2023 service's message is "Config key ..."; a server that serves both may send
            # either to that client, newer clients get the newer text.
            prefix = "(Config )?" if options.dialect == "old" else ""
            again.error(rf"^ALREADY_EXISTS: {prefix}key a/b already exists\.")
            check(b.call("blocking_key_value_get", "a/b", 5000).value() == "v", "value changed")


@case("new")
def key_value_overwrite_and_try(options):
    with Cluster(options, 2) as cluster:
        a, b = cluster.clients
        a.call("key_value_set", "k", "1", True).value()
        a.call("key_value_set", "k", "2", True).value()
        check(b.call("key_value_try_get", "k").value() == "2", "overwrite was lost")
        b.call("key_value_try_get", "no/such").error(
            r"^NOT_FOUND: Config key no/such not found\.")
        # Keys are normalised, and errors quote the caller's spelling.
        check(b.call("key_value_try_get", "//k/").value() == "2", "no normalisation")
        b.call("key_value_try_get", "/no//such/").error(
            r"^NOT_FOUND: Config key /no//such/ not found\.")


@case("new")
def key_value_increment(options):
    with Cluster(options, 2) as cluster:
        a, b = cluster.clients
        check(a.call("key_value_increment", "n", 10).value() == 10, "missing key counts as 0")
        check(b.call("key_value_increment", "n", -3).value() == 7, "10 - 3")
        check(a.call("key_value_try_get", "n").value() == "7", "decimal text")
        burst = [client.call("key_value_increment", "burst", 1)
                 for client in cluster.clients for _ in range(20)]
        seen = sorted(call.value() for call in burst)
        check(seen == list(range(1, 41)), f"increments lost or doubled: {seen}")
        a.call("key_value_set", "text", "abc").value()
        a.call("key_value_increment", "text", 1).error(r"^FAILED_PRECONDITION")


@case("old", "new")
def key_value_directories(options):
    with Cluster(options, 2) as cluster:
        a, b = cluster.clients
        for key in ("dir/x", "dir/y/z", "dir_not", "dir"):
            a.call("key_value_set", key, key.upper()).value()
        for spelling in ("dir", "dir/"):
            found = dict(b.call("key_value_dir_get", spelling).value())
            check(found == {"dir/x": "DIR/X", "dir/y/z": "DIR/Y/Z"}, f"{spelling}: {found}")
        check(b.call("key_value_dir_get", "empty").value() == [], "empty directory")
        b.call("key_value_delete", "dir/x").value()
        check(dict(a.call("key_value_dir_get", "dir").value()) == {"dir/y/z": "DIR/Y/Z"},
              "delete of one key")
        b.call("key_value_delete", "dir").value()
        check(a.call("key_value_dir_get", "dir").value() == [], "delete of a directory")
        a.call("blocking_key_value_get", "dir/y/z", 500).error(r"^DEADLINE_EXCEEDED")
        check(a.call("blocking_key_value_get", "dir_not", 5000).value() == "DIR_NOT",
              "delete of dir took dir_not along")
        b.call("key_value_delete", "never/was").value()
        a.call("key_value_set", "dir/x", "again").value()


@case("old", "new")
def key_value_large_directory(options):
    """10 x 1 MiB in one answer, past gRPC's default limit of 4 MiB, which the
    client of 0.4.13 still has for what it receives."""
    count = 10 if options.dialect == "new" else 3
    with Cluster(options, 2) as cluster:
        a, b = cluster.clients
        for index in range(count):
            a.call("key_value_set", f"big/{index}", str(index) * (1 << 20)).value()
        found = dict(b.call("key_value_dir_get", "big").value(60))
        check({key: len(value) for key, value in found.items()}
              == {f"big/{index}": 1 << 20 for index in range(count)}, "keys or sizes differ")
        check(all(found[f"big/{index}"] == str(index) * (1 << 20) for index in range(count)),
              "values differ")


@case()
def key_value_bytes(options):
    raw = bytes(range(256)) + b"\0\0end"
    with Cluster(options, 2) as cluster:
        a, b = cluster.clients
        if a.has("key_value_set_bytes"):
            a.call("key_value_set_bytes", "raw", {"hex": raw.hex()}).value()
        else:
            # 0.4.13 takes text only; NULs and UTF-8 still pass through it.
            raw = b"a\0b\0\xc3\xbc\0"
            a.call("key_value_set", "raw", raw.decode()).value()
        got = b.call("blocking_key_value_get_bytes", "raw", 5000).value()
        check(got == {"hex": raw.hex()}, "bytes changed on the way")


@case()
def barrier_of_all(options):
    with Cluster(options, 3) as cluster:
        calls = [client.call("wait_at_barrier", "b", 20000) for client in cluster.clients[:2]]
        check(not calls[0].done.wait(0.7), "barrier opened before the last arrival")
        cluster.clients[2].call("wait_at_barrier", "b", 20000).value()
        for call in calls:
            call.value()
        if options.dialect == "new":
            for _ in range(2):
                cluster.every("wait_at_barrier", "b", 20000)
        else:
            # Ids are for one use; in "old" the client itself refuses.
            for client in cluster.clients:
                client.call("wait_at_barrier", "b", 20000).error(r"^FAILED_PRECONDITION.*same id")
            for index in range(3):
                cluster.every("wait_at_barrier", f"b{index}", 20000)


@case("new")
def barrier_of_some(options):
    with Cluster(options, 3) as cluster:
        a, b, c = cluster.clients
        for _ in range(2):
            pair = [client.call("wait_at_barrier", "pair", 20000, [0, 2]) for client in (a, c)]
            for call in pair:
                call.value()
        waiting = a.call("wait_at_barrier", "not b", 20000, [0, 2])
        time.sleep(0.3)
        b.call("wait_at_barrier", "not b", 20000, [0, 2]).error(
            r"^INVALID_ARGUMENT: A non-participating task")
        waiting.error(r"^INVALID_ARGUMENT: A non-participating task")
        cluster.every("wait_at_barrier", "others go on", 20000)


# The prefixes of the answers to barrier calls that clients and users rely on. The ids and the tasks
# that follow are worded differently by each service.
BARRIER_TEXTS = (
    r"INVALID_ARGUMENT: Conflicting tasks specified by different processes for the same barrier: ",
    r"INVALID_ARGUMENT: A non-participating task \(",
    r"INVALID_ARGUMENT: .{1,80}: No tasks were specified by the client, which implies that the entire "
    r"cluster is participating in the barrier\. However, ",
    r"DEADLINE_EXCEEDED: Barrier timed out\. Id: ",
)


def barrier_text(call):
    """"ok", or which of BARRIER_TEXTS the answer is, or all of it."""
    reply = call.result()
    if reply["ok"]:
        return "ok"
    known = [text for text in BARRIER_TEXTS if re.match(text, reply["error"])]
    return known[0] if known else reply["error"]


def barrier_lists_answers(options):
    """Calls of barriers with lists of tasks, and their answers."""
    answers = {}
    with Cluster(options, 3) as cluster:
        a, b, c = cluster.clients

        def meet(name, *calls):
            """Calls at one barrier, each waiting before the next one comes."""
            pending = []
            for client, tasks in calls:
                lists = [] if tasks is None else [tasks]
                pending.append(client.call("wait_at_barrier", name.split("#")[0], 3000, *lists))
                pending[-1].done.wait(0.4)
            answers[name] = [barrier_text(call) for call in pending]

        # The list of all is the barrier of all, in every order, and so are its later uses.
        meet("all", (a, [0, 1, 2]), (b, None), (c, [2, 0, 1]))
        meet("all#again", (a, None), (b, [1, 2, 0]), (c, None))
        meet("order", (a, [0, 2]), (c, [2, 0]))
        meet("repeats", (a, [0, 1, 0]), (b, [1, 0]))
        # Real disagreements, at a barrier that is open.
        meet("conflict", (a, [0, 1]), (b, [1, 2]))
        meet("all of a subset", (a, [0, 1]), (b, None))
        meet("listed all of a subset", (a, [0, 1]), (b, [0, 1, 2]))
        meet("subset of all", (a, None), (b, [0, 1]))
        meet("stranger, same list", (a, [0, 1]), (c, [0, 1]))
        meet("stranger, other list", (a, [0, 1]), (c, [0, 2]))
        meet("stranger, on no list", (a, [0, 1]), (c, [1]))
        meet("stranger first", (c, [0, 1]))
        # At a barrier that has passed, where the non-participant still counts from its first use.
        for name, tasks in (("other list", [0, 2]), ("same list", [1, 0]), ("no list", None),
                            ("listed all", [0, 1, 2])):
            meet(f"passed, {name}", (a, [0, 1]), (b, [0, 1]), (c, tasks))
        # At one that ran out.
        call = a.call("wait_at_barrier", "late", 1200, [0, 1])
        answers["late"] = [barrier_text(call)]
        meet("late#other list", (c, [1, 2]))
        meet("late#same list", (c, [0, 1]))
        cluster.every("wait_at_barrier", "the cluster goes on", 20000)
        # One set, however it is spelled, is one round.
        pair = [a.call("get_live_nodes", [0, 1]), b.call("get_live_nodes", [1, 0, 1])]
        lives = [call.value() for call in pair]
        if options.version >= (0, 7):
            lives = [[node for node, _ in life["pairs"]] for life in lives]
        answers["live"] = [sorted(life) for life in lives]
    return answers


@case("new")
def barrier_lists(options):
    """The same calls to jaxlib's own service and to this one have the same answers."""
    own = barrier_lists_answers(argparse.Namespace(**{**vars(options), "real": True}))
    check(own["all"] == own["all#again"] == ["ok"] * 3 and own["order"] == ["ok"] * 2,
          f"jaxlib's own service: {own}")
    check(own["passed, other list"][:2] == ["ok"] * 2
          and own["passed, other list"][2] == BARRIER_TEXTS[0], f"jaxlib's own service: {own}")
    ours = own if options.real else barrier_lists_answers(options)
    # The one difference: there, a list with repeats is not even equal to itself.
    check(own.pop("repeats") == [BARRIER_TEXTS[0]] * 2, "jaxlib's own service takes repeats")
    check(options.real or ours.pop("repeats") == ["ok"] * 2, "a list with repeats is refused")
    different = [f"{name}: {own[name]} there, {ours[name]} here"
                 for name in own if own[name] != ours[name]]
    check(not different, "\n".join(different))


@case("drs", "old")
def device_partitions(options):
    """Devices are numbered, and put into partitions, as jaxlib's own service does that."""
    check(options.merge_devices, "--merge-devices is missing")
    job = ["x:2", "y:1", "x:1", ":1", "z:0", "y:2", ":2"]

    def merged(of):
        server = Server(of, len(job))
        try:
            done = subprocess.run([options.merge_devices, server.address, options.service, *job],
                                  capture_output=True, text=True, timeout=60)
            check(done.returncode == 0 and done.stdout, f"merging failed: {done.stderr}")
            return done.stdout
        except Failure as failure:
            raise Failure(f"{failure}\n{server.log.tail()}") from None
        finally:
            server.stop()

    own = merged(argparse.Namespace(**{**vars(options), "real": True}))
    check("partition 2" in own, f"jaxlib's own service has no partitions:\n{own}")
    ours = own if options.real else merged(options)
    check(ours == own, f"there:\n{own}here:\n{ours}")


@case()
def barrier_timeout(options):
    with Cluster(options, 3) as cluster:
        pair = [client.call("wait_at_barrier", "short", 1500) for client in cluster.clients[:2]]
        texts = [call.error(r"^DEADLINE_EXCEEDED", 15) for call in pair]
        if options.dialect == "drs":
            # The two waits began at different instants; whichever ends first
            # fails the barrier for both.
            check(any("imed out" in text for text in texts), texts[0])
        else:
            for text in texts:
                check(text.startswith("DEADLINE_EXCEEDED: Barrier timed out"), text)
        if options.dialect == "new":
            # The straggler gets the failure at once, and then the id can be used again.
            cluster.clients[2].call("wait_at_barrier", "short", 1500).error(
                r"^DEADLINE_EXCEEDED: Barrier timed out")
            cluster.every("wait_at_barrier", "short", 20000)
        cluster.every("wait_at_barrier", "next", 20000)


@case("new")
def live_nodes(options):
    with Cluster(options, 3) as cluster:
        answers = cluster.every("get_live_nodes", [0, 1, 2])
        if options.version < (0, 7):
            # Their client only sends the nodes, in any order.
            check(all(sorted(answer) == [0, 1, 2] for answer in answers), f"wrong: {answers}")
        else:
            check(all(answer == answers[0] for answer in answers), f"answers differ: {answers}")
            nodes = [node for node, _ in answers[0]["pairs"]]
            incarnations = {incarnation for _, incarnation in answers[0]["pairs"]}
            check(nodes == [0, 1, 2] and len(incarnations) == 3, f"wrong: {answers[0]}")
        cluster.clients[0].call("get_live_nodes", [1, 2]).error(r"^INVALID_ARGUMENT")


@case()
def client_killed(options):
    """The survivors learn of it in time and nothing of theirs hangs."""
    with Cluster(options, 4) as cluster:
        survivors = cluster.clients[:3]
        barrier = survivors[0].call("wait_at_barrier", "parked", 120000)
        time.sleep(1)
        check(not any(client.noticed.is_set() for client in survivors), "noticed too early")
        cluster.clients[3].kill()
        begin = time.monotonic()
        for client in survivors:
            left = begin + NOTICE_S - time.monotonic()
            check(client.noticed.wait(max(0, left)), f"client {client.node} never noticed")
            # In the client's own log, the last message of its default handler.
            check("UNAVAILABLE" in client.log.text() or options.dialect != "new",
                  f"client {client.node} was not told UNAVAILABLE")
        barrier.error(r"INTERNAL|ABORTED|UNAVAILABLE|CANCELLED|PROCESS ENDED", NOTICE_S)


# The heartbeat timeout of a client is in no message. jaxlib's own server does not learn it, so that
# these three are no expectations of it.

@case("new")
@waits
@of_ferry_alone
def idle_client_with_a_longer_timeout_lives(options):
    with Cluster(options, 2, "--heartbeat-timeout=12", heartbeat_s=4) as cluster:
        time.sleep(15)
        check(not any(client.noticed.is_set() for client in cluster.clients), "a client ended")
        cluster.every("wait_at_barrier", "still here", 20000)


@case("new")
@waits
@of_ferry_alone
def killed_client_with_a_shorter_timeout_is_noticed(options):
    with Cluster(options, 2, "--heartbeat-timeout=2", heartbeat_s=60) as cluster:
        time.sleep(3)
        cluster.clients[1].kill()
        check(cluster.clients[0].noticed.wait(6), "the survivor never noticed")
        # Either may come first: both take about a second from here.
        check(re.search("connection ended|it beat every", cluster.clients[0].log.text()),
              "the reason was not told")


@case("new")
@waits
@of_ferry_alone
def stopped_client_with_a_shorter_timeout_is_noticed(options):
    with Cluster(options, 2, "--heartbeat-timeout=4", heartbeat_s=60) as cluster:
        # Wait until it has sent enough heartbeats for its timeout to be known.
        time.sleep(7)
        os.kill(cluster.clients[1].child.pid, signal.SIGSTOP)
        check(cluster.clients[0].noticed.wait(9), "the survivor never noticed")
        check("it beat every" in cluster.clients[0].log.text(), "the reason was not told")


@case()
def clean_shutdown(options):
    """A barrier, too; afterwards every client process can end normally."""
    with Cluster(options, 4, "--shutdown-rpc") as cluster:
        early = [client.call("shutdown") for client in cluster.clients[:3]]
        check(not early[0].done.wait(1), "shutdown returned before all had called")
        cluster.clients[3].call("shutdown").value()
        for call in early:
            call.value()
        for client in cluster.clients:
            check(not client.noticed.is_set(), f"client {client.node} ended early")
            client.child.stdin.close()
            status = wait_exit(client.child, 15)
            check(status == 0, f"client {client.node} ended with {status}")


@case()
def new_incarnation_refused(options):
    """A rank that comes back while its cluster runs is refused."""
    with Cluster(options, 2) as cluster:
        back = cluster.client(1, "--init-timeout=4")
        cluster.clients.append(back)
        back.ready.value(60)
        # It is back before its end has been noticed by the connection's.
        cluster.clients[1].kill()
        # All dialects answer ABORTED, which clients retry until --init-timeout.
        # 0.4.13 then reports that or its own deadline; newer ones log it and
        # end the process, and their survivors are sent it as well.
        back.call("connect").error(r"^PROCESS ENDED" if options.dialect == "new" else
                                   r"^(ABORTED|DEADLINE_EXCEEDED)|PROCESS ENDED", 40)
        survivor = cluster.clients[0]
        check(survivor.noticed.wait(NOTICE_S), "the survivor never noticed")
        for client in (back, survivor) if options.dialect == "new" else ():
            check("ABORTED" in client.log.text(), f"{client.log.name} was not told ABORTED")


def stop_and_continue_job(options):
    """Whether the job continues. None: a client ended because a call of its own timed out."""
    with Cluster(options, 2) as cluster:
        server = cluster.server.child
        clients = [client.child for client in cluster.clients]
        # Newer clients beat as soon as they are connected, and then every HEARTBEAT_S / 2.
        time.sleep(1)
        for child in (*clients, server):
            child.send_signal(signal.SIGSTOP)
        time.sleep(HEARTBEAT_S + 3)
        for child in (server, *clients):
            child.send_signal(signal.SIGCONT)
        a, b = cluster.clients
        for client in cluster.clients:
            if not client.noticed.wait(HEARTBEAT_S + 1):
                continue
            # gRPC counts the stop into the deadline of a heartbeat that was in flight.
            if any("DEADLINE_EXCEEDED" in each.log.text() for each in cluster.clients):
                return None
            raise Failure(f"client {client.node} gave up")
        a.call("key_value_set", "after", "v").value()
        check(b.call("blocking_key_value_get", "after", 5000).value() == "v", "wrong value")
        return True


@case()
@waits
def whole_job_is_stopped_and_continued(options):
    """As Ctrl-Z does to ferry run: silence while the coordinator was stopped is not counted."""
    if options.real:
        return  # Whether it counts depends on which of its threads continues first.
    check(any(stop_and_continue_job(options) for _ in range(3)),
          "a client's own heartbeat ran out of time in each of three jobs")


def psum_job(options, how):
    server = Server(options, 2)
    logs = [Log(f"process {node}") for node in range(2)]
    children = [spawn([options.python, os.path.join(HERE, "jax_psum.py"),
                       f"--address={server.address}", f"--node-id={node}", "--num-nodes=2",
                       f"--how={how}", f"--service={options.service}"], logs[node].file)
                for node in range(2)]
    end = time.monotonic() + 120
    try:
        for node, child in enumerate(children):
            try:
                text, _ = child.communicate(timeout=max(1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure(f"process {node} did not end") from None
            check(child.returncode == 0 and b"psum ok 3.0" in text,
                  f"process {node} ended with {child.returncode}, said {text!r}")
    except Failure as failure:
        for child in children:
            child.kill()
            child.wait(timeout=10)
        tails = "\n".join(log.tail() for log in [server.log, *logs])
        raise Failure(f"{failure}\n{tails}") from None
    finally:
        server.stop()


@case("new")
def psum_public(options):
    psum_job(options, "public")


@case()
def psum_patch(options):
    psum_job(options, "patch")


def run_case(name, function, options):
    """Whether it has passed."""
    begin = time.monotonic()
    try:
        function(options)
    except Failure as failure:
        print(f"FAILED {name}: {failure}", flush=True)
    except Exception as error:  # a broken case must not end the run
        print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    else:
        print(f"ok {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--ferry", help="the ferry binary")
    server.add_argument("--real", action="store_true", help="jaxlib's own server")
    parser.add_argument("--python", required=True, help="a virtual environment's python")
    parser.add_argument("--jaxlib", required=True, help="the version that must be in there")
    parser.add_argument("--service", choices=["drs", "coordination"], default="coordination")
    parser.add_argument("--merge-devices", default="",
                        help="the binary of tests/coord/wire/merge_devices_program.cc")
    parser.add_argument("--brief", action="store_true", help="the cases that every release needs")
    parser.add_argument("--only", default="", help="comma-separated case names")
    options = parser.parse_args()

    version = options.version = tuple(int(part) for part in options.jaxlib.split(".")[:3])
    options.dialect = ("drs" if options.service == "drs" else
                       "old" if version < (0, 4, 34) else "new")
    found = subprocess.run([options.python, "-c", "import jaxlib; print(jaxlib.__version__)"],
                           capture_output=True, text=True, timeout=60).stdout.strip()
    if found != options.jaxlib:
        sys.exit(f"{options.python} has jaxlib {found or '(none)'}, not {options.jaxlib}")
    wanted = set(filter(None, options.only.split(",")))
    unknown = wanted - {name for name, _, _ in CASES}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")

    cases = [(name, function) for name, dialects, function in CASES
             if options.dialect in dialects and (not wanted or name in wanted)
             and SINCE.get(name, ()) <= version <= UNTIL.get(name, version)
             and not (options.brief and name in NOT_BRIEF[options.dialect])]
    with concurrent.futures.ThreadPoolExecutor(2) as beside:
        waiting = [beside.submit(run_case, *each, options) for each in cases if each[0] in WAITING]
        results = [run_case(*each, options) for each in cases if each[0] not in WAITING]
        results += [each.result() for each in waiting]
    passed, failed = results.count(True), results.count(False)
    against = "jaxlib's own server" if options.real else "ferry"
    print(f"{passed} passed, {failed} failed: jaxlib {options.jaxlib} "
          f"({options.service}) against {against}")
    # Nothing run is a failure as well: a misspelt selection must not look green.
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
