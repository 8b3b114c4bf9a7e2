// SPDX-License-Identifier: Apache-2.0
// BenchPlan: what a ferry bench that moves tensors measures; identical for all its processes.
#ifndef FERRY_BENCH_PLAN_H_
#define FERRY_BENCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry::cli {

// How the receiver takes a tensor: as delivered (on one host a view of the sender's memory), the
// same and then reading every byte, or copied into its own buffer.
enum class BenchMode { kHandoff, kRead, kInto };

// Limit on the bytes in flight: beyond it, memory rather than latency is measured.
inline constexpr size_t kMostBenchBytesAtOnce = size_t{1} << 30;

inline constexpr char kHostDevice[] = "host:0";

// Per process, the device it sends from and receives into, "host:0" or "gpu:1"; repeated if there
// are more processes than devices.
using BenchDevices = std::vector<std::string>;

struct BenchPlan {
  // The subcommand.
  std::string pattern = "sendrecv";
  std::vector<size_t> sizes;
  std::vector<BenchMode> modes;
  // Per size; 0: chosen so that all sizes take about as long.
  int iterations = 0;
  // Upper limit unless `iterations` is set.
  int most_iterations = 2000;
  // Tensors sent before a response, in rows of their own; 1: none.
  int inflight = 1;
  // For "keyed": keys per round, and threads per side. For "sendrecv": names that its tensors use
  // in turns.
  int keys = 1;
  int threads = 1;
  // For "keyed" and "steps": tensors in a call of SendMany and of RecvMany, in rows of their own;
  // 1: none.
  int batch = 1;
  // For "sendrecv": a receive is posted when its tensor has been sent.
  bool is_unexpected = false;
  BenchDevices devices = {kHostDevice};
  // Name of the elements' DataType; their bytes are the pattern in any case.
  std::string dtype = "uint8";
  size_t element_bytes = 1;
  bool is_polling = false;
  // Waiting threads sleep at once, without spinning.
  bool is_sleeping = false;
  bool has_tcp_floor = false;
  // Connections of the TCP baseline, as many as the transport has.
  int tcp_streams = 2;
  // Path of pages that all processes map, see BenchPages.
  std::string floor_file;

  int IterationsOf(size_t bytes) const;
  // Returns the number of rounds of `at_a_time` tensors.
  int RoundsOf(size_t bytes, int at_a_time) const;
  // Returns the numbers in flight to measure: 1, and `inflight` if that fits.
  std::vector<int> DepthsOf(size_t bytes) const;
  // Returns the sizes of batches to measure with as many tensors in flight: 1, and `batch` or as
  // many as a thread has.
  std::vector<int> BatchesOf(int depth) const;
  const std::string& DeviceOf(int rank) const {
    return devices[static_cast<size_t>(rank) % devices.size()];
  }
  bool uses_gpus() const;
  // True if there are baselines to measure after a size's cases, because NCCL's need the cases'
  // communicator. Only for two processes that both send and receive.
  bool has_later_floors() const;
  int WarmUpsOf(size_t bytes) const { return bytes > (size_t{64} << 20) ? 1 : 10; }
};

const char* BenchModeName(BenchMode mode);
std::string EncodeBenchPlan(const BenchPlan& plan);
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<BenchPlan> DecodeBenchPlan(absl::string_view text);

// Parses "8:1G:x8" as 8, 64, ... up to 1 GiB, and "8,4K,1M" as a list. K, M and G are powers of
// 1024.
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<std::vector<size_t>> ParseSizesFlag(absl::string_view text);

// Like ParseSizesFlag, for --nodes: numbers of nodes, at least 2.
absl::StatusOr<std::vector<int>> ParseNodesFlag(absl::string_view text);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PLAN_H_
