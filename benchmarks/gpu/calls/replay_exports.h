// SPDX-License-Identifier: Apache-2.0
// ReplayExports: which handle or descriptor of the replay a recorded one is, in all its processes.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_REPLAY_EXPORTS_H_
#define FERRY_BENCHMARKS_GPU_CALLS_REPLAY_EXPORTS_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/gpu/calls/call_record.h"
#include "benchmarks/gpu/calls/live_call.h"

namespace ferry::calls {

// Not thread-safe. Closes its descriptors at the end.
class ReplayExports final {
 public:
  ReplayExports() = default;
  ~ReplayExports();
  ReplayExports(const ReplayExports&) = delete;
  ReplayExports& operator=(const ReplayExports&) = delete;

  // `process` has performed `call`, which gave `live`. Takes the descriptor.
  void Add(size_t process, const RecordedCall& call, const Foreign& live);

  // Returns what `call` opens in `process`; empty if it opens nothing, or what no one has exported.
  // A handle is known by its bytes, a descriptor by its number in the same process and by its file
  // in others; where several have one file, they are taken in the order of their exports.
  std::optional<Foreign> Find(size_t process, const RecordedCall& call);

 private:
  struct Descriptor {
    size_t process;
    bool is_pool;
    int64_t number;
    std::string file;
    int live;
    std::set<size_t> importers;
  };

  std::optional<Foreign> FindDescriptor(size_t process, bool is_pool, const Value& value);

  std::map<std::string, std::string> handles_;
  std::vector<Descriptor> descriptors_;
};

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_REPLAY_EXPORTS_H_
