// SPDX-License-Identifier: Apache-2.0
// How many descriptors this process may have open.
#ifndef FERRY_BASE_FILE_LIMIT_H_
#define FERRY_BASE_FILE_LIMIT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ferry {

// Raises the soft limit to the hard one, as a server of many connections may; shells and systemd
// give 1024 for the sake of programs that use select(). Returns the limit as it is then.
int64_t RaiseFileLimit();

// For errors of libraries that do not say so: " (all 1024 descriptors of this process are in use:
// raise `ulimit -n`)" if none can be opened just now, else nothing.
std::string WhyNoDescriptor();

// For the end of an error with this errno: " (raise `ulimit -n`, which is 1024)" if this process
// has no descriptor left, the machine's limit if that is reached, else nothing.
std::string FileLimitHint(int error);

// "Too many open files (raise `ulimit -n`, which is 1024)": strerror, and the hint.
std::string ErrorWithFileLimit(int error);

// Checks that `count` more descriptors can be opened, without opening any. To be called before the
// use of a library that aborts the process when it cannot open one.
//   Errors: RESOURCE_EXHAUSTED with the limit, and the number that is left.
absl::Status CheckFileRoom(int count);

}  // namespace ferry

#endif  // FERRY_BASE_FILE_LIMIT_H_
