// SPDX-License-Identifier: Apache-2.0
// AgentLink: what happens to requests whose time is over.
#include "coord/grpc_agent_link.h"

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "agent_fixture.h"
#include "tests/support/tcp_proxy.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kForAWhile = absl::Minutes(1);
// More than kernels keep on the way.
constexpr size_t kFillsTheWay = size_t{40} << 20;

class AgentLinkTest : public ::testing::Test {
 protected:
  AgentLinkTest() : proxy_(server_->port()) {
    AgentLinkOptions options;
    options.coordinator = proxy_.address();
    options.connect_timeout = kPatience;
    options.lost_timeout = kForAWhile;
    options.longest_silence = kForAWhile;
    options.longest_attempt = kForAWhile;
    link_ = std::make_unique<AgentLink>(std::move(options), *SocketLoop::OfClients());
    EXPECT_THAT(link_->WaitUntilAttached(), IsOk());
  }

  using Outcome = std::future<absl::StatusOr<v1::Reply>>;

  Outcome Call(v1::Request request, absl::Duration timeout) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Reply>>>();
    Outcome outcome = promise->get_future();
    link_->Call(
        std::move(request), timeout, "an answer",
        [promise](absl::StatusOr<v1::Reply> reply) { promise->set_value(std::move(reply)); },
        /*keeps_time=*/true);
    return outcome;
  }
  Outcome Put(const std::string& key, const std::string& value, absl::Duration timeout) {
    v1::Request request;
    v1::KeyValue& entry = *request.mutable_put()->add_entries();
    entry.set_key(key);
    entry.set_value(value);
    return Call(std::move(request), timeout);
  }
  // As the coordinator has it by now.
  bool IsThere(const std::string& key) {
    v1::Request request;
    request.mutable_get()->add_keys(key);
    Outcome outcome = Call(std::move(request), kPatience);
    const absl::StatusOr<v1::Reply> reply = Await(outcome);
    EXPECT_THAT(reply, IsOk());
    return reply.ok() && reply->code() == 0;
  }

  TestServer server_{1};
  TcpProxy proxy_;
  std::unique_ptr<AgentLink> link_;
};

// Who hears that the time is over tries again, or does something else.
TEST_F(AgentLinkTest, WhatWasNotSentInTimeIsNeverDone) {
  proxy_.SetStalled(true);
  Outcome large = Put("large", std::string(kFillsTheWay, 'v'), absl::Milliseconds(300));
  Outcome small = Put("small", "v", absl::Milliseconds(200));
  Outcome patient = Put("patient", "v", kForAWhile);
  EXPECT_THAT(Await(small), Fails(StatusCode::kDeadlineExceeded, HasSubstr("was not sent")));
  EXPECT_THAT(Await(large),
              Fails(StatusCode::kDeadlineExceeded,
                    AllOf(HasSubstr("may still take effect"), Not(HasSubstr("was not sent")))));
  proxy_.SetStalled(false);
  EXPECT_THAT(Await(patient), IsOk());
  EXPECT_TRUE(IsThere("large"));
  EXPECT_FALSE(IsThere("small"));
}

// It was on its way when the connection broke, and the next one tells that it has not arrived.
TEST_F(AgentLinkTest, WhatWasLostWithItsConnectionIsNotSentAgainWhenItsTimeIsOver) {
  proxy_.SetStalled(true);
  Outcome large = Put("large", std::string(kFillsTheWay, 'v'), absl::Milliseconds(300));
  Outcome patient = Put("patient", "v", kForAWhile);
  EXPECT_THAT(Await(large),
              Fails(StatusCode::kDeadlineExceeded, HasSubstr("may still take effect")));
  proxy_.Cut();
  proxy_.SetStalled(false);
  EXPECT_THAT(Await(patient), IsOk());
  EXPECT_FALSE(IsThere("large"));
}

}  // namespace
}  // namespace ferry::coord
