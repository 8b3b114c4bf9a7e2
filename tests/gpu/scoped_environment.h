// SPDX-License-Identifier: Apache-2.0
// Environment variables for the length of one test.
#ifndef FERRY_TESTS_GPU_SCOPED_ENVIRONMENT_H_
#define FERRY_TESTS_GPU_SCOPED_ENVIRONMENT_H_

#include <cstdlib>
#include <string>
#include <vector>

namespace ferry {

// Not for tests with threads: the environment is the process's. The destructor unsets the variables
// that were set.
class ScopedEnvironment final {
 public:
  ScopedEnvironment() = default;
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

  void Set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    names_.push_back(name);
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_GPU_SCOPED_ENVIRONMENT_H_
