// SPDX-License-Identifier: Apache-2.0
// Engines of which only some have a transport that is not built in.
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/engine_pair.h"
#include "tests/support/file_transport.h"

namespace ferry {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class ExtraTransport : public ::testing::Test {
 protected:
  ExtraTransport() : path_(::testing::TempDir() + "ferry_extra_XXXXXX") {
    FERRY_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~ExtraTransport() override {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TransferEngineOptions With(const std::string& directory) const {
    TransferEngineOptions options;
    options.extra_transports = {FileTransportFactory(directory)};
    return options;
  }
  // The path that 300000 bytes take, whose value is compared.
  static std::string Send(EngineEnd& from, EngineEnd& to, const std::string& name) {
    Tensor sent = *Tensor::Allocate(DataType::kUint8, *Shape::Create({300'000}));
    FillPattern(sent, 7);
    const RendezvousKey key = KeyBetween(from, to, name);
    EXPECT_TRUE(from.Step(1)->Send(key, sent).ok());
    Receipt receipt;
    to.Step(1)->RecvAsync(key, {}, receipt.callback());
    const absl::StatusOr<Received> received = receipt.Wait();
    if (!received.ok()) return received.status().ToString();
    EXPECT_TRUE(IsEqual(received->tensor, sent));
    return std::string(received->path);
  }
  static std::string Why(const EngineEnd& from, const EngineEnd& to) {
    const absl::StatusOr<PathExplanation> path =
        to.engine->PathFrom(from.engine->self(), 300'000, /*is_in_arena=*/false);
    return path.ok() ? Explain(*path) : path.status().ToString();
  }

  std::string path_;
  Directory directory_;
};

// On two machines, as their boot ids say, so that only TCP is left.
TEST_F(ExtraTransport, OnlyOneSideHasIt_TheyTalkByTcpAndSayWhy) {
  EngineEnd has(directory_, 1, With(path_));
  EngineEnd lacks(directory_, 2, {}, 0, "another machine");
  EXPECT_EQ(Send(has, lacks, "there"), "tcp");
  EXPECT_EQ(Send(lacks, has, "back"), "tcp");
  EXPECT_THAT(Why(lacks, has), HasSubstr("not file: node 2 has no transport called file"));
  EXPECT_THAT(Why(has, lacks), HasSubstr("not file: node 2 has no transport called file"));
}

TEST_F(ExtraTransport, RequiredByTheSideThatHasIt_FailsWithTheReason) {
  TransferEngineOptions options = With(path_);
  options.require_transport = "file";
  EngineEnd has(directory_, 1, options);
  EngineEnd lacks(directory_, 2);
  EXPECT_THAT(Send(has, lacks, "there"), HasSubstr("file: node 2 has no transport called file"));
}

TEST_F(ExtraTransport, RequiredByASideThatLacksIt_DoesNotStart) {
  TransferEngineOptions options;
  options.require_transport = "file";
  options.token = "token";
  Endpoint self;
  const auto engine =
      TransferEngine::Start(options, self, directory_.resolver(), directory_.known());
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(engine.status().message()),
              HasSubstr("there is no transport called file; there are shm, tcp"));
}

// The descriptors differ.
TEST_F(ExtraTransport, BothHaveItWithDifferentDirectories_IsExplained) {
  EngineEnd one(directory_, 1, With(path_));
  EngineEnd other(directory_, 2, With("/"));
  EXPECT_THAT(Why(one, other), HasSubstr("not file: they use two directories"));
  // Which of these two costs less depends on the machine.
  EXPECT_THAT(Send(one, other, "there"), AnyOf("shm", "tcp"));
}

// One has it after the built-in ones, the other after one more.
TEST_F(ExtraTransport, ListsOfDifferentLengths_MatchByName) {
  TransferEngineOptions first = With(path_);
  first.require_transport = "file";
  TransferEngineOptions second = With(path_);
  TransportFactory before = FileTransportFactory("/");
  before.info.name = "before";
  before.make = [](const TransportEnvironment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
    class Never final : public Transport {
     public:
      Never() : Transport({.name = "before", .summary = FileTransport::kInfo.summary}) {}
      absl::StatusOr<PathCost> Cost(const PathQuery&) const override {
        return absl::UnavailableError("never");
      }
      std::shared_ptr<TransportSender> CreateSender(const Endpoint&) override { return nullptr; }
      std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint&, ReleaseCallback) override {
        return nullptr;
      }
    };
    return std::make_unique<Never>();
  };
  second.extra_transports.insert(second.extra_transports.begin(), before);
  second.require_transport = "file";
  EngineEnd one(directory_, 1, first);
  EngineEnd other(directory_, 2, second);
  EXPECT_EQ(Send(one, other, "there"), "file");
  EXPECT_EQ(Send(other, one, "back"), "file");
}

TEST_F(ExtraTransport, NameOfABuiltinOne_IsRefused) {
  TransferEngineOptions options;
  options.token = "token";
  TransportFactory factory = FileTransportFactory(path_);
  factory.info.name = "tcp";
  options.extra_transports = {factory};
  const auto engine = TransferEngine::Start(options, {}, directory_.resolver(), directory_.known());
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("two transports are called tcp"));
}

}  // namespace
}  // namespace ferry
