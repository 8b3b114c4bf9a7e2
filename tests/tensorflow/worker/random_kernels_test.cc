// SPDX-License-Identifier: Apache-2.0
// Random numbers. The expected ones were printed by TensorFlow 2.15.1.
#include <cmath>
#include <set>
#include <thread>

#include "tests/tensorflow/worker/kernel_fixture.h"

namespace ferry::worker {
namespace {

using ::testing::HasSubstr;

NodeWriter Random(const std::string& op, DataType dtype, int64_t seed, int64_t seed2) {
  return NodeWriter(op)
      .Type("dtype", dtype)
      .Type("T", DataType::kInt32)
      .Int("seed", seed)
      .Int("seed2", seed2);
}

template <typename T>
std::vector<double> Draw(const Kernel& kernel, int32_t count) {
  const KernelEnvironment environment;
  const std::vector<Tensor> inputs = {Ints({count})};
  KernelContext context(environment, inputs, 1);
  EXPECT_TRUE(kernel.Compute(context).ok());
  std::vector<double> numbers;
  for (const T number : ElementsOf<T>(context.outputs()[0])) {
    numbers.push_back(static_cast<double>(number));
  }
  return numbers;
}

template <typename T>
void ExpectTwoRuns(const std::string& op, const std::vector<double>& expected) {
  const auto kernel = MakeCpuKernel(Random(op, kDataTypeOf<T>, 87654321, 42));
  ASSERT_TRUE(kernel.ok());
  std::vector<double> numbers = Draw<T>(**kernel, 3);
  for (const double number : Draw<T>(**kernel, 3)) numbers.push_back(number);
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_NEAR(numbers[i], expected[i], 1e-6 * std::abs(expected[i])) << op << " " << i;
  }
}

TEST(RandomUniform, MatchesTensorFlowsForTheSameSeeds) {
  ExpectTwoRuns<float>("RandomUniform",
                       {0.9522714614868164, 0.6774077415466309, 0.7953182458877563,
                        0.18126988410949707, 0.2636922597885132, 0.1588040590286255});
  ExpectTwoRuns<double>("RandomUniform",
                        {0.6181726095777149, 0.36254602252651336, 0.8076457653773362,
                         0.4501597178423633, 0.27043256518756675, 0.47520519199618416});
  ExpectTwoRuns<Half>("RandomUniform", {0.0078125, 0.32421875, 0.2470703125, 0.962890625,
                                        0.1669921875, 0.9228515625});
  ExpectTwoRuns<Bfloat16>("RandomUniform",
                          {0.0625, 0.59375, 0.9765625, 0.703125, 0.3359375, 0.3828125});
}

TEST(RandomStandardNormal, MatchesTensorFlowsForTheSameSeeds) {
  ExpectTwoRuns<float>("RandomStandardNormal",
                       {-0.2807750701904297, -0.13775210082530975, -0.6763296127319336,
                        1.8412818908691406, -0.15879929065704346, -1.060792088508606});
  ExpectTwoRuns<double>("RandomStandardNormal",
                        {0.7456244549943906, -0.6371964266311646, 0.04856931364585292,
                         1.2530522119192382, -0.16175850984459766, -0.8392105123864506});
  ExpectTwoRuns<Half>("RandomStandardNormal", {-0.28076171875, -0.1376953125, -0.67626953125,
                                               1.8408203125, -0.1588134765625, -1.060546875});
  ExpectTwoRuns<Bfloat16>("RandomStandardNormal",
                          {-0.28125, -0.1376953125, -0.67578125, 1.84375, -0.1591796875, -1.0625});
}

TEST(RandomUniform, WithoutSeedsDiffersForEachKernel) {
  std::set<double> numbers;
  for (int i = 0; i < 10; ++i) {
    const auto kernel = MakeCpuKernel(Random("RandomUniform", DataType::kDouble, 0, 0));
    numbers.insert(Draw<double>(**kernel, 1)[0]);
  }
  EXPECT_EQ(numbers.size(), 10u);
}

// Steps that run at once must not be given the same numbers.
TEST(RandomUniform, GivesThreadsDifferentNumbers) {
  const auto kernel = MakeCpuKernel(Random("RandomUniform", DataType::kDouble, 1, 2));
  constexpr int kThreads = 4;
  constexpr int kRounds = 100;
  std::vector<double> drawn[kThreads];
  std::vector<std::thread> threads;
  for (std::vector<double>& mine : drawn) {
    threads.emplace_back([&kernel, &mine] {
      for (int i = 0; i < kRounds; ++i) {
        for (const double number : Draw<double>(**kernel, 5)) mine.push_back(number);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<double> all;
  for (const std::vector<double>& mine : drawn) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 5u * kThreads * kRounds);
}

TEST(RandomUniform, RefusesInvalidShapes) {
  const NodeWriter node = Random("RandomUniform", DataType::kFloat, 1, 2);
  EXPECT_THAT(Compute(node, {Ints({-1})}),
              Fails(absl::StatusCode::kInvalidArgument, "Dimension -1 must be >= 0"));
  EXPECT_THAT(Compute(node, {Ints({1 << 30, 1 << 30})}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("OOM")));
}

}  // namespace
}  // namespace ferry::worker
