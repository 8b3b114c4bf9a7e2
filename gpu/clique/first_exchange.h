// SPDX-License-Identifier: Apache-2.0
// The group in which the ranks of a communicator say something to each other for the first time.
#ifndef FERRY_GPU_CLIQUE_FIRST_EXCHANGE_H_
#define FERRY_GPU_CLIQUE_FIRST_EXCHANGE_H_

#include <vector>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry {

struct FirstExchange {
  nccl::Communicator comm = nullptr;
  nccl::Stream stream = nullptr;
  int rank = 0;
  int size = 0;
  // On the device: a byte to and a byte from each rank.
  char* bytes = nullptr;
};

// Enqueues a group with the peers at distances `first` to `last` (at most size / 2), both ways at
// once, since what a pair says to each other first travels in one message for both directions. The
// distances make sure that both sides have it in the same group. On the device's executor.
inline absl::Status EnqueueFirstExchange(const nccl::NcclApi& api, const FirstExchange& with,
                                         int first, int last) {
  const nccl::NcclTable& table = api.table();
  FERRY_RETURN_IF_ERROR(api.Check(table.group_start(), "ncclGroupStart"));
  absl::Status status;
  for (int distance = first; distance <= last && status.ok(); ++distance) {
    std::vector<int> peers = {(with.rank + distance) % with.size};
    if (2 * distance != with.size) {
      peers.push_back((with.rank - distance + with.size) % with.size);
    }
    for (const int peer : peers) {
      if (status.ok()) {
        status =
            api.Check(table.send(with.bytes + peer, 1, nccl::kUint8, peer, with.comm, with.stream),
                      "ncclSend", with.comm);
      }
      if (status.ok()) {
        status = api.Check(table.recv(with.bytes + with.size + peer, 1, nccl::kUint8, peer,
                                      with.comm, with.stream),
                           "ncclRecv", with.comm);
      }
    }
  }
  const absl::Status ended = api.Check(table.group_end(), "ncclGroupEnd", with.comm);
  return status.ok() ? ended : status;
}

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_FIRST_EXCHANGE_H_
