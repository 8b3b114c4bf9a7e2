// SPDX-License-Identifier: Apache-2.0
// Jobs whose tasks register together.
#ifndef FERRY_TESTS_COORD_REGISTRATION_OPTIONS_H_
#define FERRY_TESTS_COORD_REGISTRATION_OPTIONS_H_

#include "absl/time/time.h"

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {

constexpr absl::Duration kRegisterTimeout = absl::Minutes(3);

inline CoordinatorOptions TogetherOptions(int tasks) {
  CoordinatorOptions options = PlainOptions(tasks);
  options.register_barrier = true;
  options.register_timeout = kRegisterTimeout;
  return options;
}

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_REGISTRATION_OPTIONS_H_
