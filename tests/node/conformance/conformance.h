// SPDX-License-Identifier: Apache-2.0
// Conformance tests of every path from one process to another: the list of paths, and shared code.
//
//   values_test.cc: each type and size, either side first, many at once in random order
//   ends_test.cc: cancellations, aborts, peers that leave, what is left behind
//   descriptors_test.cc: garbage or truncated transfer descriptors, of any size; release without
//   fetch gpu_values_test.cc: values in GPU memory, by the three paths of cuda_ipc, nccl, and
//   staging gpu_local_test.cc: from each memory of a process to each other gpu_descriptors_test.cc:
//   transfer descriptors for GPU memory
//
// Related: exchange_kill_test.cc (processes that are killed, stopped and starved of resources),
// gpu_death_test.cc and nccl_failure_test.cc (the same with GPUs), and for the gRPC backend, which
// has no transfer descriptors, the answers of a worker:
// tests/rendezvous/wire/tensor_fetcher_faults_test.cc.
#ifndef FERRY_TESTS_NODE_CONFORMANCE_CONFORMANCE_H_
#define FERRY_TESTS_NODE_CONFORMANCE_CONFORMANCE_H_

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/node/engine_pair.h"
#include "tests/support/file_transport.h"

namespace ferry {

// A directory of this test program, for the transport "file".
class FileDirectory final {
 public:
  static const std::string& Path() {
    static const FileDirectory directory;
    return directory.path_;
  }
  // Exposed tensors that have not been released.
  static ptrdiff_t FileCount() {
    const auto files = std::filesystem::directory_iterator(Path());
    return std::distance(begin(files), end(files));
  }

 private:
  FileDirectory() : path_(::testing::TempDir() + "ferry_files_XXXXXX") {
    FERRY_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~FileDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path_;
};

// The transports that are not built in: a line each.
inline std::vector<TransportFactory> ExtraTransports() {
  return {FileTransportFactory(FileDirectory::Path())};
}

// One path of a tensor in host memory from a sender to a receiver.
struct ConformancePath {
  const char* name = "";
  // The transport that is required, and Received::path of tensors that are not in a transfer
  // descriptor.
  const char* path = "";
  // Whether the tensor lies in the sender's arena, or elsewhere and has to be copied there.
  bool is_from_arena = false;
  // Whether the receiver gives a destination buffer.
  bool is_into_buffer = false;

  bool is_grpc() const { return path == std::string("grpc"); }
  bool is_local() const { return path == std::string("local"); }
};

inline void PrintTo(const ConformancePath& path, std::ostream* out) { *out << path.name; }

// Between two processes. In one (`local`) neither can die alone, and there are no transfer
// descriptors: the receiver gets the sender's tensor out of the table.
inline std::vector<ConformancePath> PathsBetweenProcesses() {
  return {{"shm_handed_over", "shm", true, false},
          {"shm_copied", "shm", false, true},
          {"tcp", "tcp", false, false},
          {"tcp_into_buffer", "tcp", true, true},
          {"file", "file", false, false},
          {"file_into_buffer", "file", true, true},
          {"grpc", "grpc", false, false}};
}

// The transports of these paths: gRPC has no transfer descriptors.
inline std::vector<std::string> TransportsBetweenProcesses() {
  std::vector<std::string> names;
  for (const ConformancePath& path : PathsBetweenProcesses()) {
    if (!path.is_grpc() && (names.empty() || names.back() != path.path))
      names.emplace_back(path.path);
  }
  return names;
}

inline std::vector<ConformancePath> AllPaths() {
  std::vector<ConformancePath> paths = PathsBetweenProcesses();
  paths.push_back({"local", "local", false, false});
  paths.push_back({"local_into_buffer", "local", true, true});
  return paths;
}

inline std::string NameOfPath(const ::testing::TestParamInfo<ConformancePath>& info) {
  return info.param.name;
}

class Conformance : public ::testing::TestWithParam<ConformancePath> {
 protected:
  static TransferEngineOptions Options() {
    TransferEngineOptions options;
    if (GetParam().is_grpc()) {
      options.protocol = WireProtocol::kGrpc;
    } else {
      options.require_transport = GetParam().path;
      options.extra_transports = ExtraTransports();
    }
    options.checksum = true;
    return options;
  }

  RendezvousKey KeyTo(const std::string& name) { return KeyBetween(*source_, *sink_, name); }

  // The tensor to send.
  Tensor Pattern(DataType dtype, std::vector<int64_t> dims, uint32_t seed) {
    const Shape shape = *Shape::Create(dims);
    Tensor tensor = GetParam().is_from_arena && *TensorBytes(dtype, shape) > 0
                        ? source_->Allocate(dtype, shape)
                        : *Tensor::Allocate(dtype, shape);
    FillPattern(tensor, seed);
    return tensor;
  }
  // Receives the tensor that is, or will be, sent as `like`.
  Receipt Receive(int64_t step, const RendezvousKey& key, const Tensor& like,
                  CancellationToken* cancellation = nullptr) {
    RecvArgs args;
    args.cancellation = cancellation;
    if (GetParam().is_into_buffer) args.destination = *Tensor::Allocate(like.dtype(), like.shape());
    Receipt receipt;
    sink_->Step(step)->RecvAsync(key, args, receipt.callback());
    return receipt;
  }
  template <typename Condition>
  static bool Becomes(Condition condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(2));
    return condition();
  }
  bool HasNothingLent() {
    return Becomes([this] {
      return source_->engine->arena().stats().block_count == 0 && FileDirectory::FileCount() == 0;
    });
  }

  Directory directory_;
  std::shared_ptr<EngineEnd> source_ = std::make_shared<EngineEnd>(directory_, 1, Options());
  std::shared_ptr<EngineEnd> sink_ =
      GetParam().is_local() ? source_ : std::make_shared<EngineEnd>(directory_, 2, Options());
};

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_CONFORMANCE_CONFORMANCE_H_
