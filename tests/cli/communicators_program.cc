// SPDX-License-Identifier: Apache-2.0
// A node of a job that takes communicators over one GPU of each node, releases them, and takes them
// again; and one of its own GPU alone. Or, by its argument, one that takes many at once, or that
// loses the others.
#include <algorithm>
#include <csignal>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "node/node.h"

namespace ferry {
namespace {

using Communicator = std::shared_ptr<NcclCommunicator>;

constexpr absl::Duration kTimeout = absl::Seconds(30);

absl::Status Expect(bool is_true, absl::string_view what) {
  return is_true ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

// The sum of `mine` over all ranks.
absl::StatusOr<float> Sum(Node& node, NcclCommunicator& all, float mine) {
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, node.transfer_engine().gpus()->Get(0));
  FERRY_ASSIGN_OR_RETURN(Tensor number,
                         node.Allocate("gpu:0", DataType::kFloat, *Shape::Create({1})));
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu->device));
  const cuda::ScopedCurrent current(*gpu->device);
  const cuda::CudaTable& table = gpu->device->table();
  const cuda::DevicePointer at = cuda::AsDevicePointer(number.data());
  FERRY_RETURN_IF_ERROR(gpu->device->Check(
      table.copy_to_device_async(at, &mine, sizeof(mine), stream->get()), "cuMemcpyHtoDAsync"));
  FERRY_RETURN_IF_ERROR(all.Run(stream->get(), [&](const nccl::NcclTable& nccl, ncclComm* comm) {
    return nccl.all_reduce(number.data(), number.mutable_data(), 1, nccl::kFloat32,
                           nccl::kReduceSum, comm, stream->get());
  }));
  float sum = 0;
  FERRY_RETURN_IF_ERROR(gpu->device->Check(
      table.copy_to_host_async(&sum, at, sizeof(sum), stream->get()), "cuMemcpyDtoHAsync"));
  FERRY_RETURN_IF_ERROR(
      gpu->device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize"));
  return sum;
}

// Enqueues a sum that no other rank joins, and releases the communicator.
absl::Status LeaveInTheMiddle(Node& node, Communicator all) {
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, node.transfer_engine().gpus()->Get(0));
  FERRY_ASSIGN_OR_RETURN(Tensor number,
                         node.Allocate("gpu:0", DataType::kFloat, *Shape::Create({1})));
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu->device));
  FERRY_RETURN_IF_ERROR(all->Run(stream->get(), [&](const nccl::NcclTable& nccl, ncclComm* comm) {
    return nccl.all_reduce(number.data(), number.mutable_data(), 1, nccl::kFloat32,
                           nccl::kReduceSum, comm, stream->get());
  }));
  all = nullptr;
  const cuda::ScopedCurrent current(*gpu->device);
  return gpu->device->Check(gpu->device->table().stream_synchronize(stream->get()),
                            "cuStreamSynchronize");
}

absl::Status ExpectSumOverAll(Node& node, NcclCommunicator& all) {
  FERRY_ASSIGN_OR_RETURN(const float sum,
                         Sum(node, all, 1.0f + static_cast<float>(node.node_id())));
  const int count = node.num_nodes();
  return Expect(sum == 0.5f * static_cast<float>(count * (count + 1)), "the sum over all GPUs");
}

absl::Status Run() {
  // Room for two: those of the fake NCCL take this much each (STRICT_CUDA_NCCL_MEMORY).
  NodeOptions node_options;
  node_options.kept_communicator_bytes = uint64_t{70} << 20;
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(std::move(node_options)));
  const std::vector<int> gpus = node->topology().OneGpuOfEachNode();
  int meetings = 0;
  const auto meet = [&] { return node->agent().Barrier(absl::StrCat("m", ++meetings), kTimeout); };

  FERRY_ASSIGN_OR_RETURN(Communicator first, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *first));
  FERRY_ASSIGN_OR_RETURN(Communicator same, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(same == first, "a second request returns the same one"));
  same = nullptr;
  const uint32_t generation = first->generation();
  FERRY_RETURN_IF_ERROR(meet());

  // One releases it, then all: it is cached.
  if (node->node_id() == 0) first = nullptr;
  FERRY_RETURN_IF_ERROR(meet());
  FERRY_ASSIGN_OR_RETURN(Communicator again, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(again->generation() == generation, "it was kept by one"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *again));
  first = nullptr;
  again = nullptr;
  FERRY_RETURN_IF_ERROR(meet());
  FERRY_ASSIGN_OR_RETURN(again, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(again->generation() == generation, "it was kept by all"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *again));
  FERRY_RETURN_IF_ERROR(meet());

  // One ends it: it is over for all of them.
  if (node->node_id() == 0) again->Abort(absl::CancelledError("on purpose"));
  if (node->node_id() == 0) again = nullptr;
  FERRY_RETURN_IF_ERROR(meet());
  FERRY_ASSIGN_OR_RETURN(Communicator second, node->Communicator(gpus));
  uint32_t next = second->generation();
  FERRY_RETURN_IF_ERROR(Expect(next > generation, "the next generation"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *second));
  FERRY_RETURN_IF_ERROR(meet());
  // One releases it in the middle of its work, which no other rank joins: so it ends for all.
  if (node->node_id() == 0) {
    FERRY_RETURN_IF_ERROR(LeaveInTheMiddle(*node, std::exchange(second, nullptr)));
  }
  FERRY_RETURN_IF_ERROR(meet());
  Communicator left = std::exchange(second, nullptr);
  FERRY_ASSIGN_OR_RETURN(second, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(second->generation() > next, "the one after that"));
  next = second->generation();
  left = nullptr;
  // The previous one of the others ends now, and the communicator's key stays the same.
  again = nullptr;
  FERRY_RETURN_IF_ERROR(meet());
  FERRY_ASSIGN_OR_RETURN(Communicator third, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(third == second, "it has not been touched"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *third));
  second = nullptr;
  third = nullptr;
  FERRY_RETURN_IF_ERROR(meet());

  // With an id for every two ranks.
  CommunicatorOptions options;
  options.ranks_per_id = 2;
  std::vector<int> reversed(gpus.rbegin(), gpus.rend());
  FERRY_ASSIGN_OR_RETURN(Communicator scalable,
                         node->Communicator(reversed, std::nullopt, options));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *scalable));
  scalable = nullptr;
  FERRY_RETURN_IF_ERROR(meet());

  // For one rank: a third, for which the least recently used one is evicted, on all ranks.
  FERRY_ASSIGN_OR_RETURN(Communicator own,
                         node->Communicator({gpus[static_cast<size_t>(node->node_id())]}));
  FERRY_RETURN_IF_ERROR(Expect(own->size() == 1, "a rank by itself"));
  FERRY_ASSIGN_OR_RETURN(const float sum, Sum(*node, *own, 7));
  FERRY_RETURN_IF_ERROR(Expect(sum == 7, "the sum over one"));
  own = nullptr;
  FERRY_RETURN_IF_ERROR(meet());
  FERRY_ASSIGN_OR_RETURN(scalable, node->Communicator(reversed));
  FERRY_RETURN_IF_ERROR(Expect(scalable->generation() == 1, "the younger one has stayed"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *scalable));
  FERRY_ASSIGN_OR_RETURN(third, node->Communicator(gpus));
  FERRY_RETURN_IF_ERROR(Expect(third->generation() > next, "the older one has made room"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *third));
  FERRY_RETURN_IF_ERROR(meet());

  // Memory in use on one rank does not cause an eviction on another.
  if (node->node_id() != 0) scalable = nullptr;
  FERRY_RETURN_IF_ERROR(meet());
  if (node->node_id() != 0) {
    FERRY_ASSIGN_OR_RETURN(own, node->Communicator({gpus[static_cast<size_t>(node->node_id())]}));
    own = nullptr;
  }
  FERRY_RETURN_IF_ERROR(meet());
  FERRY_ASSIGN_OR_RETURN(scalable, node->Communicator(reversed));
  FERRY_RETURN_IF_ERROR(Expect(scalable->generation() == 1, "another rank has used it"));
  FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, *scalable));
  std::cout << "made and made again\n";
  return node->Shutdown();
}

// Each thread requests one of the overlapping communicators, in another order on every other node.
absl::Status Overlap() {
  NodeOptions options;
  options.kept_communicator_bytes = 0;
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(std::move(options)));
  const std::vector<int> gpus = node->topology().OneGpuOfEachNode();
  const int own = gpus[static_cast<size_t>(node->node_id())];
  std::vector<std::vector<int>> device_lists = {gpus, {gpus.rbegin(), gpus.rend()}};
  for (const int first : gpus) {
    for (const int second : gpus) {
      if (first != second && (first == own || second == own))
        device_lists.push_back({first, second});
    }
  }
  if (node->node_id() % 2 == 1) std::reverse(device_lists.begin(), device_lists.end());
  for (int round = 0; round < 3; ++round) {
    std::vector<absl::StatusOr<Communicator>> made(device_lists.size(),
                                                   absl::UnknownError("not asked"));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < device_lists.size(); ++i) {
      threads.emplace_back([&, i] { made[i] = node->Communicator(device_lists[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < device_lists.size(); ++i) {
      FERRY_RETURN_IF_ERROR(made[i].status());
      if (device_lists[i] == gpus) FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, **made[i]));
    }
    // The next ones are made again.
    for (const std::string end : {"used", "left"}) {
      FERRY_RETURN_IF_ERROR(node->agent().Barrier(absl::StrCat(end, round), kTimeout));
      made.clear();
    }
  }
  std::cout << "all made, in any order\n";
  return node->Shutdown();
}

// NCCL does not release memory that this keeps when it leaves.
absl::Status Leave() {
  NodeOptions options;
  options.transfer.transports.nccl.abort_timeout = absl::Milliseconds(300);
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(std::move(options)));
  FERRY_RETURN_IF_ERROR(node->Communicator(node->topology().OneGpuOfEachNode()).status());
  FERRY_RETURN_IF_ERROR(node->Shutdown());
  std::cout << "made and left\n" << std::flush;
  return absl::OkStatus();
}

// The last node is killed while the first one waits for it.
absl::Status Wait() {
  NodeOptions options;
  options.recoverable = true;
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(std::move(options)));
  FERRY_RETURN_IF_ERROR(node->agent().Barrier("about to", kTimeout));
  if (node->node_id() > 0) {
    absl::SleepFor(absl::Milliseconds(300));
    std::raise(SIGKILL);
  }
  const absl::Time start = SteadyClock().Now();
  const absl::Status told = node->Communicator(node->topology().OneGpuOfEachNode()).status();
  std::cout << told << "\n";
  FERRY_RETURN_IF_ERROR(Expect(absl::IsUnavailable(told), "it is told that a rank has died"));
  FERRY_RETURN_IF_ERROR(Expect(SteadyClock().Now() - start < kTimeout, "it is told soon"));
  return node->Leave();
}

// The last node dies and comes back, twice, and the first one stays.
absl::Status Live(const std::string& life) {
  NodeOptions options;
  options.recoverable = true;
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(std::move(options)));
  const std::vector<int> gpus = node->topology().OneGpuOfEachNode();
  std::vector<Communicator> former;
  for (const std::string each : {"1", "2", "3"}) {
    if (node->node_id() > 0 && each != life) continue;
    const absl::Time deadline = SteadyClock().Now() + kTimeout;
    absl::StatusOr<Communicator> all = absl::UnknownError("not asked for");
    while (true) {
      all = node->Communicator(gpus);
      // Until the end of the previous incarnation is known, its communicator exists.
      const bool is_new = all.ok() && (former.empty() || *all != former.back());
      if (is_new) break;
      if (SteadyClock().Now() >= deadline) {
        return all.ok() ? absl::DeadlineExceededError("the former life goes on") : all.status();
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, **all));
    NcclCommunicator* const kept = all->get();
    *all = nullptr;
    FERRY_ASSIGN_OR_RETURN(all, node->Communicator(gpus));
    FERRY_RETURN_IF_ERROR(Expect(all->get() == kept, "that of a later life is kept"));
    FERRY_RETURN_IF_ERROR(ExpectSumOverAll(*node, **all));
    former.push_back(*std::move(all));
    std::cout << "life " << each << "\n" << std::flush;
    if (node->node_id() > 0) absl::SleepFor(absl::Minutes(1));
  }
  former.clear();
  std::cout << "three lives\n";
  return node->Leave();
}

absl::Status RunAs(const std::string& what, const std::string& argument) {
  if (what == "overlap") return Overlap();
  if (what == "leave") return Leave();
  if (what == "wait") return Wait();
  if (what == "live") return Live(argument);
  return what.empty() ? Run() : absl::InvalidArgumentError(what);
}

}  // namespace
}  // namespace ferry

int main(int argc, char** argv) {
  const absl::Status status = ferry::RunAs(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
