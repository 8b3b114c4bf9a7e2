// SPDX-License-Identifier: Apache-2.0
// The generation of the coordination protocol that a request uses.
#ifndef FERRY_COORD_CORE_WIRE_GENERATION_H_
#define FERRY_COORD_CORE_WIRE_GENERATION_H_

#include "absl/strings/string_view.h"

namespace ferry::coord {

enum class WireGeneration {
  // Tasks are messages (job name, number): all of tensorflow.CoordinationService, and the first
  // weeks of xla.coordination.CoordinationService.
  kNamedTasks,
  // The same layout with tasks as numbers: builds of spring 2026, no release.
  kNumberedTasks,
  // A different layout: field 1 is always the incarnations. jaxlib 0.10 and later.
  kIncarnations,
};

// Detects the generation of a request to `method` ("Barrier") of
// xla.coordination.CoordinationService by the wire types of its fields. Bytes that are not a
// message yield kIncarnations, whose parser then rejects them.
WireGeneration TellGeneration(absl::string_view method, absl::string_view request);

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_WIRE_GENERATION_H_
