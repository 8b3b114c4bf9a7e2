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
// Tensors that Node::Allocate returns need none. The receiver maps unregistered memory of
// cudaMalloc and of pools before each transfer, and unmaps it after: the program may free it then,
// and CUDA does not define what happens to a process that still has it mapped. Both calls may wait
// for everything that runs on the receiver's GPU. Registered memory stays mapped.
class MemoryRegistration {
 public:
  // Asks the other processes to unmap the memory, and does not wait. The registered tensor is kept
  // until they have done so and nothing of Ferry's uses the memory any more. Its deleter may free
  // the memory; it runs on any thread, also the node's event loop, so it should not wait for a GPU.
  ~MemoryRegistration();

  MemoryRegistration(const MemoryRegistration&) = delete;
  MemoryRegistration& operator=(const MemoryRegistration&) = delete;

  // Ends the registration, and blocks until nothing uses the memory: once it has returned OK, the
  // memory may be freed by any means. It waits for
  //   - tensors in the memory that were sent while it was registered, or are sent meanwhile, by
  //     whichever path, and whether they have been requested or not; in this process, until the
  //     receiver has released the tensor, which is the sender's memory itself;
  //   - receives into the memory (RecvOptions::into);
  //   - tensors that receivers on this host hold as views of it;
  //   - these receivers' mappings of what was sent while it was registered. If the connection to
  //     one is lost: until its process has unmapped all memory that it received over that
  //     connection, which ends with its last view, or two seconds after the process has
  //     died;
  //   - registrations of the same allocation that have ended before.
  // It does not wait for tensors that were sent before RegisterMemory, nor for work that the
  // program itself enqueues. While there is a later registration of the same allocation, transfers
  // belong to that: release both before the memory is freed.
  //   Errors: DEADLINE_EXCEEDED naming the steps, keys and nodes that use the memory: it must not
  //   be freed yet; call this again.
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
