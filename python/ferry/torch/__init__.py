# SPDX-License-Identifier: Apache-2.0
"""A Ferry coordinator as the rendezvous and the store of PyTorch jobs.

  torchrun --rdzv-backend=ferry --rdzv-endpoint=HOST:PORT ...
  init_process_group("nccl", "ferry://HOST:PORT?rank=..&world_size=..&run_id=..")

The second needs `import ferry.torch` in the program. The first needs nothing with PyTorch 2.4 and later, whose torchrun
finds this package; a program that launches with an older one calls `register()` before it.
"""
from __future__ import annotations

from .init_method import register_init_method
from .rendezvous import FerryRendezvousHandler, create_handler, register

__all__ = ["FerryRendezvousHandler", "create_handler", "register", "register_init_method"]

register_init_method()
