// SPDX-License-Identifier: Apache-2.0
// DataPlane: the TCP connections that carry the bytes of tensors, and their threads.
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

// What precedes each slice of a tensor.
struct SliceHeader {
  uint64_t transfer = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(SliceHeader) == 24);

inline constexpr size_t kSliceBytes = 256 * 1024;
// The index of the connection that lives on the control channels' loop: it wakes no thread but the
// one that waits for the tensor.
inline constexpr uint32_t kNearConnection = UINT32_MAX;
// What it takes at most, of which copying holds control channels up for a tenth of a millisecond or
// two.
inline constexpr size_t kNearBytes = 1024 * 1024;
// In the transfer descriptor of what it brings; others say nothing.
inline constexpr absl::string_view kComesNear = "near";

// A tensor that is being sent. Connections take its slices as they become free.
struct OutgoingTransfer {
  uint64_t id = 0;
  Tensor tensor;
  std::atomic<size_t> next{0};
};

class SliceWriter;

// Hands out the slices of what is queued for one peer. Thread-safe.
class SliceSource {
 public:
  struct Slice {
    std::shared_ptr<OutgoingTransfer> transfer;
    size_t offset = 0;
    size_t bytes = 0;
  };
  virtual ~SliceSource() = default;
  // False: there is nothing to send, and `writer` waits until it is kicked.
  virtual bool NextSlice(SliceWriter& writer, Slice& slice) = 0;
  virtual void OnBroken(const absl::Status& why) = 0;
};

// Where a slice belongs.
struct SliceTarget {
  // Null: nowhere; it is read and forgotten.
  char* data = nullptr;
  // What keeps `data` valid, and what one passes to write there.
  std::shared_ptr<Buffer> buffer;
  std::shared_ptr<ClosableWriter> gate;
  // Not null: the bytes are booleans, and it is set to true if one of them is neither 0 nor 1.
  std::shared_ptr<std::atomic<bool>> has_non_boolean;
};

// Knows where slices go. Thread-safe.
class SliceSink {
 public:
  enum class Verdict {
    kPlace,  // read it to `place`
    kWait,   // nobody knows the transfer yet; SliceReader::Resume will be called
    kSkip,   // nobody wants it; read it and forget it
    kError,  // it makes no sense
  };
  virtual ~SliceSink() = default;
  virtual Verdict Place(const SliceHeader& header, SliceTarget* place) = 0;
  virtual void OnSlice(const SliceHeader& header) = 0;
  virtual void OnBroken(const absl::Status& why) = 0;
};

// One connection at its sending end; lives on a loop. Stop it before letting go of it.
class SliceWriter final : public LoopSource, public std::enable_shared_from_this<SliceWriter> {
 public:
  SliceWriter(EventLoop& loop, UniqueFd socket, std::weak_ptr<SliceSource> source);
  void Start();
  // There is something to send: on the loop. Any thread.
  void Kick();
  // The same, on this thread, as far as it goes without waiting; unless another one is at it, which
  // will look again.
  void Advance();
  void Stop();
  void OnReady(uint32_t events) override;
  // DescribeObstacle of its connection. Any thread.
  std::string Obstacle() const;

 private:
  // By one thread at a time.
  void Write();
  void Break(const absl::Status& why);
  // Schedules a check of the receiver's host. Any thread.
  void LookLater();
  // Breaks if the host has vanished; otherwise reschedules itself while something is outstanding. A
  // receiver that is stopped, or does not read for a while, is waited for: transfers have
  // deadlines.
  void LookAtHost();

  EventLoop& loop_;
  const UniqueFd socket_;
  const std::weak_ptr<SliceSource> source_;
  EventLoop::SourceId id_ = 0;
  // Used on the loop only.
  HostWatch host_watch_{kVanishLimit};
  // A check of the host is scheduled.
  std::atomic<bool> will_look_{false};
  std::atomic<bool> is_kicked_{false};
  std::atomic<bool> is_stopped_{false};
  // Calls of Advance since the one that is at it has looked.
  std::atomic<uint32_t> advances_{0};
  // What is below is of the thread that writes.
  SliceSource::Slice slice_;
  SliceHeader header_;
  // Of header and slice together; equal when the slice has gone.
  size_t sent_ = 0;
  size_t total_ = 0;
};

// One connection at its receiving end.
class SliceReader final : public LoopSource, public std::enable_shared_from_this<SliceReader> {
 public:
  SliceReader(EventLoop& loop, UniqueFd socket, std::weak_ptr<SliceSink> sink);
  void Start();
  // A transfer that was not known may be by now. Any thread.
  void Resume();
  // So many bytes are coming, and will be here soon: looks at once, and again with each turn of the
  // loop until they are, or nothing has come for a while. Any thread.
  void LookOut(size_t bytes);
  void Stop();
  void OnReady(uint32_t events) override;

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
  // Of slices that it looks out for, and how often it may still look in vain before it waits for
  // the kernel to tell.
  size_t looked_for_ = 0;
  int looks_left_ = 0;
  SliceHeader header_;
  size_t header_bytes_ = 0;
  bool is_placed_ = false;
  SliceTarget place_;
  size_t got_ = 0;
  std::vector<char> waste_;
};

// The threads: as many as a pair has connections, so that each may keep a core busy. Thread-safe.
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
