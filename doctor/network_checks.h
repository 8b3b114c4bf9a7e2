// SPDX-License-Identifier: Apache-2.0
// Checks of this machine's network.
#ifndef FERRY_DOCTOR_NETWORK_CHECKS_H_
#define FERRY_DOCTOR_NETWORK_CHECKS_H_

#include <vector>

#include "doctor/finding.h"
#include "doctor/host_reader.h"

namespace ferry::doctor {

// The IP address families that the kernel supports, and their configuration.
Finding CheckFamilies(const HostReader& host);
// The addresses that Ferry's nodes publish to each other, in order.
Finding CheckAddresses(const HostReader& host);
// The interfaces that NCCL selects, in order.
Finding CheckInterfaces(const HostReader& host);
// RDMA devices, whether their links are up, and whether this process may use them.
Finding CheckRdma(const HostReader& host);

std::vector<Finding> CheckNetwork(const HostReader& host);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_NETWORK_CHECKS_H_
