// SPDX-License-Identifier: Apache-2.0
// Two processes of TensorPipe. All work is done in its callbacks, so that no other thread has to
// wake up.
//
//   tensorpipe_pair shm|uv basic|cma payload|tensor pingpong BYTES ROUNDS
//   tensorpipe_pair shm|uv basic|cma payload|tensor stream BYTES ROUNDS WINDOW
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <future>
#include <memory>

#include <tensorpipe/tensorpipe.h>

#include "pair.h"

namespace {

struct Way {
  std::string transport;
  std::string channel;
  bool is_tensor;
};

std::shared_ptr<tensorpipe::Context> ContextOf(const Way& way) {
  auto context = std::make_shared<tensorpipe::Context>();
  if (way.transport == "shm") {
    context->registerTransport(0, "shm", tensorpipe::transport::shm::create());
  } else {
    context->registerTransport(0, "uv", tensorpipe::transport::uv::create());
  }
  if (way.channel == "cma") {
    context->registerChannel(0, "cma", tensorpipe::channel::cma::create());
  } else {
    context->registerChannel(0, "basic", tensorpipe::channel::basic::create());
  }
  return context;
}

void Expect(const tensorpipe::Error& error) {
  if (error) peers::Fail(error.what());
}

// One side. Each of its steps is begun by a callback of the one before.
class Side final {
 public:
  Side(std::shared_ptr<tensorpipe::Pipe> pipe, const Way& way, const peers::Plan& plan, int side)
      : pipe_(std::move(pipe)), way_(way), plan_(plan), side_(side) {
    const size_t out = side == 0 ? plan.bytes : plan.answer_bytes();
    const size_t in = side == 0 ? plan.answer_bytes() : plan.bytes;
    sent_.assign(side == 0 ? plan.window : 1, std::vector<char>(out));
    received_.assign(side == 0 ? 1 : plan.window, std::vector<char>(in));
  }

  void Run() {
    Begin();
    done_.get_future().get();
  }
  const std::vector<double>& times() const { return times_; }
  uint64_t wrong() const { return wrong_; }

 private:
  void Begin() {
    for (size_t i = 0; i < sent_.size(); ++i) peers::Fill(sent_[i], side_, round_, i);
    parts_ = 2;
    Receive(0);
    // Node 1 reports that it is ready, and node 0 sends.
    if (side_ == 1) {
      Write(ready_, [] {});
    } else {
      Read(ready_, [this] {
        start_ = peers::Now();
        Send();
      });
    }
  }

  void Send() {
    leaving_ = sent_.size();
    for (auto& each : sent_) {
      Write(each, [this] {
        if (--leaving_ == 0) Part();
      });
    }
  }

  // Descriptors come in the order of messages: node 0's first is that node 1 is ready.
  void Receive(size_t index) {
    if (side_ == 0) return;
    Read(received_[index], [this, index] {
      if (index + 1 == received_.size()) {
        Send();
        Part();
      }
    });
    if (index + 1 < received_.size()) Receive(index + 1);
  }

  void Part() {
    if (--parts_ > 0) return;
    if (round_ >= plan_.warmups()) times_.push_back((end_ - start_) * plan_.share());
    for (size_t i = 0; i < received_.size(); ++i) {
      wrong_ += peers::WrongBytes(received_[i], 1 - side_, round_, i);
    }
    if (++round_ == plan_.warmups() + plan_.rounds) {
      done_.set_value();
    } else {
      Begin();
    }
  }

  void Write(std::vector<char>& bytes, std::function<void()> done) {
    tensorpipe::Message message;
    if (way_.is_tensor && &bytes != &ready_) {
      tensorpipe::Message::Tensor tensor;
      tensor.buffer = tensorpipe::CpuBuffer{bytes.data()};
      tensor.length = bytes.size();
      message.tensors.push_back(tensor);
    } else {
      message.payloads.push_back({bytes.data(), bytes.size(), ""});
    }
    pipe_->write(std::move(message), [done = std::move(done)](const tensorpipe::Error& error) {
      Expect(error);
      done();
    });
    if (side_ == 0 && &bytes == &sent_.back()) {
      Read(received_[0], [this] {
        end_ = peers::Now();
        Part();
      });
    }
  }

  void Read(std::vector<char>& bytes, std::function<void()> done) {
    pipe_->readDescriptor([this, &bytes, done = std::move(done)](
                              const tensorpipe::Error& error, tensorpipe::Descriptor descriptor) {
      Expect(error);
      tensorpipe::Allocation allocation;
      for (size_t i = 0; i < descriptor.payloads.size(); ++i) {
        if (descriptor.payloads[i].length != bytes.size()) peers::Fail("another size came");
        allocation.payloads.push_back({bytes.data()});
      }
      for (size_t i = 0; i < descriptor.tensors.size(); ++i) {
        if (descriptor.tensors[i].length != bytes.size()) peers::Fail("another size came");
        allocation.tensors.push_back({tensorpipe::CpuBuffer{bytes.data()}});
      }
      pipe_->read(std::move(allocation), [done](const tensorpipe::Error& read_error) {
        Expect(read_error);
        done();
      });
    });
  }

  const std::shared_ptr<tensorpipe::Pipe> pipe_;
  const Way way_;
  const peers::Plan plan_;
  const uint64_t side_;
  std::vector<char> ready_ = std::vector<char>(1);
  std::vector<std::vector<char>> sent_, received_;
  // Callbacks come one after the other, but not on one thread.
  std::atomic<size_t> leaving_{0};
  std::atomic<int> parts_{0};
  size_t round_ = 0;
  double start_ = 0, end_ = 0;
  std::vector<double> times_;
  uint64_t wrong_ = 0;
  std::promise<void> done_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7)
    peers::Fail("tensorpipe_pair shm|uv basic|cma payload|tensor pingpong|stream BYTES ROUNDS");
  const Way way{argv[1], argv[2], std::string(argv[3]) == "tensor"};
  const peers::Plan plan = peers::PlanOf(argc - 4, argv + 4);
  int address[2], wrong_pipe[2];
  if (pipe(address) != 0 || pipe(wrong_pipe) != 0) peers::Fail("no pipe");
  const std::string shm = "peers_tensorpipe_" + std::to_string(getpid());
  const pid_t child = fork();
  if (child < 0) peers::Fail("cannot fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto context = ContextOf(way);
    auto listener =
        context->listen({way.transport + "://" + (way.transport == "shm" ? shm : "127.0.0.1")});
    std::promise<std::shared_ptr<tensorpipe::Pipe>> accepted;
    listener->accept([&](const tensorpipe::Error& error, std::shared_ptr<tensorpipe::Pipe> pipe) {
      Expect(error);
      accepted.set_value(std::move(pipe));
    });
    const std::string url = listener->url(way.transport);
    if (write(address[1], url.c_str(), url.size() + 1) < 0) peers::Fail("no pipe");
    Side side(accepted.get_future().get(), way, plan, 1);
    side.Run();
    const uint64_t wrong = side.wrong();
    if (write(wrong_pipe[1], &wrong, sizeof wrong) < 0) peers::Fail("no pipe");
    // Its last answer may still be in flight; node 0 ends this process.
    pause();
  }
  char url[256] = {};
  if (read(address[0], url, sizeof url - 1) <= 0) peers::Fail("the other process has died");
  auto context = ContextOf(way);
  Side side(context->connect(url), way, plan, 0);
  side.Run();
  uint64_t wrong = 0;
  if (read(wrong_pipe[0], &wrong, sizeof wrong) != sizeof wrong)
    peers::Fail("the other process has died");
  peers::Print("seconds", peers::Median(side.times()), side.times().size(), wrong + side.wrong());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::_Exit(0);
}
