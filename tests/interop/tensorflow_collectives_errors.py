# SPDX-License-Identifier: Apache-2.0
"""Collectives that cannot be: each ends in time, and with Ferry the next one works."""
import re
import threading
import time

from collectives_ops import KEYS, broadcasts, case, on_each, raw, reduces, session_of
from session_cluster import CPUS, WORKERS, equal, errors, fails, np, tf

from harness import check


def fails_then_goes_on(cluster, make, kinds, pattern, deadline_s=15):
    """The step fails in time; with Ferry the same session goes on."""
    with tf.Graph().as_default() as graph:
        wrong = make()
        right = reduces(on_each(lambda place: tf.constant([1.0])))
    began = time.monotonic()
    # Not closed with TensorFlow's, which may wait for messages that never arrive.
    session = session_of(cluster, graph)
    text = fails(kinds, pattern, lambda: session.run(
        wrong, options=tf.RunOptions(timeout_in_ms=deadline_s * 1000)))
    check(time.monotonic() - began < deadline_s + 10, "the error came late")
    if not cluster.options.real:
        for each in session.run(right):
            equal(each, np.float32([3]))
        session.close()
    return text


def ones():
    return on_each(lambda place: tf.constant([1.0, 1.0]))


@case(breaks=True)
def group_sizes_differ(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=[3, 3, 2]),
                       errors.InternalError, r"is joining a group with size ?\d, but that group has "
                       r"size \d")


@case(breaks=True)
def group_is_full(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=2), errors.InternalError,
                       "is joining a group that is already full")


@case(breaks=True)
def shapes_differ(cluster):
    fails_then_goes_on(
        cluster, lambda: reduces(on_each(lambda place: tf.ones([2 + place // 2]))),
        errors.InvalidArgumentError, r"Shape mismatch in the collective instance \d+\. Op at device "
        r"\S+ expected shape \[\d\] but another member in the group expected shape \[\d\]")


@case(breaks=True)
def types_differ(cluster):
    fails_then_goes_on(
        cluster, lambda: reduces([x if i < 2 else tf.cast(x, tf.int32)
                                  for i, x in enumerate(ones())]),
        errors.InternalError, r"Collective instance \d+ expected type 0 and data_type \d but got "
        r"type 0 and data_type \d")


@case(breaks=True)
def sizes_are_checked(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=0), errors.InvalidArgumentError,
                       "group_size must be positive integer but got 0")


@case(breaks=True)
def keys_are_scalars(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=[[3], 3, 3]),
                       errors.InvalidArgumentError,
                       r"Unexpected dimensions on input group_size, got \[1\]")


@case(breaks=True)
def broadcast_without_source(cluster):
    fails_then_goes_on(cluster, lambda: broadcasts(np.float32([1]), []), errors.InternalError,
                       "found no source for broadcast")


@case(breaks=True)
def broadcast_with_two_sources(cluster):
    fails_then_goes_on(cluster, lambda: broadcasts(np.float32([1]), [0, 1], timeout_seconds=4.0),
                       errors.InternalError, "already has source .*, received second claim from")


@case(breaks=True)
def broadcast_of_another_shape(cluster):
    def make():
        keys = dict(group_size=WORKERS, group_key=next(KEYS), instance_key=next(KEYS),
                    timeout_seconds=4.0)
        return on_each(lambda task: raw.CollectiveBcastSendV2(input=tf.constant([1.0, 2.0]), **keys)
                       if task == 0 else
                       raw.CollectiveBcastRecvV2(T=tf.float32, shape=[task + 1], **keys))
    fails_then_goes_on(cluster, make, errors.InvalidArgumentError, "Shape mismatch")


@case(breaks=True)
def somebody_does_not_come(cluster):
    """Before the node's timeout, and the others receive its name."""
    group = next(KEYS)
    text = fails_then_goes_on(
        cluster, lambda: reduces(ones(), group_key=[group, group, next(KEYS)],
                                 timeout_seconds=2.0),
        errors.DeadlineExceededError, "Collective has timed out waiting for other workers")
    if not cluster.options.real:
        check(re.search(r"not (1 of )?/job:worker/replica:0/task:[012]/device:CPU:0", text),
              f"names nobody: {text}")


@case(breaks=True)
def a_step_has_a_deadline_of_its_own(cluster):
    fails_then_goes_on(
        cluster, lambda: reduces(ones(), group_key=[next(KEYS) for _ in ones()],
                                 timeout_seconds=0.0),
        errors.DeadlineExceededError, "", deadline_s=3)


@case(breaks=True)
def merges_differ(cluster):
    """TensorFlow computes something."""
    if cluster.options.real:
        return
    fails_then_goes_on(cluster, lambda: reduces(ones(), merge_op=["Add", "Add", "Mul"]),
                       errors.InvalidArgumentError, "is to merge by .*, but another member by")


def at_once(runs):
    """The result of each of them, or the error that ends it."""
    results = [None] * len(runs)

    def run(index):
        try:
            results[index] = runs[index]()
        except errors.OpError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@case(breaks=True)
def sessions_use_the_same_keys(cluster):
    """At once, groups of other sizes and with other devices among them.  Groups and instances of
    TensorFlow's servers are those of all sessions, and end with INTERNAL, for good."""
    tasks = [[0, 1, 2], [0, 1, 2], [1, 2], [0, 2]]
    sessions, fetches = [], []
    for index, places in enumerate(tasks):
        with tf.Graph().as_default() as graph:
            inputs = on_each(lambda place, index=index: tf.constant([10.0 ** index]), places)
            fetches.append(reduces(inputs, places, group_key=1, instance_key=1))
        sessions.append(session_of(cluster, graph))

    def steps(index):
        for _ in range(50):
            got = sessions[index].run(fetches[index], options=tf.RunOptions(timeout_in_ms=15000))
        return got

    results = at_once([lambda index=index: steps(index) for index in range(len(tasks))])
    if cluster.options.real:
        check(any(isinstance(result, errors.InternalError) for result in results), f"{results}")
        return
    for index, result in enumerate(results):
        for each in result:
            equal(each, np.float32([len(tasks[index]) * 10.0 ** index]))
        sessions[index].close()


@case(breaks=True)
def a_group_is_of_one_session(cluster):
    """Two sessions of one master, with a member each: the group is too large for either, as each
    fails at once.  With TensorFlow both steps have one number, and the first that is over usually
    ends the other one as well; that is not checked."""
    if cluster.options.real:
        return
    sessions, fetches = [], []
    for task in range(2):
        with tf.Graph().as_default() as graph:
            fetches.append(reduces([tf.constant([task + 1.0])], [task], group_size=2, group_key=1,
                                   instance_key=1))
        sessions.append(session_of(cluster, graph))
    results = at_once([lambda task=task: sessions[task].run(fetches[task]) for task in range(2)])
    for result in results:
        check(isinstance(result, errors.InvalidArgumentError), f"{result}")
        check("a step of one session has to have all of them" in result.message, result.message)


@case(breaks=True)
def a_member_dies(cluster):
    """The last case.  TensorFlow's step may never end then, nor the session's closing."""
    if cluster.options.real:
        return
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[2]):
            value = tf.random.uniform([1200, 1200])
            for _ in range(100):
                value = tf.matmul(value, value) / 600.0
            late = tf.reshape(tf.reduce_sum(value), [1])
        parts = on_each(lambda place: tf.constant([1.0]))
        wrong = reduces(parts[:2] + [late], timeout_seconds=0.0)
        right = reduces(parts)
    session = session_of(cluster, graph)
    equal(session.run(right)[0], np.float32([3]))
    killer = threading.Timer(0.7, lambda: cluster.kill_worker(2))
    killer.start()
    began = time.monotonic()
    text = fails((errors.AbortedError, errors.UnavailableError), "", lambda: session.run(
        wrong, options=tf.RunOptions(timeout_in_ms=60000)))
    killer.join()
    check(time.monotonic() - began < 30, "the step's end came late")
    check("/job:worker/replica:0/task:2" in text, f"does not name the worker: {text}")
    session.close()
    cluster.start_worker(2)
    cluster.wait_worker(2)
    with session_of(cluster, graph) as again:
        equal(again.run(right)[0], np.float32([3]))
