// SPDX-License-Identifier: Apache-2.0
// FaultyTransport: moves tensors within a process, at once, late, never or with an error, by a
// seed.
#ifndef FERRY_TESTS_SUPPORT_FAULTY_TRANSPORT_H_
#define FERRY_TESTS_SUPPORT_FAULTY_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace ferry {

// Faults per thousand calls of Expose or Fetch; the rest complete inside the call.
struct TransportFaults {
  int later = 0;
  // Not before its half is aborted.
  int never = 0;
  // RESOURCE_EXHAUSTED of an Expose; that or UNAVAILABLE of a Fetch.
  int fail = 0;
  // A bit of the tensor is changed in transit.
  int corrupt = 0;
  // Fetch of a copy fails with ABORTED, which then requests the tensor once more.
  int again = 0;
};

// State that all endpoints of a test share, and counters. Not thread-safe.
struct FaultyTransportState {
  FaultyTransportState(uint64_t seed, TransportFaults faults) : random(seed), faults(faults) {}

  // Completes one of those that are late. Returns false if there is none.
  bool Step();
  bool Chance(int out_of_thousand);

  std::mt19937_64 random;
  TransportFaults faults;
  std::vector<std::function<void()>> late;
  // Tensors that senders keep, by the ids in their transfer descriptors.
  std::map<uint64_t, Tensor> lent;
  // Tensors that have a view.
  std::map<uint64_t, int> viewed;
  uint64_t last_descriptor = 0;
  // That many queries of the cost from now on are refused.
  int refused_costs = 0;
  // Called once, by the next query of the cost; may be null.
  std::function<void()> on_cost;
  // Endpoints that were made, and how many of them have been aborted.
  int halves = 0;
  int aborted_halves = 0;
  // Transfer descriptors whose lease ended while there was a view, though neither side had ended.
  int early_releases = 0;
  int corrupted = 0;
  int failed = 0;
  int asked_again = 0;
};

// `name`: a literal. With views like shm's if `makes_views`, else with copies like tcp's. For all
// sizes the cheapest.
std::unique_ptr<Transport> MakeFaultyTransport(std::shared_ptr<FaultyTransportState> state,
                                               absl::string_view name, bool makes_views);

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_FAULTY_TRANSPORT_H_
