// SPDX-License-Identifier: Apache-2.0
// Tensors in GPU memory, by every path from one process to another.
#include <algorithm>
#include <csignal>
#include <random>

#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

struct GpuPath {
  const char* name = "";
  // Received::path.
  const char* path = "";
  const char* to = "GPU:0";
  // Whether the tensor is in memory that cannot be exported to other processes.
  bool is_foreign = false;
  bool is_apart = false;
  const char* required = "";
  WireProtocol protocol = WireProtocol::kNative;
};

void PrintTo(const GpuPath& path, std::ostream* out) { *out << path.name; }

const GpuPath kGpuPaths[] = {
    {.name = "cuda_ipc_view", .path = "cuda_ipc, view"},
    {.name = "cuda_ipc_copy", .path = "cuda_ipc, copy", .to = "GPU:1"},
    {.name = "cuda_ipc_staged", .path = "cuda_ipc, staged", .is_foreign = true},
    {.name = "nccl", .path = "nccl", .to = "GPU:1", .is_apart = true, .required = "nccl"},
    {.name = "shm_staged", .path = "shm, staged", .required = "shm"},
    {.name = "tcp_staged", .path = "tcp, staged", .is_apart = true, .required = "tcp"},
    {.name = "grpc_staged", .path = "grpc", .is_apart = true, .protocol = WireProtocol::kGrpc},
};

class GpuConformance : public ::testing::TestWithParam<GpuPath> {
 protected:
  void SetUp() override {
    if (OnRealGpu()) GTEST_SKIP() << "each path is tried on GPUs by gpu_exchange_test";
  }
  static GpuPairOptions Options() {
    GpuPairOptions options;
    options.is_apart = GetParam().is_apart;
    options.transfer.protocol = GetParam().protocol;
    options.transfer.require_transport = GetParam().required;
    // For any size.
    options.transfer.gpus.ipc_min_bytes = SIZE_MAX;
    return options;
  }
  static RendezvousKey Key(absl::string_view name) {
    return GpuPeer::Key(std::string(name), "GPU:0", GetParam().to);
  }
  static int Destination() { return GetParam().to == std::string("GPU:1") ? 1 : 0; }
  // Its bytes may still be in flight when this returns. `pattern` outlives the copy.
  static Tensor Make(GpuPeer& peer, DataType dtype, const Shape& shape, Tensor& pattern,
                     uint32_t seed, cuda::Stream stream) {
    const size_t bytes = *TensorBytes(dtype, shape);
    pattern = GpuPeer::Pattern(bytes, seed, dtype);
    Tensor tensor;
    if (GetParam().is_foreign && bytes > 0) {
      Gpu& gpu = peer.gpu(0);
      const cuda::ScopedCurrent current(*gpu.device);
      cuda::DevicePointer plain = 0;
      FERRY_CHECK(gpu.device->table().memory_alloc(&plain, bytes) == cuda::kSuccess);
      tensor = *Tensor::Create(
          dtype, shape,
          WrapForeignBuffer(cuda::AsHostPointer(plain), bytes,
                            [&gpu, plain] {
                              const cuda::ScopedCurrent to_free(*gpu.device);
                              FERRY_CHECK(gpu.device->table().memory_free(plain) == cuda::kSuccess);
                            },
                            {MemorySpace::kCuda, 0}));
    } else {
      tensor = *peer.gpus().Allocate(0, dtype, shape);
    }
    if (bytes > 0) peer.Write(tensor, pattern, stream);
    return tensor;
  }
  struct Sent {
    Tensor pattern;
    Tensor tensor;
  };
  // "t", of 50 000 bytes.
  static Sent SendT(GpuPeer& peer, Step& step, cuda::Stream stream) {
    Sent sent;
    sent.tensor = Make(peer, DataType::kUint8, *Shape::Create({50'000}), sent.pattern, 1, stream);
    EXPECT_TRUE(step.Send(Key("t"), sent.tensor, stream).ok());
    return sent;
  }
  static void ExpectArrived(GpuPeer& peer, const absl::StatusOr<Received>& received,
                            const Tensor& pattern, cuda::Stream stream) {
    ASSERT_TRUE(received.ok()) << received.status();
    const Tensor& tensor = received->tensor;
    ASSERT_EQ(tensor.location(), (TensorLocation{MemorySpace::kCuda, Destination()}));
    if (const auto ready = cuda::ReadyOf(tensor); ready != nullptr) {
      ASSERT_TRUE(ready->EnqueueWait(*peer.gpu(Destination()).device, stream).ok());
    }
    EXPECT_TRUE(Holds(peer.Read(tensor, stream), pattern)) << ToString(tensor);
  }
  static void Close(Step& step) {
    const absl::Status closed = step.Close(kTimeout);
    EXPECT_TRUE(closed.ok()) << closed;
  }
};

struct Sample {
  DataType dtype;
  Shape shape;
};

// Shapes of each type: a scalar, an empty one, one element, several.
std::vector<Sample> Samples() {
  std::vector<Sample> samples;
  for (int type = 1; type < 40; ++type) {
    const std::optional<DataType> dtype = DataTypeOfNumber(type);
    if (!dtype || !IsFixedSize(*dtype)) continue;
    for (const auto& dims : {std::vector<int64_t>{}, {0}, {1}, {5, 7}, {20'011}}) {
      samples.push_back({*dtype, *Shape::Create(dims)});
    }
  }
  return samples;
}

TEST_P(GpuConformance, EachTypeAndSizeEitherSideFirst) {
  const std::vector<Sample> samples = Samples();
  RunGpuPair(
      Options(),
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<Tensor> patterns(samples.size());
        peer.Meet();
        for (size_t i = 0; i < samples.size(); ++i) {
          const Tensor tensor = Make(peer, samples[i].dtype, samples[i].shape, patterns[i],
                                     static_cast<uint32_t>(i), stream->get());
          ASSERT_TRUE(step.Send(Key(absl::StrCat(i)), tensor, stream->get()).ok());
        }
        peer.Meet();
        Close(step);
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(Destination());
        Step step = peer.Open();
        std::vector<Receipt> receipts(samples.size());
        for (const size_t first : {1u, 0u}) {
          for (size_t i = first; i < samples.size(); i += 2) {
            step.RecvAsync(Key(absl::StrCat(i)), {}, receipts[i].callback());
          }
          peer.Meet();
        }
        for (size_t i = 0; i < samples.size(); ++i) {
          const auto received = receipts[i].Wait();
          ASSERT_TRUE(received.ok()) << i << ": " << received.status();
          EXPECT_EQ(received->tensor.dtype(), samples[i].dtype);
          EXPECT_EQ(received->tensor.shape(), samples[i].shape);
          if (received->tensor.bytes() == 0) continue;
          ExpectArrived(peer, received,
                        GpuPeer::Pattern(received->tensor.bytes(), static_cast<uint32_t>(i),
                                         samples[i].dtype),
                        stream->get());
        }
        receipts.clear();
        peer.Meet();
      });
}

TEST_P(GpuConformance, SixtyFourMebibytesAndThree) {
  constexpr int64_t kLargest = (int64_t{64} << 20) + 3;
  RunGpuPair(
      Options(),
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        Tensor pattern;
        const Tensor tensor =
            Make(peer, DataType::kUint8, *Shape::Create({kLargest}), pattern, 8, stream->get());
        ASSERT_TRUE(step.Send(Key("large"), tensor, stream->get()).ok());
        Close(step);
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(Destination());
        Step step = peer.Open();
        {
          const auto received = step.RecvValue(Key("large"), kTimeout);
          ExpectArrived(peer, received, GpuPeer::Pattern(kLargest, 8), stream->get());
          EXPECT_EQ(received->path, GetParam().path);
        }
        peer.Meet();
      });
}

TEST_P(GpuConformance, ManyInFlightInRandomOrder) {
  constexpr size_t kCount = 120;
  std::mt19937 random(5);
  std::vector<int64_t> bytes(kCount);
  for (int64_t& each : bytes) each = 1 + static_cast<int64_t>(random() % 90'000);
  std::vector<size_t> orders[2];
  for (auto& order : orders) {
    for (size_t i = 0; i < kCount; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random);
  }
  RunGpuPair(
      Options(),
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<Tensor> patterns(kCount);
        for (const size_t i : orders[0]) {
          const Tensor tensor = Make(peer, DataType::kUint8, *Shape::Create({bytes[i]}),
                                     patterns[i], static_cast<uint32_t>(i), stream->get());
          ASSERT_TRUE(step.Send(Key(absl::StrCat(i)), tensor, stream->get()).ok());
        }
        Close(step);
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(Destination());
        Step step = peer.Open();
        std::vector<Receipt> receipts(kCount);
        for (const size_t i : orders[1]) {
          step.RecvAsync(Key(absl::StrCat(i)), {}, receipts[i].callback());
        }
        for (size_t i = 0; i < kCount; ++i) {
          ExpectArrived(peer, receipts[i].Wait(),
                        GpuPeer::Pattern(static_cast<size_t>(bytes[i]), static_cast<uint32_t>(i)),
                        stream->get());
        }
        receipts.clear();
        peer.Meet();
      });
}

// Requests that are cancelled while being sent, or in flight, are released without having been
// fetched.
TEST_P(GpuConformance, CancelAndAbortAtAnyTime) {
  constexpr int kCount = 40;
  RunGpuPair(
      Options(),
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        std::vector<std::weak_ptr<Buffer>> memories;
        std::vector<Tensor> patterns(kCount + 1);
        peer.Meet();
        for (int i = 0; i <= kCount; ++i) {
          const auto index = static_cast<size_t>(i);
          const Tensor tensor = Make(peer, DataType::kUint8, *Shape::Create({50'000}),
                                     patterns[index], static_cast<uint32_t>(i), stream->get());
          memories.push_back(cuda::MemoryOf(tensor));
          ASSERT_TRUE(step.Send(Key(absl::StrCat(i)), tensor, stream->get()).ok());
          peer.Meet();
        }
        peer.Meet();
        peer.transfer_engine().Cleanup(1);
        peer.transfer_engine().Cleanup(2);
        peer.Meet();
        const absl::Time give_up = absl::Now() + kTimeout;
        const auto is_lent = [&] {
          return std::any_of(memories.begin(), memories.end(),
                             [](const auto& each) { return !each.expired(); });
        };
        while (is_lent() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(5));
        EXPECT_FALSE(is_lent());
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(Destination());
        std::mt19937 random(9);
        Step step = peer.Open();
        Step other = peer.Open(2);
        {
          Receipt of_other;
          other.RecvAsync(Key("never"), {}, of_other.callback());
          peer.Meet();
          for (int i = 0; i < kCount; ++i) {
            CancellationToken cancellation;
            RecvArgs args;
            args.cancellation = &cancellation;
            Receipt receipt;
            step.RecvAsync(Key(absl::StrCat(i)), args, receipt.callback());
            // The first while it cannot have been sent yet.
            if (i > 0) peer.Meet();
            absl::SleepFor(absl::Microseconds(random() % 2000));
            cancellation.Cancel();
            const auto received = receipt.Wait();
            if (received.ok()) {
              ExpectArrived(peer, received, GpuPeer::Pattern(50'000, static_cast<uint32_t>(i)),
                            stream->get());
            } else {
              EXPECT_TRUE(absl::IsCancelled(received.status())) << received.status();
            }
            if (i == 0) peer.Meet();
          }
          // The cancelled ones have consumed nothing of this one.
          peer.Meet();
          ExpectArrived(peer, step.RecvValue(Key(absl::StrCat(kCount)), kTimeout),
                        GpuPeer::Pattern(50'000, kCount), stream->get());
          peer.Meet();
          peer.Meet();
          EXPECT_TRUE(absl::IsAborted(of_other.Wait().status())) << of_other.Wait().status();
          Step third = peer.Open(3);
          Receipt of_third;
          third.RecvAsync(Key("never"), {}, of_third.callback());
          third.Abort(absl::AbortedError("enough"));
          EXPECT_TRUE(absl::IsAborted(of_third.Wait().status())) << of_third.Wait().status();
        }
        peer.Meet();
      });
}

TEST_P(GpuConformance, ProducerIsKilled) {
  GpuPairOptions options = Options();
  options.producer_dies = true;
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        const Sent sent = SendT(peer, step, stream->get());
        peer.Meet();
        kill(getpid(), SIGKILL);
      },
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(Destination());
        Step step = peer.Open();
        Receipt pending;
        step.RecvAsync(Key("never"), {}, pending.callback());
        ExpectArrived(peer, step.RecvValue(Key("t"), kTimeout), GpuPeer::Pattern(50'000, 1),
                      stream->get());
        peer.Meet();
        if (GetParam().protocol == WireProtocol::kGrpc) {
          // It asks again, until the coordinator reports the death.
          peer.transfer_engine().FailNode(0, absl::UnavailableError("node 0 has died"));
        }
        const absl::Status status = pending.Wait().status();
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "node 0")) << status;
      });
}

TEST_P(GpuConformance, ConsumerIsKilled) {
  GpuPairOptions options = Options();
  options.consumer_dies = true;
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        const auto stream = peer.NewStream(0);
        Step step = peer.Open();
        Sent sent = SendT(peer, step, stream->get());
        peer.Meet();
        const std::weak_ptr<Buffer> memory = cuda::MemoryOf(sent.tensor);
        sent.tensor = Tensor();
        const absl::Time give_up = absl::Now() + kTimeout;
        while (!memory.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(5));
        EXPECT_TRUE(memory.expired()) << "kept for a consumer that is dead";
      },
      [&](GpuPeer& peer) {
        Step step = peer.Open();
        Receipt never;
        step.RecvAsync(Key("never"), {}, never.callback());
        const auto received = step.RecvValue(Key("t"), kTimeout);
        EXPECT_TRUE(received.ok()) << received.status();
        peer.Meet();
        kill(getpid(), SIGKILL);
      });
}

INSTANTIATE_TEST_SUITE_P(By, GpuConformance, ::testing::ValuesIn(kGpuPaths),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ferry
