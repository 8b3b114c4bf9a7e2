// SPDX-License-Identifier: Apache-2.0
// The baselines: gRPC's own cost of the calls that the coordinator answers.
#ifndef FERRY_BENCHMARKS_SUPPORT_FLOOR_SERVICES_H_
#define FERRY_BENCHMARKS_SUPPORT_FLOOR_SERVICES_H_

#include <memory>
#include <vector>

#include <grpcpp/impl/codegen/service_type.h>

namespace ferry::bench {

// Any bytes in, none out, at once.
inline constexpr char kEmptyMethod[] = "/ferry.bench.Floor/Empty";
// Like Empty, but answered, by the thread of the last call, when `tasks` of them have arrived.
inline constexpr char kParkMethod[] = "/ferry.bench.Floor/Park";
// A bidirectional stream: the first message is the answer to each later one.
inline constexpr char kEchoMethod[] = "/ferry.bench.Floor/Echo";

// The three above, and tensorflow.CoordinationService's InsertKeyValue and GetKeyValue as a
// generated, typed service that stores nothing and finds one value under every key.
std::vector<std::unique_ptr<grpc::Service>> MakeFloorServices(int tasks);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_FLOOR_SERVICES_H_
