// SPDX-License-Identifier: Apache-2.0
// SocketLoop: one thread that waits for many sockets.
#ifndef FERRY_COORD_SOCKET_LOOP_H_
#define FERRY_COORD_SOCKET_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/thread.h"
#include "base/unique_fd.h"

namespace ferry::coord {

// Something with a descriptor that the loop looks after. Called on the loop's thread only, with no
// lock held.
class SocketSource {
 public:
  virtual ~SocketSource() = default;
  // Its descriptor is ready, as EPOLL* bits; told again as long as it stays so.
  virtual void OnReady(uint32_t events) = 0;
  // The loop ends; nothing else is called after this.
  virtual void OnLoopEnd() = 0;
};

// Thread-safe.
class SocketLoop final {
 public:
  // `name`: of its thread.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::shared_ptr<SocketLoop>> Create(std::string name);
  // The one that all agents of this process share, "ferry-link"; it lasts as long as somebody has
  // it.
  static absl::StatusOr<std::shared_ptr<SocketLoop>> OfClients();
  // Must not run on the loop.
  ~SocketLoop() { End(); }
  // Ends the thread, after OnLoopEnd of every source; what is posted from then on never runs. Must
  // not run on the loop, nor twice at once.
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;

  // Keeps `source` until Remove. `fd` stays the source's, and open until Remove.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason; the source is not kept.
  absl::Status Add(std::shared_ptr<SocketSource> source, int fd, uint32_t events)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The events that it wants to hear of from now on.
  void Watch(SocketSource& source, int fd, uint32_t events);
  // REQUIRES: on the loop.
  void Remove(SocketSource& source, int fd) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `function` on the loop, soon; never when the loop has ended.
  void Post(absl::AnyInvocable<void() &&> function) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, `delay` later. What `function` holds is kept until then.
  void PostAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function)
      ABSL_LOCKS_EXCLUDED(mu_);

  // How long it has been since it last waited for something.
  absl::Duration Lag() const;

  // To read into, for whoever is called on the loop, until it returns.
  static constexpr size_t kScratchBytes = size_t{64} << 10;
  char* scratch() { return scratch_.get(); }

 private:
  SocketLoop() = default;
  void Run();
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs what is due; returns the milliseconds until the next is, -1 if there is none.
  int RunDue();

  // Constant after Create.
  UniqueFd epoll_;
  UniqueFd wake_;
  std::unique_ptr<char[]> scratch_;

  // When it began what it is doing, on the steady clock in nanoseconds; 0 while it waits.
  std::atomic<int64_t> busy_since_{0};

  // Of the loop's thread: removed, but perhaps among the events that are being told.
  std::vector<std::shared_ptr<SocketSource>> removed_;
  std::multimap<absl::Time, absl::AnyInvocable<void() &&>> due_;

  absl::Mutex mu_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<SocketSource*, std::shared_ptr<SocketSource>> sources_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SOCKET_LOOP_H_
