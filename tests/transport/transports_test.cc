// SPDX-License-Identifier: Apache-2.0
// Registration of transports, and selection between processes that have different ones.
#include "transport/transports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NamedTransport final : public Transport {
 public:
  explicit NamedTransport(const TransportInfo& info, std::string descriptor = "")
      : Transport(info), descriptor_(std::move(descriptor)) {}

  std::string local_descriptor() const override { return descriptor_; }
  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override {
    // Selection asks only for transports that both have.
    EXPECT_NE(query.source->FindTransport(name()), nullptr);
    EXPECT_NE(query.destination->FindTransport(name()), nullptr);
    return PathCost{absl::Microseconds(1), 1e9};
  }
  std::shared_ptr<TransportSender> CreateSender(const Endpoint&) override { return nullptr; }
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint&, ReleaseCallback) override {
    return nullptr;
  }

 private:
  const std::string descriptor_;
};

TransportFactory FactoryOf(const TransportInfo& info, std::string descriptor = "") {
  return {.info = info,
          .make = [info, descriptor](
                      const TransportEnvironment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
            return std::make_unique<NamedTransport>(info, descriptor);
          }};
}

absl::Status StatusOf(const std::vector<TransportFactory>& factories) {
  const absl::StatusOr<TransportList> list = MakeTransports({}, factories);
  if (list.ok()) {
    EXPECT_EQ(list->size(), factories.size());
  }
  EXPECT_TRUE(list.ok() || absl::IsInvalidArgument(list.status())) << list.status();
  return list.status();
}

TEST(TransportsTest, BuiltinOnes_AreThoseOfTheFlags) {
  const std::vector<TransportFactory> all = BuiltinTransports({});
  EXPECT_THAT(TransportNames(all), ElementsAre("shm", "tcp", "cuda_ipc", "nccl"));
  EXPECT_NE(FindTransport(all, "nccl"), nullptr);
  EXPECT_EQ(FindTransport(all, "file"), nullptr);
}

TEST(TransportsTest, Names_AreCheckedAtTheirLimits) {
  const std::string longest(kMaxTransportNameBytes, 'x');
  EXPECT_TRUE(StatusOf({FactoryOf({.name = longest}), FactoryOf({.name = "x_9"})}).ok());
  const std::string too_long = longest + "x";
  for (const absl::string_view name :
       {absl::string_view(too_long), absl::string_view(""), absl::string_view("Shm"),
        absl::string_view("a b"), absl::string_view("a,b"), absl::string_view("\xc3\xa4")}) {
    EXPECT_THAT(std::string(StatusOf({FactoryOf({.name = name})}).message()),
                HasSubstr("a transport called"))
        << name;
  }
  for (const absl::string_view name : {"local", "inline", "eager", "grpc", "auto", "all"}) {
    EXPECT_THAT(std::string(StatusOf({FactoryOf({.name = name})}).message()),
                HasSubstr("which has another meaning"));
  }
  EXPECT_THAT(
      std::string(StatusOf({FactoryOf({.name = "twice"}), FactoryOf({.name = "twice"})}).message()),
      HasSubstr("two transports are called twice"));
}

TEST(TransportsTest, NumberOfTransports_IsLimited) {
  std::vector<std::string> names;
  for (size_t i = 0; i <= kMaxTransports; ++i) names.push_back(absl::StrCat("t", i));
  std::vector<TransportFactory> factories;
  for (size_t i = 0; i < kMaxTransports; ++i) factories.push_back(FactoryOf({.name = names[i]}));
  EXPECT_TRUE(StatusOf(factories).ok());
  factories.push_back(FactoryOf({.name = names.back()}));
  EXPECT_THAT(std::string(StatusOf(factories).message()),
              HasSubstr("33 transports; a process has at most 32"));
}

TEST(TransportsTest, Descriptors_AreCheckedAtTheirLimit) {
  EXPECT_TRUE(
      StatusOf({FactoryOf({.name = "x"}, std::string(kMaxTransportDescriptorBytes, 'd'))}).ok());
  EXPECT_THAT(std::string(StatusOf({FactoryOf({.name = "x"},
                                              std::string(kMaxTransportDescriptorBytes + 1, 'd'))})
                              .message()),
              HasSubstr("the descriptor of transport x has 1025 bytes; the most is 1024"));
}

TEST(TransportsTest, TwoThatUseDataConnections_AreRefused) {
  const TransportCapabilities with = {.uses_data_connections = true};
  EXPECT_TRUE(
      StatusOf({FactoryOf({.name = "a", .capabilities = with}), FactoryOf({.name = "b"})}).ok());
  EXPECT_THAT(std::string(StatusOf({FactoryOf({.name = "a", .capabilities = with}),
                                    FactoryOf({.name = "b", .capabilities = with})})
                              .message()),
              HasSubstr("a and b both use data connections"));
}

TEST(TransportsTest, TransportWithOtherCapabilitiesThanItsFactory_IsRefused) {
  TransportFactory factory = FactoryOf({.name = "x"});
  factory.info.capabilities.retryable = true;
  EXPECT_THAT(std::string(StatusOf({factory}).message()), HasSubstr("another TransportInfo"));
}

TEST(TransportsTest, Policy_KnowsTheCapabilitiesOfTheRequiredTransport) {
  const std::vector<TransportFactory> all = BuiltinTransports({});
  EXPECT_FALSE(MakePolicy(all, "")->forbids_tcp());
  EXPECT_FALSE(MakePolicy(all, "tcp")->forbids_tcp());
  EXPECT_TRUE(MakePolicy(all, "shm")->forbids_tcp());
  EXPECT_TRUE(MakePolicy(all, "local")->forbids_tcp());
  EXPECT_TRUE(MakePolicy(all, "shm")->required.needs_fd_channel);
  EXPECT_EQ(MakePolicy(all, "rdma").status(),
            absl::InvalidArgumentError("there is no transport called rdma; there are shm, tcp, "
                                       "cuda_ipc, nccl, local"));
}

class PathsBetweenDifferentLists : public ::testing::Test {
 protected:
  PathsBetweenDifferentLists() {
    transports_ = *MakeTransports({}, {{FactoryOf({.name = "toy"}), FactoryOf({.name = "tcp"})}});
    ends_[0].peer = {1, 1001};
    ends_[0].transports = DescribeTransports(transports_);
    ends_[1].peer = {2, 1002};
    ends_[1].transports = {{"tcp", ""}, {"other", ""}};
    query_.source = &ends_[0];
    query_.destination = &ends_[1];
    query_.bytes = 1 << 20;
    query_.common = CommonTransports(transports_, ends_[0], ends_[1]);
  }

  TransportList transports_;
  Endpoint ends_[2];
  PathQuery query_;
};

TEST_F(PathsBetweenDifferentLists, WhatOneSideLacks_IsNotSelectedAndExplained) {
  EXPECT_EQ(SelectPath(transports_, query_, {}, nullptr), 1u);
  const std::string text = Explain(*ExplainPath(transports_, query_, {}));
  EXPECT_EQ(text,
            "not toy: node 2 has no transport called toy; tcp (1us + 1.0 GB/s, assumed); "
            "not other: node 1 has no transport called other");
}

TEST_F(PathsBetweenDifferentLists, RequiredAndLackedByOneSide_IsAnErrorThatSaysSo) {
  const PathPolicy policy = {.require = "toy"};
  EXPECT_EQ(SelectPath(transports_, query_, policy, nullptr), std::nullopt);
  EXPECT_EQ(ExplainPath(transports_, query_, policy).status(),
            absl::FailedPreconditionError("the required transport cannot connect node 1 and node "
                                          "2: toy: node 2 has no transport called toy"));
}

// As by `ferry topo`.
TEST_F(PathsBetweenDifferentLists, WhatOnlyAThirdProcessLacks_IsExplained) {
  ends_[0].transports.push_back({"other", ""});
  EXPECT_THAT(Explain(*ExplainPath(transports_, query_, {})),
              HasSubstr("not other: this process has no transport called other"));
}

}  // namespace
}  // namespace ferry
