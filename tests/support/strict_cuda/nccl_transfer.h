// SPDX-License-Identifier: Apache-2.0
// One operation's data in flight to or from one rank, and its progress.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_TRANSFER_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_TRANSFER_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "tests/support/strict_cuda/nccl_comm.h"

namespace strict_cuda {

struct Span {
  char* data;
  size_t bytes;
};

struct Transfer {
  Header header = {};
  std::vector<Span> spans;
  size_t span = 0;       // the one at which it is
  size_t done = 0;       // bytes of that span
  bool is_open = false;  // its data header has been sent, or read
  bool IsDone() const { return is_open && span == spans.size(); }
  void Advance(size_t bytes) {
    done += bytes;
    while (span < spans.size() && done == spans[span].bytes) {
      ++span;
      done = 0;
    }
  }
};

// The data to exchange with one rank.
struct PeerTransfers {
  std::deque<Transfer> sends;
  std::deque<Transfer> recvs;
  std::string control;  // headers to be written
};

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_TRANSFER_H_
