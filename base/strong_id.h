// SPDX-License-Identifier: Apache-2.0
// StrongId: a typed integer id that does not convert to other id types.
#ifndef FERRY_BASE_STRONG_ID_H_
#define FERRY_BASE_STRONG_ID_H_

#include <compare>
#include <cstddef>
#include <functional>
#include <utility>

namespace ferry {

// `Tag` makes the type distinct; `Int` is the stored type. A value type: comparable, hashable, and
// converted from and to an integer only explicitly.
//   using TaskId = StrongId<struct TaskIdTag, int32_t>;
template <typename Tag, typename Int>
class StrongId {
 public:
  using Value = Int;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Int value) : value_(value) {}

  constexpr Int value() const { return value_; }

  friend constexpr auto operator<=>(StrongId a, StrongId b) = default;

  template <typename H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  Int value_ = 0;
};

}  // namespace ferry

#endif  // FERRY_BASE_STRONG_ID_H_
