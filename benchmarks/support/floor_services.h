// SPDX-License-Identifier: Apache-2.0
// The floors: what gRPC itself costs for the calls that the coordinator answers.
#ifndef FERRY_BENCHMARKS_SUPPORT_FLOOR_SERVICES_H_
#define FERRY_BENCHMARKS_SUPPORT_FLOOR_SERVICES_H_

#include <memory>
#include <vector>

#include <grpcpp/impl/codegen/service_type.h>

namespace ferry::bench {

// Any bytes in, none out, at once.
inline constexpr char kEmptyMethod[] = "/ferry.bench.Floor/Empty";
// As Empty, but answered, by the thread that brings the last, when `tasks` of them have come.
inline constexpr char kParkMethod[] = "/ferry.bench.Floor/Park";
// A stream both ways: the first message is what each later one is answered with.
inline constexpr char kEchoMethod[] = "/ferry.bench.Floor/Echo";

// Those three, and tensorflow.CoordinationService's InsertKeyValue and GetKeyValue as a generated,
// typed service that stores nothing and finds one value under every key.
std::vector<std::unique_ptr<grpc::Service>> MakeFloorServices(int tasks);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_FLOOR_SERVICES_H_
