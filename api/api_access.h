// SPDX-License-Identifier: Apache-2.0
// ApiAccess: converts between the public classes and the internal ones behind them.
#ifndef FERRY_API_API_ACCESS_H_
#define FERRY_API_API_ACCESS_H_

#include <memory>
#include <utility>

#include <ferry/cancellation_token.h>
#include <ferry/coordinator_client.h>
#include <ferry/device.h>
#include <ferry/external_nccl_scope.h>
#include <ferry/key_watch.h>
#include <ferry/memory_registration.h>
#include <ferry/nccl_communicator.h>
#include <ferry/request.h>
#include <ferry/step.h>
#include <ferry/tensor.h>
#include <ferry/topology.h>

#include "base/cancellation_token.h"
#include "coord/client/agent.h"
#include "gpu/communicator/communicator.h"
#include "gpu/cuda/export_registry.h"
#include "gpu/external_nccl_scope.h"
#include "gpu/gpus.h"
#include "tensor/tensor.h"
#include "topology/global_topology.h"

#ifndef FERRY_API_IMPLEMENTATION
#error "Sources of api/ are compiled with FERRY_API_IMPLEMENTATION: see ferry/namespace.h"
#endif

namespace ferry::v0 {

class CallbackGate;

// The friend of every public class: the only one that sees their private parts from outside.
class ApiAccess final {
 public:
  using RequestImpl = Request::Impl;
  using StepImpl = Step::Impl;

  // Shared by the token's copies; may outlive them.
  static std::shared_ptr<ferry::CancellationToken> Unwrap(const CancellationToken& token);

  // An invalid tensor for an invalid one, in both directions.
  static ferry::Tensor Unwrap(const Tensor& tensor);
  static Tensor Wrap(ferry::Tensor tensor);

  static ferry::TensorLocation Unwrap(const Device& device);
  static Device Wrap(const ferry::TensorLocation& location);

  static Topology Wrap(ferry::GlobalTopology topology);

  // `gate`: what the watch's callbacks go through.
  static KeyWatch Wrap(std::unique_ptr<coord::AgentWatch> watch,
                       std::shared_ptr<CallbackGate> gate);
  // `agent` outlives the client.
  static std::unique_ptr<CoordinatorClient> Wrap(coord::Agent& agent);

  static Request Wrap(std::shared_ptr<RequestImpl> request);
  static Step Wrap(std::shared_ptr<StepImpl> step);

  static std::unique_ptr<MemoryRegistration> Wrap(
      std::unique_ptr<cuda::ExportRegistration> registration);
  static std::unique_ptr<ExternalNcclScope> Wrap(std::unique_ptr<ferry::ExternalNcclScope> scope);
  // `gpus` outlives the communicator.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Wrap(
      std::shared_ptr<ferry::NcclCommunicator> communicator, Gpus& gpus);
};

}  // namespace ferry::v0

#endif  // FERRY_API_API_ACCESS_H_
