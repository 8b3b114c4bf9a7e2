// SPDX-License-Identifier: Apache-2.0
// Converts the status of the job to messages of ferry.v1.Control.
#ifndef FERRY_COORD_SERVER_CONTROL_STATUS_H_
#define FERRY_COORD_SERVER_CONTROL_STATUS_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

#include "coord/core/coordinator.h"
#include "coord/core/types.h"
#include "coord/elastic/elastic_rendezvous.h"
#include "coord/lighthouse/lighthouse.h"
#include "coord/server/tcp_store_server.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Sets `status` to the data of `ferry status`. With the executor's lock held, as FillTaskInfo.
void FillJobStatus(const Coordinator& coordinator, int64_t dropped_waits, absl::Time now,
                   v1::JobStatus& status);
void FillTaskInfo(const Coordinator& coordinator, const TaskInfo& info, v1::TaskInfo& out);
// Adds the rendezvous of PyTorch's nodes. Needs no lock.
void FillElasticRuns(const std::vector<ElasticRunReport>& runs, v1::JobStatus& status);
// Adds the PyTorch stores. Needs no lock.
void FillStoreScopes(const std::vector<TcpStoreScopeReport>& scopes, const TcpStoreMemory& memory,
                     absl::Time now, v1::JobStatus& status);
// Adds torchft's lighthouse, unless no client has ever called it. Needs no lock.
void FillLighthouse(const LighthouseReport& report, v1::JobStatus& status);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_STATUS_H_
