// SPDX-License-Identifier: Apache-2.0
// The public MemoryRegistration owns an internal one.
#include <ferry/memory_registration.h>

#include <memory>
#include <utility>

#include "api/api_access.h"
#include "gpu/cuda/export_registry.h"

namespace ferry::v0 {

class MemoryRegistration::Impl final {
 public:
  std::unique_ptr<cuda::ExportRegistration> inner;
};

MemoryRegistration::MemoryRegistration(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryRegistration::~MemoryRegistration() = default;

absl::Status MemoryRegistration::Release(absl::Duration timeout) {
  return impl_->inner->Release(timeout);
}

std::unique_ptr<MemoryRegistration> ApiAccess::Wrap(
    std::unique_ptr<cuda::ExportRegistration> registration) {
  auto impl = std::make_unique<MemoryRegistration::Impl>();
  impl->inner = std::move(registration);
  return std::unique_ptr<MemoryRegistration>(new MemoryRegistration(std::move(impl)));
}

}  // namespace ferry::v0
