#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One process of a multi-process JAX job on CPUs whose ONLY coordinator is the
one at --address.  Every process contributes node_id + 1 to a psum over gloo
and checks the total, so topology exchange, gloo rendezvous, heartbeats, error
polling and shutdown all go through that coordinator.

jax.distributed.initialize() starts a service inside process 0 and offers no
switch against it.  Two workarounds, chosen with --how:

public  (releases with coordinator_bind_address) Bind process 0's own service to a port that
no client uses, and point every client at the coordinator.  Only
        documented arguments; the idle service costs one listening port:

            jax.distributed.initialize(
                coordinator_address="HOST:PORT",        # ferry
                num_processes=N, process_id=i,
                coordinator_bind_address="127.0.0.1:0")

        JAX_COORDINATOR_BIND_ADDRESS=127.0.0.1:0 in the environment does the
        same to a program that cannot be changed.

patch   (every release) Replace the function that starts the service, then
        call initialize() as usual.  Nothing listens in process 0:

            from jax._src.lib import xla_extension     # _jax since 0.6.1
            xla_extension.get_distributed_runtime_service = lambda *a, **k: None
            jax.distributed.initialize("HOST:PORT", N, i)

jax 0.4.13 has no CPU collectives and its CPU client does not take part in the
distributed runtime at all (get_tfrt_cpu_client takes no client or node), so
device_count() counts one process only, with any service.  There the job checks
the operations of that release across processes: initialize(), an exchange of values
through jax's own global client, a barrier, and a shutdown of all.
"""
import argparse

import jax

VERSION = tuple(int(part) for part in jax.__version__.split(".")[:3])


def initialize(options):
    if options.how == "public":
        jax.distributed.initialize(
            coordinator_address=options.address, num_processes=options.num_nodes,
            process_id=options.node_id, coordinator_bind_address="127.0.0.1:0")
        return
    if VERSION < (0, 4, 15):
        jax.config.update("jax_coordination_service", options.service == "coordination")
    try:
        from jax._src.lib import _jax as extension
    except ImportError:
        from jax._src.lib import xla_extension as extension
    extension.get_distributed_runtime_service = lambda *args, **keywords: None
    jax.distributed.initialize(options.address, options.num_nodes, options.node_id)


def psum(options):
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    try:
        from jax import shard_map
    except ImportError:  # until 0.6
        from jax.experimental.shard_map import shard_map
    assert jax.process_count() == options.num_nodes, jax.process_count()
    assert jax.device_count() == options.num_nodes, jax.devices()
    mesh = Mesh(numpy.array(jax.devices()), ("ranks",))
    rows = NamedSharding(mesh, PartitionSpec("ranks"))
    mine = numpy.array([options.node_id + 1.0], dtype=numpy.float32)
    spread = jax.make_array_from_process_local_data(rows, mine)
    total = jax.jit(shard_map(
        lambda value: jax.lax.psum(value, "ranks"), mesh=mesh,
        in_specs=PartitionSpec("ranks"), out_specs=PartitionSpec()))(spread)
    return float(numpy.asarray(total.addressable_data(0))[0])


def exchange(options):
    from jax._src.distributed import global_state
    client = global_state.client
    client.key_value_set(f"sum/{options.node_id}", str(options.node_id + 1))
    values = [client.blocking_key_value_get(f"sum/{node}", 30_000)
              for node in range(options.num_nodes)]
    client.wait_at_barrier("exchanged", 30_000)
    return float(sum(int(value) for value in values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--node-id", type=int, required=True)
    parser.add_argument("--num-nodes", type=int, required=True)
    parser.add_argument("--how", choices=["public", "patch"], default="public")
    parser.add_argument("--service", choices=["drs", "coordination"], default="coordination")
    options = parser.parse_args()

    jax.config.update("jax_platforms", "cpu")
    if VERSION >= (0, 4, 30):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    initialize(options)
    total = exchange(options) if VERSION < (0, 4, 15) else psum(options)
    wanted = options.num_nodes * (options.num_nodes + 1) / 2
    assert total == wanted, f"psum gave {total}, wanted {wanted}"
    jax.distributed.shutdown()
    print(f"psum ok {total}", flush=True)


if __name__ == "__main__":
    main()
