// SPDX-License-Identifier: Apache-2.0
// FileTransport: moves tensors through files in a directory that both processes can open. The
// example of docs/adding_a_transport.md, and the proof that a transport needs no other place.
#ifndef FERRY_TESTS_SUPPORT_FILE_TRANSPORT_H_
#define FERRY_TESTS_SUPPORT_FILE_TRANSPORT_H_

#include <memory>
#include <string>
#include <utility>

#include "transport/transports.h"

namespace ferry {

// The sender writes each exposed tensor to a file of its own and removes the file when the receiver
// has acknowledged it; the transfer descriptor names the file. Thread-safe.
class FileTransport final : public Transport {
 public:
  static constexpr TransportInfo kInfo = {.name = "file",
                                          .summary = "files in a directory of this machine"};

  //   directory: absolute path of an existing directory, of at most kMaxDirectoryBytes.
  explicit FileTransport(std::string directory)
      : Transport(kInfo), directory_(std::move(directory)) {}

  // The directory: processes that use two different ones cannot reach each other's files.
  std::string local_descriptor() const override { return directory_; }
  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override;
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override;
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override;

  static constexpr size_t kMaxDirectoryBytes = 256;

 private:
  const std::string directory_;
};

// The line that registers it.
TransportFactory FileTransportFactory(std::string directory);

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_FILE_TRANSPORT_H_
