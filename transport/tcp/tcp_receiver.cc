// SPDX-License-Identifier: Apache-2.0
// Incoming slices, and the connections that carry them.
#include "transport/tcp/tcp_receiver.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "tensor/check_values.h"
#include "tensor/host_arena.h"

namespace ferry {

void TcpReceiver::Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
                        absl::Span<UniqueFd> descriptors, const Tensor& destination,
                        FetchCallback done) {
  if (!body.empty() && body != kComesNear) {
    return std::move(done)(
        absl::InvalidArgumentError("unexpected bytes in a tcp transfer descriptor"), false);
  }
  Incoming incoming;
  incoming.done = std::move(done);
  if (destination.is_valid()) {
    incoming.tensor = destination;
  } else {
    absl::StatusOr<std::shared_ptr<Buffer>> buffer = environment_.arena->Allocate(header.bytes);
    // A full arena is no reason to fail: the heap is only slower on first touch.
    if (!buffer.ok()) buffer = AllocateHeapBuffer(header.bytes);
    absl::StatusOr<Tensor> tensor =
        buffer.ok() ? Tensor::Create(header.dtype, header.shape, *buffer) : buffer.status();
    if (!tensor.ok()) {
      auto refused = std::move(incoming.done);
      Discard(id, header, body, descriptors);
      return std::move(refused)(tensor.status(), false);
    }
    incoming.tensor = *std::move(tensor);
  }
  // An empty tensor has no slices; correct senders put it inline in the transfer descriptor.
  if (header.bytes == 0) return std::move(incoming.done)(std::move(incoming.tensor), false);
  if (HasIllegalBits(header.dtype)) {
    incoming.has_non_boolean = std::make_shared<std::atomic<bool>>(false);
  }
  Expect(id, header.bytes, std::move(incoming));
  PollForArrival(header, body);
}

void TcpReceiver::Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
                          absl::Span<UniqueFd>) {
  Expect(id, header.bytes, {});
  PollForArrival(header, body);
}

void TcpReceiver::PollForArrival(const TensorHeader& header, absl::string_view body) {
  if (body != kComesNear) return;
  std::shared_ptr<SliceReader> near;
  {
    absl::MutexLock lock(&mu_);
    near = near_;
  }
  if (near != nullptr) near->PollForArrival(header.bytes);
}

void TcpReceiver::Cancel(uint64_t id) {
  std::shared_ptr<ClosableWriter> gate;
  {
    absl::MutexLock lock(&mu_);
    const auto found = incoming_.find(id);
    if (found == incoming_.end()) return;
    // The rest is read and discarded.
    found->second.tensor = Tensor();
    gate = found->second.gate;
  }
  gate->Close();
}

void TcpReceiver::Abort(const absl::Status& why) {
  std::vector<std::shared_ptr<ClosableWriter>> gates;
  std::vector<FetchCallback> failed;
  std::vector<std::shared_ptr<SliceReader>> readers;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    for (auto& [id, incoming] : incoming_) {
      if (incoming.done) failed.push_back(std::move(incoming.done));
      gates.push_back(incoming.gate);
    }
    incoming_.clear();
    readers.swap(readers_);
    near_ = nullptr;
  }
  for (const auto& reader : readers) reader->Stop();
  for (const auto& gate : gates) gate->Close();
  for (FetchCallback& done : failed) std::move(done)(why, false);
}

SliceSink::Verdict TcpReceiver::FindTarget(const SliceHeader& header, SliceTarget* target) {
  absl::MutexLock lock(&mu_);
  if (!aborted_.ok()) return Verdict::kError;
  const auto found = incoming_.find(header.transfer);
  if (found == incoming_.end()) {
    // Its transfer descriptor is still in the control channel, which another thread reads.
    has_waiting_reader_ = true;
    return Verdict::kWait;
  }
  const Incoming& incoming = found->second;
  if (header.bytes == 0 || header.bytes > kSliceBytes || header.offset > incoming.bytes ||
      header.bytes > incoming.bytes - header.offset || header.bytes > incoming.left) {
    return Verdict::kError;
  }
  if (!incoming.tensor.is_valid()) return Verdict::kSkip;
  Tensor tensor = incoming.tensor;
  *target = {static_cast<char*>(tensor.mutable_data()) + header.offset, tensor.buffer(),
             incoming.gate, incoming.has_non_boolean};
  return Verdict::kRead;
}

void TcpReceiver::OnSlice(const SliceHeader& header) {
  Tensor tensor;
  FetchCallback done;
  std::shared_ptr<std::atomic<bool>> has_non_boolean;
  {
    absl::MutexLock lock(&mu_);
    const auto found = incoming_.find(header.transfer);
    if (found == incoming_.end()) return;
    if (header.bytes > found->second.left) return;
    found->second.left -= header.bytes;
    if (found->second.left > 0) return;
    tensor = std::move(found->second.tensor);
    done = std::move(found->second.done);
    has_non_boolean = std::move(found->second.has_non_boolean);
    incoming_.erase(found);
  }
  if (done && tensor.is_valid()) {
    const bool has_checked = has_non_boolean != nullptr && !*has_non_boolean;
    return std::move(done)(std::move(tensor), {/*later=*/false, has_checked});
  }
  // Cancelled: the caller has been notified.
  if (done) std::move(done)(absl::CancelledError("cancelled"), false);
}

void TcpReceiver::OnBroken(const absl::Status& why) {
  Abort(absl::UnavailableError(
      absl::StrCat(Describe(peer_.peer), ", while receiving by tcp: ", why.message())));
}

void TcpReceiver::Expect(uint64_t id, size_t bytes, Incoming incoming) {
  incoming.bytes = incoming.left = bytes;
  absl::Status status;
  bool is_first = false;
  std::vector<std::shared_ptr<SliceReader>> waiting;
  {
    absl::MutexLock lock(&mu_);
    status = aborted_;
    if (status.ok()) {
      is_first = connecting_ == 0 && readers_.empty();
      if (is_first) connecting_ = plane_.connections() + 1;
      if (bytes > 0 && !incoming_.try_emplace(id, std::move(incoming)).second) {
        status = absl::InvalidArgumentError(absl::StrCat("transfer ", id, " for a second time"));
      }
      if (std::exchange(has_waiting_reader_, false)) waiting = readers_;
    }
  }
  if (!status.ok()) {
    // Moved only if it was inserted. NOLINTNEXTLINE(bugprone-use-after-move)
    if (incoming.done) std::move(incoming.done)(status, false);
    return;
  }
  for (const auto& reader : waiting) reader->Resume();
  if (is_first) Connect();
}

void TcpReceiver::Connect() {
  for (int i = 0; i < plane_.connections(); ++i) ConnectAs(static_cast<uint32_t>(i));
  ConnectAs(kNearConnection);
}

void TcpReceiver::ConnectAs(uint32_t index) {
  environment_.connection_manager->ConnectData(
      peer_.peer, peer_.channels, index,
      [weak = weak_from_this()](absl::StatusOr<DataConnection> connection) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        if (!connection.ok()) return self->OnNoConnection(connection.status());
        self->AddConnection(*std::move(connection));
      });
}

void TcpReceiver::OnNoConnection(const absl::Status& why) {
  // Only a new control channel would retry.
  if (!absl::IsResourceExhausted(why)) return Abort(absl::UnavailableError(why.message()));
  // One of the two has no descriptors left: no reason to end what needs none. The existing
  // connections carry everything; if there are none, the next transfer retries.
  std::vector<FetchCallback> failed;
  std::vector<std::shared_ptr<ClosableWriter>> gates;
  {
    absl::MutexLock lock(&mu_);
    --connecting_;
    if (!aborted_.ok() || connecting_ > 0 || !readers_.empty()) return;
    for (auto& [id, incoming] : incoming_) {
      if (incoming.done) failed.push_back(std::exchange(incoming.done, nullptr));
      // It arrives over the next connection, and is read and discarded.
      incoming.tensor = Tensor();
      gates.push_back(incoming.gate);
    }
  }
  for (const auto& gate : gates) gate->Close();
  for (FetchCallback& done : failed) std::move(done)(why, false);
}

void TcpReceiver::AddConnection(DataConnection connection) {
  std::shared_ptr<SliceReader> reader;
  {
    absl::MutexLock lock(&mu_);
    --connecting_;
    if (!aborted_.ok()) return;
    const bool is_near = connection.index == kNearConnection;
    reader =
        std::make_shared<SliceReader>(is_near ? *environment_.loop : plane_.loop(connection.index),
                                      std::move(connection.socket), weak_from_this());
    readers_.push_back(reader);
    if (is_near) near_ = reader;
  }
  reader->Start();
}

}  // namespace ferry
