// SPDX-License-Identifier: Apache-2.0
// LauncherIdentity: the identity of this process according to one launcher. For identity.cc and
// first_host.cc.
#ifndef FERRY_NODE_LAUNCHER_IDENTITY_H_
#define FERRY_NODE_LAUNCHER_IDENTITY_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "node/identity.h"

namespace ferry::identity_internal {

// More processes than any job has; a larger value is a mistake.
inline constexpr int kMaxNodes = 1 << 20;

enum class LauncherKind { kTorch, kOpenMpi, kMvapich, kPmi, kPmix, kSlurm, kTfConfig, kKubernetes };

struct LauncherVariables {
  LauncherKind kind;
  const char* rank;
  std::vector<const char*> sizes;  // the first that is set is used
  const char* local_rank;          // may be null
  bool needs_size;
};

// All launchers, the nearest to the process first.
const std::vector<LauncherVariables>& Launchers();

// Returns the error for a variable whose value is not what was `wanted`.
absl::Status InvalidVariableError(absl::string_view name, absl::string_view value,
                                  absl::string_view wanted);

// Reads environment variables; an empty one counts as unset.
class EnvReader final {
 public:
  explicit EnvReader(GetEnv get_env) : get_env_(get_env) {}

  std::optional<Sourced<std::string>> Text(const char* name) const {
    std::optional<std::string> value = get_env_(name);
    if (!value || value->empty()) return std::nullopt;
    return Sourced<std::string>{*std::move(value), name};
  }

  // A host's name or address, without the blanks around it.
  std::optional<Sourced<std::string>> Host(const char* name) const {
    std::optional<Sourced<std::string>> host = Text(name);
    if (!host) return std::nullopt;
    host->value = std::string(absl::StripAsciiWhitespace(host->value));
    if (host->value.empty()) return std::nullopt;
    return host;
  }

  bool Has(const char* name) const { return Text(name).has_value(); }

  // A number in [low, high]; absent if the variable is unset.
  absl::StatusOr<std::optional<Sourced<int>>> Number(const char* name, int low, int high) const {
    const std::optional<Sourced<std::string>> text = Text(name);
    if (!text) return std::nullopt;
    int value = 0;
    // SimpleAtoi would also accept "+3" and " 3".
    if (text->value.find_first_not_of("0123456789") != std::string::npos ||
        !absl::SimpleAtoi(text->value, &value) || value < low || value > high) {
      return InvalidVariableError(name, text->value,
                                  absl::StrCat("a number from ", low, " to ", high));
    }
    return Sourced<int>{value, name};
  }

 private:
  GetEnv get_env_;
};

// The identity of this process according to one launcher.
struct LauncherIdentity {
  const LauncherVariables* variables = nullptr;
  Sourced<int> rank;
  std::optional<Sourced<int>> size;
  // True unless a launcher that started this very process has set it.
  bool is_by_hand = false;
  // The machine of process 0, if the identity itself gives it.
  std::optional<Sourced<std::string>> first_host;

  LauncherKind kind() const { return variables->kind; }
};

// "RANK=3".
std::string NameAndValue(const Sourced<int>& number);

//   Errors: INVALID_ARGUMENT if both are present and `index` is not below `count`.
absl::Status CheckBelow(const std::optional<Sourced<int>>& index,
                        const std::optional<Sourced<int>>& count);

// True in a process of torchrun. `ferry run` sets its id too, for PyTorch.
bool IsOfTorchrun(const EnvReader& reader);

// Returns nullopt if that launcher's variables say nothing about this process.
//   Errors: as ReadIdentity.
absl::StatusOr<std::optional<LauncherIdentity>> ReadLauncherIdentity(
    const EnvReader& reader, const LauncherVariables& variables);

// The valid parts of an identity that ReadLauncherIdentity rejects, enough to find the job's first
// host: the rank is -1 unless it is a number, in range or not. Absent if ReadLauncherIdentity does
// not fail.
std::optional<LauncherIdentity> ReadRefusedLauncherIdentity(const EnvReader& reader,
                                                            const LauncherVariables& variables);

// The identity of the nearest launcher.
//   Errors: as ReadIdentity.
absl::StatusOr<std::optional<LauncherIdentity>> NearestLauncherIdentity(const EnvReader& reader);

}  // namespace ferry::identity_internal

#endif  // FERRY_NODE_LAUNCHER_IDENTITY_H_
