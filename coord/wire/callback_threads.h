// SPDX-License-Identifier: Apache-2.0
// Keeps gRPC's callback threads for the life of the process.
#ifndef FERRY_COORD_WIRE_CALLBACK_THREADS_H_
#define FERRY_COORD_WIRE_CALLBACK_THREADS_H_

#include "absl/status/status.h"

namespace ferry::coord {

// gRPC 1.51 shares one completion queue among all users of its callback API and takes it down, with
// its threads, when the last of them goes. Two of those threads can then release it at once, and
// the process aborts in grpc_cq_internal_unref: seen in about 1 of 300 short-lived clients under
// load. Whoever makes a channel or a server for callbacks calls this first: it adds a user that
// stays. Thread-safe; only the first call does something.
void KeepCallbackThreads();

// Checks that the threads that gRPC starts for a server can be created. If they cannot, gRPC aborts
// the process, or continues and hangs later. Thread-safe; to be called before a server is created.
//   Errors: RESOURCE_EXHAUSTED with what limits them.
absl::Status CheckServerThreadRoom();

// Checks that gRPC can have what it waits with, epoll and eventfd: where a system call filter
// refuses one of them, or the descriptors that it opens for a server are not left, it aborts the
// process. Thread-safe.
//   Errors: FAILED_PRECONDITION with the call that is refused; RESOURCE_EXHAUSTED with the limit of
//   descriptors.
absl::Status CheckServerFileRoom();

// Both, to be called before a server is created.
absl::Status CheckServerRoom();

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_CALLBACK_THREADS_H_
