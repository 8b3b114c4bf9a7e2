// SPDX-License-Identifier: Apache-2.0
// Comparing a function of ours with one of a vendor's header, at compile time.
#ifndef FERRY_TESTS_GPU_SAME_CALL_H_
#define FERRY_TESTS_GPU_SAME_CALL_H_

#include <type_traits>

namespace ferry {

// The vendor's name for a struct of ours that begins with its own size: one side may have fields at
// the end that the other does not know. Specialised beside the comparison of its fields.
template <typename Ours>
struct SizedStruct {
  using Theirs = Ours;
};

// Whether a parameter is passed identically: the same type, an int for an enum, a struct of ours
// for one of the same size and alignment, or a pointer to a SizedStruct.
template <typename Ours, typename Theirs>
constexpr bool IsSame() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    // Where the driver takes a non-const enum or struct, ours may be const.
    return std::is_same_v<typename SizedStruct<OurTarget>::Theirs, TheirTarget> ||
           IsSame<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget>>();
  } else if constexpr (std::is_enum_v<Theirs>) {
    return (std::is_integral_v<Ours> || std::is_enum_v<Ours>)&&sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
           std::is_trivially_copyable_v<Ours>;
  } else if constexpr (std::is_function_v<Ours> && std::is_function_v<Theirs>) {
    return std::is_same_v<Ours, Theirs>;
  } else {
    return false;
  }
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename Our, typename Their, typename... Ours, typename... Theirs>
struct SameCall<Our (*)(Ours...), Their (*)(Theirs...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
      return IsSame<Our, Their>() && (IsSame<Ours, Theirs>() && ...);
    }
    return false;
  }();
};

#define FERRY_SAME_FIELD(ours, our_field, theirs, their_field)                \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) && \
                sizeof(ours::our_field) == sizeof(theirs::their_field))
#define FERRY_SAME_NUMBER(ours, theirs) \
  static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs)
#define FERRY_SAME_CALL(table, name, member) \
  static_assert(::ferry::SameCall<decltype(table::member), decltype(&name)>::value, #name)

}  // namespace ferry

#endif  // FERRY_TESTS_GPU_SAME_CALL_H_
