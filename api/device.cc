// SPDX-License-Identifier: Apache-2.0
// Names of devices, and the memory that they stand for.
#include <ferry/device.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "api/api_access.h"
#include "base/text.h"

namespace ferry::v0 {

absl::StatusOr<Device> Device::Parse(absl::string_view name) {
  Device device;
  absl::string_view number = name;
  if (absl::ConsumePrefix(&number, "gpu:")) {
    device.kind = DeviceKind::kGpu;
  } else if (!absl::ConsumePrefix(&number, "host:")) {
    number = "";
  }
  // A device has one name: no sign, spaces or leading zeros.
  if (absl::SimpleAtoi(number, &device.index) && device.index >= 0 && ToString(device) == name) {
    return device;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(name), " is no device: \"host:0\" and \"gpu:1\" are two"));
}

std::string ToString(const Device& device) {
  // For every send and receive: without a conversion of the usual numbers.
  std::string name = device.kind == DeviceKind::kGpu ? "gpu:" : "host:";
  if (device.index >= 0 && device.index < 10) {
    name.push_back(static_cast<char>('0' + device.index));
  } else {
    absl::StrAppend(&name, device.index);
  }
  return name;
}

ferry::TensorLocation ApiAccess::Unwrap(const Device& device) {
  if (device.kind == DeviceKind::kHost) return {};
  return {MemorySpace::kCuda, device.index};
}

Device ApiAccess::Wrap(const ferry::TensorLocation& location) {
  return location.space == MemorySpace::kCuda ? Device::Gpu(location.ordinal) : Device::Host();
}

}  // namespace ferry::v0
