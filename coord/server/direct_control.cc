// SPDX-License-Identifier: Apache-2.0
// Streams over plain connections, and detecting these connections.
#include "coord/server/direct_control.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "coord/server/elastic_server.h"
#include "coord/server/tcp_store_server.h"
#include "coord/wire/control_limits.h"
#include "coord/wire/direct_connection.h"
#include "coord/wire/direct_frames.h"
#include "net/socket_address.h"

namespace ferry::coord {
namespace {

// Limit for the first frame, which contains little more than a Hello.
constexpr size_t kMaxFirstBytes = size_t{1} << 20;
// How long a client may take to close a stream that was ended.
constexpr absl::Duration kMaxAckDelay = absl::Seconds(10);

enum class Kind { kUnknown, kOurs, kTcpStore, kElastic, kOther, kGone };

Kind KindOf(int socket) {
  char first = 0;
  const ssize_t result = recv(socket, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (result == 1) {
    if (first == kDirectPreface[0]) return Kind::kOurs;
    if (first == ElasticServer::kFirstByte) return Kind::kElastic;
    return TcpStoreServer::IsFirstByte(first) ? Kind::kTcpStore : Kind::kOther;
  }
  if (result == 0) return Kind::kGone;
  return errno == EAGAIN || errno == EINTR ? Kind::kUnknown : Kind::kGone;
}

}  // namespace

class DirectControl::Stream final : public DirectConnection, public FrameSink {
 public:
  Stream(DirectControl& control, std::string peer)
      : DirectConnection(*control.loop_),
        control_(control),
        entry_(control.sessions_, std::move(peer)) {
    ++control_.stream_count_;
  }
  ~Stream() override { --control_.stream_count_; }

  // Called once.
  void Begin(UniqueFd connection) {
    Accept(std::move(connection), control_.options_.keepalive_time,
           control_.options_.keepalive_timeout);
    CloseAfter(control_.options_.hello_timeout, /*only_without_session=*/true);
  }

  bool Write(grpc::ByteBuffer& frame) override {
    std::vector<grpc::Slice> slices;
    if (!frame.Dump(&slices).ok()) return false;
    return Send(slices);
  }

  void Finish(const absl::Status& why) override {
    is_finished_.store(true, std::memory_order_relaxed);
    const std::string reply = MakeReply(/*request_id=*/0, why).SerializeAsString();
    const grpc::Slice slice(reply.data(), reply.size());
    SendLast({&slice, 1});
    CloseAfter(kMaxAckDelay, /*only_without_session=*/false);
  }

 private:
  void CloseAfter(absl::Duration timeout, bool only_without_session) {
    control_.loop_->PostAfter(timeout, [weak = weak_from_this(), only_without_session] {
      const auto self = std::static_pointer_cast<Stream>(weak.lock());
      if (self == nullptr || (only_without_session && self->entry_.session() != nullptr)) return;
      if (!only_without_session) return self->Close(absl::CancelledError("the end was told"));
      self->Finish(absl::DeadlineExceededError("no Hello has come in time"));
    });
  }

  bool OnFrame(const DirectFrame& received) override {
    // Data after the end is ignored, but the client's close is awaited.
    if (is_finished_.load(std::memory_order_relaxed)) return true;
    if (received.is_last) {
      Close(absl::OkStatus());
      return false;
    }
    const bool is_first = entry_.session() == nullptr;
    const absl::Status status = entry_.OnFrame(received.bytes, *this);
    if (is_first && entry_.session() != nullptr) control_.CountAttached(1);
    if (!status.ok()) Finish(status);
    return true;
  }
  absl::Status CheckFrameSize(size_t bytes) override {
    if (entry_.session() != nullptr) return CheckFrameBytes(bytes, entry_.max_frame_bytes());
    if (bytes <= kMaxFirstBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("a first frame of ", bytes, " bytes is too large for a Hello"));
  }
  void OnRefused(const absl::Status& why) override { Finish(why); }
  // Any bytes are a sign of life: the rest of a large frame may come late.
  void OnBytes() override {
    if (entry_.session() != nullptr) entry_.session()->NoteAlive();
  }
  // Bytes were written, so that there is a session.
  void OnDrained() override {
    if (entry_.session() != nullptr) entry_.session()->OnWritten(*this);
  }
  void OnClosed(const absl::Status&) override {
    entry_.Detach(*this);
    if (entry_.session() != nullptr) control_.CountAttached(-1);
  }

  DirectControl& control_;
  ControlEntry entry_;
  std::atomic<bool> is_finished_{false};
};

// A connection whose protocol is not yet known. Clients send first, and most of them immediately.
// PyTorch's of 1.13 to 2.1 have no greeting: theirs are silent until the program uses the store.
class DirectControl::Undecided final : public LoopSource,
                                       public std::enable_shared_from_this<Undecided> {
 public:
  Undecided(DirectControl& control, UniqueFd connection)
      : control_(control), connection_(std::move(connection)) {}

  // On the loop.
  void Watch() {
    const auto added = control_.loop_->Add(shared_from_this(), connection_.get(), EPOLLIN);
    if (!added.ok()) return;
    source_ = *added;
    control_.undecided_.insert(this);
    // Detects that the client's host is gone.
    TuneConnection(connection_.get(), control_.options_.keepalive_time,
                   control_.options_.keepalive_timeout);
    control_.loop_->PostAfter(control_.options_.hello_timeout, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self != nullptr && self->is_silent()) self->control_.LimitSilent(self);
    });
  }
  bool is_silent() const { return connection_.valid(); }
  // It may be a store's client, and must leave descriptors to others as those do.
  bool is_over_limit() const {
    return static_cast<uint64_t>(connection_.get()) >= TcpStoreServer::DescriptorLimit();
  }
  void Close() {
    Forget();
    connection_.Reset();
  }
  int descriptor() const { return connection_.get(); }

 private:
  void OnReady(uint32_t) override {
    if (!connection_.valid() || KindOf(connection_.get()) == Kind::kUnknown) return;
    Forget();
    if (!control_.Route(connection_)) connection_.Reset();
  }
  void Forget() {
    control_.undecided_.erase(this);
    control_.loop_->Remove(source_, connection_.get());
  }

  DirectControl& control_;
  UniqueFd connection_;
  Loop::SourceId source_ = 0;
};

absl::StatusOr<std::unique_ptr<DirectControl>> DirectControl::Create(ControlSessions& sessions,
                                                                     DirectControlOptions options) {
  auto control = std::unique_ptr<DirectControl>(new DirectControl(sessions, std::move(options)));
  FERRY_ASSIGN_OR_RETURN(control->loop_, SocketLoop::Create("ferry-direct"));
  return control;
}

DirectControl::~DirectControl() { Stop(absl::ZeroDuration()); }

bool DirectControl::Route(UniqueFd& connection) {
  switch (KindOf(connection.get())) {
    case Kind::kUnknown:
      return false;
    case Kind::kGone:
      connection.Reset();
      return true;
    case Kind::kTcpStore:
      options_.tcp_store(std::move(connection));
      return true;
    case Kind::kElastic:
      options_.elastic(std::move(connection));
      return true;
    case Kind::kOther:
      options_.others(std::move(connection));
      return true;
    case Kind::kOurs:
      break;
  }
  auto stream = std::make_shared<Stream>(*this, PeerName(connection.get()));
  stream->Begin(std::move(connection));
  return true;
}

void DirectControl::Take(UniqueFd connection) {
  if (Route(connection)) return;
  auto undecided = std::make_shared<Undecided>(*this, std::move(connection));
  loop_->Post([undecided] { undecided->Watch(); });
}

std::vector<int> DirectControl::UndecidedDescriptors() const {
  std::vector<int> silent;
  for (const Undecided* const each : undecided_) silent.push_back(each->descriptor());
  return silent;
}

void DirectControl::LimitSilent(const std::shared_ptr<Undecided>& undecided) {
  if (undecided->is_over_limit()) return undecided->Close();
  std::erase_if(silent_, [](const std::weak_ptr<Undecided>& weak) {
    const auto other = weak.lock();
    return other == nullptr || !other->is_silent();
  });
  silent_.push_back(undecided);
  if (silent_.size() <= options_.max_silent_connections) return;
  if (const auto oldest = silent_.front().lock()) oldest->Close();
  silent_.pop_front();
}

void DirectControl::CountAttached(int change) {
  absl::MutexLock lock(&mu_);
  attached_ += change;
  attached_changed_.Wake();
}

void DirectControl::Stop(absl::Duration grace) {
  if (loop_ == nullptr) return;  // None could be created.
  const absl::Time deadline = SteadyClock().Now() + grace;
  while (SteadyClock().Now() < deadline) {
    const uint32_t turn = attached_changed_.turn();
    {
      absl::MutexLock lock(&mu_);
      if (attached_ == 0) break;
    }
    attached_changed_.WaitUntil(turn, deadline);
  }
  // Closes the rest. Callbacks that run until then still need loop_.
  loop_->End();
}

}  // namespace ferry::coord
