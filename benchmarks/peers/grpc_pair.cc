// SPDX-License-Identifier: Apache-2.0
// Two processes of gRPC, bytes in and bytes out, without protobuf's messages.
//
//   grpc_pair unix|tcp unary|stream pingpong BYTES ROUNDS
//
// unary: a call with the bytes, whose answer has as many. stream: one stream, over which both go in
// chunks of 1 MiB. Either side copies received bytes into an existing buffer.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "pair.h"

namespace {

constexpr size_t kChunk = size_t{1} << 20;
using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;

// Refers to the bytes, which must outlive it.
grpc::ByteBuffer BufferOf(const char* bytes, size_t count) {
  grpc::Slice slice(const_cast<char*>(bytes), count, grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

// Returns how many bytes were put to `at`.
size_t Copy(const grpc::ByteBuffer& in, char* at, size_t room) {
  std::vector<grpc::Slice> slices;
  if (!in.Dump(&slices).ok()) peers::Fail("an answer cannot be read");
  size_t done = 0;
  for (const grpc::Slice& slice : slices) {
    if (done + slice.size() > room) peers::Fail("more came than was sent");
    std::memcpy(at + done, slice.begin(), slice.size());
    done += slice.size();
  }
  return done;
}

struct Buffers {
  explicit Buffers(const peers::Plan& plan) : sent(plan.bytes), received(plan.bytes) {}

  // Called by node 1, once node 0 has everything of this round.
  void Next() {
    wrong += peers::WrongBytes(received, 0, round);
    peers::Fill(sent, 1, ++round);
  }

  std::vector<char> sent, received;
  uint64_t wrong = 0;
  size_t round = 0;
};

// Node 1: receives `bytes`, in one message or in chunks, sends as many back; then verifies, makes
// the next ones, and reports to node 0 how many bytes were wrong, for which node 0 waits before it
// begins another round.
class Answerer final : public grpc::ServerGenericBidiReactor {
 public:
  Answerer(Buffers& buffers, size_t chunk) : buffers_(buffers), chunk_(chunk) { StartRead(&in_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      if (!is_answered_) Finish(grpc::Status::OK);
      return;
    }
    done_ += Copy(in_, buffers_.received.data() + done_, buffers_.received.size() - done_);
    if (done_ < buffers_.received.size()) {
      StartRead(&in_);
      return;
    }
    done_ = 0;
    WriteNext();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    if (sent_ == 0) {
      StartRead(&in_);
    } else if (sent_ < buffers_.sent.size()) {
      WriteNext();
    } else {
      buffers_.Next();
      sent_ = 0;
      out_ = BufferOf(reinterpret_cast<const char*>(&buffers_.wrong), sizeof buffers_.wrong);
      StartWrite(&out_);
    }
  }
  void WriteNext() {
    const size_t count = std::min(chunk_, buffers_.sent.size() - sent_);
    out_ = BufferOf(buffers_.sent.data() + sent_, count);
    sent_ += count;
    if (chunk_ == buffers_.sent.size()) {
      is_answered_ = true;
      StartWriteAndFinish(&out_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      StartWrite(&out_);
    }
  }
  void OnDone() override { delete this; }

  Buffers& buffers_;
  const size_t chunk_;
  size_t done_ = 0, sent_ = 0;
  bool is_answered_ = false;
  grpc::ByteBuffer in_, out_;
};

class Service final : public grpc::CallbackGenericService {
 public:
  Service(Buffers& buffers, bool is_unary) : buffers_(buffers), is_unary_(is_unary) {}

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (context->method() == "/peer/Wrong") return new Teller(buffers_);
    return new Answerer(buffers_, is_unary_ ? buffers_.sent.size() : kChunk);
  }

  // For unary calls: that many bytes were wrong, and node 1 is ready for another one.
  class Teller final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Teller(Buffers& buffers) {
      buffers.Next();
      out_ = BufferOf(reinterpret_cast<const char*>(&buffers.wrong), sizeof buffers.wrong);
      StartWriteAndFinish(&out_, grpc::WriteOptions(), grpc::Status::OK);
    }

   private:
    void OnDone() override { delete this; }
    grpc::ByteBuffer out_;
  };

  Buffers& buffers_;
  const bool is_unary_;
};

grpc::ByteBuffer Call(Stub& stub, grpc::CompletionQueue& queue, const char* method,
                      const grpc::ByteBuffer& request) {
  grpc::ClientContext context;
  grpc::ByteBuffer answer;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  if (!queue.Next(&tag, &ok) || !status.ok()) peers::Fail("gRPC: " + status.error_message());
  return answer;
}

void Wait(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  if (!queue.Next(&tag, &ok) || !ok) peers::Fail("gRPC: the stream has ended");
}

uint64_t NumberOf(const grpc::ByteBuffer& buffer) {
  uint64_t number = 0;
  Copy(buffer, reinterpret_cast<char*>(&number), sizeof number);
  return number;
}

std::unique_ptr<grpc::Server> ServerOf(Service& service, const std::string& address, int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterCallbackGenericService(&service);
  auto server = builder.BuildAndStart();
  if (server == nullptr) peers::Fail("gRPC cannot listen on " + address);
  return server;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) peers::Fail("grpc_pair unix|tcp unary|stream pingpong BYTES ROUNDS");
  const bool is_unix = std::string(argv[1]) == "unix", is_unary = std::string(argv[2]) == "unary";
  const peers::Plan plan = peers::PlanOf(argc - 3, argv + 3);
  if (!plan.is_pingpong) peers::Fail("there is only pingpong");
  const std::string socket = "/tmp/peers_grpc_" + std::to_string(getpid());
  int ports[2];
  if (pipe(ports) != 0) peers::Fail("no pipe");
  const pid_t child = fork();
  if (child < 0) peers::Fail("cannot fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Buffers buffers(plan);
    peers::Fill(buffers.sent, 1, 0);
    Service service(buffers, is_unary);
    int port = 0;
    auto server = ServerOf(service, is_unix ? "unix:" + socket : "127.0.0.1:0", port);
    if (write(ports[1], &port, sizeof port) < 0) peers::Fail("no pipe");
    server->Wait();
  }
  int port = 0;
  if (read(ports[0], &port, sizeof port) != sizeof port) peers::Fail("the other process has died");
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  auto channel =
      grpc::CreateCustomChannel(is_unix ? "unix:" + socket : "127.0.0.1:" + std::to_string(port),
                                grpc::InsecureChannelCredentials(), arguments);
  Stub stub(channel);
  grpc::CompletionQueue queue;
  Buffers buffers(plan);
  std::vector<double> times;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream;
  if (!is_unary) {
    stream = stub.PrepareCall(&context, "/peer/Stream", &queue);
    stream->StartCall(nullptr);
    Wait(queue);
  }
  uint64_t wrong_there = 0;
  for (size_t round = 0; round < plan.warmups() + plan.rounds; ++round) {
    peers::Fill(buffers.sent, 0, round);
    const double start = peers::Now();
    if (is_unary) {
      Copy(Call(stub, queue, "/peer/Unary", BufferOf(buffers.sent.data(), plan.bytes)),
           buffers.received.data(), plan.bytes);
    } else {
      for (size_t at = 0; at < plan.bytes; at += kChunk) {
        stream->Write(BufferOf(buffers.sent.data() + at, std::min(kChunk, plan.bytes - at)),
                      nullptr);
        Wait(queue);
      }
      for (size_t at = 0; at < plan.bytes;) {
        grpc::ByteBuffer in;
        stream->Read(&in, nullptr);
        Wait(queue);
        at += Copy(in, buffers.received.data() + at, plan.bytes - at);
      }
    }
    if (round >= plan.warmups()) times.push_back((peers::Now() - start) * plan.share());
    buffers.wrong += peers::WrongBytes(buffers.received, 1, round);
    grpc::ByteBuffer told;
    if (is_unary) {
      told = Call(stub, queue, "/peer/Wrong", grpc::ByteBuffer(nullptr, 0));
    } else {
      stream->Read(&told, nullptr);
      Wait(queue);
    }
    wrong_there = NumberOf(told);
  }
  peers::Print("seconds", peers::Median(times), times.size(), wrong_there + buffers.wrong);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (is_unix) unlink(socket.c_str());
  std::_Exit(0);
}
