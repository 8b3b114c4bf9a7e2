// SPDX-License-Identifier: Apache-2.0
// RandomUniform and RandomStandardNormal.
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/random.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

// Uniform in [0, 1): random bits as the mantissa of a number in [1, 2), minus 1.
template <typename Real, typename Bits>
Real FromMantissa(Bits mantissa, Bits exponent_of_one) {
  const Bits bits = exponent_of_one | mantissa;
  Real number;
  static_assert(sizeof(number) == sizeof(bits));
  std::memcpy(static_cast<void*>(&number), &bits, sizeof(bits));
  return number - Real(1);
}

float UniformFloat(uint32_t random) {
  return FromMantissa<float, uint32_t>(random & 0x7fffff, 127u << 23);
}

double UniformDouble(uint32_t high, uint32_t low) {
  return FromMantissa<double, uint64_t>(uint64_t{high & 0xfffff} << 32 | low, uint64_t{1023} << 52);
}

template <typename T>
struct Uniform {
  // Numbers made from one block of the generator.
  static constexpr int kCount = std::is_same_v<T, double> ? 2 : 4;

  static void Make(const Philox::Block& random, T* out) {
    for (size_t i = 0; i < kCount; ++i) {
      if constexpr (std::is_same_v<T, double>) {
        out[i] = UniformDouble(random[2 * i], random[2 * i + 1]);
      } else if constexpr (std::is_same_v<T, float>) {
        out[i] = UniformFloat(random[i]);
      } else {
        // Limited to the mantissa's bits, so that what is computed from them is exact.
        constexpr int kBits = std::is_same_v<T, Half> ? 10 : 7;
        out[i] = static_cast<T>(static_cast<float>(random[i] & ((1u << kBits) - 1)) /
                                static_cast<float>(1 << kBits));
      }
    }
  }
};

// Box-Muller transform: two normal numbers from two uniform ones, the first of which must not be 0.
template <typename Real>
void MakeNormalPair(Real first, Real second, Real* out) {
  constexpr Real kLeast = static_cast<Real>(1.0e-7);
  constexpr double kPi = 3.14159265358979323846;
  const Real angle = static_cast<Real>(2 * kPi * second);
  const Real radius = std::sqrt(Real(-2) * std::log(first < kLeast ? kLeast : first));
  out[0] = std::sin(angle) * radius;
  out[1] = std::cos(angle) * radius;
}

template <typename T>
struct Normal {
  static constexpr int kCount = std::is_same_v<T, double> ? 2 : 4;

  static void Make(const Philox::Block& random, T* out) {
    if constexpr (std::is_same_v<T, double>) {
      MakeNormalPair(UniformDouble(random[0], random[1]), UniformDouble(random[2], random[3]), out);
    } else {
      float numbers[kCount];
      MakeNormalPair(UniformFloat(random[0]), UniformFloat(random[1]), numbers);
      MakeNormalPair(UniformFloat(random[2]), UniformFloat(random[3]), numbers + 2);
      for (int i = 0; i < kCount; ++i) out[i] = static_cast<T>(numbers[i]);
    }
  }
};

// Uses the node's seeds; if both are 0, a random seed.
Philox SeededGenerator(uint64_t seed, uint64_t seed2) {
  if (seed != 0 || seed2 != 0) return {seed, seed2};
  std::random_device device;
  const auto draw = [&device] { return uint64_t{device()} << 32 | device(); };
  const uint64_t key = draw();
  return {key, draw()};
}

template <typename T, template <typename> typename Distribution>
class RandomKernel final : public Kernel {
 public:
  explicit RandomKernel(const NodeAttrs& node)
      : generator_(SeededGenerator(static_cast<uint64_t>(node.Int("seed")),
                                   static_cast<uint64_t>(node.Int("seed2")))) {}

  absl::Status Compute(KernelContext& context) const override {
    const Tensor& dims = context.input(0);
    if (!IsVector(dims)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shape must be a vector of {int32,int64}, got shape ", ShapeText(dims.shape())));
    }
    FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(IntsOf(dims)));
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, context.Allocate(kDataTypeOf<T>, shape));
    const int64_t count = shape.element_count();
    T* const out = static_cast<T*>(tensor.mutable_data());
    Philox generator = Reserve(count);
    int64_t i = 0;
    for (; i + kStep <= count; i += kStep) Distribution<T>::Make(generator.Next(), out + i);
    if (i < count) {
      T rest[kStep];
      Distribution<T>::Make(generator.Next(), rest);
      for (int64_t j = 0; i + j < count; ++j) out[i + j] = rest[j];
    }
    context.set_output(0, std::move(tensor));
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kStep = Distribution<T>::kCount;

  // Returns a generator for the next `count` numbers. The next run continues where TensorFlow's
  // would: 256 blocks per number further.
  Philox Reserve(int64_t count) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const Philox generator = generator_;
    generator_.Skip(static_cast<uint64_t>(count) * 256);
    return generator;
  }

  mutable absl::Mutex mu_;
  mutable Philox generator_ ABSL_GUARDED_BY(mu_);
};

template <template <typename> typename Distribution>
std::unique_ptr<Kernel> MakeRandom(const NodeAttrs& node) {
  std::unique_ptr<Kernel> kernel;
  const bool is_known = WithType(RealTypes(), node.Type("dtype"), [&node, &kernel](auto tag) {
    kernel = std::make_unique<RandomKernel<typename decltype(tag)::Type, Distribution>>(node);
  });
  FERRY_CHECK(is_known);
  return kernel;
}

}  // namespace

KernelOr MakeRandomUniform(const NodeAttrs& node) { return MakeRandom<Uniform>(node); }

KernelOr MakeRandomStandardNormal(const NodeAttrs& node) { return MakeRandom<Normal>(node); }

}  // namespace ferry::worker
