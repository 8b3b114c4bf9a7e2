// SPDX-License-Identifier: Apache-2.0
// MemoryRegistration: memory of the program that other processes may keep mapped.
#ifndef FERRY_INCLUDE_FERRY_MEMORY_REGISTRATION_H_
#define FERRY_INCLUDE_FERRY_MEMORY_REGISTRATION_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// Made by Node::RegisterMemory; the Node must outlive it. Thread-safe.
//
// Tensors that Node::Allocate returns need none. Memory of cudaMalloc and of pools that is not
// registered is mapped and unmapped by the receiver for each transfer, and both may wait for
// everything that runs on the receiver's GPU, because the program may free it after the transfer,
// and CUDA does not define what happens to a process that has it mapped then.
class MemoryRegistration {
 public:
  // Asks the other processes to unmap the memory, and does not wait. The registered tensor is kept
  // until they have, with the exceptions that Release names: memory is safe if it is freed by a
  // deleter that all sent tensors in it share with the registered one.
  ~MemoryRegistration();

  MemoryRegistration(const MemoryRegistration&) = delete;
  MemoryRegistration& operator=(const MemoryRegistration&) = delete;

  // The same, and blocks until the other processes have closed what stayed mapped because of the
  // registration. It does not wait for other transfers: tensors exposed after this call, those that
  // are staged, and memory of cuMemCreate. Before the memory is freed, the deleters of all sent
  // tensors in it must also have run. If a control channel breaks, its mappings count as closed
  // after two seconds, though a peer that is alive may hold them for longer.
  //   Errors: DEADLINE_EXCEEDED it must not be freed yet; call this again.
  absl::Status Release(absl::Duration timeout = absl::Seconds(30));

 private:
  class Impl;
  friend class ApiAccess;

  explicit MemoryRegistration(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_MEMORY_REGISTRATION_H_
