// SPDX-License-Identifier: Apache-2.0
// The number of descriptors that this process may open.
#ifndef FERRY_BASE_FILE_LIMIT_H_
#define FERRY_BASE_FILE_LIMIT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ferry {

// Raises the soft limit to the hard one, as servers with many connections need; shells and systemd
// default to 1024 because of programs that use select(). Returns the new limit.
int64_t RaiseFileLimit();

// For errors of libraries that do not report EMFILE: " (all 1024 descriptors of this process are
// in use: raise `ulimit -n`)" if no descriptor can be opened now, else "".
std::string WhyNoDescriptor();

// A suffix for an error with this errno: " (raise `ulimit -n`, which is 1024)" if this process has
// no descriptor left, the machine's limit if that is reached, else "".
std::string FileLimitHint(int error);

// "Too many open files (raise `ulimit -n`, which is 1024)": strerror and the hint.
std::string ErrorWithFileLimit(int error);

// Checks that `count` more descriptors can be opened, without opening any. Call it before using a
// library that aborts the process when it cannot open one.
//   Errors: RESOURCE_EXHAUSTED with the limit and the number that is left.
absl::Status CheckFileRoom(int count);

}  // namespace ferry

#endif  // FERRY_BASE_FILE_LIMIT_H_
