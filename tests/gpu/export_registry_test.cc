// SPDX-License-Identifier: Apache-2.0
// Registrations of one allocation that end while others do.
#include "gpu/cuda/export_registry.h"

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"

#include "base/thread.h"
#include "tests/gpu/cuda_fixture.h"

namespace ferry::cuda {
namespace {

using ExportRegistryTest = CudaTest;

// A tensor in memory of the program, with a deleter of the program's.
Tensor Wrap(DevicePointer memory, absl::AnyInvocable<void() &&> release) {
  return *Tensor::Create(DataType::kUint8, *Shape::Create({8}),
                         WrapForeignBuffer(reinterpret_cast<void*>(memory), 8, std::move(release),
                                           {MemorySpace::kCuda, 0}));
}

// The program frees the allocation when Release has returned, and a deleter of its own still runs.
TEST_F(ExportRegistryTest, ReleaseWaitsForDeletersOfEarlierRegistrations) {
  const auto registry = std::make_shared<ExportRegistry>();
  const DevicePointer memory = Alloc(8);
  absl::Notification has_begun;
  absl::Notification can_end;
  auto first = registry->Register(*device_, Wrap(memory, [&] {
    has_begun.Notify();
    can_end.WaitForNotification();
  }));
  ASSERT_OK(first.status());
  auto second = registry->Register(*device_, Wrap(memory, [] {}));
  ASSERT_OK(second.status());
  Thread ending("first", [&] { *first = nullptr; });
  has_begun.WaitForNotification();
  EXPECT_TRUE(absl::IsDeadlineExceeded((*second)->Release(absl::Milliseconds(50))));
  can_end.Notify();
  EXPECT_OK((*second)->Release(absl::Seconds(20)));
  ending.Join();
  Free(memory);
}

}  // namespace
}  // namespace ferry::cuda
