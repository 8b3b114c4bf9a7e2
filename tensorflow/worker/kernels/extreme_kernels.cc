// SPDX-License-Identifier: Apache-2.0
// Max and Min along dimensions.
#include <limits>

#include "tensorflow/worker/kernels/arithmetic.h"
#include "tensorflow/worker/kernels/reduce.h"

namespace ferry::worker {
namespace {

// NaN wins.
struct Largest {
  using OfTwo = MaxElements;
  template <typename Row>
  static auto Of(const Row& row) {
    return row.template maxCoeff<Eigen::PropagateNaN>();
  }
};

struct Smallest {
  using OfTwo = MinElements;
  template <typename Row>
  static auto Of(const Row& row) {
    return row.template minCoeff<Eigen::PropagateNaN>();
  }
};

// Returns the extreme of a whole row.
template <typename Choice, typename T>
T ChosenOf(const T* row, int64_t count) {
  // Independent lanes hide the latency of comparisons.
  constexpr int64_t kLanes = 32;
  using Lanes = Eigen::Array<T, kLanes, 1>;
  using LanesOf = Eigen::Map<const Lanes>;
  if (count < kLanes) return Choice::Of(ConstElements<T>(row, count));
  Lanes lanes = LanesOf(row);
  const T* const last = row + count - kLanes;
  for (const T* at = row + kLanes; at < last; at += kLanes) {
    lanes = Choice::OfTwo::Of(lanes, LanesOf(at));
  }
  // Overlaps elements already seen, which is harmless.
  lanes = Choice::OfTwo::Of(lanes, LanesOf(last));
  return Choice::Of(lanes);
}

template <typename T, typename Choice>
struct Choosing {
  using Total = T;

  static void Add(Total* totals, const T* row, int64_t count) {
    BinaryRow<typename Choice::OfTwo>(totals, 1, row, 1, totals, count);
  }
  static Total Merge(Total total, Total other) {
    BinaryRow<typename Choice::OfTwo>(&total, 1, &other, 1, &total, 1);
    return total;
  }
  static Total Of(const T* row, int64_t count) {
    if constexpr (kIsSmallFloat<T>) {
      float floats[kFloatPiece];
      T total = row[0];
      ForEachPiece(count, [&floats, &total, row](int64_t at, int64_t here) {
        ToFloats(row + at, floats, here);
        // The result is one of the elements, so converting back does not round.
        total = Merge(total, static_cast<T>(ChosenOf<Choice>(floats, here)));
      });
      return total;
    } else {
      return ChosenOf<Choice>(row, count);
    }
  }
  static T Result(Total total, int64_t) { return total; }
};

template <typename T>
struct Max : Choosing<T, Largest> {
  static T First() {
    if constexpr (kIsFloat<T>) return -std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::lowest();
  }
  static T OfNone() { return First(); }
};

template <typename T>
struct Min : Choosing<T, Smallest> {
  static T First() {
    if constexpr (kIsFloat<T>) return std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::max();
  }
  static T OfNone() { return First(); }
};

}  // namespace

KernelOr MakeMax(const NodeAttrs& node) { return MakeReduction<Max>(OrderedTypes(), node); }

KernelOr MakeMin(const NodeAttrs& node) { return MakeReduction<Min>(OrderedTypes(), node); }

}  // namespace ferry::worker
