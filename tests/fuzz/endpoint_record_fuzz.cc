// SPDX-License-Identifier: Apache-2.0
// Endpoint records, as any client may store them.
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "node/endpoint_record.h"

namespace ferry {
namespace {

void Check(absl::string_view bytes) {
  const absl::StatusOr<Endpoint> endpoint = DecodeEndpoint(bytes, 3);
  if (!endpoint.ok()) {
    FERRY_CHECK(absl::IsInvalidArgument(endpoint.status()) ||
                absl::IsFailedPrecondition(endpoint.status()));
    // A log line, not the whole record four times over.
    FERRY_CHECK(endpoint.status().message().size() < 2000);
    return;
  }
  const absl::StatusOr<Endpoint> again = DecodeEndpoint(EncodeEndpoint(*endpoint), 3);
  FERRY_CHECK(again.ok());
  FERRY_CHECK(again->peer == endpoint->peer);
  FERRY_CHECK(again->boot_id == endpoint->boot_id && again->host_name == endpoint->host_name);
  FERRY_CHECK(again->channels.unix_name == endpoint->channels.unix_name);
  FERRY_CHECK(again->channels.tcp == endpoint->channels.tcp);
  FERRY_CHECK(again->grpc_address == endpoint->grpc_address && again->gpus == endpoint->gpus);
  FERRY_CHECK(again->transports == endpoint->transports);
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ferry::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
