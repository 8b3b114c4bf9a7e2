// SPDX-License-Identifier: Apache-2.0
// Replay worker: the threads of a recorded process.
#include "benchmarks/gpu/calls/replay_worker.h"

#include <dlfcn.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"

#include "benchmarks/gpu/calls/call_player.h"
#include "benchmarks/gpu/calls/replay_channel.h"

namespace ferry::calls {
namespace {

// A recorded thread. It lives as long as the process.
class ReplayThread final {
 public:
  ReplayThread(CallPlayer& player, int socket) : player_(player), socket_(socket) {
    std::thread([this] { Run(); }).detach();
  }

  void Post(ReplayMessage message) {
    const absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(message));
  }

 private:
  bool HasCalls() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !calls_.empty(); }

  ReplayMessage Next() {
    // Without a deadline: cuda_replay has one for each call, and its end is that of the process.
    const absl::MutexLock lock(&mutex_, absl::Condition(this, &ReplayThread::HasCalls));
    ReplayMessage next = std::move(calls_.front());
    calls_.pop_front();
    return next;
  }

  void Run() {
    for (;;) {
      const ReplayMessage call = Next();
      PlayedCall played = player_.Play(static_cast<size_t>(call.index), call.foreign);
      const int exported = played.exported.has_value() ? played.exported->descriptor : -1;
      const absl::Status sent =
          SendMessage(socket_, {.type = ReplayMessage::kPlayed,
                                .index = call.index,
                                .foreign = std::move(played.exported),
                                .is_error = played.is_error,
                                .differences = absl::StrJoin(played.differences, "\n"),
                                .skipped = std::move(played.skipped)});
      // As the recorded program closes its descriptors once they are sent or imported.
      if (exported >= 0) close(exported);
      if (call.foreign.has_value() && call.foreign->descriptor >= 0) {
        close(call.foreign->descriptor);
      }
      if (!sent.ok()) _exit(1);
    }
  }

  CallPlayer& player_;
  const int socket_;
  absl::Mutex mutex_;
  std::deque<ReplayMessage> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void RunReplayWorker(const CallRecord& record, int socket, const std::string& library,
                     absl::Duration patience) {
  void* const driver = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    (void)SendMessage(socket, {.type = ReplayMessage::kFailed, .skipped = dlerror()});
    _exit(1);
  }
  auto* const player = new CallPlayer(record, driver, patience);
  std::map<int64_t, std::unique_ptr<ReplayThread>> threads;
  for (;;) {
    absl::StatusOr<ReplayMessage> message = ReceiveMessage(socket);
    if (!message.ok() || message->type != ReplayMessage::kPlay) _exit(message.ok() ? 0 : 1);
    std::unique_ptr<ReplayThread>& thread =
        threads[record.calls[static_cast<size_t>(message->index)].thread];
    if (thread == nullptr) thread = std::make_unique<ReplayThread>(*player, socket);
    thread->Post(*std::move(message));
  }
}

}  // namespace ferry::calls
