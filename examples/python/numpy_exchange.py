#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes exchange NumPy arrays by name.

    ferry run --nproc=2 -- python3 examples/python/numpy_exchange.py
"""
import numpy

import ferry


def main():
    with ferry.join() as node:
        peer = 1 - node.rank
        # Each step is a scope of names; its end waits until everything that was sent has been received.
        with node.step(1) as step:
            mine = numpy.arange(6, dtype=numpy.float32).reshape(2, 3) + 10 * node.rank
            step.send(mine, "greeting", to=peer)
            mine[:] = 0  # allowed: send has returned
            theirs = step.recv("greeting", source=peer, like="numpy")
            print(f"rank {node.rank} received {theirs.tolist()}")

        with node.step(2) as step:
            # Memory of the node reaches processes of the same host without a copy.
            tensor = node.empty((1024, 1024), "float64")
            numpy.asarray(tensor)[:] = node.rank
            sending = step.isend(tensor, "matrix", to=peer)
            into = numpy.empty((1024, 1024))
            receiving = step.irecv("matrix", source=peer, out=into)
            receiving.wait(timeout=30)
            sending.wait()
            print(f"rank {node.rank} received {into.nbytes} bytes by {receiving.path}, all {into[0, 0]:.0f}: "
                  f"{bool((into == peer).all())}")

        # A tree of arrays: the small ones travel in one message.
        with node.step(3) as step:
            if node.rank == 0:
                step.send_tree({"layers": [numpy.ones(4), numpy.zeros(4)], "epoch": 7}, "state", to=1)
            else:
                state = step.recv_tree("state", source=0, like="numpy")
                print(f"rank 1 received epoch {state['epoch']} and {len(state['layers'])} layers")
        node.barrier("done")


if __name__ == "__main__":
    main()
