// SPDX-License-Identifier: Apache-2.0
// Max and Min along dimensions.
#include <limits>

#include "worker/kernels/arithmetic.h"
#include "worker/kernels/reduce.h"

namespace ferry::worker {
namespace {

template <typename T, typename Choice>
struct Choosing {
  using Total = T;

  static void Add(Total& total, T element) { total = Choice::Apply(total, element); }
  static void Merge(Total& total, Total other) { total = Choice::Apply(total, other); }
  static T Result(Total total, int64_t) { return total; }
};

template <typename T, typename Choice>
T ChooseOf(const T* row, int64_t count, T first) {
  // So many comparisons of floats, which take their time, do not wait for each other.
  constexpr int64_t kLanes = kIsFloat<T> ? 32 : 8;
  T lanes[kLanes];
  for (T& lane : lanes) lane = first;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = Choice::Apply(lanes[lane], row[i + lane]);
    }
  }
  for (; i < count; ++i) lanes[0] = Choice::Apply(lanes[0], row[i]);
  for (const T& lane : lanes) first = Choice::Apply(first, lane);
  return first;
}

template <typename T>
struct Max : Choosing<T, MaxElements> {
  static T First() {
    if constexpr (kIsFloat<T>) return -std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::lowest();
  }
  static T Of(const T* row, int64_t count) { return ChooseOf<T, MaxElements>(row, count, First()); }
  static T OfNone() { return First(); }
};

template <typename T>
struct Min : Choosing<T, MinElements> {
  static T First() {
    if constexpr (kIsFloat<T>) return std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::max();
  }
  static T Of(const T* row, int64_t count) { return ChooseOf<T, MinElements>(row, count, First()); }
  static T OfNone() { return First(); }
};

}  // namespace

KernelOr MakeMax(const NodeAttrs& node) { return MakeReduction<Max>(OrderedTypes(), node); }

KernelOr MakeMin(const NodeAttrs& node) { return MakeReduction<Min>(OrderedTypes(), node); }

}  // namespace ferry::worker
