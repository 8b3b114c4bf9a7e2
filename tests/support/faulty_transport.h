// SPDX-License-Identifier: Apache-2.0
// FaultyTransport: moves tensors within a process, at once, late, never or not, as a seed says.
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

// What becomes of an Offer or a Take, out of a thousand; the rest completes inside.
struct TransportFaults {
  int later = 0;
  // Not before its half is aborted.
  int never = 0;
  // RESOURCE_EXHAUSTED of an Offer; that or UNAVAILABLE of a Take.
  int fail = 0;
  // A bit of the tensor is another one on its way.
  int corrupt = 0;
  // ABORTED of a Take of copies, which then asks for the tensor once more.
  int again = 0;
};

// What all halves of a test have in common, and what it counts. A plain object: one thread.
struct FaultyTransportState {
  FaultyTransportState(uint64_t seed, TransportFaults faults) : random(seed), faults(faults) {}

  // Completes one of those that are late. False: none is.
  bool Step();
  bool Chance(int out_of_thousand);

  std::mt19937_64 random;
  TransportFaults faults;
  std::vector<std::function<void()>> late;
  // Tensors that senders keep, by what their transfer descriptors say.
  std::map<uint64_t, Tensor> lent;
  // Those of which there is a view.
  std::map<uint64_t, int> viewed;
  uint64_t last_ticket = 0;
  // So many questions of the cost from now on are answered with a refusal.
  int refused_costs = 0;
  // Halves that were made, and those of them that have been aborted.
  int halves = 0;
  int aborted_halves = 0;
  // Transfer descriptors whose lease ended while there was a view, though nobody had gone.
  int early_releases = 0;
  int corrupted = 0;
  int failed = 0;
  int asked_again = 0;
};

// With views like shm's if `makes_views`, else with copies like tcp's. For all sizes the cheapest.
std::unique_ptr<Transport> MakeFaultyTransport(std::shared_ptr<FaultyTransportState> state,
                                               std::string name, bool makes_views);

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_FAULTY_TRANSPORT_H_
