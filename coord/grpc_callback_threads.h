// SPDX-License-Identifier: Apache-2.0
// Keeps gRPC's callback threads for the life of the process.
#ifndef FERRY_COORD_GRPC_CALLBACK_THREADS_H_
#define FERRY_COORD_GRPC_CALLBACK_THREADS_H_

namespace ferry::coord {

// gRPC 1.51 shares one completion queue among all users of its callback API and takes it down, with
// its threads, when the last of them goes. Two of those threads can then release it at once, and
// the process aborts in grpc_cq_internal_unref: seen in about 1 of 300 short-lived clients under
// load. Whoever makes a channel or a server for callbacks calls this first: it adds a user that
// stays. Thread-safe; only the first call does something.
void KeepCallbackThreads();

}  // namespace ferry::coord

#endif  // FERRY_COORD_GRPC_CALLBACK_THREADS_H_
