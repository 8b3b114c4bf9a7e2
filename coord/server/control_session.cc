// SPDX-License-Identifier: Apache-2.0
// The way of a session's frames, and the end of its streams.
#include "coord/server/control_session.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/logging.h"

namespace ferry::coord {
namespace {

// The number of requests executed while holding the executor's lock.
constexpr int kRequestsAtOnce = 64;

}  // namespace

ControlSession::ControlSession(uint64_t id, ControlShared& shared, const v1::Hello& hello,
                               std::string observed_address)
    : id_(id),
      shared_(shared),
      opening_(hello.has_node() ? hello.opening() : 0),
      delivery_(std::make_shared<ControlDelivery>(shared.gather)),
      requests_(std::make_shared<ControlRequests>(shared, delivery_, hello,
                                                  std::move(observed_address))) {}

std::string ControlSession::ClientText() const {
  return task() == kNoTask ? "tool" : absl::StrCat("task=", task().value());
}

void ControlSession::Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome) {
  welcome.set_session_id(id_);
  if (!delivery_->Attach(sink, acked_sequence, std::move(welcome))) return;
  FERRY_LOG_DEBUG(kCoord, "client connected: session={:x} {} address={}", id_, ClientText(),
                  observed_address());
}

void ControlSession::Detach(FrameSink& sink) {
  std::vector<WaitId> withdrawn;
  if (!delivery_->Detach(sink, withdrawn)) return;
  FERRY_LOG_DEBUG(kCoord, "client disconnected: session={:x} {} address={}", id_, ClientText(),
                  observed_address());
  if (withdrawn.empty()) return;
  shared_.frontend.executor().Run([&withdrawn](Coordinator& coordinator) {
    for (const WaitId wait : withdrawn) coordinator.Cancel(wait);
  });
}

absl::Status ControlSession::OnFrame(v1::ClientFrame& frame) {
  std::optional<size_t> behind = delivery_->Receive(frame);
  if (!behind.has_value()) return absl::OkStatus();
  for (int first = 0; first < frame.requests_size(); first += kRequestsAtOnce) {
    const int end = std::min(first + kRequestsAtOnce, frame.requests_size());
    RequestResults results;
    results.behind = *behind;
    shared_.frontend.executor().Run([&](Coordinator& coordinator) {
      for (int i = first; i < end; ++i) {
        requests_->Execute(coordinator, *frame.mutable_requests(i), results);
      }
      delivery_->Defer(coordinator, results);
    });
    requests_->ExecuteWithoutLock(results);
    behind = results.behind;
    if (!results.replies.empty() && !delivery_->Add(results)) break;
  }
  delivery_->Write();
  return absl::OkStatus();
}

size_t ControlSession::Close(const absl::Status& why) {
  requests_->EndHolds();
  const ControlDelivery::Deferred deferred = delivery_->Close(why);
  if (deferred.waits.empty() && deferred.watches.empty()) return 0;
  shared_.frontend.executor().Run([&](Coordinator& coordinator) {
    for (const WaitId wait : deferred.waits) coordinator.Cancel(wait);
    for (const Store::Watch watch : deferred.watches) coordinator.store().RemoveWatch(watch);
  });
  return deferred.waits.size();
}

}  // namespace ferry::coord
