// SPDX-License-Identifier: Apache-2.0
// Payloads of coordination errors. Their encoding here is private; coord/wire/errors.cc converts
// them to the wire format.
#include "coord/core/errors.h"

#include <cstdint>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ferry::coord {
namespace {

constexpr char kOriginUrl[] = "ferry.coord/origin";
constexpr char kMissingUrl[] = "ferry.coord/missing";

// An error that a task reports is propagated to all and kept: truncated to this size.
constexpr size_t kMaxReportBytes = size_t{32} << 10;

}  // namespace

absl::Status CoordinationError(absl::Status status, ErrorOrigin origin) {
  if (status.ok()) return status;
  status.SetPayload(
      kOriginUrl, absl::Cord(absl::StrCat(origin.is_reported ? "r" : "c", origin.source.value())));
  return status;
}

std::optional<ErrorOrigin> GetErrorOrigin(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kOriginUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  ErrorOrigin origin;
  origin.is_reported = !text.empty() && text[0] == 'r';
  int32_t source = -1;
  if (!text.empty() && absl::SimpleAtoi(text.substr(1), &source)) origin.source = TaskId(source);
  return origin;
}

absl::Status WithMissingTasks(absl::Status status, std::string ranges) {
  if (!status.ok()) status.SetPayload(kMissingUrl, absl::Cord(std::move(ranges)));
  return status;
}

std::string GetMissingTasks(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kMissingUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

std::string FirstOf(absl::string_view text) {
  if (text.size() <= kMaxReportBytes) return std::string(text);
  size_t cut = kMaxReportBytes;
  // Do not cut within a UTF-8 character.
  while (cut > 0 && (static_cast<uint8_t>(text[cut]) & 0xc0) == 0x80) --cut;
  return absl::StrCat(text.substr(0, cut), "... (", text.size() - cut, " bytes more)");
}

}  // namespace ferry::coord
