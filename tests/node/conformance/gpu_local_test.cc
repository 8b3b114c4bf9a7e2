// SPDX-License-Identifier: Apache-2.0
// Within a process, from each memory to each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

// Both devices are this process's.
RendezvousKey KeyWithin(const std::string& name, const std::string& from, const std::string& to) {
  const std::string task = "/job:worker/replica:0/task:1/device:";
  return *RendezvousKey::Parse(
      RendezvousKey::Text(absl::StrCat(task, from), 1001, absl::StrCat(task, to), name));
}

const char* const kMemories[] = {"CPU:0", "GPU:0", "GPU:1"};

int OrdinalOf(const std::string& memory) { return memory == "GPU:1" ? 1 : 0; }

// The producer's work on the memory is late, and the receiver's stream waits for it.
TEST(GpuWithinAProcess, FromEachMemoryToEachOther) {
  NEEDS_TWO_GPUS();
  RunGpuPair(
      {.environment = {{"STRICT_CUDA_DELAY_US", "5000"}}}, [](GpuPeer&) {},
      [](GpuPeer& peer) {
        Step step = peer.Open();
        uint32_t seed = 0;
        for (const std::string from : kMemories) {
          for (const std::string to : kMemories) {
            for (const size_t bytes : {size_t{0}, size_t{1}, kBytes}) {
              SCOPED_TRACE(absl::StrCat(bytes, " bytes from ", from, " to ", to));
              const Shape shape = *Shape::Create({static_cast<int64_t>(bytes)});
              const Tensor pattern = GpuPeer::Pattern(bytes, ++seed);
              const RendezvousKey key = KeyWithin(absl::StrCat(seed), from, to);
              const auto source = peer.NewStream(OrdinalOf(from));
              if (from == "CPU:0") {
                ASSERT_TRUE(step.Send(key, pattern).ok());
              } else {
                const Tensor tensor =
                    *peer.gpus().Allocate(OrdinalOf(from), DataType::kUint8, shape);
                if (bytes > 0) peer.Write(tensor, pattern, source->get());
                ASSERT_TRUE(step.Send(key, tensor, source->get()).ok());
              }
              const auto sink = peer.NewStream(OrdinalOf(to));
              const auto tensor =
                  to == "CPU:0" ? step.Recv(key, kTimeout) : step.Recv(key, kTimeout, sink->get());
              ASSERT_TRUE(tensor.ok()) << tensor.status();
              EXPECT_EQ(tensor->shape(), shape);
              if (to == "CPU:0") {
                EXPECT_TRUE(IsEqual(*tensor, pattern));
                continue;
              }
              EXPECT_EQ(tensor->location(), (TensorLocation{MemorySpace::kCuda, OrdinalOf(to)}));
              EXPECT_TRUE(bytes == 0 || Holds(peer.Read(*tensor, sink->get()), pattern));
            }
          }
        }
      });
}

TEST(GpuWithinAProcess, StringsCannotBeSentToAGpu) {
  RunGpuPair(
      {}, [](GpuPeer&) {},
      [](GpuPeer& peer) {
        Step step = peer.Open();
        const RendezvousKey key = KeyWithin("s", "CPU:0", "GPU:0");
        ASSERT_TRUE(step.Send(key, *Tensor::OfStrings(*Shape::Create({1}), {"text"})).ok());
        const auto tensor = step.Recv(key, kTimeout);
        EXPECT_TRUE(absl::IsInvalidArgument(tensor.status())) << tensor.status();
        EXPECT_THAT(std::string(tensor.status().message()),
                    ::testing::HasSubstr("string cannot be in a GPU's memory"));
      });
}

}  // namespace
}  // namespace ferry
