// SPDX-License-Identifier: Apache-2.0
// Node 1 of a job of two, as a process of its own: returns each tensor that node 0 sends it in step
// 1, with 1 added to every element, until it is killed or receives an empty one.
//   api_peer COORDINATOR-ADDRESS
#include <iostream>

#include <ferry/node.h>

namespace {

absl::Status Serve(ferry::Node& node) {
  absl::StatusOr<ferry::Step> step = node.OpenStep(1);
  if (!step.ok()) return step.status();
  while (true) {
    absl::StatusOr<ferry::Tensor> request =
        step->Recv({.name = "request", .source = 0, .destination = 1}).Wait(absl::Minutes(5));
    if (!request.ok()) return request.status();
    if (request->element_count() == 0) break;
    absl::StatusOr<ferry::Tensor> answer =
        node.Allocate(ferry::Device::Host(), request->dtype(), request->shape());
    if (!answer.ok()) return answer.status();
    absl::Span<int32_t> to = answer->mutable_elements<int32_t>();
    for (size_t i = 0; i < to.size(); ++i) to[i] = request->elements<int32_t>()[i] + 1;
    absl::StatusOr<ferry::Tensor> sent =
        step->Send({.name = "answer", .source = 1, .destination = 0}, *answer)
            .Wait(absl::ZeroDuration());
    if (!sent.ok()) return sent.status();
  }
  absl::Status status = step->Close(absl::Minutes(1));
  status.Update(node.ShutdownCollective());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  ferry::NodeOptions options;
  options.rank = 1;
  options.num_nodes = 2;
  options.coordinator_address = argv[1];
  absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join(options);
  const absl::Status status = node.ok() ? Serve(**node) : node.status();
  if (!status.ok()) std::cerr << "api_peer: " << status << "\n";
  return status.ok() ? 0 : 1;
}
