# SPDX-License-Identifier: Apache-2.0
"""Collectives in graphs, one node on each device, and their expected results."""
import itertools

from session_cluster import CPUS, WORKERS, np, tf

CASES = []
raw = tf.raw_ops
# Every worker of TensorFlow's needs this setting; here it has no effect.
LEADER = "/job:worker/replica:0/task:0"
KEYS = itertools.count(100)


def case(breaks=False):
    def register(function):
        CASES.append((function, breaks))
        return function
    return register


def session_of(cluster, graph):
    config = tf.ConfigProto()
    config.experimental.collective_group_leader = LEADER
    return tf.Session(cluster.target, graph=graph, config=config)


def on_each(make, tasks=range(WORKERS)):
    """make(place) on the device of each task."""
    made = []
    for place, task in enumerate(tasks):
        with tf.device(CPUS[task]):
            made.append(make(place))
    return made


def nth(value, place):
    return value[place] if isinstance(value, list) else value


def reduces(inputs, tasks=range(WORKERS), first_version=False, **options):
    wanted = dict(group_size=len(inputs), group_key=next(KEYS), instance_key=next(KEYS),
                  merge_op="Add", final_op="Id", timeout_seconds=20.0)
    wanted.update(options)
    wanted.update(dict(subdiv_offsets=[0]) if first_version else dict(ordering_token=[]))
    op = raw.CollectiveReduce if first_version else raw.CollectiveReduceV2

    def make(place):
        return op(input=inputs[place], **{name: nth(value, place) if name != "ordering_token"
                                          and name != "subdiv_offsets" else value
                                          for name, value in wanted.items()})
    return on_each(make, tasks)


MERGES = {"Add": np.add, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}


def reduced(values, merge, final):
    result = values[0]
    for value in values[1:]:
        result = MERGES[merge](result, value)
    if final == "Div":
        if np.issubdtype(result.dtype, np.integer):
            result = np.trunc(result / len(values))
        else:
            result = result / result.dtype.type(len(values))
    return result.astype(values[0].dtype)


def broadcasts(value, source, first_version=False, **options):
    value = np.asarray(value)
    keys = dict(group_size=WORKERS, group_key=next(KEYS), instance_key=next(KEYS),
                timeout_seconds=20.0)
    keys.update(options)
    sources = source if isinstance(source, list) else [source]

    def make(task):
        if first_version:
            keys["shape"] = list(value.shape)
        send, recv = ((raw.CollectiveBcastSend, raw.CollectiveBcastRecv) if first_version else
                      (raw.CollectiveBcastSendV2, raw.CollectiveBcastRecvV2))
        if task in sources:
            return send(input=tf.constant(value), **keys)
        shape = {} if first_version else dict(shape=np.int32(value.shape))
        return recv(T=tf.as_dtype(value.dtype), **shape, **keys)
    return on_each(make)
