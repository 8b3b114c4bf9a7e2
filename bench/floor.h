// SPDX-License-Identifier: Apache-2.0
// Raw unary gRPC calls: the baseline of the coordinator's benches.
#ifndef FERRY_BENCH_FLOOR_H_
#define FERRY_BENCH_FLOOR_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ferry::cli {

// Serves two methods of bytes on a port of 127.0.0.1: one responds at once, with the requested
// number of bytes, and one when the requested number of calls is pending.
class UnaryFloorServer final {
 public:
  //   Errors: UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<UnaryFloorServer>> Create();
  ~UnaryFloorServer();

  const std::string& address() const;

 private:
  class Impl;
  explicit UnaryFloorServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Clients, each with its own connection. Thread-safe.
class UnaryFloor final {
 public:
  // Each client connects on its first call.
  UnaryFloor(const std::string& address, int clients);
  // Cancels pending calls.
  ~UnaryFloor();

  // Makes a call by that client with `there` bytes in the request and `back` in the response. Calls
  // `done` once, on a gRPC thread.
  void CallAsync(int client, size_t there, size_t back,
                 absl::AnyInvocable<void(absl::Status) &&> done, absl::Duration timeout);
  // Makes one call per client; returns the time from before the first call until the last response.
  //   is_held: the server responds once the last call has arrived.
  //   Errors: DEADLINE_EXCEEDED; gRPC's errors.
  absl::StatusOr<absl::Duration> CallAll(bool is_held, absl::Duration timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_FLOOR_H_
