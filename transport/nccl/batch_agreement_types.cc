// SPDX-License-Identifier: Apache-2.0
// Human-readable names of devices, transfers and communicators.
#include "transport/nccl/batch_agreement_types.h"

#include "absl/strings/str_cat.h"

namespace ferry {

std::string Describe(DeviceId device) { return absl::StrCat("device ", device.value()); }

std::string Describe(const TransferKey& key) {
  if ((key.id & kWindowTransferBit) != 0) {
    return absl::StrCat("the window between ", Describe(key.source), " and ",
                        Describe(key.destination));
  }
  return absl::StrCat("transfer ", key.id, " from device ", key.source.value(), " to device ",
                      key.destination.value());
}

std::string Describe(const CommunicatorName& name) {
  return absl::StrCat("communicator ", absl::Hex(name.id, absl::kZeroPad16), " generation ",
                      name.generation);
}

}  // namespace ferry
