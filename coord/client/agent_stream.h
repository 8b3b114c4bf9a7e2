// SPDX-License-Identifier: Apache-2.0
// AgentStream: one of the successive connections of an agent's session.
#ifndef FERRY_COORD_CLIENT_AGENT_STREAM_H_
#define FERRY_COORD_CLIENT_AGENT_STREAM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "coord/wire/direct_connection.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// The loop keeps it alive until it has ended.
class AgentStream final : public DirectConnection {
 public:
  // Called on the loop's thread, with no lock held.
  class Owner {
   public:
    virtual void OnFrame(AgentStream& stream, v1::ServerFrame& frame) = 0;
    // A Write that returned false has completed.
    virtual void OnWritten(AgentStream& stream) = 0;
    // Called once, as the last callback of the stream: the owner may be destroyed.
    virtual void OnEnded(AgentStream& stream, const absl::Status& status) = 0;

   protected:
    ~Owner() = default;
  };

  AgentStream(SocketLoop& loop, Owner& owner);

  // Starts connecting to the coordinator, HOST:PORT. `loop`: kept alive during name resolution.
  void Open(const std::string& coordinator, std::shared_ptr<SocketLoop> loop);
  // Returns true if the frame is sent; else OnWritten follows. May be called before Open.
  bool Write(const v1::ClientFrame& frame);

  // When bytes last arrived, or when it was created; on the steady clock.
  absl::Time last_bytes() const { return absl::FromUnixNanos(last_bytes_); }

 private:
  bool OnFrame(const DirectFrame& received) override;
  void OnBytes() override;
  absl::Status CheckFrameSize(size_t bytes) override;
  void OnDrained() override;
  void OnClosed(const absl::Status& why) override;

  Owner& owner_;
  // Loop thread only.
  bool has_welcome_ = false;
  // Not OK: why the coordinator ended it.
  absl::Status end_;
  std::atomic<int64_t> last_bytes_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_STREAM_H_
