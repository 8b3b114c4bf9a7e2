// SPDX-License-Identifier: Apache-2.0
// Converts the status message to a JobStatus.
#ifndef FERRY_COORD_CLIENT_AGENT_STATUS_H_
#define FERRY_COORD_CLIENT_AGENT_STATUS_H_

#include "coord/core/job_status.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

JobStatus ReadJobStatus(const v1::JobStatus& message);
TaskStatus ReadTaskStatus(const v1::TaskInfo& message);

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_STATUS_H_
