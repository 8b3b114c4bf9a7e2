// SPDX-License-Identifier: Apache-2.0
// A coordinator without its headers, whose classes have the names of public ones.
#ifndef FERRY_TESTS_API_COORDINATOR_SERVER_H_
#define FERRY_TESTS_API_COORDINATOR_SERVER_H_

#include <memory>
#include <string>

// Listens on the loopback until the pointer is released; null if it cannot. Collective shutdowns
// wait for all nodes.
std::shared_ptr<void> StartCoordinator(int num_nodes, std::string& address);

#endif  // FERRY_TESTS_API_COORDINATOR_SERVER_H_
