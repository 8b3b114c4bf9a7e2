// SPDX-License-Identifier: Apache-2.0
// A few batch agreement endpoints whose messages a test delivers explicitly.
#ifndef FERRY_TESTS_TRANSPORT_NCCL_GRANT_PAIR_H_
#define FERRY_TESTS_TRANSPORT_NCCL_GRANT_PAIR_H_

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "transport/nccl/batch_agreement_endpoint.h"

namespace ferry::grant_test {

// One device of a test: its endpoint, and the actions it has requested so far.
class TestDevice final {
 public:
  TestDevice(int id, const BatchAgreementOptions& options, const Clock& clock)
      : endpoint(DeviceId(id), options, clock) {}

  // Does `call(endpoint, actions)` and files the actions.
  template <typename Call>
  void Do(Call call) {
    BatchAgreementActions actions;
    call(endpoint, actions);
    for (GrantAction& action : actions) {
      if (auto* send = std::get_if<SendMessage>(&action)) {
        log.push_back(Describe(send->message).substr(0, Describe(send->message).find(' ')));
        outbox.push_back(std::move(send->message));
      } else if (auto* launch = std::get_if<LaunchBatch>(&action)) {
        log.push_back("launch");
        launched.push_back(std::move(launch->batch));
      } else if (auto* finish = std::get_if<FinishTransfer>(&action)) {
        log.push_back("finish");
        finished[finish->key.id].push_back(finish->status);
      } else if (auto* flag = std::get_if<FlagCommunicator>(&action)) {
        log.push_back(absl::StrCat("flag ", flag->name.id));
        died = flag->died;
      } else if (auto* abort = std::get_if<AbortCommunicator>(&action)) {
        log.push_back(absl::StrCat("abort ", abort->name.id));
      } else if (auto* free = std::get_if<FreeCommunicator>(&action)) {
        log.push_back(absl::StrCat("free ", free->name.id));
      }
    }
  }

  void Open(CommunicatorName name, std::vector<DeviceId> devices) {
    Do([&](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
      const absl::Status status = e.Open(name, devices, actions);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  void Add(const BatchAgreementTransfer& transfer) {
    Do([&](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
      const absl::Status status = e.Add(transfer, actions);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  void AddWithGrant(const BatchAgreementTransfer& transfer, const BatchAgreementMessage& grant) {
    Do([&](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
      const absl::Status status = e.AddWithGrant(transfer, grant, actions);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  void Hear(const BatchAgreementMessage& message) {
    Do([&](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
      const absl::Status status = e.OnMessage(message, actions);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  // The first of the launched batches is over.
  void Complete(const absl::Status& status = absl::OkStatus()) {
    ASSERT_FALSE(launched.empty());
    const BatchName name = launched.front().name;
    launched.pop_front();
    Do([&](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
      e.Completed(name, status, actions);
    });
  }
  BatchAgreementMessage Take() {
    if (outbox.empty()) {
      ADD_FAILURE() << "no message";
      return {};
    }
    BatchAgreementMessage message = std::move(outbox.front());
    outbox.pop_front();
    return message;
  }

  BatchAgreementEndpoint endpoint;
  std::deque<BatchAgreementMessage> outbox;
  std::deque<AgreedBatch> launched;
  // By the transfer's id.
  std::map<uint64_t, std::vector<absl::Status>> finished;
  // The requested actions, in order: "GRANT", "launch", "finish", "flag 1".
  std::vector<std::string> log;
  DeviceId died = kNoDevice;
};

class GrantTest : public testing::Test {
 protected:
  static constexpr CommunicatorName kAll = {7, 1};

  void MakeDevices(const BatchAgreementOptions& options = {}) {
    devices_.clear();
    for (int i = 0; i < 3; ++i) devices_.emplace_back(i, options, clock_);
    for (TestDevice& device : devices_) {
      device.Open(kAll, {DeviceId(0), DeviceId(1), DeviceId(2)});
    }
  }
  GrantTest() { MakeDevices(); }

  BatchAgreementTransfer Transfer(int source, int destination, uint64_t id, uint64_t bytes = 100) {
    return {{DeviceId(source), DeviceId(destination), id}, bytes, clock_.Now() + absl::Seconds(30)};
  }
  // Delivers messages until there are none.
  void Settle() {
    for (bool is_any = true; is_any;) {
      is_any = false;
      for (TestDevice& device : devices_) {
        while (!device.outbox.empty()) {
          const BatchAgreementMessage message = device.Take();
          devices_[message.to.value()].Hear(message);
          is_any = true;
        }
      }
    }
  }

  FakeClock clock_;
  std::vector<TestDevice> devices_;
};

}  // namespace ferry::grant_test

#endif  // FERRY_TESTS_TRANSPORT_NCCL_GRANT_PAIR_H_
