// SPDX-License-Identifier: Apache-2.0
// AgentLink: requests whose deadline has passed.
#include "coord/client/agent_link.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "agent_fixture.h"
#include "tests/support/tcp_proxy.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kForAWhile = absl::Minutes(1);
// More than kernels buffer on the path.
constexpr size_t kFillsTheWay = size_t{40} << 20;

class AgentLinkTest : public ::testing::Test {
 protected:
  explicit AgentLinkTest(ServerOptions server = TestOptions(1))
      : server_(std::move(server)), proxy_(server_->port()) {
    AgentLinkOptions options;
    options.coordinator = proxy_.address();
    options.connect_timeout = kTimeout;
    options.reconnect_timeout = kForAWhile;
    options.idle_timeout = kForAWhile;
    options.connect_attempt_timeout = kForAWhile;
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
  // The number that the coordinator has received by now.
  bool IsThere(const std::string& key) {
    v1::Request request;
    request.mutable_get()->add_keys(key);
    Outcome outcome = Call(std::move(request), kTimeout);
    const absl::StatusOr<v1::Reply> reply = Await(outcome);
    EXPECT_THAT(reply, IsOk());
    return reply.ok() && reply->code() == 0;
  }

  TestServer server_;
  TcpProxy proxy_;
  std::unique_ptr<AgentLink> link_;
};

// A caller that is notified of the timeout retries, or gives up.
TEST_F(AgentLinkTest, RequestNotSentInTimeIsNeverExecuted) {
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

// It was in flight when the connection broke, and the next one shows that it has not arrived.
TEST_F(AgentLinkTest, RequestLostWithItsConnectionIsNotSentAgainAfterItsDeadline) {
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

// The coordinator may have executed it before the connection broke.
TEST_F(AgentLinkTest, RequestSentBeforeItsConnectionBroke_MayStillTakeEffect) {
  proxy_.SetStalled(true);
  Outcome sent = Put("sent", "v", absl::Milliseconds(500));
  proxy_.Cut();
  ASSERT_TRUE(Eventually([this] { return !link_->is_attached(); }));
  Outcome unsent = Put("unsent", "v", absl::Milliseconds(100));
  EXPECT_THAT(Await(unsent), Fails(StatusCode::kDeadlineExceeded, HasSubstr("was not sent")));
  EXPECT_THAT(Await(sent),
              Fails(StatusCode::kDeadlineExceeded,
                    AllOf(HasSubstr("may still take effect"), Not(HasSubstr("was not sent")))));
}

// A watch that ended on this side alone would stay in the coordinator as long as the session.
TEST_F(AgentLinkTest, WatchThatEnds_EndsInTheCoordinatorToo) {
  const auto watches = [this] {
    return server_->executor().Run(
        [](Coordinator& coordinator) { return coordinator.InnerTableSizes()["store.watches"]; });
  };
  v1::Request watch;
  watch.mutable_watch()->set_prefix("w/");
  const uint64_t id = link_->Subscribe(watch, [](const v1::Event&) {});
  const uint64_t other = link_->Subscribe(watch, [](const v1::Event&) {});
  // Requests are done in order.
  IsThere("k");
  EXPECT_EQ(watches(), 2u);
  link_->Unsubscribe(id);
  IsThere("k");
  EXPECT_EQ(watches(), 1u);
  link_->Unsubscribe(other);
  IsThere("k");
  EXPECT_EQ(watches(), 0u);
}

// Like the answer that lists who waits for what: it must neither wait nor block itself.
TEST_F(AgentLinkTest, CallbackMayBeginAnotherCall) {
  Outcome answer;
  absl::Notification begun;
  v1::Request watch;
  watch.mutable_watch()->set_prefix("question");
  link_->Subscribe(std::move(watch), [&](const v1::Event&) {
    answer = Put("answer", "v", kForAWhile);
    begun.Notify();
  });
  Outcome question = Put("question", "v", kForAWhile);
  EXPECT_THAT(Await(question), IsOk());
  ASSERT_TRUE(begun.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_THAT(Await(answer), IsOk());
  link_ = nullptr;
}

ServerOptions SmallFrameOptions() {
  ServerOptions options = TestOptions(1);
  options.coordinator.max_frame_bytes = size_t{1} << 20;
  return options;
}

class SmallFrames : public AgentLinkTest {
 protected:
  SmallFrames() : AgentLinkTest(SmallFrameOptions()) {}
};

// One value that is too large is no reason to lose the session, and the job with it.
TEST_F(SmallFrames, RequestThatIsTooLargeIsRefusedAlone) {
  Outcome large = Put("large", std::string(size_t{1} << 20, 'v'), kForAWhile);
  EXPECT_THAT(Await(large),
              Fails(StatusCode::kResourceExhausted, HasSubstr("its --max-frame-bytes")));
  v1::Request many;
  for (int i = 0; i < 300'000; ++i) many.mutable_get()->add_keys("k");
  Outcome get = Call(std::move(many), kForAWhile);
  EXPECT_THAT(Await(get), Fails(StatusCode::kResourceExhausted, HasSubstr("300000 keys")));
  EXPECT_FALSE(IsThere("large"));
  EXPECT_EQ(proxy_.accepted(), 1);
}

// Each fits, and so must requests that are sent together.
TEST_F(SmallFrames, RequestsThatAreSentTogetherFit) {
  proxy_.SetStalled(true);
  std::vector<Outcome> puts;
  for (int i = 0; i < 60; ++i) {
    puts.push_back(Put(absl::StrCat("k", i), std::string(700'000, 'v'), kForAWhile));
  }
  proxy_.SetStalled(false);
  for (Outcome& put : puts) EXPECT_THAT(Await(put), IsOk());
  EXPECT_TRUE(IsThere("k59"));
  EXPECT_EQ(proxy_.accepted(), 1);
}

// They come by another service, which has no such limit.
TEST_F(SmallFrames, AnswersAndEventsMayBeLarger) {
  const std::string value(3'000'000, 'v');
  absl::Mutex mu;
  std::string seen;
  v1::Request watch;
  watch.mutable_watch()->set_prefix("large");
  link_->Subscribe(std::move(watch), [&](const v1::Event& event) {
    absl::MutexLock lock(&mu);
    seen = event.entry().value();
  });
  EXPECT_FALSE(IsThere("large"));
  ASSERT_THAT(server_.Task(Dialect::kTensorflow, 0).Insert("large", value).Wait(), IsOk());
  v1::Request get;
  get.mutable_get()->add_keys("large");
  Outcome outcome = Call(std::move(get), kForAWhile);
  const absl::StatusOr<v1::Reply> reply = Await(outcome);
  ASSERT_THAT(reply, IsOk());
  ASSERT_EQ(reply->entries_size(), 1);
  EXPECT_EQ(reply->entries(0).value(), value);
  EXPECT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mu);
    return seen == value;
  }));
  link_ = nullptr;
}

}  // namespace
}  // namespace ferry::coord
