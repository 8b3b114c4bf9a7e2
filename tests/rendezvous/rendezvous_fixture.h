// SPDX-License-Identifier: Apache-2.0
// Keys, values and logs for tests of rendezvous.
#ifndef FERRY_TESTS_RENDEZVOUS_RENDEZVOUS_FIXTURE_H_
#define FERRY_TESTS_RENDEZVOUS_RENDEZVOUS_FIXTURE_H_

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "rendezvous/key.h"
#include "rendezvous/value.h"

namespace ferry {

inline RendezvousKey Key(absl::string_view edge, int dst_task = 0) {
  return *RendezvousKey::Parse(RendezvousKey::Text(
      "/job:worker/replica:0/task:0/device:CPU:0", 1,
      absl::StrCat("/job:worker/replica:0/task:", dst_task, "/device:CPU:0"), edge));
}

inline Tensor Value(absl::string_view text) {
  return *Tensor::OfStrings(Shape(), {std::string(text)});
}

inline Tensor Bytes(int64_t count) {
  return *Tensor::Allocate(DataType::kUint8, *Shape::Create({count}));
}

// The result of a receive: "v" for the value v, else the status. Thread-safe.
class Results {
 public:
  // For RecvAsync.
  auto Writer() {
    return [this](absl::Status status, Received received) {
      absl::MutexLock lock(&mu_);
      if (!status.ok()) {
        results_.push_back(status.ToString());
      } else if (received.is_dead) {
        results_.push_back("dead");
      } else {
        results_.push_back(received.tensor.strings()[0]);
      }
    };
  }
  std::vector<std::string> all() const {
    absl::MutexLock lock(&mu_);
    return results_;
  }
  size_t size() const { return all().size(); }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> results_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_RENDEZVOUS_FIXTURE_H_
