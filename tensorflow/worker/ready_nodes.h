// SPDX-License-Identifier: Apache-2.0
// ReadyNodes: the ready nodes of a run that one thread works on.
#ifndef FERRY_TENSORFLOW_WORKER_READY_NODES_H_
#define FERRY_TENSORFLOW_WORKER_READY_NODES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferry::worker {

// Not thread-safe.
class ReadyNodes final {
 public:
  ReadyNodes(int64_t now_ns, bool is_guest)
      : begin_ns(now_ns), now_ns(now_ns), is_guest(is_guest) {}

  // Communication nodes go first, because other nodes and processes wait for them.
  void Add(int index, bool is_transfer) {
    (is_transfer ? transfers_ : compute_).nodes.push_back(index);
  }
  size_t size() const { return transfers_.size() + compute_.size(); }
  int front() const { return transfers_.size() > 0 ? transfers_.front() : compute_.front(); }
  void Pop() { (transfers_.size() > 0 ? transfers_ : compute_).Pop(); }

  std::vector<int> TakeAll() {
    std::vector<int> all = transfers_.Take(0);
    const std::vector<int> rest = compute_.Take(0);
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  // Takes all compute nodes except the first `kept`.
  std::vector<int> TakeCompute(size_t kept) { return compute_.Take(kept); }

  // When work was last handed over (or begun), and the last clock reading.
  int64_t begin_ns;
  int64_t now_ns;
  // True on a thread that does not belong to the executor.
  const bool is_guest;

 private:
  struct Queue {
    std::vector<int> nodes;
    size_t head = 0;

    size_t size() const { return nodes.size() - head; }
    int front() const { return nodes[head]; }
    void Pop() {
      if (++head < nodes.size()) return;
      nodes.clear();
      head = 0;
    }
    std::vector<int> Take(size_t kept) {
      const auto from = nodes.begin() + static_cast<std::ptrdiff_t>(head + kept);
      std::vector<int> taken(from, nodes.end());
      nodes.erase(from, nodes.end());
      return taken;
    }
  };

  Queue transfers_;
  Queue compute_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_READY_NODES_H_
