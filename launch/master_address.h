// SPDX-License-Identifier: Apache-2.0
// MASTER_ADDR and MASTER_PORT: the rendezvous address of the PyTorch convention, in rank 0.
#ifndef FERRY_LAUNCH_MASTER_ADDRESS_H_
#define FERRY_LAUNCH_MASTER_ADDRESS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "node/identity.h"

namespace ferry {

// The MASTER_ADDR and MASTER_PORT requested by the user's environment.
struct MasterRequest {
  std::optional<std::string> host;  // without brackets
  std::optional<int> port;
  // Why a value that is set cannot be used, one sentence each.
  std::vector<std::string> notes;
};

// Values of an enclosing job, of torchrun or of `ferry run`, are ignored.
MasterRequest ReadMasterWish(GetEnv get_env);

struct MasterAddress {
  std::string host;  // without brackets
  int port = 0;
  // For the user: which values of the environment are ignored, and why.
  std::vector<std::string> notes;
};

// Probes of rank 0's machine that ChooseMaster needs. Tests replace them.
struct PortProbe {
  // Returns the port if a server could listen on it at all addresses, or any free port for 0.
  absl::FunctionRef<absl::StatusOr<int>(int port)> free_port;
  // Returns whether that host name or numeric address belongs to this machine.
  absl::FunctionRef<bool(const std::string& host)> is_own;
};

// Returns the address for all ranks, chosen on the machine of rank 0, which listens there itself.
//   own_host: the address at which other machines reach this one; loopback if there are none.
//   machine_count: number of machines in the job.
//   Errors: those of `free_port`.
absl::StatusOr<MasterAddress> ChooseMaster(const MasterRequest& wish, const std::string& own_host,
                                           int machine_count, const PortProbe& probe);

// For PortProbe::free_port. The port is not reserved: it may be taken before rank 0 binds it
// itself.
//   Errors: INTERNAL with the kernel's reason.
absl::StatusOr<int> FreePort(int port = 0);
// Resolves names.
bool IsOwnAddress(const std::string& host);

// "localhost", 127.0.0.0/8, ::1.
bool IsLoopbackHost(absl::string_view host);
// "10.0.0.3" of "ipv4:10.0.0.3:41234" or "10.0.0.3:41234", "::1" of "ipv6:%5B::1%5D:5000".
std::string HostOfPeer(absl::string_view peer);
// "a:1", "[::1]:1".
std::string JoinHostPort(absl::string_view host, int port);

}  // namespace ferry

#endif  // FERRY_LAUNCH_MASTER_ADDRESS_H_
