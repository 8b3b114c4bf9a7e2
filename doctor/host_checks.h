// SPDX-License-Identifier: Apache-2.0
// Checks of the machine apart from its GPUs and its network: what a job of many processes needs.
#ifndef FERRY_DOCTOR_HOST_CHECKS_H_
#define FERRY_DOCTOR_HOST_CHECKS_H_

#include <vector>

#include "doctor/finding.h"
#include "doctor/host_reader.h"

namespace ferry::doctor {

// The kernel's release, and the container that this runs in, if it does.
Finding CheckKernel(const HostReader& host);
// By its boot id processes know that they are on one machine.
Finding CheckBootId(const HostReader& host);
// Whether processes of other containers are in the same one: CUDA's older handles need that.
Finding CheckPidNamespace(const HostReader& host);
// Cores that this process may use, and the share of them that its container gives.
Finding CheckCores(const HostReader& host);
// The part of the machine's memory that the control groups and the process's own limits allow.
Finding CheckMemory(const HostReader& host);
// How many processes and threads there may be.
Finding CheckThreads(const HostReader& host);
// The memory that Ferry's processes hand each other tensors in, and its pages.
Finding CheckHostArena(const HostReader& host);
// What NCCL and PyTorch's loaders share memory through.
Finding CheckDevShm(const HostReader& host);
// What RDMA devices may pin.
Finding CheckMemlock(const HostReader& host);
Finding CheckOpenFiles(const HostReader& host);

// All of them, in this order.
std::vector<Finding> CheckHost(const HostReader& host);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_HOST_CHECKS_H_
