// SPDX-License-Identifier: Apache-2.0
// RunNodes: one or two nodes of a job, each in a process of its own, that do a piece of a part.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_NODES_H_
#define FERRY_BENCHMARKS_GPU_CHECK_NODES_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "benchmarks/gpu/check_gpu.h"
#include "benchmarks/gpu/check_part.h"
#include "node/node.h"

namespace ferry::check {

// A page that both nodes have.
struct SharedPage {
  std::atomic<uint32_t> arrived{0};
  std::atomic<uint32_t> passed{0};
  // The number of the barrier after which there is no time; 0: not announced.
  std::atomic<uint32_t> last_meeting{0};
  alignas(64) std::atomic<uint64_t> word[2];
};

// One of them, in its process. Not thread-safe.
class CheckNode final {
 public:
  CheckNode(PartContext& context, std::unique_ptr<Node> node, int count, SharedPage* page, int wire)
      : context_(context), node_(std::move(node)), count_(count), page_(page), wire_(wire) {}

  Node& node() { return *node_; }
  int id() const { return node_->node_id(); }
  Reporter& report() { return context_.report; }
  const Options& options() const { return context_.options; }
  const Machine& machine() const { return context_.machine; }

  // Opened at the first request.
  absl::StatusOr<CheckGpu*> gpu(int ordinal = 0);

  // A tensor in a GPU's memory, filled with the pattern of `seed`; complete when this returns.
  absl::StatusOr<Tensor> Pattern(size_t bytes, uint64_t seed, int ordinal = 0);
  absl::StatusOr<Tensor> Empty(size_t bytes, int ordinal = 0);
  // Waits for the event of `tensor`, and counts bytes that differ from the pattern of `seed`; in a
  // GPU's memory or the host's.
  absl::StatusOr<uint64_t> CountWrong(const Tensor& tensor, uint64_t seed);
  // OK if nothing is; else INTERNAL with how many bytes are.
  absl::Status Verify(const Tensor& tensor, size_t bytes, uint64_t seed);

  // From node 0 to node 1 or back.
  absl::StatusOr<RendezvousKey> Key(absl::string_view name, int from, absl::string_view from_device,
                                    absl::string_view to_device);

  // A barrier of both nodes: it spins, so that both leave at the same moment.
  //   Errors: DEADLINE_EXCEEDED the other one does not arrive.
  absl::Status Meet();
  // The same; false, on both: the part's time is up, and the current measurement ends with this.
  absl::StatusOr<bool> MeetInTime();
  // Reports it, with a note if it has fewer than `rounds`.
  //   Errors: DATA_LOSS nothing was measured, and some bytes were wrong.
  absl::Status Tell(const Figure& figure, int rounds);
  // Words exchanged between the two, next to the measured transfers.
  absl::Status Say(absl::string_view text);
  absl::StatusOr<std::string> Hear(absl::Duration timeout = absl::Seconds(20));
  SharedPage& page() { return *page_; }

  // The node and all that it has go, together with the other one's.
  absl::Status Leave();
  // Returns whether the time left to the part suffices for the next, longer measurement of a
  // series, judged by the last one. Both nodes call it before each. If not, notes that `what` was
  // skipped.
  absl::StatusOr<bool> HasTimeFor(absl::string_view what);
  // kTimeout, or less towards the end of the part's time, so that an error is still reported.
  absl::Duration Timeout() const;
  // By now, at the latest, everything must have ended.
  absl::Time deadline() const { return context_.deadline; }

 private:
  PartContext& context_;
  std::unique_ptr<Node> node_;
  const int count_;
  SharedPage* const page_;
  const int wire_;
  std::map<int, std::unique_ptr<CheckGpu>> gpus_;
  uint32_t meetings_ = 0;
  // The time of the last call of HasTimeFor.
  absl::Time last_measured_ = absl::InfiniteFuture();
};

using NodeBody = std::function<absl::Status(CheckNode&)>;

struct NodesOptions {
  // For messages: "ipc, staged".
  std::string name;
  TransferEngineOptions transfer;
  // Memory of each node's process, in addition to this one's.
  std::vector<std::map<std::string, std::string>> environments;
  // It ends by SIGKILL, and that is right.
  int dying_node = -1;
  // Why a node that does not end in time has not failed; empty: it has.
  std::string excuse;
};

// Node i of the job runs bodies[i], each in a process of its own; the coordinator is in node 0's.
// An error of a body becomes a failed check "NAME: node I". Waits until all have ended, and kills
// them when the part's time is nearly over.
//   Errors: only of this process itself; false: some body has failed.
// REQUIRES: this process has not used CUDA, and has one thread.
absl::StatusOr<bool> RunNodes(PartContext& context, const NodesOptions& options,
                              const std::vector<NodeBody>& bodies);

// Options of a transfer engine whose tensors between GPUs use this path only, with arenas as large
// as this machine's GPUs allow.
TransferEngineOptions TransferOptionsFor(const Machine& machine, const std::string& require = "");
// The limit of bytes in flight between two nodes: either holds them twice, and the previous ones.
size_t MostBytesInFlight(const Machine& machine);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_NODES_H_
