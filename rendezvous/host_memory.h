// SPDX-License-Identifier: Apache-2.0
// Receives that want a value in the host's memory although their key is for another device.
#ifndef FERRY_RENDEZVOUS_HOST_MEMORY_H_
#define FERRY_RENDEZVOUS_HOST_MEMORY_H_

#include <memory>

#include "rendezvous/value.h"

namespace ferry {

// What such a receive has for its RecvArgs::device_context: on GPUs some nodes take their tensors
// from the host's memory.
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
