// SPDX-License-Identifier: Apache-2.0
// Two ends of control channels in one process, each with a loop and a connection manager of its
// own.
#ifndef FERRY_TESTS_TRANSPORT_CONTROL_CHANNEL_PAIR_H_
#define FERRY_TESTS_TRANSPORT_CONTROL_CHANNEL_PAIR_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "transport/control/connection_manager.h"

namespace ferry {

// Records received frames.
class RecordingHandler : public ControlHandler {
 public:
  void OnOpen(std::shared_ptr<ControlChannel> channel) override {
    absl::MutexLock lock(&mu_);
    channel_ = channel;
  }
  absl::Status OnFrame(uint16_t type, absl::string_view body,
                       absl::Span<UniqueFd> descriptors) override {
    absl::MutexLock lock(&mu_);
    frames_.emplace_back(type, std::string(body));
    for (UniqueFd& fd : descriptors) descriptors_.push_back(std::move(fd));
    return verdict_;
  }
  absl::Status OnFrames(absl::Span<const ControlFrame> frames) override {
    {
      absl::MutexLock lock(&mu_);
      EXPECT_FALSE(frames.empty());
      together_ = std::max(together_, frames.size());
    }
    return ControlHandler::OnFrames(frames);
  }
  void OnClosed(const absl::Status& why) override {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(closed_.ok()) << "closed twice";
    EXPECT_FALSE(why.ok());
    closed_ = why;
    channel_.reset();
  }

  // Null if there is none in time.
  std::shared_ptr<ControlChannel> WaitForChannel() {
    absl::MutexLock lock(&mu_);
    const auto is_there = [this] { return !channel_.expired() || !closed_.ok(); };
    mu_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(10));
    return channel_.lock();
  }
  std::vector<std::pair<uint16_t, std::string>> WaitForFrames(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto is_there = [this, count] { return frames_.size() >= count || !closed_.ok(); };
    mu_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(20));
    return frames_;
  }
  absl::Status WaitForClosed() {
    absl::MutexLock lock(&mu_);
    const auto is_there = [this] { return !closed_.ok(); };
    mu_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(20));
    return closed_;
  }
  // The most frames that were delivered together.
  size_t together() {
    absl::MutexLock lock(&mu_);
    return together_;
  }
  std::vector<UniqueFd> TakeDescriptors() {
    absl::MutexLock lock(&mu_);
    return std::move(descriptors_);
  }
  void SetVerdict(absl::Status verdict) {
    absl::MutexLock lock(&mu_);
    verdict_ = std::move(verdict);
  }

 private:
  absl::Mutex mu_;
  // It keeps this, until it is closed or its loop is destroyed.
  std::weak_ptr<ControlChannel> channel_;
  std::vector<std::pair<uint16_t, std::string>> frames_;
  std::vector<UniqueFd> descriptors_;
  size_t together_ = 1;
  absl::Status closed_;
  absl::Status verdict_;
};

// A process as far as control channels go.
struct ControlEnd {
  explicit ControlEnd(PeerId self, std::string token = "token",
                      absl::Duration handshake_timeout = absl::Seconds(10),
                      EventLoopOptions loop_options = {}) {
    loop = *EventLoop::Create(std::move(loop_options));
    ConnectionManagerOptions options;
    options.handshake = {.self = self, .token = std::move(token)};
    options.tcp_listen = "127.0.0.1:0";
    options.handshake_timeout = handshake_timeout;
    auto made = ConnectionManager::Create(
        *loop, std::move(options),
        [this](const PeerId&) -> std::shared_ptr<ControlHandler> { return accepted; },
        [this](DataConnection connection) {
          if (on_data) return on_data(std::move(connection));
          data.push_back(std::move(connection));
        });
    EXPECT_TRUE(made.ok()) << made.status();
    connection_manager = *std::move(made);
    EXPECT_TRUE(connection_manager->Start().ok());
    addresses.unix_name = connection_manager->unix_name();
    addresses.tcp = {absl::StrCat("127.0.0.1:", connection_manager->tcp_port())};
    peer = self;
  }
  ~ControlEnd() { connection_manager->Close(); }

  PeerId peer;
  std::shared_ptr<RecordingHandler> accepted = std::make_shared<RecordingHandler>();
  std::vector<DataConnection> data;
  // Called instead of recording them; on the loop. Set before any connection.
  std::function<void(DataConnection)> on_data;
  PeerAddresses addresses;
  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<ConnectionManager> connection_manager;
};

}  // namespace ferry

#endif  // FERRY_TESTS_TRANSPORT_CONTROL_CHANNEL_PAIR_H_
