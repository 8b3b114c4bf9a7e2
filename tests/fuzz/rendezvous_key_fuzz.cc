// SPDX-License-Identifier: Apache-2.0
// Keys and names as any peer may write them.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "rendezvous/key.h"

namespace ferry {
namespace {

void CheckNames(absl::string_view text) {
  if (const std::optional<TaskName> task = ParseTaskName(text); task.has_value()) {
    FERRY_CHECK(ParseTaskName(ToString(*task)) == task);
    FERRY_CHECK(task->task >= 0 && task->replica >= 0 && !task->job.empty());
    FERRY_CHECK(!ParseDeviceName(text).has_value());
  }
  if (const std::optional<TaskDevice> device = ParseDeviceName(text); device.has_value()) {
    FERRY_CHECK(ParseDeviceName(ToString(*device)) == device);
    FERRY_CHECK(ParseTaskName(ToString(device->task)) == device->task);
    FERRY_CHECK(device->index >= 0 && !device->type.empty());
  }
}

void CheckKey(absl::string_view text) {
  const absl::StatusOr<RendezvousKey> key = RendezvousKey::Parse(text);
  if (!key.ok()) {
    FERRY_CHECK(absl::IsInvalidArgument(key.status()));
    FERRY_CHECK(absl::StartsWith(key.status().message(), "Invalid  rendezvous key: "));
    // A log line, not the peer's whole message four times over.
    FERRY_CHECK(key.status().message().size() < 2000);
    return;
  }
  FERRY_CHECK(key->text() == text);
  FERRY_CHECK(ParseDeviceName(key->src_device()) == key->src());
  FERRY_CHECK(ParseDeviceName(key->dst_device()) == key->dst());
  FERRY_CHECK(!key->edge().empty());
  FERRY_CHECK(*RendezvousKey::Parse(text) == *key);
  // Another frame is another key.
  const absl::StatusOr<RendezvousKey> written = RendezvousKey::Parse(
      RendezvousKey::Text(key->src_device(), key->src_incarnation(), key->dst_device(), key->edge(),
                          UINT64_MAX, UINT64_MAX));
  if (!written.ok()) return;  // Longer than a key may be.
  FERRY_CHECK(written->src() == key->src() && written->dst() == key->dst());
  FERRY_CHECK(written->src_incarnation() == key->src_incarnation());
  FERRY_CHECK(written->edge() == key->edge());
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  ferry::CheckNames(text);
  ferry::CheckKey(text);
  return 0;
}
