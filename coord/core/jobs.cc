// SPDX-License-Identifier: Apache-2.0
// Names and numbers of tasks.
#include "coord/core/jobs.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/bounded_text.h"
#include "base/ranges.h"
#include "base/text.h"

namespace ferry::coord {

absl::StatusOr<Jobs> Jobs::Create(std::vector<JobSpec> specs) {
  constexpr int kMaxTasks = 1'000'000;
  if (specs.empty()) return absl::InvalidArgumentError("the job has no parts");
  absl::flat_hash_set<std::string> names;
  int64_t total = 0;
  for (const JobSpec& spec : specs) {
    if (spec.name.empty() || !names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("job name ", Quoted(spec.name), " is empty or given twice"));
    }
    total += spec.tasks;
    if (spec.tasks < 1 || total > kMaxTasks) {
      return absl::InvalidArgumentError(absl::StrCat("job ", Quoted(spec.name), " has ", spec.tasks,
                                                     " tasks; 1 to ", kMaxTasks, " are possible"));
    }
  }
  return Jobs(std::move(specs));
}

Jobs::Jobs(std::vector<JobSpec> specs) : specs_(std::move(specs)) {
  for (const JobSpec& spec : specs_) size_ += spec.tasks;
}

bool Jobs::HasJob(absl::string_view job) const {
  return std::any_of(specs_.begin(), specs_.end(),
                     [job](const JobSpec& spec) { return spec.name == job; });
}

absl::StatusOr<TaskId> Jobs::Resolve(absl::string_view job, int64_t number) const {
  int first = 0;
  for (const JobSpec& spec : specs_) {
    if (spec.name == job) {
      if (number >= 0 && number < spec.tasks) return TaskId(first + static_cast<int>(number));
      return absl::InvalidArgumentError(
          absl::StrCat("Unexpected task /job:", job, "/replica:0/task:", number,
                       " is not in the cluster: ", "the job has tasks 0 to ", spec.tasks - 1));
    }
    first += spec.tasks;
  }
  std::vector<std::string> known;
  for (const JobSpec& spec : specs_) known.push_back(spec.name);
  return absl::InvalidArgumentError(absl::StrCat(
      "Unexpected task ", number, " of job ", Quoted(job),
      " is not in the cluster: the coordinator serves ", BoundedList(known, 8), " (--job)"));
}

absl::StatusOr<TaskId> Jobs::Resolve(int64_t number) const {
  if (number >= 0 && number < size_) return TaskId(static_cast<int>(number));
  return absl::InvalidArgumentError(absl::StrCat(
      "Unexpected task ", number, " is not in the cluster: it has tasks 0 to ", size_ - 1));
}

std::pair<absl::string_view, int> Jobs::Locate(TaskId task) const {
  int number = task.value();
  for (const JobSpec& spec : specs_) {
    if (number < spec.tasks) return {spec.name, number};
    number -= spec.tasks;
  }
  return {"", number};
}

std::string Jobs::Name(TaskId task) const {
  const auto [job, number] = Locate(task);
  return absl::StrCat("/job:", job, "/replica:0/task:", number);
}

std::string Jobs::Ranges(absl::Span<const TaskId> tasks) const {
  constexpr size_t kMaxBytes = 1024;
  std::string text;
  int first = 0;
  size_t told = 0;
  for (const JobSpec& spec : specs_) {
    std::vector<int> numbers;
    for (const TaskId task : tasks) {
      const int number = task.value() - first;
      if (number >= 0 && number < spec.tasks) numbers.push_back(number);
    }
    first += spec.tasks;
    if (numbers.empty()) continue;
    if (text.size() >= kMaxBytes) {
      absl::StrAppend(&text, "; and ", tasks.size() - told, " more");
      return text;
    }
    if (specs_.size() > 1) absl::StrAppend(&text, text.empty() ? "" : "; ", spec.name, " ");
    absl::StrAppend(&text, FormatRanges(numbers, kMaxBytes - std::min(kMaxBytes, text.size())));
    told += numbers.size();
  }
  return text;
}

}  // namespace ferry::coord
