// SPDX-License-Identifier: Apache-2.0
// Shared by the clients of stores: operations by one client and by 64 of them, N ranks at a
// barrier, and their checks.
#ifndef FERRY_BENCHMARKS_PEERS_STORES_H_
#define FERRY_BENCHMARKS_PEERS_STORES_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "pair.h"

namespace peers {

inline std::string KeyOf(size_t index) { return "peers/key" + std::to_string(index); }

// 8 bytes that are unique to this round and key.
inline std::string ValueOf(uint64_t turn, size_t index) {
  const uint64_t word = Word(0, turn, index, 0);
  return std::string(reinterpret_cast<const char*>(&word), sizeof word);
}

// Threads that are released together.
class Start final {
 public:
  explicit Start(size_t count) : count_(count) {}
  void Arrive() {
    std::unique_lock<std::mutex> lock(mu_);
    ++arrived_;
    all_.notify_all();
    all_.wait(lock, [this] { return is_open_; });
  }
  // Waits until all have arrived; returns when they are released.
  double Open() {
    std::unique_lock<std::mutex> lock(mu_);
    all_.wait(lock, [this] { return arrived_ == count_; });
    is_open_ = true;
    all_.notify_all();
    return Now();
  }

 private:
  std::mutex mu_;
  std::condition_variable all_;
  const size_t count_;
  size_t arrived_ = 0;
  bool is_open_ = false;
};

// `call(client, index)` of `operations` indices, each by one of `clients` threads; p50 of them and
// operations per second.
struct Load {
  double p50 = 0;
  double per_s = 0;
};

inline Load RunLoad(size_t clients, size_t operations,
                    const std::function<void(size_t, size_t)>& call) {
  Start start(clients);
  std::vector<std::vector<double>> times(clients);
  std::vector<double> ends(clients);
  std::vector<std::thread> threads;
  for (size_t client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      start.Arrive();
      for (size_t i = client; i < operations; i += clients) {
        const double began = Now();
        call(client, i);
        times[client].push_back(Now() - began);
      }
      ends[client] = Now();
    });
  }
  const double began = start.Open();
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& each : times) all.insert(all.end(), each.begin(), each.end());
  return {Median(all),
          static_cast<double>(operations) / (*std::max_element(ends.begin(), ends.end()) - began)};
}

// `call(rank)` on a thread for each of `count` ranks, released together; until the last has
// finished.
inline double RunRanks(size_t count, const std::function<void(size_t)>& call) {
  Start start(count);
  std::vector<double> ends(count);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      start.Arrive();
      call(rank);
      ends[rank] = Now();
    });
  }
  const double began = start.Open();
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(ends.begin(), ends.end()) - began;
}

}  // namespace peers

#endif  // FERRY_BENCHMARKS_PEERS_STORES_H_
