#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer sends the weights of each version to four workers; a step is a version.

    ferry run --nproc=5 -- python3 examples/python/torch_weights.py
"""
import torch

import ferry

TRAINER = 0
VERSIONS = 3


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16))


def train(node, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for version in range(1, VERSIONS + 1):
        loss = model(torch.randn(32, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with node.step(version) as step:
            weights = {name: value.detach() for name, value in model.state_dict().items()}
            transfers = []
            for worker in range(1, node.world_size):
                transfers += step.isend_tree(weights, "weights", to=worker)
            # From here on the next optimizer step may change them.
            ferry.wait_all(transfers)
        node.store[f"checksum/{version}"] = repr(float(sum(each.double().sum() for each in weights.values())))


def work(node, model):
    for version in range(1, VERSIONS + 1):
        with node.step(version) as step:
            weights = step.recv_tree("weights", source=TRAINER, like="torch")
            model.load_state_dict(weights)
        checksum = float(sum(each.double().sum() for each in model.state_dict().values()))
        expected = float(node.store.get(f"checksum/{version}", timeout=30))
        if checksum != expected:
            raise SystemExit(f"rank {node.rank}: version {version} has the checksum {checksum}, not {expected}")
        print(f"rank {node.rank} has version {version}: {len(weights)} tensors, checksum {checksum:.6f}")


def main():
    with ferry.join(timeout=60) as node:
        model = make_model()
        if node.rank == TRAINER:
            train(node, model)
        else:
            work(node, model)
        node.barrier("done")


if __name__ == "__main__":
    main()
