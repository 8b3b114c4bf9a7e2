// SPDX-License-Identifier: Apache-2.0
// CommunicatorRefcount: what ranks tell each other of who relies on a communicator that others may
// end.
#ifndef FERRY_GPU_CLIQUE_COMMUNICATOR_REFCOUNT_H_
#define FERRY_GPU_CLIQUE_COMMUNICATOR_REFCOUNT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "gpu/clique/clique_key.h"

namespace ferry {

// The store, asked and answered: each call is one moment in the order that all ranks see.
class CommunicatorRegistry {
 public:
  virtual ~CommunicatorRegistry() = default;
  virtual absl::Status Put(const std::string& key, absl::string_view value) = 0;
  // It may be absent.
  virtual absl::Status Erase(const std::string& key) = 0;
  // Absent: nullopt.
  virtual absl::StatusOr<std::optional<std::string>> Get(const std::string& key) = 0;
  virtual absl::StatusOr<std::vector<std::string>> KeysUnder(const std::string& prefix) = 0;
  // Whether it held `expected` (nullopt: was absent) and holds `desired` now.
  virtual absl::StatusOr<bool> CompareAndSet(const std::string& key,
                                             const std::optional<std::string>& expected,
                                             absl::string_view desired) = 0;
};

// A communicator that nobody uses on one rank is kept there for the next use, and makes room when
// its memory is wanted: then it is over for all, and none of them may just have begun to rely on
// it. So whoever uses it says so before it looks whether somebody is about to end it; whoever wants
// to end it says that before it looks whether somebody uses it; and one of the two sees the other.
//
//   nccl-use/<clique>/rank/<r>   the rank uses the communicator, or makes one
//   nccl-use/<clique>/leaving    a rank that does not is about to end it
//   nccl/<clique>/generation     CommunicatorBootstrap's: moved on, it is over
//
// Of one rank; its calls one after the other. Not thread-safe; blocks.
class CommunicatorRefcount final {
 public:
  using Wait = std::function<absl::Status()>;
  //   wait: a moment, between two looks at the store; an error gives up.
  // All outlive it.
  CommunicatorRefcount(const CliqueKey& key, int rank, CommunicatorRegistry& ledger,
                       const Clock& clock, Wait wait);

  // From its return to End no other rank ends the communicator of the generation that is returned
  // because it wants its memory. An earlier one is over.
  //   Errors: DEADLINE_EXCEEDED naming the rank that is about to end it; as the store and `wait`.
  //   Then as after End.
  absl::StatusOr<uint32_t> Begin(absl::Time deadline);
  absl::Status End();
  // REQUIRES: not between Begin and End. Ends `generation` for all ranks, unless one of them uses
  // it, or another one has not said by `deadline` whether it does. Returns whether it is over.
  absl::StatusOr<bool> TryEndForAll(uint32_t generation, absl::Time deadline);
  // Those before it are over.
  absl::StatusOr<uint32_t> Generation() { return ReadGeneration(nullptr); }

  std::string UseKey() const;
  std::string LeavingKey() const;

 private:
  std::string prefix() const;
  absl::StatusOr<uint32_t> ReadGeneration(std::optional<std::string>* text);

  const CliqueKey& key_;
  const int rank_;
  CommunicatorRegistry& ledger_;
  const Clock& clock_;
  const Wait wait_;
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_COMMUNICATOR_REFCOUNT_H_
