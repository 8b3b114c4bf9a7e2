// SPDX-License-Identifier: Apache-2.0
// Channels, closed loops and ranks over unary calls.
#include "benchmarks/support/unary_calls.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "benchmarks/support/control_frames.h"
#include "benchmarks/support/gates.h"
#include "coord/wire/bytes.h"

namespace ferry::bench {
namespace {

void CheckStatus(const std::string& method, const grpc::Status& status) {
  if (status.ok()) return;
  Fatal(absl::StrCat(method, ": ", status.error_code(), " ", status.error_message()));
}

// One of the calls in flight; starts its successor when it is answered.
class Slot final {
 public:
  Slot(std::shared_ptr<grpc::Channel> channel, const std::string& method,
       const std::vector<grpc::ByteBuffer>& requests, size_t next, const std::atomic<bool>& stop,
       absl::BlockingCounter& running)
      : stub_(std::move(channel)),
        method_(method),
        requests_(requests),
        next_(next),
        stop_(stop),
        running_(running) {
    latencies_us_.reserve(1 << 12);
  }

  void Start() {
    context_.emplace();
    started_ = SteadyClock().Now();
    stub_.UnaryCall(&*context_, method_, {}, &requests_[next_], &response_,
                    [this](grpc::Status status) { OnAnswer(status); });
    next_ = (next_ + 1) % requests_.size();
  }

  const std::vector<double>& latencies_us() const { return latencies_us_; }

 private:
  void OnAnswer(const grpc::Status& status) {
    CheckStatus(method_, status);
    latencies_us_.push_back(absl::ToDoubleMicroseconds(SteadyClock().Now() - started_));
    response_.Clear();
    if (stop_.load(std::memory_order_relaxed)) {
      running_.DecrementCount();
    } else {
      Start();
    }
  }

  RawStub stub_;
  const std::string& method_;
  const std::vector<grpc::ByteBuffer>& requests_;
  size_t next_;
  const std::atomic<bool>& stop_;
  absl::BlockingCounter& running_;
  std::optional<grpc::ClientContext> context_;
  grpc::ByteBuffer response_;
  absl::Time started_;
  std::vector<double> latencies_us_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void CallAndWait(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const google::protobuf::MessageLite& request,
                 google::protobuf::MessageLite& response) {
  RawStub stub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const grpc::ByteBuffer bytes = coord::SerializeMessage(request);
  grpc::ByteBuffer answer;
  absl::Notification answered;
  grpc::Status status;
  stub.UnaryCall(&context, method, {}, &bytes, &answer, [&](grpc::Status result) {
    status = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();
  CheckStatus(method, status);
  if (!coord::ParseMessage(answer, response)) Fatal(absl::StrCat(method, ": not such an answer"));
}

LoadResult RunUnaryLoad(const ServerProcess& server,
                        const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                        const std::string& method, const std::vector<grpc::ByteBuffer>& requests,
                        int inflight, absl::Duration slice) {
  std::atomic<bool> stop = false;
  absl::BlockingCounter running(inflight);
  std::vector<std::unique_ptr<Slot>> slots;
  for (size_t i = 0; i < static_cast<size_t>(inflight); ++i) {
    slots.push_back(std::make_unique<Slot>(channels[i % channels.size()], method, requests,
                                           i % requests.size(), stop, running));
  }
  const absl::Duration cpu = server.CpuTime();
  const absl::Time begin = SteadyClock().Now();
  for (const auto& slot : slots) slot->Start();
  absl::SleepFor(slice);
  stop.store(true, std::memory_order_relaxed);
  running.Wait();
  const double seconds = absl::ToDoubleSeconds(SteadyClock().Now() - begin);
  const absl::Duration cpu_used = server.CpuTime() - cpu;
  std::vector<double> all;
  for (const auto& slot : slots) {
    all.insert(all.end(), slot->latencies_us().begin(), slot->latencies_us().end());
  }
  const double calls = static_cast<double>(all.size());
  return {.calls_per_s = calls / seconds,
          .p50_us = Percentile(all, 0.5),
          .p99_us = Percentile(all, 0.99),
          .server_cpu_us = absl::ToDoubleMicroseconds(cpu_used) / calls};
}

struct UnaryRanks::Rank {
  explicit Rank(const std::string& address) : stub(MakeChannel(address)) {}

  RawStub stub;
  std::optional<grpc::ClientContext> context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

struct UnaryRanks::Pending {
  absl::Mutex mu;
  int count ABSL_GUARDED_BY(mu) = 0;
  std::string failure ABSL_GUARDED_BY(mu);

  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return count == 0; }
};

UnaryRanks::UnaryRanks(const std::string& address, int count)
    : pending_(std::make_unique<Pending>()) {
  ranks_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ranks_.push_back(std::make_unique<Rank>(address));
}

UnaryRanks::~UnaryRanks() {
  for (const auto& rank : ranks_) {
    if (rank->context.has_value()) rank->context->TryCancel();
  }
  absl::MutexLock lock(&pending_->mu);
  pending_->mu.Await(absl::Condition(pending_.get(), &Pending::IsOver));
}

absl::Time UnaryRanks::StartAll(const std::string& method,
                                const std::function<grpc::ByteBuffer(int)>& request, int count) {
  for (int i = 0; i < count; ++i) ranks_[static_cast<size_t>(i)]->request = request(i);
  const absl::Time begin = SteadyClock().Now();
  {
    absl::MutexLock lock(&pending_->mu);
    pending_->count = count;
  }
  for (int i = 0; i < count; ++i) {
    Rank& rank = *ranks_[static_cast<size_t>(i)];
    rank.context.emplace();
    rank.context->set_wait_for_ready(true);
    rank.stub.UnaryCall(&*rank.context, method, {}, &rank.request, &rank.response,
                        [pending = pending_.get(), method](grpc::Status status) {
                          absl::MutexLock lock(&pending->mu);
                          if (!status.ok()) {
                            pending->failure = absl::StrCat(method, ": ", status.error_message());
                          }
                          --pending->count;
                        });
  }
  return begin;
}

void UnaryRanks::WaitAll() {
  absl::MutexLock lock(&pending_->mu);
  pending_->mu.Await(absl::Condition(pending_.get(), &Pending::IsOver));
  if (!pending_->failure.empty()) Fatal(pending_->failure);
}

absl::Duration UnaryRanks::CallAll(const std::string& method,
                                   const std::function<grpc::ByteBuffer(int)>& request) {
  const absl::Time begin = StartAll(method, request, static_cast<int>(ranks_.size()));
  WaitAll();
  return SteadyClock().Now() - begin;
}

grpc::ByteBuffer NoBytes(int) { return ToBuffer(""); }

}  // namespace ferry::bench
