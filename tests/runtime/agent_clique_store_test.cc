// SPDX-License-Identifier: Apache-2.0
// AgentCliqueStore, and a coordinator that confirms nothing.
#include <memory>
#include <string>
#include <vector>

#include "node/agent_clique_store.h"
#include "tests/coord/wire/agent_fixture.h"
#include "tests/support/tcp_proxy.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Listener final : public CliqueListener {
 public:
  void Entry(std::string key, std::string value) override {}
  void Watching() override {}
  void StoreFailed(absl::Status why) override {
    absl::MutexLock lock(&mu_);
    failures_.push_back(std::move(why));
  }

  std::vector<absl::Status> failures() const {
    absl::MutexLock lock(&mu_);
    return failures_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mu_);
};

struct Rig {
  Rig()
      : server(1),
        proxy(server->port()),
        agents(coord::ConnectAll({coord::RankOptions(proxy.address(), 0)})) {}

  coord::TestServer server;
  TcpProxy proxy;
  coord::Agents agents;
};

TEST(AgentCliqueStore, PendingRequestsAreDoneBeforeItIsDestroyed) {
  Rig rig;
  auto listener = std::make_shared<Listener>();
  {
    AgentCliqueStore store(*rig.agents[0], listener);
    store.Set("a", "1");
    store.CompareAndSet("a", "1", "2");
    store.CompareAndSet("a", "1", "3");
    store.Set("b", "4");
  }
  EXPECT_EQ(rig.agents[0]->TryGet("a").value_or("nothing"), "2");
  EXPECT_EQ(rig.agents[0]->TryGet("b").value_or("nothing"), "4");
  EXPECT_THAT(listener->failures(), ElementsAre());
}

// Giving up a communicator because the coordinator's host has failed must not wait until the agent
// gives up the coordinator as well.
TEST(AgentCliqueStore, DoesNotWaitForASilentCoordinator) {
  Rig rig;
  auto listener = std::make_shared<Listener>();
  rig.proxy.SetStalled(true);
  {
    AgentCliqueStore store(*rig.agents[0], listener);
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
