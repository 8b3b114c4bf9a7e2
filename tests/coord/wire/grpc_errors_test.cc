// SPDX-License-Identifier: Apache-2.0
// Errors as bytes: the payload container, and truncation.
#include "coord/wire/errors.h"

#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coord/core/errors.h"
#include "proto/tsl_coordination.pb.h"
#include "proto/tsl_payloads.pb.h"
#include "proto/xla_coordination.pb.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr WireGeneration kGenerations[] = {
    WireGeneration::kNamedTasks, WireGeneration::kNumberedTasks, WireGeneration::kIncarnations};

const Jobs& OneJob() {
  static const Jobs* const kJobs = new Jobs(*Jobs::Create({{"jax_worker", 4}}));
  return *kJobs;
}

std::map<std::string, std::string> Payloads(const grpc::Status& status) {
  tensorflow::distributed_runtime::GrpcPayloadContainer container;
  EXPECT_TRUE(container.ParseFromString(status.error_details()));
  return {container.payloads().begin(), container.payloads().end()};
}

// Captured behind jaxlib 0.9.0's and 0.10.2's own services: map entry {key = url, value = ""}, with
// the empty value written out.
TEST(GrpcErrors, ErrorOfTheCoordinatorHasThePayloadExactlyAsCaptured) {
  const std::string captured = absl::StrCat(
      absl::HexStringToBytes("0a3b0a37"), "type.googleapis.com/tensorflow.CoordinationServiceError",
      absl::HexStringToBytes("1200"));
  ASSERT_EQ(captured.size(), 61u);
  for (const WireGeneration generation : kGenerations) {
    const grpc::Status status = ToGrpcStatus(
        CoordinationError(absl::NotFoundError("Config key x not found.")), OneJob(), generation);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(status.error_message(), "Config key x not found.");
    EXPECT_EQ(absl::BytesToHexString(status.error_details()), absl::BytesToHexString(captured));
  }
}

// Newer wheels' ALREADY_EXISTS: the client may retry errors without a payload.
TEST(GrpcErrors, UnmarkedErrorHasNoDetails) {
  for (const WireGeneration generation : kGenerations) {
    EXPECT_EQ(ToGrpcStatus(absl::AlreadyExistsError("key k already exists."), OneJob(), generation)
                  .error_details(),
              "");
  }
  EXPECT_EQ(ToGrpcStatus(absl::UnavailableError("x")).error_details(), "");
}

TEST(GrpcErrors, OkIsOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus(), OneJob(), WireGeneration::kNamedTasks).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcErrors, EveryCodeKeepsItsNumber) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status error(static_cast<absl::StatusCode>(code), "m");
    const grpc::Status wire = ToGrpcStatus(error);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(wire), error);
  }
}

TEST(GrpcErrors, TheSourceIsWrittenAsTheGenerationWritesTasks) {
  const absl::Status error =
      CoordinationError(absl::InternalError("x"), {.is_reported = true, .source = TaskId(3)});
  tensorflow::CoordinationServiceError named;
  ASSERT_TRUE(named.ParseFromString(
      Payloads(ToGrpcStatus(error, OneJob(), WireGeneration::kNamedTasks))[kCoordinationErrorUrl]));
  EXPECT_TRUE(named.is_reported_error());
  EXPECT_EQ(named.source_task().job_name(), "jax_worker");
  EXPECT_EQ(named.source_task().task_id(), 3);
  for (const WireGeneration generation :
       {WireGeneration::kNumberedTasks, WireGeneration::kIncarnations}) {
    // CoordinationServiceError{3: true, 4: 3}.
    EXPECT_EQ(absl::BytesToHexString(
                  Payloads(ToGrpcStatus(error, OneJob(), generation))[kCoordinationErrorUrl]),
              "18012003");
  }
}

TEST(GrpcErrors, BarrierErrorCarriesIdAndCounter) {
  for (const WireGeneration generation : kGenerations) {
    const auto payloads =
        Payloads(ToGrpcStatus(CoordinationError(absl::DeadlineExceededError("x")), OneJob(),
                              generation, BarrierErrorInfo{"step", 300}));
    EXPECT_THAT(payloads, Contains(Key(kCoordinationErrorUrl)));
    // BarrierError{1: "step", 2: 300}.
    EXPECT_EQ(absl::BytesToHexString(payloads.at(kBarrierErrorUrl)), "0a047374657010ac02");
  }
}

TEST(GrpcErrors, MismatchHasUpstreamsText) {
  const grpc::Status status = ServiceMismatch(5, 0x0102030405060708);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("wrong service incarnation: requested 5"),
                                            HasSubstr(absl::StrCat(0x0102030405060708))));
  // ServiceMismatchError{1: fixed64}, little end first.
  EXPECT_THAT(Payloads(status),
              Contains(Pair(kServiceMismatchUrl, absl::HexStringToBytes("090807060504030201"))));
}

// gRPC drops trailers over 8 KiB, and with them the code.
TEST(GrpcErrors, LongMessagesAreCut) {
  const grpc::Status exact = ToGrpcStatus(absl::InternalError(std::string(3072, 'x')));
  EXPECT_EQ(exact.error_message(), std::string(3072, 'x'));
  const grpc::Status longer = ToGrpcStatus(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_LE(longer.error_message().size(), 3072u);
  EXPECT_GT(longer.error_message().size(), 3000u);
  EXPECT_THAT(ToGrpcStatus(CoordinationError(absl::InternalError(std::string(5000, 'x'))), OneJob(),
                           WireGeneration::kNamedTasks)
                  .error_message()
                  .size(),
              ::testing::Le(3072u));
}

// The size of a message in gRPC's trailer: three bytes for each byte that is not plain ASCII, and
// for '%'.
size_t EncodedBytes(const std::string& text) {
  size_t bytes = 0;
  for (const char c : text) bytes += c >= 0x20 && c <= 0x7e && c != '%' ? 1 : 3;
  return bytes;
}

bool IsUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[i]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (size == 0 || i + size > text.size()) return false;
    for (size_t j = 1; j < size; ++j) {
      if ((static_cast<unsigned char>(text[i + j]) & 0xc0) != 0x80) return false;
    }
    i += size;
  }
  return true;
}

TEST(GrpcErrors, CutIsBetweenCharacters) {
  for (const char* character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9a\xa2"}) {
    for (int shift = 0; shift < 4; ++shift) {
      std::string text(static_cast<size_t>(shift), 'x');
      while (text.size() < 4000) text += character;
      const std::string cut = ToGrpcStatus(absl::InternalError(text)).error_message();
      EXPECT_LE(EncodedBytes(cut), 3072u);
      EXPECT_GT(EncodedBytes(cut), 3000u);
      EXPECT_TRUE(IsUtf8(cut)) << shift;
    }
  }
}

TEST(GrpcErrors, LimitAppliesToTheEncodedSize) {
  for (const char c : {'%', '\n', '\x7f'}) {
    const std::string cut = ToGrpcStatus(absl::InternalError(std::string(5000, c))).error_message();
    EXPECT_LE(EncodedBytes(cut), 3072u);
    EXPECT_GT(EncodedBytes(cut), 3000u);
  }
  // The first and the last plain characters.
  for (const char c : {' ', '~'}) {
    const std::string plain(3072, c);
    EXPECT_EQ(ToGrpcStatus(absl::InternalError(plain)).error_message(), plain);
  }
}

// A text that is not UTF-8, for instance because of a user's key, must still be cut.
TEST(GrpcErrors, MessageOfContinuationBytesIsCutToo) {
  const std::string cut =
      ToGrpcStatus(absl::InternalError(std::string(10'000, '\x80'))).error_message();
  EXPECT_LE(EncodedBytes(cut), 3072u);
}

// Barrier ids are the client's, and may be of any length: they must not blow up the trailers.
TEST(GrpcErrors, DetailsStaySmallWithAnyBarrierId) {
  const grpc::Status status =
      ToGrpcStatus(CoordinationError(absl::InternalError("x")), OneJob(),
                   WireGeneration::kNamedTasks, BarrierErrorInfo{std::string(1 << 20, 'b'), 1});
  // base64 makes 4 bytes of 3; 3072 bytes of message and some headers need their room as well.
  EXPECT_LE(status.error_details().size(), size_t{3500});
}

TEST(GrpcErrors, BarrierOfTheUsualNameKeepsIt) {
  const std::string id(500, 'b');
  const grpc::Status status = ToGrpcStatus(CoordinationError(absl::InternalError("x")), OneJob(),
                                           WireGeneration::kNamedTasks, BarrierErrorInfo{id, 1});
  tensorflow::BarrierError error;
  ASSERT_TRUE(error.ParseFromString(Payloads(status)[kBarrierErrorUrl]));
  EXPECT_EQ(error.barrier_id(), id);
}

}  // namespace
}  // namespace ferry::coord
