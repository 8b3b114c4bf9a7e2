// SPDX-License-Identifier: Apache-2.0
// For tests of the fake driver itself: processes that load it, communicate by pipes, and are
// checked by their exit status and stderr.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_FAKE_DRIVER_TEST_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_FAKE_DRIVER_TEST_H_

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/strict_cuda/abi.h"

namespace strict_cuda {

inline void* Symbol(const char* name) {
  static void* const library = dlopen(STRICT_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::_Exit(3);
  }
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "no symbol %s\n", name);
    std::_Exit(3);
  }
  return found;
}

// The fake driver's function, as a table of pointers would have it.
#define CU(name) (reinterpret_cast<decltype(&::strict_cuda::name)>(::strict_cuda::Symbol(#name)))

// In a child there is no gtest: a failed expectation ends it with a line that the parent shows.
#define REQUIRE(condition)                                                               \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                     \
    }                                                                                    \
  } while (false)

// The call must return `expected`.
#define EXPECT_CU(expected, call)                                                                \
  do {                                                                                           \
    const int expect_cu_result = (call);                                                         \
    if (expect_cu_result != (expected)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, expect_cu_result); \
      std::_Exit(1);                                                                             \
    }                                                                                            \
  } while (false)

#define OK(call) EXPECT_CU(0, call)

// One end of a pair of sockets between two processes of a test.
class Wire final {
 public:
  explicit Wire(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  void Send(const void* data, size_t bytes) const {
    REQUIRE(write(fd_, data, bytes) == static_cast<ssize_t>(bytes));
  }
  void Recv(void* data, size_t bytes) const {
    for (size_t at = 0; at < bytes;) {
      const ssize_t got = read(fd_, static_cast<char*>(data) + at, bytes - at);
      REQUIRE(got > 0);
      at += static_cast<size_t>(got);
    }
  }
  template <typename Value>
  void Put(const Value& value) const {
    Send(&value, sizeof(value));
  }
  template <typename Value>
  Value Get() const {
    Value value = {};
    Recv(&value, sizeof(value));
    return value;
  }
  void SendFd(int fd) const {
    char byte = 'f';
    iovec data = {&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    REQUIRE(sendmsg(fd_, &message, 0) == 1);
  }
  int RecvFd() const {
    char byte = 0;
    iovec data = {&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    REQUIRE(recvmsg(fd_, &message, MSG_CMSG_CLOEXEC) == 1);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
  }

 private:
  const int fd_;
};

// How a child ended, and its output.
struct Outcome {
  int status = 0;
  std::string text;
  bool Succeeded() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
  bool Aborted() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT; }
};

// A directory and an environment of its own for each test; children that load the fake driver.
class FakeDriverTest : public ::testing::Test {
 protected:
  //   on_real_gpu: of tests that run there too: the environment is the user's.
  explicit FakeDriverTest(bool on_real_gpu = false) {
    char name[] = "/tmp/strict_cuda.XXXXXX";
    session_ = mkdtemp(name);
    if (on_real_gpu) return;
    setenv("STRICT_CUDA_SESSION", session_.c_str(), 1);
    for (const char* variable : {"STRICT_CUDA_ON_BREACH", "STRICT_CUDA_DEVICES", "STRICT_CUDA_FAIL",
                                 "CUDA_VISIBLE_DEVICES", "STRICT_CUDA_PEERS", "STRICT_CUDA_MEMORY",
                                 "STRICT_CUDA_DELAY_US", "NCCL_HOSTID", "STRICT_CUDA_CONNECTIONS",
                                 "CUDA_DEVICE_MAX_CONNECTIONS", "STRICT_CUDA_NCCL_LAUNCH_US"}) {
      unsetenv(variable);
    }
  }
  ~FakeDriverTest() override {
    for (const char* file : {"/machine", "/violations.log"}) unlink((session_ + file).c_str());
    rmdir(session_.c_str());
  }

  // Runs the bodies in a process each, joined by one wire, and waits for both. A body that hangs
  // is killed after 20 seconds.
  std::vector<Outcome> RunPair(const std::function<void(const Wire&)>& first,
                               const std::function<void(const Wire&)>& second) {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    std::vector<Child> children;
    children.push_back(Start([&] {
      close(sockets[1]);
      first(Wire(sockets[0]));
    }));
    children.push_back(Start([&] {
      close(sockets[0]);
      second(Wire(sockets[1]));
    }));
    close(sockets[0]);
    close(sockets[1]);
    return {Finish(children[0]), Finish(children[1])};
  }

  Outcome RunAlone(const std::function<void()>& body) {
    Child child = Start(body);
    return Finish(child);
  }

  void ExpectSuccess(const Outcome& outcome) {
    EXPECT_TRUE(outcome.Succeeded()) << "status " << outcome.status << "\n" << outcome.text;
    // A child ends without the sanitizer's own exit status.
    EXPECT_THAT(outcome.text, ::testing::Not(::testing::HasSubstr("Sanitizer")));
  }
  // It was caught: aborted with the rule's name.
  void ExpectViolation(const Outcome& outcome, const std::string& rule) {
    EXPECT_TRUE(outcome.Aborted()) << "status " << outcome.status << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, ::testing::HasSubstr("violation of \"" + rule + "\""));
  }

  std::string session_;

 private:
  struct Child {
    pid_t pid;
    int output;
  };

  static Child Start(const std::function<void()>& body) {
    int output[2];
    EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(output[1], STDERR_FILENO);
      alarm(20);
      body();
      std::fflush(nullptr);
      std::_Exit(0);
    }
    close(output[1]);
    return {pid, output[0]};
  }

  static Outcome Finish(Child& child) {
    Outcome outcome;
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(child.output, buffer, sizeof(buffer))) > 0) {
      outcome.text.append(buffer, static_cast<size_t>(got));
    }
    close(child.output);
    waitpid(child.pid, &outcome.status, 0);
    return outcome;
  }
};

// The driver, initialized, with the context of a device current.
inline CUcontext UseDevice(int ordinal = 0) {
  OK(CU(cuInit)(0));
  CUdevice device = 0;
  OK(CU(cuDeviceGet)(&device, ordinal));
  CUcontext context = nullptr;
  OK(CU(cuDevicePrimaryCtxRetain)(&context, device));
  OK(CU(cuCtxSetCurrent)(context));
  return context;
}

inline CUdeviceptr Alloc(size_t bytes) {
  CUdeviceptr pointer = 0;
  OK(CU(cuMemAlloc_v2)(&pointer, bytes));
  return pointer;
}

inline CUstream NewStream() {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

inline void WriteText(CUdeviceptr to, const std::string& text) {
  OK(CU(cuMemcpyHtoD_v2)(to, text.data(), text.size()));
}

inline std::string ReadText(CUdeviceptr from, size_t bytes) {
  std::string text(bytes, '?');
  OK(CU(cuMemcpyDtoH_v2)(text.data(), from, bytes));
  return text;
}

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_FAKE_DRIVER_TEST_H_
