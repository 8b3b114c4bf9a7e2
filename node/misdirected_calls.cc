// SPDX-License-Identifier: Apache-2.0
// The coordinator's services, by name.
#include "node/misdirected_calls.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry {
namespace {

struct Elsewhere {
  const char* service;
  const char* what;
};

// The services that clients of TensorFlow, JAX and Ferry call at a coordinator.
constexpr Elsewhere kAtTheCoordinator[] = {
    {"/tensorflow.MasterService/", "sessions are opened"},
    {"/tensorflow.grpc.MasterService/", "sessions are opened"},
    {"/tensorflow.CoordinationService/", "the coordination service is"},
    {"/xla.coordination.CoordinationService/", "the coordination service is"},
    {"/xla.DistributedRuntimeService/", "the coordination service is"},
    {"/ferry.v1.Control/", "ferry's control service is"},
};

class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const std::string& why) {
    Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, why));
  }

 private:
  void OnDone() override { delete this; }
};

}  // namespace

std::string MisdirectedCallText(absl::string_view method, int32_t node_id,
                                absl::string_view coordinator) {
  for (const Elsewhere& each : kAtTheCoordinator) {
    if (!absl::StartsWith(method, each.service)) continue;
    return absl::StrCat(
        "this is node ", node_id, "'s worker port; ", each.what, " at the coordinator",
        coordinator.empty() ? "" : absl::StrCat(", ", coordinator), " (", method, ")");
  }
  return absl::StrCat("this is node ", node_id, "'s worker port, which has no method ",
                      Quoted(method));
}

MisdirectedCalls::MisdirectedCalls(int32_t node_id, std::string coordinator)
    : node_id_(node_id), coordinator_(std::move(coordinator)) {}

grpc::ServerGenericBidiReactor* MisdirectedCalls::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  return new Refusal(MisdirectedCallText(context->method(), node_id_, coordinator_));
}

}  // namespace ferry
