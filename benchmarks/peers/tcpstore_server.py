# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own TCPStore server, in C++, in a process of its own.

  PYTHON tcpstore_server.py PORT

Its thread holds no lock of Python's; this one sleeps. It looks up the name of each client's address, so run it where
names come from files (tools.without_dns).
"""
import datetime
import resource
import sys
import threading

import torch.distributed as dist

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
# The constructor returns when its own client is connected: kept, with the server.
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), None, True, datetime.timedelta(seconds=30), wait_for_workers=False)
threading.Event().wait()
