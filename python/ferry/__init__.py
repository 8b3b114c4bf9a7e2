# SPDX-License-Identifier: Apache-2.0
"""Ferry's Python package. `ferry.torch` is for PyTorch programs; this module imports nothing of theirs."""

__version__ = "0.1.0"
