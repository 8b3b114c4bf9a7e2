// SPDX-License-Identifier: Apache-2.0
// A simulated job: agents that misbehave in many ways at once, against the pure coordinator.
#ifndef FERRY_TESTS_COORD_SIMULATION_H_
#define FERRY_TESTS_COORD_SIMULATION_H_

#include <cstdint>
#include <string>

namespace ferry::coord {

struct SimulationReport {
  // The first failure with the last events before it; empty if there is none.
  std::string violation;
  int64_t events = 0;
  int64_t calls = 0;
  // How often things happened, so that a test can check that the schedule is varied.
  int64_t barriers_passed = 0;
  int64_t jobs = 0;
  int64_t deaths = 0;
};

// Runs `events` random events that follow from `seed` alone, and stops at the first violation.
SimulationReport RunSimulation(uint64_t seed, int64_t events);

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_SIMULATION_H_
