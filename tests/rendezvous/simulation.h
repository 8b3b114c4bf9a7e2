// SPDX-License-Identifier: Apache-2.0
// Simulated steps: all faults at once, against a table and against workers that exchange tensors.
#ifndef FERRY_TESTS_RENDEZVOUS_SIMULATION_H_
#define FERRY_TESTS_RENDEZVOUS_SIMULATION_H_

#include <cstdint>
#include <string>

namespace ferry::simulation {

struct Report {
  // The first failure with the last events before it; empty if there is none.
  std::string violation;
  int64_t events = 0;
  // How often things happened, so that a test can check that the schedule is varied.
  int64_t receives = 0;
  int64_t values = 0;
  int64_t errors = 0;
  int64_t refusals = 0;
  int64_t fetches = 0;
  int64_t deaths = 0;
  // Workers with control channels: values that were sent before they were requested, and others;
  // requests that a PULL has caused, STEP_REFUSED, control channels that have ended, steps that
  // were flushed, and how often nothing was under way.
  int64_t pushed = 0;
  int64_t pulled = 0;
  int64_t converted = 0;
  int64_t refused_steps = 0;
  int64_t breaks = 0;
  int64_t flushes = 0;
  int64_t quiet = 0;
};

// Run `events` random events that follow from `seed` alone, and stop at the first violation.
// One LocalRendezvous, by exact prediction.
Report RunTable(uint64_t seed, int64_t events);
// Several RendezvousManagers, whose fetches go through a network that delays, reorders and loses.
Report RunWorkers(uint64_t seed, int64_t events);
// Several RendezvousManagers with control channels between them, which keep the order, are slow,
// break and are opened again; small values are sent before they are requested.
Report RunEagerWorkers(uint64_t seed, int64_t events);

}  // namespace ferry::simulation

#endif  // FERRY_TESTS_RENDEZVOUS_SIMULATION_H_
