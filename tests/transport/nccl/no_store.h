// SPDX-License-Identifier: Apache-2.0
// A job's store in which the other processes never write anything.
#ifndef FERRY_TESTS_TRANSPORT_NCCL_NO_STORE_H_
#define FERRY_TESTS_TRANSPORT_NCCL_NO_STORE_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "gpu/communicator/communicator_bootstrap.h"

namespace ferry {

class NoStore final : public BootstrapStore {
 public:
  void Watch(absl::string_view) override {}
  void Set(absl::string_view, std::string) override {}
  void CompareAndSet(absl::string_view, std::optional<std::string>, std::string) override {}
  void DeletePrefix(absl::string_view) override {}
};

}  // namespace ferry

#endif  // FERRY_TESTS_TRANSPORT_NCCL_NO_STORE_H_
