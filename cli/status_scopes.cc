// SPDX-License-Identifier: Apache-2.0
// The scopes of PyTorch's stores, as text.
#include "cli/status_scopes.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "base/text.h"
#include "cli/table.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

constexpr size_t kMaxKeyBytes = 120;

std::string ShortKey(const std::string& key) {
  const std::string text = Printable(key);
  if (text.size() <= kMaxKeyBytes) return text;
  return absl::StrCat(absl::string_view(text).substr(0, kMaxKeyBytes), "...");
}

// "3 clients wait for it, the longest for 12s"
std::string Waiting(int64_t clients, absl::string_view for_what, absl::Duration age) {
  if (clients == 1) return absl::StrCat("1 client waits", for_what, ", for ", ShortDuration(age));
  return absl::StrCat(clients, " clients wait", for_what, ", the longest for ", ShortDuration(age));
}

std::string Line(const coord::MissingStoreKeyStatus& missing) {
  const std::string key = ShortKey(missing.key);
  if (missing.world_size > 0) {
    return absl::StrCat("barrier ", key, ": ", missing.arrived, " of ", missing.world_size,
                        " have arrived; ", Waiting(missing.clients, "", missing.age));
  }
  if (missing.ranks.empty()) {
    return absl::StrCat("key ", key, " is not set; ",
                        Waiting(missing.clients, " for it", missing.age));
  }
  const bool is_one = missing.ranks.find_first_of(",-") == std::string::npos;
  if (is_one) {
    return absl::StrCat("rank ", Printable(missing.ranks), " has not set ", key, "; ",
                        Waiting(missing.clients, " for it", missing.age));
  }
  return absl::StrCat("ranks ", Printable(missing.ranks), " have not set ",
                      key.substr(0, key.rfind('/')), "/<rank>; ",
                      Waiting(missing.clients, " for them", missing.age));
}

}  // namespace

std::string FormatScopesText(const coord::JobStatus& status, size_t max_lines) {
  const std::vector<coord::StoreScopeStatus>& scopes = status.store_scopes;
  if (scopes.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"PYTORCH STORE", "PORT", "CLIENTS", "KEYS", "BYTES", "WAITS"}};
  std::vector<std::string> lines;
  size_t left_out = 0;
  for (const coord::StoreScopeStatus& scope : scopes) {
    const std::string name = scope.name.empty() ? "shared" : Printable(scope.name);
    for (const coord::MissingStoreKeyStatus& missing : scope.missing) {
      if (lines.size() < max_lines) {
        lines.push_back(absl::StrCat("  ", name, ": ", Line(missing), "\n"));
      } else {
        ++left_out;
      }
    }
    if (rows.size() > max_lines) continue;
    rows.push_back({name, scope.port == 0 ? "the coordinator's" : absl::StrCat(scope.port),
                    absl::StrCat(scope.clients), absl::StrCat(scope.keys),
                    ShortBytes(static_cast<double>(scope.bytes)), absl::StrCat(scope.wait_count)});
  }
  std::string text = absl::StrCat("\n", FormatTable(rows, "  "));
  if (scopes.size() > max_lines) {
    absl::StrAppend(&text, "  and ", scopes.size() - max_lines, " more\n");
  }
  for (const std::string& line : lines) text += line;
  if (status.store_client_bytes > 0) {
    absl::StrAppend(
        &text, "  memory of clients: ", ShortBytes(static_cast<double>(status.store_client_bytes)),
        " of ", ShortBytes(static_cast<double>(status.max_store_client_bytes)),
        " (--max-store-client-bytes)\n");
  }
  if (left_out > 0) absl::StrAppend(&text, "  and ", left_out, " more keys\n");
  return text;
}

}  // namespace ferry::cli
