// SPDX-License-Identifier: Apache-2.0
// Workers that require authentication.
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"

#include "rendezvous/recv_tensor/call_auth.h"
#include "tensorflow/master/grpc_worker_link.h"
#include "worker_fixture.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Fails;
using coord::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kCreate[] = "/tensorflow.WorkerService/CreateWorkerSession";

NodeWorkerOptions Proving(bool is_required) {
  NodeWorkerOptions options;
  options.auth = {"secret", is_required};
  return options;
}

// Through a master's link.
absl::Status Open(WorkerEnd& worker, const std::string& token) {
  master::GrpcWorkerLinks links;
  const auto link = links.Connect(worker.transfer_engine().self().grpc_address, token);
  tensorflow::CreateWorkerSessionRequest request;
  request.set_session_handle("s");
  absl::Status status = absl::UnknownError("no answer");
  absl::Notification done;
  link->CreateWorkerSession(request, {absl::Seconds(30), nullptr}, [&](const auto& response) {
    status = response.status();
    done.Notify();
  });
  done.WaitForNotification();
  return status;
}

TEST(WorkerAuth, CallsWithoutATagAreRefusedWhereRequired) {
  Directory directory;
  WorkerEnd worker(directory, 0, {}, Proving(true));
  const tensorflow::GetStatusRequest empty;
  for (const char* method :
       {"GetStatus", "CreateWorkerSession", "DeleteWorkerSession", "RegisterGraph",
        "DeregisterGraph", "RunGraph", "CleanupGraph", "CleanupAll"}) {
    EXPECT_THAT(worker.Start(method, empty).Wait(),
                Fails(StatusCode::kUnauthenticated,
                      AllOf(HasSubstr("--require-auth"), HasSubstr("FERRY_JOB_TOKEN"))))
        << method;
  }
  EXPECT_EQ(worker.worker().session_count(), 0u);
}

TEST(WorkerAuth, TagIsValidForOneCallAndOneToken) {
  Directory directory;
  WorkerEnd worker(directory, 0, {}, Proving(true));
  tensorflow::CreateWorkerSessionRequest request;
  request.set_session_handle("s");
  const auto create = [&](const std::string& mark) {
    coord::PendingCall::Options options;
    options.metadata = {{kAuthTagMetadata, mark}};
    return worker.Start("CreateWorkerSession", request, options).Wait();
  };
  const auto refused = Fails(StatusCode::kUnauthenticated);
  const std::string good = MethodAuthTag("secret", kCreate, 17);
  std::string other_nonce = good;
  other_nonce[15] = other_nonce[15] == '1' ? '2' : '1';
  for (const std::string& mark :
       {std::string(), std::string("17"), good.substr(0, 16), good.substr(0, 40), other_nonce,
        MethodAuthTag("another", kCreate, 17), MethodAuthTag("secret", kCreate, 0),
        MethodAuthTag("secret", "/tensorflow.WorkerService/CleanupAll", 17)}) {
    EXPECT_THAT(create(mark), refused) << mark;
  }
  EXPECT_THAT(create(good), IsOk());
  // An authentication tag that was overheard.
  EXPECT_THAT(create(good), Fails(StatusCode::kUnauthenticated, HasSubstr("repeats")));
  EXPECT_THAT(create(MethodAuthTag("secret", kCreate, 18)), IsOk());
}

TEST(WorkerAuth, MastersSendTags) {
  Directory directory;
  WorkerEnd strict(directory, 0, {}, Proving(true));
  EXPECT_THAT(Open(strict, "secret"), IsOk());
  EXPECT_THAT(Open(strict, "another"), Fails(StatusCode::kUnauthenticated));
  EXPECT_THAT(Open(strict, ""), Fails(StatusCode::kUnauthenticated));
  // Where it is not required it is not checked.
  WorkerEnd open(directory, 1, {}, Proving(false));
  for (const char* token : {"secret", "another", ""}) EXPECT_THAT(Open(open, token), IsOk());
}

}  // namespace
}  // namespace ferry
