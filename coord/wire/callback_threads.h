// SPDX-License-Identifier: Apache-2.0
// Keeps gRPC's callback threads until the process ends.
#ifndef FERRY_COORD_WIRE_CALLBACK_THREADS_H_
#define FERRY_COORD_WIRE_CALLBACK_THREADS_H_

#include "absl/status/status.h"

namespace ferry::coord {

// gRPC 1.51 shares one completion queue among all users of its callback API and destroys it, with
// its threads, when the last of them goes. Two of those threads can then release it at once, and
// the process aborts in grpc_cq_internal_unref: seen in about 1 of 300 short-lived clients under
// load. Call this before creating a channel or a server for callbacks: it adds a permanent user.
// Thread-safe; only the first call has an effect.
void KeepCallbackThreads();

// Checks that the threads that gRPC starts for a server can be created. If they cannot, gRPC
// aborts the process, or continues and hangs later. Thread-safe; call it before creating a server.
//   Errors: RESOURCE_EXHAUSTED with the limits in force.
absl::Status CheckServerThreadRoom();

// Checks that gRPC can create its epoll and eventfd descriptors: it aborts the process where a
// system call filter denies one of them, or the descriptors of a server are not available.
// Thread-safe.
//   Errors: FAILED_PRECONDITION with the denied call; RESOURCE_EXHAUSTED with the descriptor
//   limit.
absl::Status CheckServerFileRoom();

// Both checks; call it before creating a server.
absl::Status CheckServerRoom();

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_CALLBACK_THREADS_H_
