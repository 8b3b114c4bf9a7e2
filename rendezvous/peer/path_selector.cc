// SPDX-License-Identifier: Apache-2.0
// Inline or by which transport: the decision for each tensor.
#include "rendezvous/peer/path_selector.h"

#include <bit>
#include <optional>
#include <utility>

#include "base/logging.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/peer/transport_numbers.h"
#include "transport/inline_threshold.h"

namespace ferry {
PathSelector::PathSelector(const TransferContext& context, const Endpoint& consumer,
                           bool needs_checksums, std::string descriptors_unavailable_reason,
                           std::shared_ptr<LatencyProbe> probe)
    : context_(context),
      consumer_(consumer),
      needs_checksums_(needs_checksums),
      descriptors_unavailable_reason_(std::move(descriptors_unavailable_reason)),
      probe_(std::move(probe)),
      common_(TransportNumbers(*context.transports, consumer.transports).common()) {}

void PathSelector::set_channel(ControlChannel* channel) {
  channel_ = channel;
  if (channel->passes_descriptors()) {
    inline_max_in_arena_ = InlineMaxWithinHost(/*is_in_arena=*/true);
    inline_max_elsewhere_ = InlineMaxWithinHost(/*is_in_arena=*/false);
  } else {
    inline_max_in_arena_ = inline_max_elsewhere_ =
        InlineMaxOverTcp(context_.policy.forbids_tcp(), channel->max_body());
  }
  const PathQuery query =
      Query(kInlineMaxElsewhere, /*is_in_arena=*/true, context_.clock->CoarseNow());
  const std::optional<size_t> zero_copy =
      ZeroCopyPath(*context_.transports, query, context_.policy);
  zero_copy_ = zero_copy.value_or(kNoTransport);
  if (!zero_copy) return;
  const TransportCapabilities& can = (*context_.transports)[*zero_copy]->capabilities();
  is_zero_copy_final_ = !can.retryable && !can.measurable;
}

PathQuery PathSelector::Query(size_t bytes, bool is_in_arena, absl::Time now) const {
  PathQuery query;
  query.source = &context_.self;
  query.destination = &consumer_;
  query.channel_passes_descriptors = channel_->passes_descriptors();
  if (!query.channel_passes_descriptors) {
    query.descriptors_unavailable_reason = descriptors_unavailable_reason_;
  }
  query.bytes = bytes;
  query.is_in_arena = is_in_arena;
  query.estimates = probe_->costs().get();
  query.now = now;
  query.common = common_;
  return query;
}

SelectedPath PathSelector::Select(const Tensor& tensor, const TensorLocation& to) {
  SelectedPath path;
  const bool is_on_host = tensor.is_on_host();
  // The host must be able to read the elements.
  if (!is_on_host && (needs_checksums_ || tensor.bytes() == 0)) {
    path.kind = SelectedPath::Kind::kStage;
    return path;
  }
  path.is_in_arena = tensor.buffer() != nullptr && tensor.buffer()->arena() != nullptr;
  const bool is_inline = is_on_host && tensor.bytes() <= (path.is_in_arena ? inline_max_in_arena_
                                                                           : inline_max_elsewhere_);
  // For a peer that reads nothing now, copies of all tensors would be queued here, and the control
  // channel closed once they are too many.
  const bool is_backlogged =
      is_inline && tensor.bytes() > kInlineAlways && channel_->queued_bytes() > kInlineBacklog;
  const bool is_logged = IsLogged(LogComponent::kTransport, LogLevel::kDebug);
  if (is_inline && !is_backlogged && !is_logged) {
    path.kind = SelectedPath::Kind::kInline;
    return path;
  }
  path.now = context_.clock->CoarseNow();
  const size_t zero_copy = is_on_host && path.is_in_arena && to.space == MemorySpace::kHost
                               ? zero_copy_.load(std::memory_order_relaxed)
                               : kNoTransport;
  if (zero_copy != kNoTransport && !is_logged) {
    path.kind = SelectedPath::Kind::kTransport;
    path.transport = zero_copy;
    path.is_zero_copy = is_zero_copy_final_;
    return path;
  }
  PathQuery query = Query(tensor.bytes(), path.is_in_arena, path.now);
  query.source_location = tensor.location();
  query.destination_location = to;
  std::optional<size_t> chosen;
  if (!is_inline || is_backlogged) {
    chosen = SelectPath(*context_.transports, query, context_.policy, /*explanation=*/nullptr);
  }
  if (!chosen && is_inline) {
    if (is_logged) LogPath(query, "inline");
    path.kind = SelectedPath::Kind::kInline;
    return path;
  }
  if (!chosen) {
    PathExplanation explanation;
    chosen = SelectPath(*context_.transports, query, context_.policy, &explanation);
    // A path may have become available between the two selections.
    if (!chosen) {
      path.error = NoPathError(query, context_.policy, explanation);
      return path;
    }
  }
  const Transport& transport = *(*context_.transports)[*chosen];
  if (is_logged) LogPath(query, transport.name());
  if (!is_on_host && !transport.capabilities().moves_gpu_memory) {
    path.kind = SelectedPath::Kind::kStage;
    return path;
  }
  path.kind = SelectedPath::Kind::kTransport;
  path.transport = *chosen;
  path.is_zero_copy = *chosen == zero_copy && is_zero_copy_final_;
  return path;
}

void PathSelector::LogPath(const PathQuery& query, absl::string_view path) {
  // The path depends on the size: a size 16 times as large is another kind.
  const auto magnitude = static_cast<uint32_t>(std::bit_width(query.bytes) / 4);
  const auto location_code = [](const TensorLocation& where) {
    return where.space == MemorySpace::kHost ? 0u : 1u + static_cast<uint32_t>(where.ordinal);
  };
  const std::tuple<uint32_t, uint32_t, uint32_t, bool> kind(
      magnitude, location_code(query.source_location), location_code(query.destination_location),
      query.is_in_arena);
  {
    SpinLockHolder lock(&mu_);
    std::string& last = logged_paths_[kind];
    if (last == path) return;
    last = std::string(path);
  }
  std::string why = "small enough for the descriptor itself";
  if (path != "inline") {
    const absl::StatusOr<PathExplanation> choice =
        ExplainPath(*context_.transports, query, context_.policy);
    why = choice.ok() ? ferry::Explain(*choice) : choice.status().ToString();
  }
  FERRY_LOG_DEBUG(kTransport, "path chosen: peer={} path={} bytes={} from={} to={}: {}",
                  consumer_.peer.node_id, path, query.bytes, ToString(query.source_location),
                  ToString(query.destination_location), why);
}

absl::StatusOr<PathExplanation> PathSelector::Explain(size_t bytes, bool is_in_arena) const {
  const absl::Time now = context_.clock->Now();
  probe_->Refresh(*channel_, now);
  return ExplainPath(*context_.transports, Query(bytes, is_in_arena, now), context_.policy);
}

}  // namespace ferry
