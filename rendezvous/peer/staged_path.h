// SPDX-License-Identifier: Apache-2.0
// StagedPath: the name of a path that a tensor of GPU memory took by way of host memory.
#ifndef FERRY_RENDEZVOUS_PEER_STAGED_PATH_H_
#define FERRY_RENDEZVOUS_PEER_STAGED_PATH_H_

#include "absl/strings/string_view.h"

namespace ferry {

// "shm, staged" for "shm". The text lives as long as the process, as Received::path requires.
//   path: one of the few literals that name paths: each is kept forever.
absl::string_view StagedPath(absl::string_view path);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_STAGED_PATH_H_
