// SPDX-License-Identifier: Apache-2.0
// PathSelector: the zero-copy path, which is selected without asking transports for their costs.
#include "rendezvous/peer/path_selector.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "tensor/host_arena.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "tests/rendezvous/transfer_context_fixture.h"

namespace ferry {
namespace {

// Counts the questions, and gives the same answer to all.
class CountingTransport final : public Transport {
 public:
  CountingTransport(absl::string_view name, bool is_zero_copy)
      : Transport({.name = name,
                   .summary = "counts questions",
                   .capabilities = {.has_fd_channel_latency = is_zero_copy}}),
        answer_(PathCost{absl::Microseconds(1), is_zero_copy ? kNoCopy : 1e9}) {}

  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override {
    ++questions_;
    if (!answer_.ok() || query.is_in_arena) return answer_;
    return PathCost{absl::Microseconds(1), 1e9};
  }
  std::shared_ptr<TransportSender> CreateSender(const Endpoint&) override { return nullptr; }
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint&, ReleaseCallback) override {
    return nullptr;
  }

  void Fail() { answer_ = absl::FailedPreconditionError("it does not work"); }
  int questions() const { return std::exchange(questions_, 0); }

 private:
  absl::StatusOr<PathCost> answer_;
  mutable int questions_ = 0;
};

class PathSelectorTest : public TransferContextTest {
 protected:
  PathSelectorTest() {
    for (const bool is_zero_copy : {false, true}) {
      auto transport =
          std::make_unique<CountingTransport>(is_zero_copy ? "map" : "copy", is_zero_copy);
      (is_zero_copy ? map_ : copy_) = transport.get();
      transports_.push_back(std::move(transport));
    }
    context_.self.peer = {1, 1001};
    context_.transports = &transports_;
    context_.clock = &clock_;
    consumer_.peer = {2, 1002};
    consumer_.transports = context_.self.transports = DescribeTransports(transports_);
  }

  std::unique_ptr<PathSelector> Create() {
    auto selector =
        std::make_unique<PathSelector>(context_, consumer_, /*needs_checksums=*/false, "",
                                       std::make_shared<LatencyProbe>(clock_, transports_.size()));
    selector->set_channel(&channel_);
    map_->questions();
    copy_->questions();
    return selector;
  }
  Tensor InArena(size_t bytes) {
    return *Tensor::Create(DataType::kUint8, *Shape::Create({static_cast<int64_t>(bytes)}),
                           *arena_->Allocate(bytes));
  }
  size_t Selected(PathSelector& selector, const Tensor& tensor) {
    const SelectedPath path = selector.Select(tensor, TensorLocation());
    EXPECT_EQ(path.kind, SelectedPath::Kind::kTransport) << path.error;
    return path.transport;
  }

  TransferContext context_;
  Endpoint consumer_;
  RecordingControlChannel channel_{{2, 1002}};
  const std::shared_ptr<HostArena> arena_ = *HostArena::Create({});
  CountingTransport* map_ = nullptr;
  CountingTransport* copy_ = nullptr;
};

TEST_F(PathSelectorTest, TensorInTheArena_TakesTheZeroCopyPathWithoutAQuestion) {
  const auto selector = Create();
  for (const size_t bytes : {size_t{4096}, size_t{1} << 20}) {
    EXPECT_EQ(Selected(*selector, InArena(bytes)), 1u);
  }
  EXPECT_EQ(map_->questions() + copy_->questions(), 0);
}

TEST_F(PathSelectorTest, OtherTensors_AreSelectedByCost) {
  const auto selector = Create();
  const Tensor elsewhere = *Tensor::Allocate(DataType::kUint8, *Shape::Create({1 << 20}));
  Selected(*selector, elsewhere);
  EXPECT_EQ(map_->questions(), 1);
  EXPECT_EQ(copy_->questions(), 1);
  // One that is requested in GPU memory.
  selector->Select(InArena(4096), {.space = MemorySpace::kCuda, .ordinal = 0});
  EXPECT_EQ(map_->questions(), 1);
}

TEST_F(PathSelectorTest, ZeroCopyTransportHasFailed_AnotherIsSelected) {
  const auto selector = Create();
  const Tensor tensor = InArena(4096);
  ASSERT_EQ(Selected(*selector, tensor), 1u);
  map_->Fail();
  selector->OnTransportFailed();
  EXPECT_EQ(Selected(*selector, tensor), 0u);
}

TEST_F(PathSelectorTest, PolicyForbidsTheZeroCopyTransport_TheRequiredOneIsSelected) {
  context_.policy.require = "copy";
  EXPECT_EQ(Selected(*Create(), InArena(4096)), 0u);
}

TEST_F(PathSelectorTest, ConsumerLacksTheZeroCopyTransport_AnotherIsSelected) {
  consumer_.transports.pop_back();
  EXPECT_EQ(Selected(*Create(), InArena(4096)), 0u);
}

}  // namespace
}  // namespace ferry
