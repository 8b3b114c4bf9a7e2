# SPDX-License-Identifier: Apache-2.0
"""Ferry's Python package. `ferry.torch` is for PyTorch programs; importing `ferry` alone does not import torch."""

__version__ = "0.1.0"
