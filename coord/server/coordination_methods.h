// SPDX-License-Identifier: Apache-2.0
// The methods of the coordination service, for one generation of its messages.
#ifndef FERRY_COORD_SERVER_COORDINATION_METHODS_H_
#define FERRY_COORD_SERVER_COORDINATION_METHODS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "coord/server/call.h"
#include "coord/wire/device_info_proto.h"

namespace ferry::coord {

enum class CoordinationMethod {
  kRegisterTask,
  kHeartbeat,
  kWaitForAllTasks,
  kShutdownTask,
  kResetTask,
  kReportErrorToTask,
  kReportErrorToService,
  kGetTaskState,
  kGetJobState,
  // WatchTasks in the newest layout.
  kWatch,
  kInsertKeyValue,
  kGetKeyValue,
  kTryGetKeyValue,
  kIncrementKeyValue,
  kGetKeyValueDir,
  kDeleteKeyValue,
  kBarrier,
  kCancelBarrier,
  kGetAliveTasks,
  kPollForError,
};

// Serves `method` in the messages of `Generation` (coord/wire/generations.h). Each generation is
// compiled once, in coordination_{named,numbered,incarnations}.cc.
//   Errors: INVALID_ARGUMENT for malformed requests; UNIMPLEMENTED for methods that the generation
//   does not have.
template <typename Generation>
void ServeCoordination(CoordinationMethod method, Frontend& frontend, DeviceInfoMerger& devices,
                       UnaryCall& call, grpc::ByteBuffer& request);

struct NamedTasks;
struct NumberedTasks;
struct WithIncarnations;
extern template void ServeCoordination<NamedTasks>(CoordinationMethod, Frontend&, DeviceInfoMerger&,
                                                   UnaryCall&, grpc::ByteBuffer&);
extern template void ServeCoordination<NumberedTasks>(CoordinationMethod, Frontend&,
                                                      DeviceInfoMerger&, UnaryCall&,
                                                      grpc::ByteBuffer&);
extern template void ServeCoordination<WithIncarnations>(CoordinationMethod, Frontend&,
                                                         DeviceInfoMerger&, UnaryCall&,
                                                         grpc::ByteBuffer&);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_COORDINATION_METHODS_H_
