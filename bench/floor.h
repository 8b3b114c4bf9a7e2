// SPDX-License-Identifier: Apache-2.0
// Raw unary calls of gRPC: what the benches of the coordinator are compared to.
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

// Answers two methods of bytes, on a port of 127.0.0.1: one at once, with as many bytes as the
// request asks for, and one when as many calls wait as the request says. Nothing else is done.
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

// Clients of it, each with a connection of its own. Thread-safe.
class UnaryFloor final {
 public:
  // Connects with the first call of each.
  UnaryFloor(const std::string& address, int clients);
  // Cancels what is under way.
  ~UnaryFloor();

  // One call by that client, of `there` bytes, answered with `back` bytes. `done` comes once, on a
  // thread of gRPC.
  void CallAsync(int client, size_t there, size_t back,
                 absl::AnyInvocable<void(absl::Status) &&> done, absl::Duration timeout);
  // Every client calls once; from before the first call until the last answer.
  //   is_held: the server answers all when the last call has come.
  //   Errors: DEADLINE_EXCEEDED; what gRPC says.
  absl::StatusOr<absl::Duration> CallAll(bool is_held, absl::Duration timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_FLOOR_H_
