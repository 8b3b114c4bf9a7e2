#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A JAX job of two processes with Ferry as its coordinator, and arrays that move beside JAX's collectives.

    ferry run --nproc=2 -- python3 examples/python/jax_side_channel.py
"""
import jax
import jax.numpy as jnp

import ferry.jax


def main():
    ferry.jax.initialize()
    with ferry.jax.join(timeout=60) as node:
        peer = 1 - node.rank
        mine = jnp.arange(8, dtype=jnp.bfloat16) * (node.rank + 1)
        with node.step(1) as step:
            step.send(mine, "activations", to=peer)
            theirs = step.recv("activations", source=peer, like="jax")
            print(f"process {jax.process_index()} of {jax.process_count()} received {theirs.dtype} {theirs.tolist()}")
        # A tree of parameters, from process 0.
        with node.step(2) as step:
            if node.rank == 0:
                step.send_tree({"w": jnp.ones((4, 4)), "b": jnp.zeros(4)}, "parameters", to=1)
            else:
                parameters = step.recv_tree("parameters", source=0, like="jax")
                print(f"process 1 received {sorted(parameters)}, sum {float(parameters['w'].sum())}")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
