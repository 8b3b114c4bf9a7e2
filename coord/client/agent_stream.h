// SPDX-License-Identifier: Apache-2.0
// AgentStream: one of the connections that an agent's session has, one after the other.
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

// The loop keeps it until it has ended.
class AgentStream final : public DirectConnection {
 public:
  // Called on the loop's thread, with no lock held.
  class Owner {
   public:
    virtual void OnFrame(AgentStream& stream, v1::ServerFrame& frame) = 0;
    // A Write that was not taken at once is out.
    virtual void OnWritten(AgentStream& stream) = 0;
    // Once, and the last that is heard of the stream: the owner may go.
    virtual void OnEnded(AgentStream& stream, const absl::Status& status) = 0;

   protected:
    ~Owner() = default;
  };

  AgentStream(SocketLoop& loop, Owner& owner);

  // Looks for the coordinator, HOST:PORT. `loop`: kept while the name is looked up.
  void Open(const std::string& coordinator, std::shared_ptr<SocketLoop> loop);
  // True: it is out; else the owner's OnWritten follows. May be called before Open.
  bool Write(const v1::ClientFrame& frame);

  // When something came last, or when it was made; on the steady clock.
  absl::Time last_bytes() const { return absl::FromUnixNanos(last_bytes_); }

 private:
  bool OnFrame(const DirectFrame& received) override;
  void OnBytes() override;
  absl::Status CheckFrameSize(size_t bytes) override;
  void OnDrained() override;
  void OnClosed(const absl::Status& why) override;

  Owner& owner_;
  // Of the loop's thread.
  bool has_welcome_ = false;
  // Not OK: why the coordinator ended it.
  absl::Status end_;
  std::atomic<int64_t> last_bytes_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_STREAM_H_
