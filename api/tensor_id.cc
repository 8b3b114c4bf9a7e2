// SPDX-License-Identifier: Apache-2.0
// The text of an id, for messages.
#include <ferry/tensor_id.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry::v0 {

std::string ToString(const TensorId& id) {
  return absl::StrCat(Quoted(id.name), " from node", id.source, "/", ToString(id.source_device),
                      " to node", id.destination, "/", ToString(id.destination_device));
}

}  // namespace ferry::v0
