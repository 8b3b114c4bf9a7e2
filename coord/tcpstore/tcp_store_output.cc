// SPDX-License-Identifier: Apache-2.0
// Queues replies and hands them to sendmsg().
#include "coord/tcpstore/tcp_store_output.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::coord {

void TcpStoreOutput::AddBytes(absl::string_view bytes) {
  if (bytes.empty()) return;
  if (pieces_.empty() || pieces_.back().shared != nullptr) pieces_.emplace_back();
  pieces_.back().copied.append(bytes.data(), bytes.size());
  bytes_ += bytes.size();
  copied_bytes_ += bytes.size();
}

void TcpStoreOutput::AddOwned(std::string bytes) {
  if (bytes.size() < kMinShared) return AddBytes(absl::string_view(bytes));
  bytes_ += bytes.size();
  copied_bytes_ += bytes.size();
  pieces_.push_back({.copied = std::move(bytes)});
}

void TcpStoreOutput::AddVector(absl::string_view bytes) {
  AddNumber<uint64_t>(bytes.size());
  AddBytes(bytes);
}

void TcpStoreOutput::AddVector(const StoreValue& value) {
  if (value == nullptr) return AddVector("");
  if (value->size() < kMinShared) return AddVector(absl::string_view(*value));
  AddNumber<uint64_t>(value->size());
  pieces_.push_back({.shared = value});
  bytes_ += value->size();
}

size_t TcpStoreOutput::Pieces(iovec* pieces, size_t max) const {
  size_t count = 0;
  for (auto piece = pieces_.begin(); piece != pieces_.end() && count < max; ++piece, ++count) {
    absl::string_view view = piece->view();
    if (count == 0) view.remove_prefix(written_);
    pieces[count] = {const_cast<char*>(view.data()), view.size()};
  }
  return count;
}

void TcpStoreOutput::ForEachShared(absl::FunctionRef<void(const StoreValue&)> visit) const {
  for (const Piece& piece : pieces_) {
    if (piece.shared != nullptr) visit(piece.shared);
  }
}

void TcpStoreOutput::Consume(size_t bytes) {
  bytes_ -= bytes;
  written_ += bytes;
  while (!pieces_.empty() && written_ >= pieces_.front().view().size()) {
    Piece& first = pieces_.front();
    written_ -= first.view().size();
    copied_bytes_ -= first.copied.size();
    if (pieces_.size() == 1 && first.shared == nullptr && first.copied.capacity() <= kMaxKept) {
      first.copied.clear();
      return;
    }
    pieces_.pop_front();
  }
}

TcpStoreOutputState TcpStoreOutput::Export() const {
  TcpStoreOutputState state;
  for (const Piece& piece : pieces_) {
    const size_t written = &piece == &pieces_.front() ? written_ : 0;
    if (piece.shared != nullptr) {
      state.pieces.push_back({.shared = piece.shared});
      if (written > 0) state.written = written;
    } else if (piece.copied.size() > written) {
      state.pieces.push_back({.copied = piece.copied.substr(written)});
    }
  }
  return state;
}

absl::Status TcpStoreOutput::Restore(TcpStoreOutputState state) {
  for (TcpStoreOutputState::Piece& piece : state.pieces) {
    if (piece.shared != nullptr) {
      bytes_ += piece.shared->size();
      pieces_.push_back({.shared = std::move(piece.shared)});
    } else {
      bytes_ += piece.copied.size();
      copied_bytes_ += piece.copied.size();
      pieces_.push_back({.copied = std::move(piece.copied)});
    }
  }
  const size_t first = pieces_.empty() ? 0 : pieces_.front().view().size();
  if (state.written > 0 && state.written >= first) {
    return absl::InvalidArgumentError(
        absl::StrCat("a reply of which ", state.written, " bytes were written has only ", first));
  }
  Consume(state.written);
  return absl::OkStatus();
}

}  // namespace ferry::coord
