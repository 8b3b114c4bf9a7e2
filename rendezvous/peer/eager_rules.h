// SPDX-License-Identifier: Apache-2.0
// EagerRules: invariants of the eager protocol, each of which the model checker can disable.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_RULES_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_RULES_H_

namespace ferry {

// All true outside of tests. The model checker (tests/rendezvous/eager_search_test.cc) disables
// them one at a time, and must then find the failure that the rule prevents.
struct EagerRules {
  // Producer: a name has no number before it is sent again. No failure follows without it, but
  // names that are used once then cost both sides an entry each in two tables.
  bool numbers_at_second_use = true;
  // Producer: a value is not sent while an earlier one of its step and name is queued.
  bool sends_in_order = true;
  // Producer: nothing of a step is sent before the step's deferred requests have been started.
  bool waits_for_step_to_serve = true;
  // Producer: no more is sent than the consumer has room for.
  bool keeps_to_credit = true;
  // Producer: a scope that it stops sending is pulled.
  bool pulls = true;
  // Producer: values that had to wait are sent, or announced, once that is possible.
  bool drains = true;
  // Producer: that includes values too large to be sent.
  bool drains_large_values = true;
  // Producer: a number is not given to another name while the consumer may use it.
  bool pins_names = true;
  // Producer: a PUSH for a step that is over here is no violation.
  bool ignores_push_of_ended_steps = true;
  // Producer: a step that is closed asks for its acknowledgements.
  bool asks_for_acks = true;
  // Consumer: PUSH is sent after the last REQUEST that an earlier PULL has caused.
  bool pushes_after_requests = true;
  // Consumer: REQUEST has a name's number only if that name itself is requested.
  bool numbers_only_requested_names = true;
  // Consumer: a step with receives that wait is watched.
  bool watches = true;
  // Consumer: a step that is over gives its credit back.
  bool refuses_steps = true;
  // Consumer: what was taken is acknowledged before the rest is refused.
  bool acks_before_refusal = true;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_RULES_H_
