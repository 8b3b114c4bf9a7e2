// SPDX-License-Identifier: Apache-2.0
// The method table, and detection of each request's generation.
#include "coord/server/coordination_service.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "coord/core/wire_generation.h"
#include "coord/server/coordination_methods.h"
#include "coord/server/unary_service.h"

namespace ferry::coord {
namespace {

struct MethodEntry {
  const char* name;
  CoordinationMethod method;
  // Called repeatedly by every task.
  bool is_frequent = false;
  // Not under the tensorflow name.
  bool only_xla = false;
};

// Every method of every generation.
constexpr MethodEntry kMethods[] = {
    {"RegisterTask", CoordinationMethod::kRegisterTask},
    {"Heartbeat", CoordinationMethod::kHeartbeat, /*is_frequent=*/true},
    {"WaitForAllTasks", CoordinationMethod::kWaitForAllTasks},
    {"ShutdownTask", CoordinationMethod::kShutdownTask},
    {"ResetTask", CoordinationMethod::kResetTask},
    {"ReportErrorToTask", CoordinationMethod::kReportErrorToTask},
    {"ReportErrorToService", CoordinationMethod::kReportErrorToService},
    {"GetTaskState", CoordinationMethod::kGetTaskState},
    {"GetJobState", CoordinationMethod::kGetJobState},
    {"WatchJobState", CoordinationMethod::kWatch},
    {"WatchTasks", CoordinationMethod::kWatch, /*is_frequent=*/false, /*only_xla=*/true},
    {"InsertKeyValue", CoordinationMethod::kInsertKeyValue, /*is_frequent=*/true},
    {"GetKeyValue", CoordinationMethod::kGetKeyValue, /*is_frequent=*/true},
    {"TryGetKeyValue", CoordinationMethod::kTryGetKeyValue, /*is_frequent=*/true},
    {"IncrementKeyValue", CoordinationMethod::kIncrementKeyValue},
    {"GetKeyValueDir", CoordinationMethod::kGetKeyValueDir},
    {"DeleteKeyValue", CoordinationMethod::kDeleteKeyValue},
    {"Barrier", CoordinationMethod::kBarrier, /*is_frequent=*/true},
    {"CancelBarrier", CoordinationMethod::kCancelBarrier},
    {"GetAliveTasks", CoordinationMethod::kGetAliveTasks},
    {"PollForError", CoordinationMethod::kPollForError},
};

class CoordinationService final : public UnaryService {
 public:
  CoordinationService(CoordinationPath path, Frontend& frontend, DeviceInfoMerger& devices,
                      GenericMethodTable& rare)
      : UnaryService(frontend, rare), frontend_(frontend), devices_(devices) {
    const char* service = path == CoordinationPath::kTensorflow
                              ? "/tensorflow.CoordinationService/"
                              : "/xla.coordination.CoordinationService/";
    for (const MethodEntry& entry : kMethods) {
      if (entry.only_xla && path != CoordinationPath::kXla) continue;
      AddHandler(absl::StrCat(service, entry.name), entry.is_frequent,
                 [this, path, &entry](UnaryCall& call, grpc::ByteBuffer& request) {
                   Serve(path, entry, call, request);
                 });
    }
  }

 private:
  void Serve(CoordinationPath path, const MethodEntry& entry, UnaryCall& call,
             grpc::ByteBuffer& request) {
    WireGeneration generation = WireGeneration::kNamedTasks;
    if (path == CoordinationPath::kXla) {
      const grpc::Slice bytes = Flatten(request);
      generation = TellGeneration(entry.name, View(bytes));
    }
    switch (generation) {
      case WireGeneration::kNamedTasks:
        return ServeCoordination<NamedTasks>(entry.method, frontend_, devices_, call, request);
      case WireGeneration::kNumberedTasks:
        return ServeCoordination<NumberedTasks>(entry.method, frontend_, devices_, call, request);
      case WireGeneration::kIncarnations:
        return ServeCoordination<WithIncarnations>(entry.method, frontend_, devices_, call,
                                                   request);
    }
    return call.Finish(grpc::Status(grpc::StatusCode::INTERNAL, "no such generation"));
  }

  Frontend& frontend_;
  DeviceInfoMerger& devices_;
};

}  // namespace

std::unique_ptr<UnaryService> MakeCoordinationService(CoordinationPath path, Frontend& frontend,
                                                      DeviceInfoMerger& devices,
                                                      GenericMethodTable& rare) {
  return std::make_unique<CoordinationService>(path, frontend, devices, rare);
}

}  // namespace ferry::coord
