// SPDX-License-Identifier: Apache-2.0
// Tables of containers and variables.
#include "tensorflow/worker/variables.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"

namespace ferry::worker {
namespace {

// "ferry.resource:<length>:<length>:" and the three parts: names may contain any byte.
constexpr absl::string_view kMark = "ferry.resource:";

bool TakeLength(absl::string_view& text, size_t& length) {
  const size_t colon = text.find(':');
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(0, colon), &length)) {
    return false;
  }
  text.remove_prefix(colon + 1);
  return true;
}

}  // namespace

Tensor HandleToTensor(const ResourceHandle& handle) {
  std::vector<std::string> text = {absl::StrCat(kMark, handle.device.size(), ":",
                                                handle.container.size(), ":", handle.device,
                                                handle.container, handle.name)};
  return *Tensor::OfStrings(Shape(), std::move(text));
}

absl::StatusOr<ResourceHandle> HandleFromTensor(const Tensor& tensor) {
  const absl::Status refused =
      absl::InvalidArgumentError(absl::StrCat(ToString(tensor), " holds no handle of a resource"));
  if (tensor.dtype() != DataType::kString || tensor.shape().element_count() != 1) return refused;
  absl::string_view text = tensor.strings()[0];
  size_t device = 0;
  size_t container = 0;
  if (!absl::ConsumePrefix(&text, kMark) || !TakeLength(text, device) ||
      !TakeLength(text, container) || device > text.size() || container > text.size() - device) {
    return refused;
  }
  return ResourceHandle{std::string(text.substr(0, device)),
                        std::string(text.substr(device, container)),
                        std::string(text.substr(device + container))};
}

Tensor Variable::value() const {
  absl::MutexLock lock(&mu_);
  return value_;
}

void Variable::Assign(Tensor value) {
  Tensor old;
  absl::MutexLock lock(&mu_);
  old = std::move(value_);
  value_ = std::move(value);
  is_own_ = false;
}

bool Variable::IsUnshared() const {
  // Copies the pointer rather than only reading the count: this synchronises with threads that
  // dropped their references.
  const std::shared_ptr<Buffer> buffer = value_.buffer();
  return buffer != nullptr && buffer.use_count() == 2;
}

absl::Status Variables::CheckDevice(const ResourceHandle& handle) const {
  if (handle.device == device_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Trying to access resource ", handle.name,
                                                 " located in device ", handle.device,
                                                 " from device ", device_));
}

absl::StatusOr<std::shared_ptr<Variable>> Variables::Find(const ResourceHandle& handle) const {
  FERRY_RETURN_IF_ERROR(CheckDevice(handle));
  absl::MutexLock lock(&mu_);
  const auto container = containers_.find(handle.container);
  const bool is_known = container != containers_.end();
  if (is_known) {
    const auto variable = container->second.find(handle.name);
    if (variable != container->second.end()) return variable->second;
  }
  return absl::NotFoundError(
      is_known ? absl::StrCat("Resource ", handle.container, "/", handle.name,
                              "/N10tensorflow3VarE does not exist.")
               : absl::StrCat("Container ", handle.container,
                              " does not exist. (Could not find resource: ", handle.container, "/",
                              handle.name, ")"));
}

absl::StatusOr<std::shared_ptr<Variable>> Variables::FindOrCreate(const ResourceHandle& handle,
                                                                  DataType dtype) {
  FERRY_RETURN_IF_ERROR(CheckDevice(handle));
  absl::MutexLock lock(&mu_);
  std::shared_ptr<Variable>& variable = containers_[handle.container][handle.name];
  if (variable == nullptr) variable = std::make_shared<Variable>(dtype);
  return variable;
}

void Variables::Clear(absl::Span<const std::string> containers) {
  // Tensors are released after the lock.
  std::vector<Container> cleared;
  absl::MutexLock lock(&mu_);
  const auto clear = [this, &cleared](const std::string& name) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = containers_.find(name);
    if (found == containers_.end()) return;
    cleared.push_back(std::move(found->second));
    containers_.erase(found);
  };
  if (containers.empty()) clear(std::string(kDefaultContainer));
  for (const std::string& name : containers) clear(name);
}

int Variables::variable_count() const {
  absl::MutexLock lock(&mu_);
  size_t count = 0;
  for (const auto& [name, container] : containers_) count += container.size();
  return static_cast<int>(count);
}

}  // namespace ferry::worker
