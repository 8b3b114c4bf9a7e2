// SPDX-License-Identifier: Apache-2.0
// Checks of what connects this machine to the others of a job.
#ifndef FERRY_DOCTOR_NETWORK_CHECKS_H_
#define FERRY_DOCTOR_NETWORK_CHECKS_H_

#include <vector>

#include "doctor/finding.h"
#include "doctor/host_reader.h"

namespace ferry::doctor {

// The families of internet addresses that the kernel has, and how they are set up.
Finding CheckFamilies(const HostReader& host);
// The addresses that Ferry's nodes publish to each other, in their order.
Finding CheckAddresses(const HostReader& host);
// The interfaces that NCCL takes, the first one first.
Finding CheckInterfaces(const HostReader& host);
// RDMA devices, whether their links are up, and whether this process may use them.
Finding CheckRdma(const HostReader& host);

std::vector<Finding> CheckNetwork(const HostReader& host);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_NETWORK_CHECKS_H_
