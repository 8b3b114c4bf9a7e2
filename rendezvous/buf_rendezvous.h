// SPDX-License-Identifier: Apache-2.0
// BufRendezvous: lends a buffer of a collective to its one consumer, in place.
#ifndef FERRY_RENDEZVOUS_BUF_RENDEZVOUS_H_
#define FERRY_RENDEZVOUS_BUF_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "tensor/tensor.h"

namespace ferry {

// A buffer that is lent; given back, which its owner then hears, when this goes. Move-only.
class LentBuffer {
 public:
  using ReleaseCallback = absl::AnyInvocable<void(absl::Status) &&>;

  LentBuffer() = default;
  LentBuffer(Tensor tensor, ReleaseCallback on_release)
      : tensor_(std::move(tensor)), on_release_(std::move(on_release)) {}
  LentBuffer(LentBuffer&& other) noexcept { *this = std::move(other); }
  LentBuffer& operator=(LentBuffer&& other) noexcept {
    if (this != &other) {
      Release();
      tensor_ = std::move(other.tensor_);
      on_release_ = std::exchange(other.on_release_, nullptr);
    }
    return *this;
  }
  ~LentBuffer() { Release(); }

  // The producer's own elements, which the consumer may write as well.
  Tensor& tensor() { return tensor_; }
  // Gives it back now.
  void Release() {
    tensor_ = Tensor();
    if (on_release_) std::exchange(on_release_, nullptr)(absl::OkStatus());
  }

 private:
  Tensor tensor_;
  ReleaseCallback on_release_;
};

// One producer and one consumer for each key, in either order. Thread-safe; callbacks run on the
// thread of whoever comes second, with no lock held.
// Source: tensorflow/core/common_runtime/buf_rendezvous.cc.
class BufRendezvous final {
 public:
  using ProducerCallback = LentBuffer::ReleaseCallback;
  using ConsumerCallback = absl::AnyInvocable<void(absl::Status, LentBuffer) &&>;

  // `device_incarnation`: of the device whose buffers pass here.
  explicit BufRendezvous(uint64_t device_incarnation) : device_incarnation_(device_incarnation) {}
  // Consumers that still wait get an error, and so do producers.
  ~BufRendezvous();

  BufRendezvous(const BufRendezvous&) = delete;
  BufRendezvous& operator=(const BufRendezvous&) = delete;

  // Offers `tensor`. `done` runs once the consumer has given it back; only then may the producer
  // touch it again.
  //   Errors through `done`: the abort's status; INTERNAL when the key was provided already.
  void Provide(const std::string& key, Tensor tensor, ProducerCallback done)
      ABSL_LOCKS_EXCLUDED(mu_);

  //   device_incarnation: as the consumer knows the producer's device.
  //   Errors through `done`: the abort's status; INTERNAL when there is a consumer already;
  //   FAILED_PRECONDITION for another incarnation.
  void Consume(const std::string& key, uint64_t device_incarnation, ConsumerCallback done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Both sides of every key, and all who come later, get `why`. The first one stays.
  void StartAbort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Tensor tensor;
    ProducerCallback producer;
    ConsumerCallback consumer;
  };

  void EndAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  const uint64_t device_incarnation_;
  absl::Mutex mu_;
  absl::Status abort_status_ ABSL_GUARDED_BY(mu_);
  // Keys of which one side is here.
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_BUF_RENDEZVOUS_H_
