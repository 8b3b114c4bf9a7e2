// SPDX-License-Identifier: Apache-2.0
// etcd's key-value store: etcd_client HOST:PORT INFLIGHT OPERATIONS CHANNELS
// Its messages are written by hand, from the numbers of etcd's API v3: PutRequest{1: key, 2:
// value}, RangeRequest{1: key}, RangeResponse{2: KeyValue{1: key, 5: value}}.
#include "grpc_stores.h"

namespace {

// A field of bytes shorter than 128.
std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) +
         bytes;
}

bool ReadVarint(const std::string& text, size_t& at, uint64_t& value) {
  value = 0;
  for (int shift = 0; at < text.size() && shift < 64; shift += 7) {
    const uint64_t byte = static_cast<unsigned char>(text[at++]);
    value |= (byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

// The first field of bytes with this number, or nothing.
std::string Find(const std::string& message, uint64_t number) {
  for (size_t at = 0; at < message.size();) {
    uint64_t tag = 0, length = 0;
    if (!ReadVarint(message, at, tag) || !ReadVarint(message, at, length)) break;
    // The value of a field that is a number is the length read above.
    if ((tag & 7) == 0) continue;
    if ((tag & 7) != 2 || length > message.size() - at) break;
    if (tag >> 3 == number) return message.substr(at, length);
    at += length;
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) peers::Fail("etcd_client HOST:PORT INFLIGHT OPERATIONS CHANNELS");
  const size_t inflight = std::strtoull(argv[2], nullptr, 10),
               operations = std::strtoull(argv[3], nullptr, 10);
  std::vector<std::unique_ptr<peers::GrpcClient>> clients;
  for (size_t i = 0; i < std::strtoull(argv[4], nullptr, 10); ++i) {
    clients.push_back(std::make_unique<peers::GrpcClient>(argv[1]));
  }
  uint64_t wrong = 0;
  const auto put = [&](uint64_t turn) {
    return peers::RunCalls(
        clients, inflight, operations, "/etcdserverpb.KV/Put",
        [turn](size_t i) { return Field(1, peers::KeyOf(i)) + Field(2, peers::ValueOf(turn, i)); },
        [](size_t, const std::string&) { return uint64_t{0}; }, wrong);
  };
  const auto get = [&] {
    return peers::RunCalls(
        clients, inflight, operations, "/etcdserverpb.KV/Range",
        [](size_t i) { return Field(1, peers::KeyOf(i)); },
        [](size_t i, const std::string& answer) {
          return uint64_t{Find(Find(answer, 2), 5) == peers::ValueOf(1, i) ? 0u : 8u};
        },
        wrong);
  };
  put(0);
  const peers::Load puts = put(1);
  get();
  const peers::Load gets = get();
  peers::PrintLoad("set", puts, operations, wrong);
  peers::PrintLoad("get", gets, operations, wrong);
  std::_Exit(0);
}
