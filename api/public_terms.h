// SPDX-License-Identifier: Apache-2.0
// InPublicTerms: internal errors in the terms of the public API.
#ifndef FERRY_API_PUBLIC_TERMS_H_
#define FERRY_API_PUBLIC_TERMS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include <ferry/namespace.h>

namespace ferry::v0 {

// Internal texts name tasks and rendezvous keys as the protocols of TensorFlow and JAX do. Replaces
// "/job:worker/replica:0/task:3" by "node 3", and keys by the text of their TensorId.
std::string InPublicTerms(absl::string_view text);
// The same for the message; code and payloads stay.
absl::Status InPublicTerms(const absl::Status& status);

}  // namespace ferry::v0

#endif  // FERRY_API_PUBLIC_TERMS_H_
