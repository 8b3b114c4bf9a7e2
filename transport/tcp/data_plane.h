// SPDX-License-Identifier: Apache-2.0
// DataPlane: the TCP connections that carry tensor data, and their threads.
#ifndef FERRY_TRANSPORT_TCP_DATA_PLANE_H_
#define FERRY_TRANSPORT_TCP_DATA_PLANE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "base/host_watch.h"
#include "base/unique_fd.h"
#include "net/event_loop.h"
#include "net/sockets.h"
#include "tensor/closable_writer.h"
#include "tensor/tensor.h"

namespace ferry {

// Header before each slice of a tensor.
struct SliceHeader {
  uint64_t transfer = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(SliceHeader) == 24);

inline constexpr size_t kSliceBytes = 256 * 1024;
// Index of the connection on the control channels' loop: it wakes no thread but the one waiting for
// the tensor.
inline constexpr uint32_t kNearConnection = UINT32_MAX;
// Limit for that connection; copying this much delays control channels by a tenth of a millisecond
// or two.
inline constexpr size_t kNearBytes = 1024 * 1024;
// In the transfer descriptor of a tensor that uses it; empty for others.
inline constexpr absl::string_view kComesNear = "near";

// A tensor being sent. Connections take slices of it as they become free.
struct OutgoingBytes {
  uint64_t id = 0;
  Tensor tensor;
  std::atomic<size_t> next{0};
};

class SliceWriter;

// Provides the slices queued for one peer. Thread-safe.
class SliceSource {
 public:
  struct Slice {
    std::shared_ptr<OutgoingBytes> transfer;
    size_t offset = 0;
    size_t bytes = 0;
  };
  virtual ~SliceSource() = default;
  // Returns false if there is nothing to send; `writer` then waits for Kick.
  virtual bool NextSlice(SliceWriter& writer, Slice& slice) = 0;
  virtual void OnBroken(const absl::Status& why) = 0;
};

// Target of a slice.
struct SliceTarget {
  // Null: discard the data.
  char* data = nullptr;
  // Keeps `data` valid, and the gate to pass for writing there.
  std::shared_ptr<Buffer> buffer;
  std::shared_ptr<ClosableWriter> gate;
  // Not null: the bytes are booleans, and it is set to true if one of them is neither 0 nor 1.
  std::shared_ptr<std::atomic<bool>> has_non_boolean;
};

// Maps slices to targets. Thread-safe.
class SliceSink {
 public:
  enum class Verdict {
    kRead,   // read it to `target`
    kWait,   // unknown transfer; SliceReader::Resume will be called
    kSkip,   // cancelled; read and discard it
    kError,  // malformed
  };
  virtual ~SliceSink() = default;
  virtual Verdict FindTarget(const SliceHeader& header, SliceTarget* target) = 0;
  virtual void OnSlice(const SliceHeader& header) = 0;
  virtual void OnBroken(const absl::Status& why) = 0;
};

// The sending end of a connection; runs on a loop. Stop it before releasing it.
class SliceWriter final : public LoopSource, public std::enable_shared_from_this<SliceWriter> {
 public:
  SliceWriter(EventLoop& loop, UniqueFd socket, std::weak_ptr<SliceSource> source);
  void Start();
  // There is something to send: calls Advance on the loop. Any thread.
  void Kick();
  // Sends on this thread, as far as possible without waiting; if another thread is sending, that
  // one checks again.
  void Advance();
  void Stop();
  void OnReady(uint32_t events) override;
  bool IsStream() const override { return true; }
  // DescribeObstacle of its connection. Any thread.
  std::string Obstacle() const;

 private:
  // One thread at a time.
  void Write();
  void Break(const absl::Status& why);
  // Schedules a check of the receiver's host. Any thread.
  void ScheduleHostCheck();
  // Breaks the connection if the host has vanished; otherwise reschedules itself while something is
  // outstanding. A receiver that is stopped, or does not read for a while, is waited for: transfers
  // have deadlines.
  void CheckHost();

  EventLoop& loop_;
  const UniqueFd socket_;
  const std::weak_ptr<SliceSource> source_;
  EventLoop::SourceId id_ = 0;
  // Loop thread only.
  HostWatch host_watch_{kVanishLimit};
  // A check of the host is scheduled.
  std::atomic<bool> is_host_check_scheduled_{false};
  std::atomic<bool> is_kicked_{false};
  std::atomic<bool> is_stopped_{false};
  // Calls of Advance since the sending thread last checked.
  std::atomic<uint32_t> advances_{0};
  // The fields below belong to the sending thread.
  SliceSource::Slice slice_;
  SliceHeader header_;
  // Bytes sent of header and slice; equal to their size when the slice is complete.
  size_t sent_ = 0;
  size_t total_ = 0;
};

// The receiving end of a connection.
class SliceReader final : public LoopSource, public std::enable_shared_from_this<SliceReader> {
 public:
  SliceReader(EventLoop& loop, UniqueFd socket, std::weak_ptr<SliceSink> sink);
  void Start();
  // An unknown transfer may be known by now. Any thread.
  void Resume();
  // This many bytes are about to arrive: polls at once, and again with each turn of the loop until
  // they have, or nothing has arrived for a while. Any thread.
  void PollForArrival(size_t bytes);
  void Stop();
  void OnReady(uint32_t events) override;
  bool IsStream() const override { return true; }

 private:
  void Advance();
  void Read();
  void Break(const absl::Status& why);

  EventLoop& loop_;
  const UniqueFd socket_;
  const std::weak_ptr<SliceSink> sink_;
  EventLoop::SourceId id_ = 0;
  bool is_stopped_ = false;
  bool is_advancing_ = false;
  // Bytes that it polls for, and how many more polls may fail before it waits for the kernel's
  // notification.
  size_t looked_for_ = 0;
  int looks_left_ = 0;
  SliceHeader header_;
  size_t header_bytes_ = 0;
  bool has_target_ = false;
  SliceTarget target_;
  size_t got_ = 0;
  std::vector<char> waste_;
};

// The threads: as many as a pair has connections, so that each can use a core. Thread-safe.
class DataPlane final {
 public:
  //   Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DataPlane>> Create(int connections);

  int connections() const { return static_cast<int>(loops_.size()); }
  EventLoop& loop(uint32_t index) { return *loops_[index % loops_.size()]; }

 private:
  std::vector<std::unique_ptr<EventLoop>> loops_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TCP_DATA_PLANE_H_
