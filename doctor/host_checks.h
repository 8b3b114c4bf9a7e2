// SPDX-License-Identifier: Apache-2.0
// Checks of the machine apart from its GPUs and its network: the needs of a multi-process job.
#ifndef FERRY_DOCTOR_HOST_CHECKS_H_
#define FERRY_DOCTOR_HOST_CHECKS_H_

#include <vector>

#include "doctor/finding.h"
#include "doctor/host_reader.h"

namespace ferry::doctor {

// The kernel's release, and the container that this runs in, if any.
Finding CheckKernel(const HostReader& host);
// The boot id, by which processes detect that they are on the same machine.
Finding CheckBootId(const HostReader& host);
// Whether processes of other containers share the pid namespace: CUDA's legacy IPC handles need it.
Finding CheckPidNamespace(const HostReader& host);
// Cores that this process may use, and the CPU quota of its container.
Finding CheckCores(const HostReader& host);
// The part of the machine's memory that the cgroups and the process's own limits allow.
Finding CheckMemory(const HostReader& host);
// The maximum number of processes and threads.
Finding CheckThreads(const HostReader& host);
// The shared memory in which Ferry's processes exchange tensors, and its pages.
Finding CheckHostArena(const HostReader& host);
// /dev/shm, through which NCCL and PyTorch's data loaders share memory.
Finding CheckDevShm(const HostReader& host);
// The memory that may be pinned for RDMA devices.
Finding CheckMemlock(const HostReader& host);
Finding CheckOpenFiles(const HostReader& host);

// Runs all of them, in this order.
std::vector<Finding> CheckHost(const HostReader& host);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_HOST_CHECKS_H_
