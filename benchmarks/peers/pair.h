// SPDX-License-Identifier: Apache-2.0
// Shared by the programs of scripts/bench-peers: patterns, times, and the line of JSON that each
// prints. They are built next to Ferry, not with it, and use none of its code: C++17 and the
// standard library.
#ifndef FERRY_BENCHMARKS_PEERS_PAIR_H_
#define FERRY_BENCHMARKS_PEERS_PAIR_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace peers {

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] inline void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}

// No word is in a tensor twice, nor in that of another side, round or slot in flight.
inline uint64_t Word(uint64_t side, uint64_t round, uint64_t index, uint64_t i) {
  const uint64_t seed = (side + 1) * 0xD6E8FEB86659FD93ull ^ (round + 1) * 0xA0761D6478BD642Full ^
                        (index + 1) * 0xE7037ED1A0B428DBull;
  return seed + i * 0x9E3779B97F4A7C15ull;
}

inline void Fill(std::vector<char>& bytes, uint64_t side, uint64_t round, uint64_t index = 0) {
  for (size_t i = 0; i * 8 < bytes.size(); ++i) {
    const uint64_t word = Word(side, round, index, i);
    std::memcpy(&bytes[i * 8], &word, std::min<size_t>(8, bytes.size() - i * 8));
  }
}

inline uint64_t WrongBytes(const std::vector<char>& bytes, uint64_t side, uint64_t round,
                           uint64_t index = 0) {
  uint64_t wrong = 0;
  for (size_t i = 0; i * 8 < bytes.size(); ++i) {
    const uint64_t word = Word(side, round, index, i);
    const size_t count = std::min<size_t>(8, bytes.size() - i * 8);
    if (std::memcmp(&bytes[i * 8], &word, count) != 0) wrong += count;
  }
  return wrong;
}

inline double Median(std::vector<double> values) {
  if (values.empty()) Fail("nothing was measured");
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The last line of a program's output; scripts/bench-peers reads it.
inline void Print(const std::string& name, double value, size_t samples, uint64_t wrong_bytes) {
  std::printf("{\"name\": \"%s\", \"value\": %.9g, \"samples\": %zu, \"wrong_bytes\": %llu}\n",
              name.c_str(), value, samples, static_cast<unsigned long long>(wrong_bytes));
  std::fflush(stdout);
}

// The timed exchange of a pair: `window` tensors of `bytes` there, and back either one of them (1)
// or an answer of 8 B.
struct Plan {
  bool is_pingpong = true;
  size_t bytes = 8;
  size_t rounds = 1;
  size_t window = 1;

  // Rounds that are not counted.
  size_t warmups() const {
    return bytes > (size_t{64} << 20) ? 1 : bytes > (size_t{1} << 20) ? 3 : 10;
  }
  size_t answer_bytes() const { return is_pingpong ? bytes : 8; }
  // From a round's time: one direction of one tensor.
  double share() const { return 1.0 / (is_pingpong ? 2.0 : static_cast<double>(window)); }
};

// pingpong BYTES ROUNDS | stream BYTES ROUNDS WINDOW
inline Plan PlanOf(int count, char** words) {
  Plan plan;
  if (count < 3) Fail("pingpong BYTES ROUNDS | stream BYTES ROUNDS WINDOW");
  plan.is_pingpong = std::strcmp(words[0], "pingpong") == 0;
  plan.bytes = std::strtoull(words[1], nullptr, 10);
  plan.rounds = std::strtoull(words[2], nullptr, 10);
  plan.window = plan.is_pingpong || count < 4 ? 1 : std::strtoull(words[3], nullptr, 10);
  if (plan.bytes == 0 || plan.rounds == 0 || plan.window == 0) Fail("sizes and counts: from 1");
  return plan;
}

}  // namespace peers

#endif  // FERRY_BENCHMARKS_PEERS_PAIR_H_
