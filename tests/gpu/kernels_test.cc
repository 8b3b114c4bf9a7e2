// SPDX-License-Identifier: Apache-2.0
// Loading of kernels, and what they are told. The double does by hand what each is to do; whether
// the compiled ones do it is for a machine with a GPU.
#include "gpu/kernels/kernels.h"

#include <cstring>
#include <vector>

#include "gpu/cuda/pinned_pool.h"
#include "gpu/kernels/element_kernels.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/support/kernel_image.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

class KernelsTest : public CudaTest {
 protected:
  uint64_t Word(DevicePointer at) {
    uint64_t word = 0;
    std::memcpy(&word, Read(at, sizeof(word)).data(), sizeof(word));
    return word;
  }
};

TEST_F(KernelsTest, PatternsAndSumsAreThoseOfTheHost) {
  NEEDS_THE_DOUBLE("knows kernels by their names");
  const auto kernels = Kernels::Load(device_, KernelImage());
  ASSERT_OK(kernels.status());
  constexpr size_t kBytes = 1003;
  constexpr uint64_t kSeed = 77;
  const DevicePointer memory = Alloc(kBytes);
  const DevicePointer words = Alloc(16);
  Write(words, std::string(16, '\0'));
  {
    const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
    ASSERT_OK((*kernels)->FillPattern(stream->get(), memory, kBytes, kSeed));
    ASSERT_OK((*kernels)->ComparePattern(stream->get(), memory, kBytes, kSeed + 1, words));
    ASSERT_OK((*kernels)->ComparePattern(stream->get(), memory, kBytes, kSeed, words));
    ASSERT_OK((*kernels)->Checksum(stream->get(), memory, kBytes, words + 8));
    ASSERT_OK((*kernels)->Checksum(stream->get(), memory, 0, words + 8));
    const ScopedCurrent current(*device_);
    ASSERT_EQ(table().stream_synchronize(stream->get()), kSuccess);
  }
  std::string expected((kBytes + 7) / 8 * 8, '\0');
  for (size_t i = 0; i < expected.size() / 8; ++i) {
    const uint64_t word = kSeed + i * 0x9E3779B97F4A7C15;
    std::memcpy(expected.data() + i * 8, &word, 8);
  }
  expected.resize(kBytes);
  EXPECT_EQ(Read(memory, kBytes), expected);
  EXPECT_GT(Word(words), 0u);
  expected.resize((kBytes + 7) / 8 * 8, '\0');
  uint64_t sum = 0;
  for (size_t i = 0; i < expected.size() / 8; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, expected.data() + i * 8, 8);
    sum += word * (2 * i + 1);
  }
  EXPECT_EQ(Word(words + 8), sum);
  Free(memory);
  Free(words);
}

TEST_F(KernelsTest, ScaleAddIsDoneToEachElement) {
  NEEDS_THE_DOUBLE("knows kernels by their names");
  const auto kernels = Kernels::Load(device_, KernelImage());
  ASSERT_OK(kernels.status());
  // Neither a whole number of blocks nor of words.
  constexpr size_t kCount = 1001;
  std::vector<float> to(kCount);
  std::vector<float> from(kCount);
  std::vector<float> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    to[i] = static_cast<float>(i) / 8;
    from[i] = static_cast<float>(1000 - i);
    expected[i] = 0.5F * to[i] + from[i];
  }
  const auto text = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  const DevicePointer sum = Alloc(kCount * sizeof(float));
  const DevicePointer added = Alloc(kCount * sizeof(float));
  Write(sum, text(to));
  Write(added, text(from));
  {
    const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
    ASSERT_OK((*kernels)->ScaleAdd(stream->get(), sum, added, kCount, 0.5F));
    ASSERT_OK((*kernels)->ScaleAdd(stream->get(), sum, added, 0, 7.0F));
    const ScopedCurrent current(*device_);
    ASSERT_EQ(table().stream_synchronize(stream->get()), kSuccess);
  }
  EXPECT_EQ(Read(sum, kCount * sizeof(float)), text(expected));
  EXPECT_EQ(Read(added, kCount * sizeof(float)), text(from));
  Free(sum);
  Free(added);
}

TEST_F(KernelsTest, WhatIsMissingIsNamed) {
  NEEDS_THE_DOUBLE("makes calls fail");
  const absl::Status none = Kernels::Load(device_, {}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(none.message(), HasSubstr("without nvcc"));
  const absl::Status partial =
      Kernels::Load(device_, ".version 7.0\n.visible .entry ferry_pattern_fill() {}").status();
  EXPECT_THAT(partial.message(), HasSubstr("ferry_pattern_compare failed with code 500"));
  EXPECT_FALSE(Kernels::Load(device_, "no image").ok());
}

// A driver of CUDA 12 takes nothing that the compiler of CUDA 13 has made as its own; 222 is
// CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
TEST_F(KernelsTest, AnOlderDriverIsGivenOlderPtx) {
  NEEDS_THE_DOUBLE("makes calls fail");
  const CompiledKernels compiled("\x50\xed\x55\xba", KernelImage().image);
  FailNext("cuModuleLoadData", 222);
  const auto kernels = Kernels::Load(device_, compiled);
  ASSERT_OK(kernels.status());
  EXPECT_THAT((*kernels)->why_ptx(), HasSubstr("cuModuleLoadData failed with code 222"));
  // Or it says so when it is asked for the first kernel.
  FailNext("cuModuleGetFunction", 209);
  EXPECT_OK(ElementKernels::Load(device_, compiled).status());
  const auto newer = Kernels::Load(device_, compiled);
  ASSERT_OK(newer.status());
  EXPECT_EQ((*newer)->why_ptx(), "");
}

TEST_F(KernelsTest, WhenNeitherLoadsBothReasonsAreGiven) {
  NEEDS_THE_DOUBLE("makes calls fail");
  FailNext("cuModuleLoadData", 222);
  const absl::Status neither =
      Kernels::Load(device_, {"\x50\xed\x55\xba", ".version 7.4\n.visible .entry other() {}"})
          .status();
  EXPECT_THAT(neither.message(), HasSubstr("cuModuleLoadData failed with code 222"));
  EXPECT_THAT(neither.message(), HasSubstr("as PTX: gpu:0: ferry_pattern_fill failed"));
}

// In a build with nvcc: what is embedded is a fat binary that names the kernels, and PTX for
// drivers that are older than the compiler.
TEST_F(KernelsTest, WhatIsEmbeddedLoads) {
  if (EmbeddedKernels().empty()) GTEST_SKIP() << "this build has no kernels: there was no nvcc";
  const absl::string_view image = EmbeddedKernels().image;
  EXPECT_EQ(image.substr(0, 4), "\x50\xed\x55\xba");
  EXPECT_NE(image.find("ferry_pattern_fill"), absl::string_view::npos);
  EXPECT_NE(image.find("ferry_binary"), absl::string_view::npos);
  EXPECT_OK(Kernels::Load(device_).status());
  EXPECT_OK(ElementKernels::Load(device_).status());
}

// On a GPU it is the driver that compiles it, and runs it.
TEST_F(KernelsTest, WhatIsEmbeddedAsPtxLoads) {
  if (EmbeddedKernels().empty()) GTEST_SKIP() << "this build has no kernels: there was no nvcc";
  const absl::string_view ptx = EmbeddedKernels().older_ptx;
  EXPECT_THAT(std::string(ptx), HasSubstr("\n.version 7.4\n.target sm_80\n"));
  EXPECT_EQ(*ptx.end(), '\0');
  const auto kernels = Kernels::Load(device_, ptx);
  ASSERT_OK(kernels.status());
  EXPECT_OK(ElementKernels::Load(device_, ptx).status());
  constexpr size_t kBytes = 1003;
  const DevicePointer memory = Alloc(kBytes);
  const DevicePointer wrong = Alloc(8);
  Write(wrong, std::string(8, '\0'));
  {
    const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
    ASSERT_OK((*kernels)->FillPattern(stream->get(), memory, kBytes, 7));
    ASSERT_OK((*kernels)->ComparePattern(stream->get(), memory, kBytes, 7, wrong));
    const ScopedCurrent current(*device_);
    ASSERT_EQ(table().stream_synchronize(stream->get()), kSuccess);
  }
  EXPECT_EQ(Word(wrong), 0u);
  Free(memory);
  Free(wrong);
}

}  // namespace
}  // namespace ferry::cuda
