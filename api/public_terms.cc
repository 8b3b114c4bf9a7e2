// SPDX-License-Identifier: Apache-2.0
// A scan for "/job:", which neither names of tensors nor other texts of ours hold.
#include "api/public_terms.h"

#include <cstddef>
#include <optional>
#include <utility>

#include <ferry/tensor_id.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "rendezvous/key.h"

namespace ferry::v0 {
namespace {

constexpr absl::string_view kJob = "/job:";
constexpr absl::string_view kTask = "/replica:0/task:";

// The first number of `text`, and its length; 0 digits: none.
size_t Digits(absl::string_view text) {
  size_t count = 0;
  while (count < text.size() && absl::ascii_isdigit(text[count])) ++count;
  return count;
}

Device DeviceOf(const ferry::TaskDevice& device) {
  return {device.type == "GPU" ? DeviceKind::kGpu : DeviceKind::kHost,
          static_cast<int>(device.index)};
}

// A replacement for the first `length` bytes.
struct Term {
  std::string text;
  size_t length = 0;
};

// A rendezvous key at the beginning of `text`: "SRC;HEX;DST;NAME;FRAME:ITER".
std::optional<Term> KeyAt(absl::string_view text) {
  size_t end = 0;
  for (int part = 0; part < 4; ++part) {
    end = text.find(';', end);
    if (end == absl::string_view::npos) return std::nullopt;
    ++end;
  }
  const size_t frame = Digits(text.substr(end));
  end += frame;
  if (frame == 0 || end >= text.size() || text[end] != ':') return std::nullopt;
  const size_t iteration = Digits(text.substr(end + 1));
  if (iteration == 0) return std::nullopt;
  end += 1 + iteration;
  const absl::StatusOr<ferry::RendezvousKey> key = ferry::RendezvousKey::Parse(text.substr(0, end));
  if (!key.ok()) return std::nullopt;
  return Term{ToString(TensorId{.name = std::string(key->edge()),
                                .source = static_cast<int>(key->src_task_number()),
                                .destination = static_cast<int>(key->dst_task_number()),
                                .source_device = DeviceOf(key->src()),
                                .destination_device = DeviceOf(key->dst())}),
              end};
}

// A task at the beginning of `text`.
std::optional<Term> TaskAt(absl::string_view text) {
  const size_t slash = text.find('/', kJob.size());
  if (slash == absl::string_view::npos || text.substr(slash, kTask.size()) != kTask) {
    return std::nullopt;
  }
  const size_t number = slash + kTask.size();
  const size_t digits = Digits(text.substr(number));
  if (digits == 0) return std::nullopt;
  return Term{absl::StrCat("node ", text.substr(number, digits)), number + digits};
}

}  // namespace

std::string InPublicTerms(absl::string_view text) {
  std::string result;
  while (true) {
    const size_t job = text.find(kJob);
    absl::StrAppend(&result, text.substr(0, job));
    if (job == absl::string_view::npos) return result;
    text.remove_prefix(job);
    std::optional<Term> term = KeyAt(text);
    if (!term.has_value()) term = TaskAt(text);
    if (!term.has_value()) term = Term{std::string(kJob), kJob.size()};
    absl::StrAppend(&result, term->text);
    text.remove_prefix(term->length);
  }
}

absl::Status InPublicTerms(const absl::Status& status) {
  if (status.ok() || status.message().find(kJob) == absl::string_view::npos) return status;
  absl::Status result(status.code(), InPublicTerms(status.message()));
  status.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

}  // namespace ferry::v0
