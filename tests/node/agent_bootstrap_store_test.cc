// SPDX-License-Identifier: Apache-2.0
// AgentBootstrapStore, and a coordinator that confirms nothing.
#include <memory>
#include <string>
#include <vector>

#include "node/agent_bootstrap_store.h"
#include "tests/coord/wire/agent_fixture.h"
#include "tests/support/tcp_proxy.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Listener final : public BootstrapStoreListener {
 public:
  void Entry(std::string key, std::string value) override {
    absl::MutexLock lock(&mu_);
    events_.push_back(absl::StrCat(key, "=", value));
  }
  void Watching() override {
    absl::MutexLock lock(&mu_);
    events_.push_back("watching");
  }
  void StoreFailed(absl::Status why) override {
    absl::MutexLock lock(&mu_);
    failures_.push_back(std::move(why));
  }

  // The entries and "watching", in order, as soon as there are `count` of them.
  std::vector<std::string> Events(size_t count) const {
    const auto has_all = [this, count]()
                             ABSL_SHARED_LOCKS_REQUIRED(mu_) { return events_.size() >= count; };
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&has_all), coord::kTimeout);
    return events_;
  }

  std::vector<absl::Status> failures() const {
    absl::MutexLock lock(&mu_);
    return failures_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mu_);
};

struct Rig {
  explicit Rig(const coord::ServerOptions& options = coord::TestOptions(1))
      : server(options),
        proxy(server->port()),
        agents(coord::ConnectAll({coord::RankOptions(proxy.address(), 0)})) {}

  coord::TestServer server;
  TcpProxy proxy;
  coord::Agents agents;
};

// A rank that is told so early would act as if there were no entries.
TEST(AgentBootstrapStore, Watch_ReportsTheEntriesBeforeItIsWatching) {
  Rig rig;
  ASSERT_TRUE(rig.agents[0]->SetAll({{"c/1", "a"}, {"c/2", "b"}, {"d", "c"}}).ok());
  auto listener = std::make_shared<Listener>();
  AgentBootstrapStore store(*rig.agents[0], listener);
  store.Watch("c/");
  EXPECT_THAT(listener->Events(3), ElementsAre("c/1=a", "c/2=b", "watching"));
  EXPECT_THAT(listener->failures(), ElementsAre());
}

// The ids of a former generation are deleted before those of the next one are written.
TEST(AgentBootstrapStore, DeletePrefix_DeletesTheKeysBelowItAndIsNoEntry) {
  Rig rig;
  auto listener = std::make_shared<Listener>();
  AgentBootstrapStore store(*rig.agents[0], listener);
  store.Set("c/1/a", "1");
  store.Set("c/1/b", "2");
  store.Set("c/10", "3");
  store.Watch("c/");
  store.DeletePrefix("c/1/");
  store.Set("c/1/a", "4");
  EXPECT_THAT(listener->Events(5),
              ElementsAre("c/1/a=1", "c/1/b=2", "c/10=3", "watching", "c/1/a=4"));
  EXPECT_EQ(rig.agents[0]->TryGet("c/10").value_or("nothing"), "3");
  EXPECT_THAT(rig.agents[0]->TryGet("c/1/b"),
              coord::Fails(absl::StatusCode::kNotFound, HasSubstr("c/1/b")));
  EXPECT_THAT(listener->failures(), ElementsAre());
}

// Later writes may depend on the one that failed.
TEST(AgentBootstrapStore, AfterAFailure_NothingIsWrittenAndOneErrorIsReported) {
  coord::ServerOptions options = coord::TestOptions(1);
  options.coordinator.max_frame_bytes = size_t{1} << 20;
  Rig rig(options);
  auto listener = std::make_shared<Listener>();
  {
    AgentBootstrapStore store(*rig.agents[0], listener);
    store.Set("large", std::string(size_t{1} << 20, 'v'));
    store.Set("b", "2");
    store.CompareAndSet("c", std::nullopt, "3");
    store.Watch("");
    store.DeletePrefix("");
  }
  EXPECT_THAT(listener->failures(), ElementsAre(coord::Fails(absl::StatusCode::kResourceExhausted,
                                                             HasSubstr("--max-frame-bytes"))));
  EXPECT_THAT(listener->Events(0), ElementsAre());
  for (const char* const key : {"b", "c"}) {
    EXPECT_THAT(rig.agents[0]->TryGet(key),
                coord::Fails(absl::StatusCode::kNotFound, HasSubstr(key)));
  }
}

// The communicator is in use by then: its end must still be announced.
TEST(AgentBootstrapStore, AfterADeletionThatFails_TheRestIsWritten) {
  coord::ServerOptions options = coord::TestOptions(1);
  options.coordinator.max_frame_bytes = size_t{1} << 20;
  Rig rig(options);
  auto listener = std::make_shared<Listener>();
  {
    AgentBootstrapStore store(*rig.agents[0], listener);
    store.DeletePrefix(absl::StrCat(std::string(size_t{1} << 20, 'k'), "/"));
    store.Set("a", "1");
  }
  EXPECT_EQ(rig.agents[0]->TryGet("a").value_or("nothing"), "1");
  EXPECT_THAT(listener->failures(), ElementsAre());
}

TEST(AgentBootstrapStore, PendingRequestsAreDoneBeforeItIsDestroyed) {
  Rig rig;
  auto listener = std::make_shared<Listener>();
  {
    AgentBootstrapStore store(*rig.agents[0], listener);
    store.Set("a", "1");
    store.CompareAndSet("a", "1", "2");
    store.CompareAndSet("a", "1", "3");
    store.Set("b", "3");
    store.Set("b", "4");
  }
  EXPECT_EQ(rig.agents[0]->TryGet("a").value_or("nothing"), "2");
  EXPECT_EQ(rig.agents[0]->TryGet("b").value_or("nothing"), "4");
  EXPECT_THAT(listener->failures(), ElementsAre());
}

// Giving up a communicator because the coordinator's host has failed must not wait until the agent
// gives up the coordinator as well.
TEST(AgentBootstrapStore, DoesNotWaitForASilentCoordinator) {
  Rig rig;
  auto listener = std::make_shared<Listener>();
  rig.proxy.SetStalled(true);
  {
    AgentBootstrapStore store(*rig.agents[0], listener);
    store.Set("a", "1");
    store.Set("b", "2");
  }
  // Not the end of the agent's own timeout.
  EXPECT_THAT(listener->failures(),
              ElementsAre(coord::Fails(absl::StatusCode::kCancelled, HasSubstr("not confirmed"))));
  rig.proxy.SetStalled(false);
  // The request in flight may still be done; later ones are not.
  EXPECT_THAT(rig.agents[0]->Set("c", "3"), coord::IsOk());
  EXPECT_THAT(rig.agents[0]->TryGet("b"),
              coord::Fails(absl::StatusCode::kNotFound, HasSubstr("b")));
}

}  // namespace
}  // namespace ferry
