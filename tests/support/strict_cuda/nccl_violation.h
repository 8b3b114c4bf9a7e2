// SPDX-License-Identifier: Apache-2.0
// Two processes of the fake driver, of which the first violates a rule of NCCL and must be caught.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_VIOLATION_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_VIOLATION_H_

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "tests/support/strict_cuda/nccl_pair.h"

namespace strict_cuda {

class NcclViolationTest : public FakeDriverTest {
 protected:
  using Rank = std::function<void(PairRank& rank)>;
  using RankOfTwo = std::function<void(PairRank& a, PairRank& b)>;

  NcclViolationTest() { setenv("STRICT_CUDA_DEADLOCK_MS", "300", 1); }

  // Returns when the other process has ended.
  static void AwaitEnd(const Wire& wire) {
    char byte = 0;
    if (read(wire.fd(), &byte, 1) != 0) std::_Exit(1);
  }

  // Two warmed up ranks in a process each. The violation is caught in the first; the second may
  // hang, be caught as well, or end.
  void ExpectCaught(const std::string& rule, const Rank& first, const Rank& second = Nothing) {
    const auto outcomes = RunPair(
        [&](const Wire& wire) {
          UseDevice(0);
          PairRank rank(0, MintFor(wire));
          Meet(wire);
          first(rank);
        },
        [&](const Wire& wire) {
          UseDevice(1);
          PairRank rank(1, wire.Get<ncclUniqueId>());
          Meet(wire);
          second(rank);
          AwaitEnd(wire);
        });
    ExpectViolation(outcomes[0], rule);
  }

  void ExpectCaughtAlone(const std::string& rule, const std::function<void()>& body) {
    ExpectViolation(RunAlone(body), rule);
  }

  // The same two ranks of two communicators. Returns how the processes have ended.
  auto RunTwoCommunicators(const RankOfTwo& first, const RankOfTwo& second) {
    return RunPair(
        [&](const Wire& wire) {
          UseDevice(0);
          PairRank a(0, MintFor(wire));
          PairRank b(0, MintFor(wire));
          Meet(wire);
          first(a, b);
        },
        [&](const Wire& wire) {
          UseDevice(1);
          PairRank a(1, wire.Get<ncclUniqueId>());
          PairRank b(1, wire.Get<ncclUniqueId>());
          Meet(wire);
          second(a, b);
          AwaitEnd(wire);
        });
  }

 private:
  static void Nothing(PairRank&) {}
};

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_VIOLATION_H_
