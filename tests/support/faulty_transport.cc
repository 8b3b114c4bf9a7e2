// SPDX-License-Identifier: Apache-2.0
// Endpoints that find each other in a table.
#include "tests/support/faulty_transport.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"

namespace ferry {

using StatePtr = std::shared_ptr<FaultyTransportState>;

bool FaultyTransportState::Chance(int out_of_thousand) {
  return out_of_thousand > 0 && static_cast<int>(random() % 1000) < out_of_thousand;
}

bool FaultyTransportState::Step() {
  if (late.empty()) return false;
  const size_t index = random() % late.size();
  std::function<void()> next = std::move(late[index]);
  late.erase(late.begin() + static_cast<ptrdiff_t>(index));
  next();
  return true;
}

namespace {

class FaultySender final : public TransportSender,
                           public std::enable_shared_from_this<FaultySender> {
 public:
  explicit FaultySender(StatePtr state) : state_(std::move(state)) { ++state_->halves; }

  void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
              ExposeCallback done) override {
    if (!aborted_.ok()) return std::move(done)(aborted_);
    if (state_->Chance(state_->faults.fail)) {
      ++state_->failed;
      return std::move(done)(absl::ResourceExhaustedError("the arena is full: raise arena_bytes"));
    }
    if (!state_->Chance(state_->faults.later + state_->faults.never)) {
      return std::move(done)(Lend(id, tensor));
    }
    const uint64_t number = ++last_pending_;
    pending_.emplace(number, Pending{id, tensor, std::move(done)});
    if (state_->Chance(state_->faults.never)) return;
    state_->late.push_back([weak = weak_from_this(), number] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      const auto found = self->pending_.find(number);
      if (found == self->pending_.end()) return;
      Pending pending = std::move(found->second);
      self->pending_.erase(found);
      std::move(pending.done)(self->Lend(pending.id, pending.tensor));
    });
  }

  void Release(uint64_t id) override {
    const auto found = descriptors_.find(id);
    if (found == descriptors_.end()) return;
    if (state_->viewed.contains(found->second)) ++state_->early_releases;
    state_->lent.erase(found->second);
    descriptors_.erase(found);
  }

  void Abort(const absl::Status& why) override {
    if (aborted_.ok()) ++state_->aborted_halves;
    aborted_ = why;
    for (const auto& [id, descriptor] : descriptors_) state_->lent.erase(descriptor);
    descriptors_.clear();
    auto pending = std::exchange(pending_, {});
    for (auto& [number, each] : pending) std::move(each.done)(why);
  }

 private:
  struct Pending {
    uint64_t id;
    Tensor tensor;
    ExposeCallback done;
  };

  absl::StatusOr<TransferDescriptor> Lend(uint64_t id, const Tensor& tensor) {
    if (!aborted_.ok()) return aborted_;
    const uint64_t descriptor = ++state_->last_descriptor;
    // "None is used twice."
    FERRY_CHECK(descriptors_.emplace(id, descriptor).second);
    state_->lent.emplace(descriptor, tensor);
    // A number, and that again, so that a changed one is not by chance another one's.
    char room[16];
    ByteWriter writer(room, sizeof(room));
    writer.Put(descriptor);
    writer.Put(~descriptor);
    return TransferDescriptor{.body = std::string(writer.view())};
  }

  const StatePtr state_;
  absl::Status aborted_;
  uint64_t last_pending_ = 0;
  std::map<uint64_t, Pending> pending_;
  std::map<uint64_t, uint64_t> descriptors_;
};

class FaultyReceiver final : public TransportReceiver,
                             public std::enable_shared_from_this<FaultyReceiver> {
 public:
  FaultyReceiver(StatePtr state, Endpoint peer, ReleaseCallback release, bool makes_views)
      : state_(std::move(state)),
        peer_(std::move(peer)),
        release_(std::move(release)),
        makes_views_(makes_views) {
    ++state_->halves;
  }

  void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
             absl::Span<UniqueFd> descriptors, const Tensor& destination,
             FetchCallback done) override {
    ByteReader reader(body);
    const auto descriptor = reader.Get<uint64_t>();
    const auto again = reader.Get<uint64_t>();
    const auto found = state_->lent.find(descriptor);
    if (reader.is_short() || !reader.rest().empty() || again != ~descriptor ||
        found == state_->lent.end() || found->second.bytes() != header.bytes) {
      return std::move(done)(absl::InvalidArgumentError("a descriptor that makes no sense"), false);
    }
    if (!aborted_.ok()) return std::move(done)(aborted_, false);
    if (state_->Chance(state_->faults.fail)) {
      ++state_->failed;
      if (state_->Chance(500)) {
        return std::move(done)(absl::ResourceExhaustedError("no memory to receive into"), false);
      }
      return std::move(done)(absl::UnavailableError("a data connection has broken"), false);
    }
    if (!makes_views_ && state_->Chance(state_->faults.again)) {
      ++state_->asked_again;
      return std::move(done)(absl::AbortedError("the other side was not ready"), false);
    }
    FERRY_CHECK(!pending_.contains(id));
    Pending pending = {header, descriptor, found->second, destination, std::move(done)};
    if (!state_->Chance(state_->faults.later + state_->faults.never)) {
      return Finish(id, std::move(pending));
    }
    pending_.emplace(id, std::move(pending));
    if (state_->Chance(state_->faults.never)) return;
    state_->late.push_back([weak = weak_from_this(), id] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      const auto late = self->pending_.find(id);
      if (late == self->pending_.end()) return;
      Pending taken = std::move(late->second);
      self->pending_.erase(late);
      self->Finish(id, std::move(taken));
    });
  }

  void Cancel(uint64_t id) override {
    const auto found = pending_.find(id);
    if (found != pending_.end()) found->second.is_cancelled = true;
  }

  void Discard(uint64_t, const TensorHeader&, absl::string_view, absl::Span<UniqueFd>) override {}

  void Abort(const absl::Status& why) override {
    if (aborted_.ok()) ++state_->aborted_halves;
    aborted_ = why;
    auto pending = std::exchange(pending_, {});
    for (auto& [id, each] : pending) std::move(each.done)(why, false);
  }

 private:
  struct Pending {
    TensorHeader header;
    uint64_t descriptor;
    Tensor from;
    Tensor destination;
    FetchCallback done;
    bool is_cancelled = false;
  };

  void Finish(uint64_t id, Pending pending) {
    if (pending.is_cancelled) {
      return std::move(pending.done)(absl::CancelledError("cancelled"), false);
    }
    const bool is_corrupted = state_->Chance(state_->faults.corrupt) && pending.header.bytes > 0;
    if (makes_views_ && !pending.destination.is_valid() && !is_corrupted) {
      ++state_->viewed[pending.descriptor];
      auto view = WrapForeignBuffer(
          const_cast<void*>(pending.from.data()), pending.header.bytes,
          [self = shared_from_this(), id, descriptor = pending.descriptor, from = pending.from] {
            if (--self->state_->viewed[descriptor] == 0) self->state_->viewed.erase(descriptor);
            self->release_(id);
          });
      return std::move(pending.done)(
          Tensor::Create(pending.header.dtype, pending.header.shape, std::move(view)), true);
    }
    Tensor into = pending.destination.is_valid()
                      ? pending.destination
                      : *Tensor::Allocate(pending.header.dtype, pending.header.shape);
    std::memcpy(into.mutable_data(), pending.from.data(), pending.header.bytes);
    if (is_corrupted) {
      ++state_->corrupted;
      static_cast<char*>(into.mutable_data())[state_->random() % pending.header.bytes] ^= 1;
    }
    std::move(pending.done)(std::move(into), false);
  }

  const StatePtr state_;
  const Endpoint peer_;
  const ReleaseCallback release_;
  const bool makes_views_;
  absl::Status aborted_;
  std::map<uint64_t, Pending> pending_;
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(StatePtr state, absl::string_view name, bool makes_views)
      : Transport({.name = name,
                   .summary = "breaks things",
                   .capabilities = {.outlives_producer = makes_views, .retryable = !makes_views}}),
        state_(std::move(state)),
        makes_views_(makes_views) {}

  // Random, so that each transport is selected at times.
  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override {
    if (state_->on_cost) std::exchange(state_->on_cost, nullptr)();
    if (state_->refused_costs > 0) {
      --state_->refused_costs;
      return absl::FailedPreconditionError("not now");
    }
    return PathCost{absl::Microseconds(1 + state_->random() % 100), 1e9};
  }
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override {
    return std::make_shared<FaultySender>(state_);
  }
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override {
    return std::make_shared<FaultyReceiver>(state_, peer, std::move(release), makes_views_);
  }

 private:
  const StatePtr state_;
  const bool makes_views_;
};

}  // namespace

std::unique_ptr<Transport> MakeFaultyTransport(StatePtr state, absl::string_view name,
                                               bool makes_views) {
  return std::make_unique<FaultyTransport>(std::move(state), name, makes_views);
}

}  // namespace ferry
