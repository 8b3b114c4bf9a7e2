// SPDX-License-Identifier: Apache-2.0
// ProofPolicy: who may ask for tensors over gRPC.
#ifndef FERRY_RENDEZVOUS_PROOF_POLICY_H_
#define FERRY_RENDEZVOUS_PROOF_POLICY_H_

#include <string>

namespace ferry {

struct ProofPolicy {
  // The job's; empty: whatever is proved is not looked at.
  std::string token;
  // Whether a call without a proof is refused; needs a token. TensorFlow's clients have none.
  bool is_required = false;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PROOF_POLICY_H_
