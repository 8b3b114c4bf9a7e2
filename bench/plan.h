// SPDX-License-Identifier: Apache-2.0
// What a ferry bench that moves tensors measures; the same text for all its processes.
#ifndef FERRY_BENCH_PLAN_H_
#define FERRY_BENCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry::cli {

// Whether the receiver takes the tensor as it comes, which within a host is a view of the sender's
// memory, and then also reads every byte of it, or takes it into a buffer that it has.
enum class BenchMode { kHandoff, kRead, kInto };

// More of them on their way at a time than this are no matter of latency, but of memory.
inline constexpr size_t kMostBenchBytesAtOnce = size_t{1} << 30;

inline constexpr char kHostDevice[] = "host:0";

// Of each process, where it sends from and receives into, "host:0" or "gpu:1"; where there are more
// processes than devices, they take turns.
using BenchDevices = std::vector<std::string>;

struct BenchPlan {
  // The subcommand.
  std::string pattern = "sendrecv";
  std::vector<size_t> sizes;
  std::vector<BenchMode> modes;
  // Of each size; 0: as many as take about as long as the others.
  int iterations = 0;
  // So many at most, unless that says otherwise.
  int most_iterations = 2000;
  // Sent before anybody answers, in rows of their own; 1: none.
  int inflight = 1;
  // Of "keyed": keys of a round, and threads on either side.
  int keys = 1;
  int threads = 1;
  BenchDevices devices = {kHostDevice};
  // Of the elements, whose bytes are the pattern's all the same: the name of a DataType.
  std::string dtype = "uint8";
  size_t element_bytes = 1;
  bool is_polling = false;
  // Who waits does not look for more before it sleeps.
  bool is_sleeping = false;
  bool has_tcp_floor = false;
  // Connections of the floor, as many as the transport has.
  int tcp_streams = 2;
  // Of pages that all processes map, see BenchPages.
  std::string floor_file;

  int IterationsOf(size_t bytes) const;
  // How many rounds of `at_a_time` tensors that are.
  int RoundsOf(size_t bytes, int at_a_time) const;
  // How many at a time: 1, and `inflight` where that fits.
  std::vector<int> DepthsOf(size_t bytes) const;
  const std::string& DeviceOf(int rank) const {
    return devices[static_cast<size_t>(rank) % devices.size()];
  }
  bool uses_gpus() const;
  // Whether there are floors that are measured behind a size's cases: those of NCCL need what these
  // have made. Of two processes, each of which sends and receives.
  bool has_later_floors() const;
  int WarmUpsOf(size_t bytes) const { return bytes > (size_t{64} << 20) ? 1 : 10; }
};

const char* BenchModeName(BenchMode mode);
std::string EncodeBenchPlan(const BenchPlan& plan);
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<BenchPlan> DecodeBenchPlan(absl::string_view text);

// "8:1G:x8" is 8, 64, ... up to 1 GiB; "8,4K,1M" is those. K, M and G are powers of 1024.
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<std::vector<size_t>> ParseSizesFlag(absl::string_view text);

// As ParseSizesFlag, of --nodes: how many nodes take part, from 2 on.
absl::StatusOr<std::vector<int>> ParseNodesFlag(absl::string_view text);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PLAN_H_
