// SPDX-License-Identifier: Apache-2.0
// AuthPolicy: which clients may request tensors over gRPC.
#ifndef FERRY_RENDEZVOUS_AUTH_POLICY_H_
#define FERRY_RENDEZVOUS_AUTH_POLICY_H_

#include <string>

namespace ferry {

struct AuthPolicy {
  // The job's token; empty: authentication tags are not checked.
  std::string token;
  // A call without an authentication tag is rejected; needs a token. TensorFlow's clients
  // send none.
  bool is_required = false;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_AUTH_POLICY_H_
