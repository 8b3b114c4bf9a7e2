// SPDX-License-Identifier: Apache-2.0
// Slices over a socketpair: available input and writable output are handled without another event.
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "base/unique_fd.h"
#include "tests/transport/control_channel_pair.h"
#include "transport/tcp/data_plane.h"
#include "transport/tcp/tcp_sender.h"

namespace ferry {
namespace {

// Far longer than reading takes: only a reader that has stopped runs into it.
constexpr absl::Duration kStalled = absl::Seconds(5);

class CountingSink final : public SliceSink {
 public:
  Verdict FindTarget(const SliceHeader&, SliceTarget*) override { return Verdict::kSkip; }
  void OnSlice(const SliceHeader&) override {
    absl::MutexLock lock(&mu_);
    ++count_;
  }
  void OnBroken(const absl::Status&) override {}

  // Blocks until that many slices have been read, or nothing more arrives. Returns how many there
  // were.
  int Await(int count) {
    absl::MutexLock lock(&mu_);
    const auto are_there = [this, count]()
                               ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ >= count; };
    mu_.AwaitWithTimeout(absl::Condition(&are_there), kStalled);
    return count_;
  }

 private:
  absl::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

// One dispatch on the loop reads a bounded number of slices. Sockets are edge-triggered, so no
// event comes for the rest: the reader has to schedule its next run itself.
TEST(SliceReader, HundredSlicesAlreadyReceived_AllAreRead) {
  ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  UniqueFd here(fds[0]);
  UniqueFd there(fds[1]);
  std::string bytes;
  for (uint64_t id = 1; id <= 100; ++id) {
    const SliceHeader header = {.transfer = id, .offset = 0, .bytes = 8};
    bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes.append(8, 'x');
  }
  ASSERT_EQ(write(there.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const auto sink = std::make_shared<CountingSink>();
  const auto reader = std::make_shared<SliceReader>(*end.loop, std::move(here), sink);
  reader->Start();
  EXPECT_EQ(sink->Await(100), 100);
  reader->Stop();
}

// Places one slice, and says what happens to its memory.
class PlacingSink final : public SliceSink {
 public:
  explicit PlacingSink(size_t bytes)
      : buffer_(*AllocateHeapBuffer(bytes)), memory_(buffer_), gate_(gate) {}
  Verdict FindTarget(const SliceHeader&, SliceTarget* target) override {
    if (buffer_ == nullptr) return Verdict::kWait;
    char* const data = static_cast<char*>(buffer_->data());
    *target = {data, std::move(buffer_), std::exchange(gate_, nullptr), nullptr};
    placed.Notify();
    return Verdict::kRead;
  }
  void OnSlice(const SliceHeader&) override {
    EXPECT_TRUE(memory_.expired());
    read.Notify();
  }
  void OnBroken(const absl::Status& why) override {
    EXPECT_TRUE(memory_.expired());
    EXPECT_FALSE(why.ok());
    broken.Notify();
  }
  bool is_held() const { return !memory_.expired(); }

  const std::shared_ptr<ClosableWriter> gate = std::make_shared<ClosableWriter>();
  absl::Notification placed;
  absl::Notification read;
  absl::Notification broken;

 private:
  std::shared_ptr<Buffer> buffer_;
  const std::weak_ptr<Buffer> memory_;
  std::shared_ptr<ClosableWriter> gate_;
};

class SliceReaderMemoryTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 1000;

  SliceReaderMemoryTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    there_ = UniqueFd(fds[1]);
    reader_ = std::make_shared<SliceReader>(*end_.loop, UniqueFd(fds[0]), sink_);
    reader_->Start();
    const SliceHeader header = {.transfer = 1, .offset = 0, .bytes = kBytes};
    Write(std::string(reinterpret_cast<const char*>(&header), sizeof(header)));
    Write(std::string(kBytes / 2, 'x'));
    EXPECT_TRUE(sink_->placed.WaitForNotificationWithTimeout(kStalled));
  }
  ~SliceReaderMemoryTest() override { reader_->Stop(); }

  void Write(const std::string& bytes) {
    EXPECT_EQ(write(there_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  bool IsReleased() {
    return end_.loop->WaitUntil([this] { return !sink_->is_held(); },
                                SteadyClock().Now() + kStalled);
  }

  ControlEnd end_{{1, 10}, "token", absl::Milliseconds(100)};
  const std::shared_ptr<PlacingSink> sink_ = std::make_shared<PlacingSink>(kBytes);
  UniqueFd there_;
  std::shared_ptr<SliceReader> reader_;
};

// A tensor that its receiver has dropped must not stay until the connection's next slice, which may
// never come.
TEST_F(SliceReaderMemoryTest, WholeSlice_IsReleasedBeforeItIsReported) {
  EXPECT_TRUE(sink_->is_held());
  Write(std::string(kBytes / 2, 'x'));
  EXPECT_TRUE(sink_->read.WaitForNotificationWithTimeout(kStalled));
}

TEST_F(SliceReaderMemoryTest, StoppedWithinASlice_IsReleased) {
  reader_->Stop();
  EXPECT_TRUE(IsReleased());
}

TEST_F(SliceReaderMemoryTest, BrokenWithinASlice_IsReleasedBeforeItIsReported) {
  there_.Reset();
  EXPECT_TRUE(sink_->broken.WaitForNotificationWithTimeout(kStalled));
}

// The rest of the slice is read all the same, for what follows it.
TEST_F(SliceReaderMemoryTest, CancelledWithinASlice_IsReleasedAndTheRestIsRead) {
  sink_->gate->Close();
  Write("x");
  EXPECT_TRUE(IsReleased());
  EXPECT_FALSE(sink_->read.HasBeenNotified());
  Write(std::string(kBytes / 2 - 1, 'x'));
  EXPECT_TRUE(sink_->read.WaitForNotificationWithTimeout(kStalled));
}

// Places the bytes of all slices one behind the other, except for those of one transfer.
class AssemblingSink final : public SliceSink {
 public:
  AssemblingSink(size_t bytes, uint64_t skipped)
      : buffer_(*AllocateHeapBuffer(bytes)), skipped_(skipped) {
    std::memset(buffer_->data(), '.', bytes);
  }
  Verdict FindTarget(const SliceHeader& header, SliceTarget* target) override {
    if (header.offset + header.bytes > buffer_->bytes()) return Verdict::kError;
    if (header.transfer == skipped_) return Verdict::kSkip;
    *target = {static_cast<char*>(buffer_->data()) + header.offset, buffer_,
               std::make_shared<ClosableWriter>(), nullptr};
    return Verdict::kRead;
  }
  void OnSlice(const SliceHeader& header) override {
    absl::MutexLock lock(&mu_);
    order_.push_back(header.transfer);
  }
  void OnBroken(const absl::Status& why) override {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(order_.size(), 4u) << why;
    is_broken_ = true;
  }

  // The transfers of the slices, in order, once there are that many.
  std::vector<uint64_t> Await(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto are_there = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return order_.size() >= count || is_broken_;
    };
    mu_.AwaitWithTimeout(absl::Condition(&are_there), kStalled);
    return order_;
  }
  std::string bytes() const {
    return std::string(static_cast<const char*>(buffer_->data()), buffer_->bytes());
  }

 private:
  const std::shared_ptr<Buffer> buffer_;
  const uint64_t skipped_;
  absl::Mutex mu_;
  std::vector<uint64_t> order_ ABSL_GUARDED_BY(mu_);
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
};

// The stream may be cut anywhere between two reads, also within the header that is read along with
// the end of a slice.
TEST(SliceReader, InputCutAtAnyByte_EachSliceReachesItsPlace) {
  ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
  std::string stream;
  const auto add = [&stream](uint64_t transfer, uint64_t offset, const std::string& bytes) {
    const SliceHeader header = {
        .transfer = transfer, .offset = offset, .bytes = static_cast<uint32_t>(bytes.size())};
    stream.append(reinterpret_cast<const char*>(&header), sizeof(header));
    stream += bytes;
  };
  add(1, 0, "abc");
  add(2, 3, "defg");
  add(3, 7, "hi");
  add(4, 9, "jklmn");
  for (size_t cut = 1; cut < stream.size(); ++cut) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    UniqueFd there(fds[1]);
    const auto sink = std::make_shared<AssemblingSink>(14, /*skipped=*/2);
    const auto reader = std::make_shared<SliceReader>(*end.loop, UniqueFd(fds[0]), sink);
    reader->Start();
    ASSERT_EQ(write(there.get(), stream.data(), cut), static_cast<ssize_t>(cut));
    const auto is_read = [&] {
      int left = -1;
      return ioctl(fds[0], FIONREAD, &left) == 0 && left == 0;
    };
    ASSERT_TRUE(end.loop->WaitUntil(is_read, SteadyClock().Now() + kStalled)) << cut;
    const size_t rest = stream.size() - cut;
    ASSERT_EQ(write(there.get(), stream.data() + cut, rest), static_cast<ssize_t>(rest));
    EXPECT_EQ(sink->Await(4), (std::vector<uint64_t>{1, 2, 3, 4})) << "cut behind byte " << cut;
    EXPECT_EQ(sink->bytes(), "abc....hijklmn") << "cut behind byte " << cut;
    reader->Stop();
  }
}

// The other connections may have failed for lack of descriptors: a transfer that is too large for
// the near one alone must wake it all the same, as it was idle before.
TEST(TcpSender, OnlyTheNearConnectionExists_LargeTransfersWakeIt) {
  ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
  const auto plane = *DataPlane::Create(1);
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  UniqueFd there(fds[1]);
  const auto sender = std::make_shared<TcpSender>(*plane, *end.loop);
  DataConnection connection;
  connection.index = kNearConnection;
  connection.socket = UniqueFd(fds[0]);
  sender->AddConnection(std::move(connection));
  // It has polled, and been notified once that its socket is writable, some dispatches later: from
  // then on it is idle.
  for (int turn = 0; turn < 10; ++turn) {
    absl::Notification has_turned;
    end.loop->Post([&has_turned] { has_turned.Notify(); });
    has_turned.WaitForNotification();
  }
  const int64_t bytes = 2 * static_cast<int64_t>(kNearBytes);
  sender->Expose(1, *Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes})), {},
                 [](absl::StatusOr<TransferDescriptor> descriptor) {
                   ASSERT_TRUE(descriptor.ok()) << descriptor.status();
                   EXPECT_EQ(descriptor->body, "") << "it is too large for that";
                 });
  pollfd waits = {.fd = there.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&waits, 1, static_cast<int>(absl::ToInt64Milliseconds(kStalled))), 1);
  sender->Abort(absl::CancelledError("over"));
}

// One slice that a socket cannot hold.
class LargeSlice final : public SliceSource {
 public:
  bool NextSlice(SliceWriter&, Slice& slice) override {
    if (transfer_ == nullptr) return false;
    const size_t bytes = transfer_->tensor.bytes();
    slice = {.transfer = std::move(transfer_), .offset = 0, .bytes = bytes};
    return true;
  }
  void OnBroken(const absl::Status& why) override {
    EXPECT_FALSE(why.ok());
    broken.Notify();
  }
  bool is_held() const { return !memory_.expired(); }

  absl::Notification broken;

 private:
  std::shared_ptr<OutgoingBytes> transfer_ = [] {
    auto transfer = std::make_shared<OutgoingBytes>();
    transfer->id = 1;
    transfer->tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({64 << 20}));
    return transfer;
  }();
  const std::weak_ptr<Buffer> memory_ = transfer_->tensor.buffer();
};

class NoSlices final : public SliceSource {
 public:
  bool NextSlice(SliceWriter&, Slice&) override { return false; }
  void OnBroken(const absl::Status& why) override {
    status = why;
    broken.Notify();
  }

  absl::Status status;
  absl::Notification broken;
};

// Nothing else tells the sender, which has nothing to send, of what goes on at the other end.
TEST(SliceWriter, ReceiverThatClosesOrSpeaks_BreaksTheConnection) {
  ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
  for (const bool speaks : {false, true}) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    UniqueFd there(fds[1]);
    const auto source = std::make_shared<NoSlices>();
    const auto writer = std::make_shared<SliceWriter>(*end.loop, UniqueFd(fds[0]), source);
    writer->Start();
    if (speaks) {
      ASSERT_EQ(write(there.get(), "x", 1), 1);
    } else {
      there.Reset();
    }
    ASSERT_TRUE(source->broken.WaitForNotificationWithTimeout(kStalled)) << speaks;
    EXPECT_EQ(source->status.code(),
              speaks ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable)
        << source->status;
  }
}

// Their end may come before the loop knows them.
TEST(SliceConnections, StoppedOrBroken_AreReleased) {
  ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
  enum class Case { kStopped, kStoppedBeforeTheStart, kBroken };
  for (const Case each : {Case::kStopped, Case::kStoppedBeforeTheStart, Case::kBroken}) {
    const auto source = std::make_shared<NoSlices>();
    const auto sink = std::make_shared<CountingSink>();
    int fds[4];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds + 2), 0);
    UniqueFd reader_of_writer(fds[1]);
    UniqueFd writer_of_reader(fds[3]);
    auto writer = std::make_shared<SliceWriter>(*end.loop, UniqueFd(fds[0]), source);
    auto reader = std::make_shared<SliceReader>(*end.loop, UniqueFd(fds[2]), sink);
    if (each != Case::kStoppedBeforeTheStart) {
      writer->Start();
      reader->Start();
    }
    if (each == Case::kBroken) {
      reader_of_writer.Reset();
      writer_of_reader.Reset();
    } else {
      writer->Stop();
      reader->Stop();
    }
    if (each == Case::kStoppedBeforeTheStart) {
      writer->Start();
      reader->Start();
    }
    const std::weak_ptr<SliceWriter> weak_writer = std::exchange(writer, nullptr);
    const std::weak_ptr<SliceReader> weak_reader = std::exchange(reader, nullptr);
    const auto is_released = [&] { return weak_writer.expired() && weak_reader.expired(); };
    EXPECT_TRUE(end.loop->WaitUntil(is_released, SteadyClock().Now() + kStalled))
        << "case " << static_cast<int>(each);
  }
}

// The tensor's owner waits until nothing reads its memory any more; a connection that ends in the
// middle of a slice must not hold it until it is destroyed.
TEST(SliceWriter, EndsWithinASlice_ReleasesItsMemory) {
  for (const bool is_stopped : {false, true}) {
    ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    UniqueFd there(fds[1]);
    const auto source = std::make_shared<LargeSlice>();
    const auto writer = std::make_shared<SliceWriter>(*end.loop, UniqueFd(fds[0]), source);
    writer->Start();
    pollfd waits = {.fd = there.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&waits, 1, static_cast<int>(absl::ToInt64Milliseconds(kStalled))), 1);
    EXPECT_TRUE(source->is_held());
    if (is_stopped) {
      writer->Stop();
    } else {
      there.Reset();
      EXPECT_TRUE(source->broken.WaitForNotificationWithTimeout(kStalled));
    }
    EXPECT_TRUE(end.loop->WaitUntil([&source] { return !source->is_held(); },
                                    SteadyClock().Now() + kStalled));
  }
}

// The peer has ended: nothing reads the queued data, and the sender's memory has to be released.
TEST(TcpSender, Aborted_ReleasesQueuedMemory) {
  ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
  const auto plane = *DataPlane::Create(1);
  const auto sender = std::make_shared<TcpSender>(*plane, *end.loop);
  Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({1000}));
  const std::weak_ptr<Buffer> memory = tensor.buffer();
  // There is no connection yet.
  sender->Expose(1, tensor, {}, [](absl::StatusOr<TransferDescriptor> descriptor) {
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  });
  tensor = Tensor();
  EXPECT_FALSE(memory.expired());
  sender->Abort(absl::UnavailableError("the peer is gone"));
  EXPECT_TRUE(memory.expired());
}

// Transfers on the near connection delay control channels: their size is limited, and there is one
// at a time.
TEST(TcpSender, SmallTransferAlone_UsesTheNearConnection) {
  ControlEnd end({1, 10}, "token", absl::Milliseconds(100));
  const auto plane = *DataPlane::Create(1);
  const auto offered = [&](std::initializer_list<size_t> sizes, bool releases) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    UniqueFd there(fds[1]);
    const auto sender = std::make_shared<TcpSender>(*plane, *end.loop);
    DataConnection connection;
    connection.index = kNearConnection;
    connection.socket = UniqueFd(fds[0]);
    sender->AddConnection(std::move(connection));
    for (int turn = 0; turn < 10; ++turn) {
      absl::Notification has_turned;
      end.loop->Post([&has_turned] { has_turned.Notify(); });
      has_turned.WaitForNotification();
    }
    std::string bodies;
    uint64_t id = 0;
    for (const size_t bytes : sizes) {
      const Shape shape = *Shape::Create({static_cast<int64_t>(bytes)});
      sender->Expose(++id, *Tensor::Allocate(DataType::kUint8, shape), {},
                     [&bodies](absl::StatusOr<TransferDescriptor> descriptor) {
                       ASSERT_TRUE(descriptor.ok()) << descriptor.status();
                       bodies += descriptor->body.empty() ? "-" : descriptor->body;
                     });
      if (releases) sender->Release(id);
    }
    sender->Abort(absl::CancelledError("over"));
    return bodies;
  };
  EXPECT_EQ(offered({kNearBytes}, true), "near");
  EXPECT_EQ(offered({kNearBytes + 1}, true), "-");
  EXPECT_EQ(offered({1000, 1000}, false), "near-") << "the first is still under way";
  EXPECT_EQ(offered({1000, 1000}, true), "nearnear");
}

}  // namespace
}  // namespace ferry
