// SPDX-License-Identifier: Apache-2.0
// Sum and Mean.
#include <algorithm>
#include <limits>

#include "tensorflow/worker/kernels/reduce.h"
#include "tensorflow/worker/kernels/small_floats.h"

namespace ferry::worker {
namespace {

// Floats are accumulated in a wider type for precision; integers wrap around.
template <typename T>
struct TotalOf {
  using Type = std::make_unsigned_t<std::conditional_t<(sizeof(T) < sizeof(int)), int, T>>;
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
  static Total Merge(Total total, Total other) { return total + other; }

  static void Add(Total* totals, const T* row, int64_t count) {
    if constexpr (kIsSmallFloat<T>) {
      ForEachFloatPiece(row, count, [totals](int64_t at, auto piece) {
        Elements<Total>(totals + at, piece.size()) += piece;
      });
    } else {
      Elements<Total>(totals, count) += Wide(row, count);
    }
  }

  static Total Of(const T* row, int64_t count) {
    if constexpr (kIsSmallFloat<T>) {
      Total total = First();
      ForEachFloatPiece(row, count, [&total](int64_t, auto piece) { total += piece.sum(); });
      return total;
    } else if constexpr (std::is_integral_v<T>) {
      return Wide(row, count).sum();
    } else {
      // Several accumulators, because Eigen does not vectorise sums that convert their elements.
      constexpr int64_t kLanes = 8;
      using Lanes = Eigen::Array<T, kLanes, 1>;
      const int64_t end = count - count % kLanes;
      Total total = Wide(row + end, count - end).sum();
      if (end == 0) return total;
      Eigen::Array<Total, kLanes, 1> totals = Eigen::Array<Total, kLanes, 1>::Zero();
      for (int64_t at = 0; at < end; at += kLanes) {
        totals += Eigen::Map<const Lanes>(row + at).template cast<Total>();
      }
      return total + totals.sum();
    }
  }

 private:
  static auto Wide(const T* row, int64_t count) {
    return ConstElements<T>(row, count).template cast<Total>();
  }

  // Calls function(at, piece) per block.
  template <typename Function>
  static void ForEachFloatPiece(const T* row, int64_t count, Function&& function) {
    float floats[kFloatPiece];
    ForEachPiece(count, [&floats, row, &function](int64_t at, int64_t here) {
      ToFloats(row + at, floats, here);
      function(at, ConstElements<float>(floats, here));
    });
  }
};

template <typename T>
struct Sum : Adding<T, typename TotalOf<T>::Type> {
  using Total = typename TotalOf<T>::Type;

  static T Result(Total total, int64_t) { return static_cast<T>(total); }
  static T OfNone() { return static_cast<T>(0); }
};

// Integers are accumulated as wider ones.
template <typename T>
using MeanTotal = std::conditional_t<std::is_integral_v<T>, uint64_t, typename TotalOf<T>::Type>;

template <typename T>
struct Mean : Adding<T, MeanTotal<T>> {
  using Total = MeanTotal<T>;

  static T Result(Total total, int64_t count) {
    if constexpr (kIsComplex<T>) {
      return static_cast<T>(total / static_cast<double>(count));
    } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
      return static_cast<T>(static_cast<int64_t>(total) / count);
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
