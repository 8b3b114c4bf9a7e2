// SPDX-License-Identifier: Apache-2.0
// What within a process costs, and refusals between processes.
#include "transport/local/local_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

// Of an entry in the table, until it is known.
constexpr absl::Duration kExchange = absl::Nanoseconds(75);

class LocalOutlet final : public Outlet {
 public:
  void Offer(uint64_t id, const Tensor& tensor, const MemoryPlace& to,
             OfferCallback done) override {
    std::move(done)(absl::FailedPreconditionError("the receiver is another process"));
  }
  void Release(uint64_t id) override {}
  void Abort(const absl::Status& why) override {}
};

class LocalInlet final : public Inlet {
 public:
  void Take(uint64_t id, const TensorHeader& header, absl::string_view body,
            absl::Span<UniqueFd> descriptors, const Tensor& destination,
            TakeCallback done) override {
    std::move(done)(absl::InvalidArgumentError("a local tensor from another process"), false);
  }
  void Cancel(uint64_t id) override {}
  void Drop(uint64_t id, const TensorHeader& header, absl::string_view body,
            absl::Span<UniqueFd> descriptors) override {}
  void Abort(const absl::Status& why) override {}
};

}  // namespace

absl::StatusOr<PathCost> LocalTransport::Cost(const PathQuery& query) const {
  const Endpoint& a = *query.source;
  const Endpoint& b = *query.destination;
  if (!(a.peer == b.peer)) {
    return absl::UnavailableError(
        absl::StrCat("they are two processes, ", Describe(a.peer), " and ", Describe(b.peer)));
  }
  PathCost cost = {kExchange, kNoCopy};
  if (exchange_ > absl::ZeroDuration()) {
    cost.latency = exchange_;
    cost.latency_basis = CostBasis::kAtStart;
  }
  if (!(query.source_place == query.destination_place)) {
    // Gpus::Move; its bandwidth is not known here.
    cost.note = "copied from one memory to the other";
  }
  return cost;
}

std::shared_ptr<Outlet> LocalTransport::MakeOutlet(const Endpoint& peer) {
  return std::make_shared<LocalOutlet>();
}

std::shared_ptr<Inlet> LocalTransport::MakeInlet(const Endpoint& peer, ReleaseCallback release) {
  return std::make_shared<LocalInlet>();
}

}  // namespace ferry
