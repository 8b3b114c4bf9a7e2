// SPDX-License-Identifier: Apache-2.0
// Sum and Mean.
#include <limits>

#include "worker/kernels/arithmetic.h"
#include "worker/kernels/reduce.h"

namespace ferry::worker {
namespace {

// Floats are collected in wider ones, so that sums of many are as good as their type allows;
// integers wrap round.
template <typename T>
struct TotalOf {
  using Type = std::make_unsigned_t<std::conditional_t<kIsFloat<T> || kIsComplex<T>, int, T>>;
};
template <>
struct TotalOf<Half> {
  using Type = float;
};
template <>
struct TotalOf<Bfloat16> {
  using Type = float;
};
template <>
struct TotalOf<float> {
  using Type = double;
};
template <>
struct TotalOf<double> {
  using Type = double;
};
template <>
struct TotalOf<Complex64> {
  using Type = Complex128;
};
template <>
struct TotalOf<Complex128> {
  using Type = Complex128;
};

template <typename T, typename TotalType>
struct Adding {
  using Total = TotalType;

  static Total First() { return Total(0); }
  static void Add(Total& total, T element) { Merge(total, Wide(element)); }
  static void Merge(Total& total, Total other) { total = AddElements::Apply(total, other); }
  // Several sums side by side: they need not wait for each other, and are more exact.
  static Total Of(const T* row, int64_t count) {
    if constexpr (std::is_integral_v<T>) {
      // One after the other: of the lanes below GCC 12 loses some at -O3, where T is of 8 bits.
      Total total = First();
      for (int64_t i = 0; i < count; ++i) Add(total, row[i]);
      return total;
    }
    constexpr int64_t kLanes = 8;
    Total lanes[kLanes];
    for (Total& lane : lanes) lane = First();
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) Add(lanes[lane], row[i + lane]);
    }
    for (; i < count; ++i) Add(lanes[i % kLanes], row[i]);
    Total total = First();
    for (const Total& lane : lanes) Merge(total, lane);
    return total;
  }

 private:
  static Total Wide(T element) {
    if constexpr (kIsSmallFloat<T>) {
      return static_cast<Total>(static_cast<float>(element));
    } else {
      return static_cast<Total>(element);
    }
  }
};

template <typename T>
struct Sum : Adding<T, typename TotalOf<T>::Type> {
  using Total = typename TotalOf<T>::Type;

  static T Result(Total total, int64_t) { return static_cast<T>(total); }
  static T OfNone() { return static_cast<T>(0); }
};

// Integers are added as wide ones.
template <typename T>
using MeanTotal = std::conditional_t<std::is_integral_v<T>,
                                     std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                                     typename TotalOf<T>::Type>;

template <typename T>
struct Mean : Adding<T, MeanTotal<T>> {
  using Total = MeanTotal<T>;

  static T Result(Total total, int64_t count) {
    if constexpr (kIsComplex<T>) {
      return static_cast<T>(total / static_cast<double>(count));
    } else {
      return static_cast<T>(total / static_cast<Total>(count));
    }
  }
  static T OfNone() {
    if constexpr (kIsFloat<T>) return std::numeric_limits<T>::quiet_NaN();
    return static_cast<T>(0);
  }
};

}  // namespace

KernelOr MakeSum(const NodeAttrs& node) { return MakeReduction<Sum>(NumberTypes(), node); }

KernelOr MakeMean(const NodeAttrs& node) { return MakeReduction<Mean>(NumberTypes(), node); }

}  // namespace ferry::worker
