// SPDX-License-Identifier: Apache-2.0
// Receives into host memory of values whose key names another device.
#ifndef FERRY_RENDEZVOUS_HOST_MEMORY_H_
#define FERRY_RENDEZVOUS_HOST_MEMORY_H_

#include <memory>

#include "rendezvous/value.h"

namespace ferry {

// The RecvArgs::device_context of such a receive: some GPU nodes take inputs from host memory.
inline const std::shared_ptr<DeviceContext>& HostMemoryOfDevice() {
  static const auto* const context =
      new std::shared_ptr<DeviceContext>(std::make_shared<DeviceContext>());
  return *context;
}

inline bool IsForHostMemory(const RecvArgs& args) {
  return args.device_context != nullptr && args.device_context == HostMemoryOfDevice();
}

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_HOST_MEMORY_H_
