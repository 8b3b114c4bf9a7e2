# SPDX-License-Identifier: Apache-2.0
"""Rendezvous and store of PyTorch jobs on a Ferry coordinator.

  torchrun --rdzv-backend=ferry --rdzv-endpoint=HOST:PORT ...
  init_process_group("nccl", "ferry://HOST:PORT?rank=..&world_size=..&run_id=..")

The second needs `import ferry.torch` in the program. The first works without code in PyTorch 2.4 and later, where
torchrun finds the backend by an entry point of this package; with older releases, a program that launches agents itself
calls `register()` first.
"""
from __future__ import annotations

from .init_method import register_init_method
from .rendezvous import FerryRendezvousHandler, create_handler, register

__all__ = ["FerryRendezvousHandler", "create_handler", "register", "register_init_method"]

register_init_method()
