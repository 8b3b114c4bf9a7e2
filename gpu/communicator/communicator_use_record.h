// SPDX-License-Identifier: Apache-2.0
// CommunicatorUseRecord: one rank's record that it uses a communicator, which any rank may evict.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_USE_RECORD_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_USE_RECORD_H_

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
#include "gpu/communicator/communicator_key.h"

namespace ferry {

// The store's synchronous interface: all ranks see its calls in a single order.
class UseRecordStore {
 public:
  virtual ~UseRecordStore() = default;
  virtual absl::Status Put(const std::string& key, absl::string_view value) = 0;
  // The key may be absent.
  virtual absl::Status Erase(const std::string& key) = 0;
  // Returns nullopt if the key is absent.
  virtual absl::StatusOr<std::optional<std::string>> Get(const std::string& key) = 0;
  virtual absl::StatusOr<std::vector<std::string>> KeysUnder(const std::string& prefix) = 0;
  // Returns true if the key held `expected` (nullopt: was absent) and now holds `desired`.
  virtual absl::StatusOr<bool> CompareAndSet(const std::string& key,
                                             const std::optional<std::string>& expected,
                                             absl::string_view desired) = 0;
};

// A communicator that is idle on one rank is cached there, and evicted when its memory is needed.
// That ends it for all ranks, so it must not race with a rank that begins to use it. A rank that
// begins to use it therefore writes its use key before it reads the leaving key, and a rank that
// evicts it writes the leaving key before it reads the use keys: at least one sees the other.
//
//   nccl-use/<key>/rank/<r>   the rank uses the communicator, or creates one
//   nccl-use/<key>/leaving    a rank that does not use it is about to evict it
//   nccl/<key>/generation     CommunicatorBootstrap's: once advanced, the communicator is over
//
// For one rank, whose calls are made one after the other. Not thread-safe; blocks.
class CommunicatorUseRecord final {
 public:
  using Wait = std::function<absl::Status()>;
  //   wait: called between two reads of the store; sleeps, and returns an error to give up.
  // All references outlive it.
  CommunicatorUseRecord(const CommunicatorKey& key, int rank, UseRecordStore& store,
                        const Clock& clock, Wait wait);

  // Records the use. From its return to End no other rank evicts the communicator of the returned
  // generation. Earlier generations are over.
  //   Errors: DEADLINE_EXCEEDED naming the rank that is about to evict it; as the store and `wait`.
  //   After an error as after End.
  absl::StatusOr<uint32_t> Begin(absl::Time deadline);
  // Erases the record.
  absl::Status End();
  // REQUIRES: not between Begin and End. Ends `generation` for all ranks, unless one of them uses
  // it, or another one that is about to evict it does not finish by `deadline`. Returns whether it
  // is over.
  absl::StatusOr<bool> TryEndForAll(uint32_t generation, absl::Time deadline);
  // Returns the current generation; earlier ones are over.
  absl::StatusOr<uint32_t> Generation() { return ReadGeneration(nullptr); }

  std::string UseKey() const;
  std::string LeavingKey() const;

 private:
  std::string prefix() const;
  absl::StatusOr<uint32_t> ReadGeneration(std::optional<std::string>* text);

  const CommunicatorKey& key_;
  const int rank_;
  UseRecordStore& store_;
  const Clock& clock_;
  const Wait wait_;
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_USE_RECORD_H_
