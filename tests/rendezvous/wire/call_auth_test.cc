// SPDX-License-Identifier: Apache-2.0
// Requests and values that were changed without gRPC noticing.
#include "rendezvous/recv_tensor/call_auth.h"

#include <string>
#include <utility>

#include "coord/wire/bytes.h"
#include "coord/wire/raw_service.h"
#include "fetch_fixture.h"
#include "proto/tf_worker.pb.h"
#include "rendezvous/recv_tensor/derived.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Fails;
using coord::IsOk;
using coord::PendingCall;
using ::testing::AllOf;
using ::testing::HasSubstr;

GrpcTensorFetcherOptions Careful(GrpcTensorFetcherOptions options) {
  options.checksum = true;
  return options;
}

PendingCall Ask(const TestWorker& worker, int64_t step, const std::string& key, int64_t id,
                std::vector<std::pair<std::string, std::string>> metadata) {
  tensorflow::RecvTensorRequest request;
  request.set_step_id(step);
  request.set_rendezvous_key(key);
  request.set_request_id(id);
  PendingCall::Options options;
  options.metadata = std::move(metadata);
  return PendingCall::Start(coord::NewChannel(worker.address()), kRecvTensorPath,
                            request.SerializeAsString(), options);
}

using MarkedForms = Forms;
INSTANTIATE_TEST_SUITE_P(, MarkedForms,
                         ::testing::Values(Form{"Stream", true, true}, Form{"Unary", true, false},
                                           Form{"FallingBack", false, true}),
                         [](const ::testing::TestParamInfo<Form>& i) { return i.param.name; });

TEST_P(MarkedForms, ChecksumsDoNotChangeTheResult) {
  for (const bool at_source : {false, true}) {
    TestWorkerOptions source = Source();
    source.service.checksum = at_source;
    Pair pair(source, at_source ? Sink() : Careful(Sink()));
    const Tensor strings = *Tensor::OfStrings(*Shape::Create({2}), {"", std::string(5000, 'x')});
    pair.Send("numbers", Counted(DataType::kInt16, 3000));
    pair.Send("none", Counted(DataType::kInt16, 0));
    pair.Send("strings", strings);
    pair.Send("dead", Tensor(), /*is_dead=*/true);
    EXPECT_TRUE(IsEqual(pair.Recv("numbers").Wait()->tensor, Counted(DataType::kInt16, 3000)));
    EXPECT_THAT(pair.Recv("none").Wait(), IsOk());
    EXPECT_TRUE(IsEqual(pair.Recv("strings").Wait()->tensor, strings));
    EXPECT_TRUE(pair.Recv("dead").Wait()->is_dead);
  }
}

TEST(CallChecksum, ChangedRequestIsRefused) {
  AddressBook book;
  TestWorker worker(book);
  ASSERT_TRUE(worker.Begin(1)->Send(Edge("a"), Value("v")).ok());
  ASSERT_TRUE(worker.Begin(1)->Send(Edge("b"), Value("w")).ok());
  const std::string key = EdgeText("a");
  const std::string mark = ChecksumText({1, 5, key});
  const auto is_refused =
      Fails(StatusCode::kDataLoss, AllOf(HasSubstr("has changed on its way"), HasSubstr("dmesg")));
  EXPECT_THAT(Ask(worker, 1, EdgeText("b"), 5, {{kChecksumMetadata, mark}}).Wait(), is_refused);
  EXPECT_THAT(Ask(worker, 3, key, 5, {{kChecksumMetadata, mark}}).Wait(), is_refused);
  EXPECT_THAT(Ask(worker, 1, key, 4, {{kChecksumMetadata, mark}}).Wait(), is_refused);
  EXPECT_THAT(Ask(worker, 1, key, 5, {{kChecksumMetadata, mark}}).Wait(), IsOk());
}

// Announces each value, and sends another.
class ChangingService final : public coord::RawService {
 public:
  ChangingService(ServedValue said, ServedValue sent, bool has_mark) {
    AddUnary(kRecvTensorPath, [=](grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                  grpc::ByteBuffer* response) {
      if (has_mark) context->AddTrailingMetadata(kChecksumMetadata, ChecksumText(said));
      *response = *EncodeRecvTensorResponse(sent);
      grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    });
    AddServerStream(kTensorStreamPath,
                    [=](grpc::CallbackServerContext* context, const grpc::ByteBuffer*) {
                      if (has_mark)
                        context->AddTrailingMetadata(kChecksumMetadata, ChecksumText(said));
                      return new OneFrame(sent);
                    });
  }

 private:
  class OneFrame final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
   public:
    explicit OneFrame(const ServedValue& value) : frame_(FrameWriter(value).Next()) {
      StartWriteAndFinish(&frame_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer frame_;
  };
};

TEST(CallChecksum, ChangedValueIsNotDelivered) {
  ServedValue said;
  said.tensor = Counted(DataType::kInt32, 1000);
  ServedValue other_elements = said;
  other_elements.tensor = Counted(DataType::kInt32, 1000);
  static_cast<char*>(other_elements.tensor.mutable_data())[77] ^= 1;
  ServedValue other_type = said;
  other_type.tensor = *Tensor::Create(DataType::kFloat, said.tensor.shape(), said.tensor.buffer());
  ServedValue other_shape = said;
  other_shape.tensor = *said.tensor.Reshape(*Shape::Create({10, 100}));
  ServedValue dead;
  dead.is_dead = true;
  for (const ServedValue& sent : {other_elements, other_type, other_shape, dead, said}) {
    for (const bool use_streams : {false, true}) {
      ChangingService service(said, sent, /*has_mark=*/true);
      LoopbackServer server(service);
      GrpcTensorFetcherOptions options = Careful(Quick());
      options.use_streams = use_streams;
      Pair pair({}, options);
      pair.book.Set(0, server.address());
      const absl::StatusOr<Received> received = pair.Recv("e").Wait();
      if (!sent.is_dead && IsEqual(sent.tensor, said.tensor)) {
        EXPECT_THAT(received, IsOk());
        continue;
      }
      EXPECT_THAT(received, Fails(StatusCode::kDataLoss,
                                  AllOf(HasSubstr("was sent with"), HasSubstr("step 1"),
                                        HasSubstr("/job:worker/replica:0/task:0"),
                                        HasSubstr(EdgeText("e")))));
    }
  }
}

// The answer's own checksum may be lost; of workers without checksums none is expected.
TEST(CallChecksum, StreamWithoutItsChecksumIsRefused) {
  ServedValue value;
  value.tensor = Counted(DataType::kInt32, 1000);
  ChangingService service(value, value, /*has_mark=*/false);
  LoopbackServer server(service);
  for (const bool use_streams : {false, true}) {
    GrpcTensorFetcherOptions options = Careful(Quick());
    options.use_streams = use_streams;
    Pair pair({}, options);
    pair.book.Set(0, server.address());
    const absl::StatusOr<Received> received = pair.Recv("e").Wait();
    if (use_streams) {
      EXPECT_THAT(received, Fails(StatusCode::kDataLoss, HasSubstr("has lost its checksum")));
    } else {
      EXPECT_THAT(received, IsOk());
    }
  }
}

// --- Authentication

constexpr char kToken[] = "the job's secret";

TestWorkerOptions AuthOptions(bool is_required, const std::string& token = kToken) {
  TestWorkerOptions options;
  options.service.auth = {token, is_required};
  return options;
}

class CallAuthTest : public ::testing::Test {
 protected:
  explicit CallAuthTest(bool is_required = true) : worker_(book_, AuthOptions(is_required)) {
    EXPECT_TRUE(worker_.Begin(1)->Send(Edge("a"), Value("v")).ok());
  }
  coord::Answer AskWith(const std::string& auth_tag, const TensorCall& call) {
    return Ask(worker_, call.step_id, std::string(call.key), call.request_id,
               {{kAuthTagMetadata, auth_tag}})
        .Wait();
  }

  AddressBook book_;
  TestWorker worker_;
  const std::string key_ = EdgeText("a");
  const TensorCall call_ = {1, 5, key_};
};

TEST_F(CallAuthTest, TagsAreValidForOneCallAndOneToken) {
  const std::string other_life = EdgeText("a", /*incarnation=*/2);
  for (const TensorCall& other :
       {TensorCall{2, 5, key_}, TensorCall{1, 6, key_}, TensorCall{1, 5, other_life}}) {
    EXPECT_THAT(AskWith(AuthTag(kToken, other), call_), Fails(StatusCode::kUnauthenticated));
  }
  EXPECT_THAT(AskWith(AuthTag("another", call_), call_), Fails(StatusCode::kUnauthenticated));
  EXPECT_THAT(AskWith("", call_), Fails(StatusCode::kUnauthenticated));
  EXPECT_THAT(AskWith(AuthTag(kToken, call_), call_), IsOk());
  // An authentication tag that was overheard.
  EXPECT_THAT(AskWith(AuthTag(kToken, call_), call_),
              Fails(StatusCode::kAborted, HasSubstr("received twice")));
  const TensorCall without_id = {1, 0, key_};
  EXPECT_THAT(AskWith(AuthTag(kToken, without_id), without_id),
              Fails(StatusCode::kUnauthenticated));
}

TEST_F(CallAuthTest, TagsAreMissedOnlyWhereRequired) {
  EXPECT_THAT(Ask(worker_, 1, key_, 1, {}).Wait(),
              Fails(StatusCode::kUnauthenticated,
                    AllOf(HasSubstr("--require-auth"), HasSubstr("FERRY_JOB_TOKEN"))));
  tensorflow::MarkRecvFinishedRequest finished;
  finished.set_request_id(5);
  const auto mark = [&](std::vector<std::pair<std::string, std::string>> metadata) {
    PendingCall::Options options;
    options.metadata = std::move(metadata);
    return PendingCall::Start(coord::NewChannel(worker_.address()), kMarkRecvFinishedPath,
                              finished.SerializeAsString(), options)
        .Wait();
  };
  EXPECT_THAT(mark({}), Fails(StatusCode::kUnauthenticated));
  EXPECT_THAT(mark({{kAuthTagMetadata, AuthTag(kToken, 6)}}), Fails(StatusCode::kUnauthenticated));
  EXPECT_THAT(mark({{kAuthTagMetadata, AuthTag(kToken, 5)}}), IsOk());

  AddressBook book;
  TestWorker open(book, AuthOptions(/*is_required=*/false));
  ASSERT_TRUE(open.Begin(1)->Send(Edge("a"), Value("v")).ok());
  // A stock client; and one of another job, which is a mistake.
  EXPECT_THAT(Ask(open, 1, key_, 1, {{kAuthTagMetadata, AuthTag("another", {1, 1, key_})}}).Wait(),
              Fails(StatusCode::kUnauthenticated));
  EXPECT_THAT(Ask(open, 1, key_, 1, {}).Wait(), IsOk());
}

TEST_P(MarkedForms, FetchesProveTheirToken) {
  for (const bool keeps : {false, true}) {
    TestWorkerOptions source = Source({.keep_responses = keeps});
    source.service.auth = {kToken, true};
    GrpcTensorFetcherOptions options = Sink();
    options.token = kToken;
    Pair pair(source, options);
    pair.Send("e", Value("v"));
    const absl::StatusOr<Received> received = pair.Recv("e").Wait();
    ASSERT_THAT(received, IsOk());
    EXPECT_EQ(received->tensor.strings()[0], "v");
    // Its receipt is believed as well.
    EXPECT_TRUE(
        coord::Eventually([&pair] { return pair.source.source().cache().entry_count() == 0; }));

    options.token = "another";
    Pair strangers(source, options);
    strangers.Send("e", Value("v"));
    EXPECT_THAT(strangers.Recv("e").Wait(),
                Fails(StatusCode::kUnauthenticated, HasSubstr("/job:worker/replica:0/task:0")));
  }
}

// Workers of TensorFlow 2.15 recognize a copied error by its payload, whose bytes are these: a
// map's entry (field 1) with the key (field 1) and no value.
TEST(Derived, GoesOverTheWireAsTensorFlowsPayload) {
  const absl::Status copy = MakeDerived(absl::InvalidArgumentError("bad shape"));
  const grpc::Status answer = ToGrpcAnswer(copy);
  EXPECT_EQ(answer.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const std::string url = "type.googleapis.com/tensorflow.DerivedStatus";
  EXPECT_NE(answer.error_details().find(url), std::string::npos);
  EXPECT_EQ(FromGrpcAnswer(answer), copy);
  // TensorFlow's own has no mark in its text.
  const std::string entry =
      absl::StrCat("\x0a", std::string(1, static_cast<char>(url.size())), url);
  const std::string details =
      absl::StrCat("\x0a", std::string(1, static_cast<char>(entry.size())), entry);
  const absl::Status theirs =
      FromGrpcAnswer(grpc::Status(grpc::StatusCode::ABORTED, "gone", details));
  EXPECT_EQ(theirs.ToString(), "ABORTED: [_Derived_]gone");
  // A root error, another payload, and invalid bytes.
  EXPECT_TRUE(ToGrpcAnswer(absl::InternalError("root")).error_details().empty());
  for (const std::string& other :
       {std::string(), std::string("\x0a\x03\x0a\x01x", 5), std::string("garbage")}) {
    EXPECT_FALSE(IsDerived(FromGrpcAnswer(grpc::Status(grpc::StatusCode::ABORTED, "gone", other))));
  }
  EXPECT_TRUE(FromGrpcAnswer(ToGrpcAnswer(absl::OkStatus())).ok());
}

}  // namespace
}  // namespace ferry
