// SPDX-License-Identifier: Apache-2.0
// ProofPolicy: which clients may request tensors over gRPC.
#ifndef FERRY_RENDEZVOUS_PROOF_POLICY_H_
#define FERRY_RENDEZVOUS_PROOF_POLICY_H_

#include <string>

namespace ferry {

struct ProofPolicy {
  // The job's token; empty: proofs are not checked.
  std::string token;
  // Whether a call without a proof is rejected; needs a token. TensorFlow's clients send none.
  bool is_required = false;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PROOF_POLICY_H_
