// SPDX-License-Identifier: Apache-2.0
// StoreRequests: executes the requests of ferry.v1.Control for the key-value store.
#ifndef FERRY_COORD_SERVER_STORE_REQUESTS_H_
#define FERRY_COORD_SERVER_STORE_REQUESTS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "coord/core/coordinator.h"
#include "coord/core/store.h"
#include "coord/core/types.h"
#include "coord/server/control_delivery.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Adds entries to the reply; replaces it by an error if they are too large for one. Values that are
// large are shared. Returns approximately the memory of the answer until it is encoded.
size_t FillEntries(const std::vector<StoreEntry>& entries, bool with_values, v1::Reply& reply,
                   SharedBytes& shared);

// Part of a ControlRequests; used with the executor's lock held. Large values are shared with the
// store rather than copied into answers.
class StoreRequests final {
 public:
  StoreRequests(std::shared_ptr<ControlDelivery> delivery, TaskId task)
      : delivery_(std::move(delivery)), task_(task) {}

  // True if `request` is for the store.
  static bool Handles(const v1::Request& request);
  // REQUIRES: Handles(request).
  void Execute(Coordinator& coordinator, v1::Request& request, RequestResults& out);

 private:
  // Constant after construction.
  const std::shared_ptr<ControlDelivery> delivery_;
  const TaskId task_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_STORE_REQUESTS_H_
