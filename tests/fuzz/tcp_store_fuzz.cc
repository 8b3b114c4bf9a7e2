// SPDX-License-Identifier: Apache-2.0
// Clients of a PyTorch store that send any bytes. The input is a list of segments: a byte that
// selects one of four clients, its length, and its bytes. A client that fails is replaced.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "coord/core/completions.h"
#include "coord/tcpstore/tcp_store_session.h"

namespace ferry::coord {
namespace {

constexpr size_t kClients = 4;

void Check(absl::string_view input) {
  CoordinatorOptions options;
  options.max_value_bytes = 4096;
  options.max_store_bytes = 65536;
  const TcpStoreLimits limits{
      .max_key_bytes = 256, .max_value_bytes = 4096, .max_keys = 64, .max_request_bytes = 16384};
  FakeClock clock;
  Completions completions;
  TcpStore store(options, clock, completions);
  uint64_t last_client = 0;
  std::array<std::shared_ptr<TcpStoreSession>, kClients> clients;
  std::array<std::string, kClients> unread;
  const auto run = [&] {
    for (Completion& completion : completions.Take()) std::move(completion)();
  };
  while (input.size() >= 2) {
    const size_t which = static_cast<uint8_t>(input[0]) % kClients;
    const bool is_silence = (static_cast<uint8_t>(input[0]) & 0x80) != 0;
    const size_t length = std::min<size_t>(static_cast<uint8_t>(input[1]), input.size() - 2);
    std::shared_ptr<TcpStoreSession>& client = clients[which];
    if (client == nullptr) {
      client = std::make_shared<TcpStoreSession>(
          store, TcpStoreClient(++last_client), limits,
          [](auto& session, uint64_t wait) { session.EndWait(wait); });
    }
    unread[which].append(input.data() + 2, length);
    input.remove_prefix(length + 2);
    absl::string_view rest = unread[which];
    absl::Status status = client->Consume(rest);
    while (status.ok() && client->has_more_parts()) status = client->Consume(rest);
    if (status.ok() && is_silence && client->is_ambiguous()) status = client->ResolveAmbiguity();
    run();
    // Nothing is left for no reason.
    FERRY_CHECK(!status.ok() || rest.empty() || client->is_waiting() ||
                client->output().bytes() > TcpStoreSession::kMaxOutput);
    FERRY_CHECK(client->held_bytes() < 8 * (limits.max_request_bytes + options.max_store_bytes));
    unread[which] = std::string(rest);
    client->output().Consume(client->output().bytes());
    if (is_silence) clock.Advance(absl::Seconds(1));
    store.Advance();
    run();
    FERRY_CHECK(store.stored_bytes() <= options.max_store_bytes);
    FERRY_CHECK(store.wait_count() <= kClients);
    if (!status.ok()) {
      client = nullptr;
      unread[which].clear();
    }
  }
  for (auto& client : clients) client = nullptr;
  run();
  TableSizes sizes;
  store.AddTableSizes(sizes);
  FERRY_CHECK(sizes["tcpstore.waits"] == 0 && sizes["tcpstore.waiters"] == 0);
  FERRY_CHECK(sizes["tcpstore.reservations"] == 0);
}

}  // namespace
}  // namespace ferry::coord

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ferry::coord::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
