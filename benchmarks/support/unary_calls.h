// SPDX-License-Identifier: Apache-2.0
// Unary calls from many simulated clients in one process.
#ifndef FERRY_BENCHMARKS_SUPPORT_UNARY_CALLS_H_
#define FERRY_BENCHMARKS_SUPPORT_UNARY_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <google/protobuf/message_lite.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/time/time.h"

#include "benchmarks/support/server_process.h"

namespace ferry::bench {

using RawStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;

// A channel with a connection of its own; it connects with its first call.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// One call, waited for; ends the process if it fails.
void CallAndWait(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const google::protobuf::MessageLite& request,
                 google::protobuf::MessageLite& response);

// The results of a closed loop.
struct LoadResult {
  double calls_per_s = 0;
  double p50_us = 0;
  double p99_us = 0;
  // The server process's CPU time for each call.
  double server_cpu_us = 0;
};

// `inflight` calls at a time, spread over `channels`, for `slice`; the requests are used in
// rotation. Ends the process if a call fails.
LoadResult RunUnaryLoad(const ServerProcess& server,
                        const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                        const std::string& method, const std::vector<grpc::ByteBuffer>& requests,
                        int inflight, absl::Duration slice);

// Ranks that have a channel each and call at the same time. Thread-compatible.
class UnaryRanks final {
 public:
  UnaryRanks(const std::string& address, int count);
  // Cancels calls in flight.
  ~UnaryRanks();

  // Every rank, of the first `count`, calls `method` once. Does not wait for the answers. Returns
  // when the first call began; all requests are made before that.
  absl::Time StartAll(const std::string& method,
                      const std::function<grpc::ByteBuffer(int)>& request, int count);
  // Ends the process if a call failed.
  void WaitAll();
  // Both, for every rank; returns how long that took.
  absl::Duration CallAll(const std::string& method,
                         const std::function<grpc::ByteBuffer(int)>& request);

 private:
  struct Rank;
  struct Pending;

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<Pending> pending_;
};

// For methods that do not look at the request.
grpc::ByteBuffer NoBytes(int rank);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_UNARY_CALLS_H_
