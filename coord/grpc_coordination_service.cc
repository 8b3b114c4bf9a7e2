// SPDX-License-Identifier: Apache-2.0
// The table of methods, and the choice of the generation for each request.
#include "coord/grpc_coordination_service.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "coord/grpc_coordination_methods.h"
#include "coord/grpc_raw_service.h"
#include "coord/wire_generation.h"

namespace ferry::coord {
namespace {

struct MethodEntry {
  const char* name;
  CoordinationMethod method;
  // Not under the tensorflow name.
  bool only_xla = false;
};

// Every method of every generation.
constexpr MethodEntry kMethods[] = {
    {"RegisterTask", CoordinationMethod::kRegisterTask},
    {"Heartbeat", CoordinationMethod::kHeartbeat},
    {"WaitForAllTasks", CoordinationMethod::kWaitForAllTasks},
    {"ShutdownTask", CoordinationMethod::kShutdownTask},
    {"ResetTask", CoordinationMethod::kResetTask},
    {"ReportErrorToTask", CoordinationMethod::kReportErrorToTask},
    {"ReportErrorToService", CoordinationMethod::kReportErrorToService},
    {"GetTaskState", CoordinationMethod::kGetTaskState},
    {"GetJobState", CoordinationMethod::kGetJobState},
    {"WatchJobState", CoordinationMethod::kWatch},
    {"WatchTasks", CoordinationMethod::kWatch, /*only_xla=*/true},
    {"InsertKeyValue", CoordinationMethod::kInsertKeyValue},
    {"GetKeyValue", CoordinationMethod::kGetKeyValue},
    {"TryGetKeyValue", CoordinationMethod::kTryGetKeyValue},
    {"IncrementKeyValue", CoordinationMethod::kIncrementKeyValue},
    {"GetKeyValueDir", CoordinationMethod::kGetKeyValueDir},
    {"DeleteKeyValue", CoordinationMethod::kDeleteKeyValue},
    {"Barrier", CoordinationMethod::kBarrier},
    {"CancelBarrier", CoordinationMethod::kCancelBarrier},
    {"GetAliveTasks", CoordinationMethod::kGetAliveTasks},
    {"PollForError", CoordinationMethod::kPollForError},
};

class CoordinationService final : public RawService {
 public:
  CoordinationService(CoordinationPath path, Edge& edge, DeviceInfoMerger& devices)
      : edge_(edge), devices_(devices) {
    const char* service = path == CoordinationPath::kTensorflow
                              ? "/tensorflow.CoordinationService/"
                              : "/xla.coordination.CoordinationService/";
    for (const MethodEntry& entry : kMethods) {
      if (entry.only_xla && path != CoordinationPath::kXla) continue;
      paths_.push_back(std::make_unique<std::string>(absl::StrCat(service, entry.name)));
      AddUnary(paths_.back()->c_str(),
               [this, path, &entry](grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
                 return Serve(path, entry, {context, response}, *request);
               });
    }
  }

 private:
  grpc::ServerUnaryReactor* Serve(CoordinationPath path, const MethodEntry& entry,
                                  UnaryContext context, grpc::ByteBuffer request) {
    WireGeneration generation = WireGeneration::kNamedTasks;
    if (path == CoordinationPath::kXla) {
      const grpc::Slice bytes = Flatten(request);
      generation = TellGeneration(entry.name, View(bytes));
    }
    switch (generation) {
      case WireGeneration::kNamedTasks:
        return ServeCoordination<NamedTasks>(entry.method, edge_, devices_, context, request);
      case WireGeneration::kNumberedTasks:
        return ServeCoordination<NumberedTasks>(entry.method, edge_, devices_, context, request);
      case WireGeneration::kIncarnations:
        return ServeCoordination<WithIncarnations>(entry.method, edge_, devices_, context, request);
    }
    return context.Fail(grpc::Status(grpc::StatusCode::INTERNAL, "no such generation"));
  }

  Edge& edge_;
  DeviceInfoMerger& devices_;
  // gRPC keeps pointers to the paths.
  std::vector<std::unique_ptr<std::string>> paths_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinationService(CoordinationPath path, Edge& edge,
                                                       DeviceInfoMerger& devices) {
  return std::make_unique<CoordinationService>(path, edge, devices);
}

}  // namespace ferry::coord
