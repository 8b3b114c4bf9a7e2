// SPDX-License-Identifier: Apache-2.0
// Loop: the interface of an event loop; and why there are two implementations.
#ifndef FERRY_NET_LOOP_H_
#define FERRY_NET_LOOP_H_

#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"

namespace ferry {

// An event source with a descriptor. The loop calls its methods from one thread at a time, with no
// lock held.
class LoopSource {
 public:
  virtual ~LoopSource() = default;
  // Its descriptor has become ready (EPOLL* bits). A source that works on either loop drains the
  // descriptor or schedules another call with Post, because an EventLoop reports each change once;
  // while it cannot handle events it watches none (Loop::Watch with 0), because a SocketLoop
  // repeats the report.
  virtual void OnReady(uint32_t events) = 0;
  // True if transfers wait for its events: an EventLoop that polls looks for them more often while
  // it has such a source. Constant.
  virtual bool IsStream() const { return false; }
  // A SocketLoop ends; no other method is called after this. An EventLoop may still be led by
  // callers after its Stop, and only releases its sources when it is destroyed.
  virtual void OnLoopEnd() {}
};

// An event loop: calls sources whose descriptors are ready, functions that were posted, and timers.
// All methods may be called by any thread, except where an implementation restricts it.
//
// There are two implementations. Both are led by their own thread or by a caller that waits
// (leader/follower), but for different waits:
//
//   EventLoop   transfers between processes. The sources that matter poll, mostly rings in shared
//               memory, which the leader reads without a system call; epoll gets a look every 2 to
//               200 us. Edge-triggered. A caller waits for a condition (WaitUntil), usually for a
//               microsecond, and spins for it; several may wait. Peers ring a doorbell in shared
//               memory, and while callers come and go they need not even ring.
//   SocketLoop  the coordinator's connections, at both ends. All sources are sockets, on the server
//               thousands. Level-triggered. A caller waits for one answer (SocketLoop::Awaited),
//               and leads only if no other answer is awaited. While events come close together the
//               leader polls epoll for 100 us, and yields the core between polls, since the other
//               end may need it to answer.
//
// They would be one if that cost neither side anything, but it does. With the coordinator's
// connections on an EventLoop at both ends, `ferry bench kv` (two cores, medians of runs in turns)
// takes 34 us and 97 us of CPU time for a set of 8 bytes with one in flight, in place of 11 us and
// 24 us, and a spin of 100 us in place of 20 us makes it no faster; with 64 in flight it is slower
// by 1 to 4 %. The other way round, the leader would enter the kernel in each pass, while 8 bytes
// by shared memory take 0.7 us from one process to the other.
//
// Code that needs only what is here takes a Loop. Code on the path of each message takes the
// implementation, which is final, so that no call is virtual.
class Loop {
 public:
  using SourceId = uint64_t;

  virtual ~Loop() = default;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Keeps `source` until Remove; a source is added once at a time. `fd` stays owned by the source,
  // and open until Remove. The source may be called before this returns.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason; CANCELLED if the loop has ended. The
  //   source is not called, nor kept.
  virtual absl::StatusOr<SourceId> Add(std::shared_ptr<LoopSource> source, int fd,
                                       uint32_t events) = 0;
  // Sets the events the source receives from now on. Events that are pending already are reported.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  virtual absl::Status Watch(SourceId id, int fd, uint32_t events) = 0;
  // Stops calling the source. On the loop at once; on another thread, except for a call in progress
  // or about to begin. The loop releases the source later, on its own. Unknown ids are ignored.
  virtual void Remove(SourceId id, int fd) = 0;

  // Runs `function` on the loop soon; never once the loop has ended.
  virtual void Post(absl::AnyInvocable<void() &&> function) = 0;
  // As Post, at a time of SteadyClock. The captures of `function` live until then.
  virtual void PostAt(absl::Time at, absl::AnyInvocable<void() &&> function) = 0;
  void PostAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) {
    PostAt(SteadyClock().Now() + delay, std::move(function));
  }

  // True if this thread is leading the loop now: it must not wait for the loop then.
  virtual bool IsOnLoop() const = 0;

 protected:
  Loop() = default;
};

}  // namespace ferry

#endif  // FERRY_NET_LOOP_H_
