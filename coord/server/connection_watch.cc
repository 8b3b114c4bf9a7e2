// SPDX-License-Identifier: Apache-2.0
// Polls duplicates of gRPC's descriptors for the end of their connections.
#include "coord/server/connection_watch.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include "base/unique_fd.h"

namespace ferry::coord {

class ConnectionWatch::Watched final : public LoopSource,
                                       public std::enable_shared_from_this<Watched> {
 public:
  Watched(const std::shared_ptr<Loop>& loop, std::shared_ptr<EndCallback> on_end,
          UniqueFd connection, std::string peer)
      : loop_(loop),
        on_end_(std::move(on_end)),
        connection_(std::move(connection)),
        peer_(std::move(peer)) {}

  // On the loop.
  void Watch(Loop& loop) {
    // gRPC handles the received bytes. Hang-ups are always reported.
    const auto added = loop.Add(shared_from_this(), connection_.get(), EPOLLRDHUP);
    if (added.ok()) source_ = *added;
  }

 private:
  void OnReady(uint32_t) override {
    if (!connection_.valid()) return;
    if (const auto loop = loop_.lock()) loop->Remove(source_, connection_.get());
    connection_.Reset();
    (*on_end_)(peer_);
  }
  void OnLoopEnd() override { connection_.Reset(); }

  const std::weak_ptr<Loop> loop_;
  const std::shared_ptr<EndCallback> on_end_;
  UniqueFd connection_;
  Loop::SourceId source_ = 0;
  const std::string peer_;
};

void ConnectionWatch::Add(int connection, std::string peer) {
  UniqueFd duplicate(fcntl(connection, F_DUPFD_CLOEXEC, 0));
  // Accepting connections takes precedence over watching them: half of the descriptors are
  // reserved for it.
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (!duplicate.valid() || static_cast<rlim_t>(duplicate.get()) >= limit.rlim_cur / 2) return;
  auto watched = std::make_shared<Watched>(loop_, on_end_, std::move(duplicate), std::move(peer));
  loop_->Post([loop = loop_.get(), watched = std::move(watched)] { watched->Watch(*loop); });
}

}  // namespace ferry::coord
