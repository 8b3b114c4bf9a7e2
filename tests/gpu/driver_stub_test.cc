// SPDX-License-Identifier: Apache-2.0
// The driver's functions by name against the stub libcuda.so of a CUDA toolkit, which exports
// everything that the driver of its version does. Skipped where there is no toolkit. A program of
// its own: the loader takes the stub for libcuda.so.1 from then on.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/cuda/cuda_api.h"
#include "tests/gpu/scoped_environment.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

class DriverStub : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> toolkits = {"/usr/local/cuda", "/usr/lib/cuda"};
    if (const char* const home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
      toolkits.insert(toolkits.begin(), home);
    }
    for (const std::string& toolkit : toolkits) {
      for (const char* const folder : {"/lib64/stubs", "/targets/x86_64-linux/lib/stubs"}) {
        stub_ = toolkit + folder + "/libcuda.so";
        if (std::filesystem::exists(stub_)) {
          std::cout << "seen: " << stub_ << "\n";
          return;
        }
      }
    }
    GTEST_SKIP() << "no CUDA toolkit has lib64/stubs/libcuda.so; set CUDA_HOME to one";
  }

  std::string stub_;
};

// The names that CudaApi::Load resolves, from its source: a name that is missing in a group becomes
// the error of a call much later.
std::set<std::string> ResolvedNames() {
  std::ifstream file(FERRY_CUDA_API_SOURCE);
  const std::string source(std::istreambuf_iterator<char>(file), {});
  const std::regex pattern(R"re([rR]esolve\("(cu\w+)",)re");
  std::set<std::string> names;
  for (std::sregex_iterator match(source.begin(), source.end(), pattern), end; match != end;
       ++match) {
    names.insert((*match)[1]);
  }
  return names;
}

TEST_F(DriverStub, ExportsEveryResolvedFunction) {
  const std::set<std::string> names = ResolvedNames();
  EXPECT_EQ(names.size(), sizeof(CudaTable) / sizeof(CudaTable::init)) << FERRY_CUDA_API_SOURCE;
  void* const stub = dlopen(stub_.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(stub, nullptr) << dlerror();
  for (const std::string& name : names) EXPECT_NE(dlsym(stub, name.c_str()), nullptr) << name;
}

// CUDA_ERROR_STUB_LIBRARY: a program that was started with the stubs' folder in LD_LIBRARY_PATH.
TEST_F(DriverStub, IsRefusedWithItsCode) {
  ScopedEnvironment environment;
  environment.Set("FERRY_CUDA_LIBRARY", stub_);
  const absl::Status status = CudaApi::Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("failed with code 34"));
}

}  // namespace
}  // namespace ferry::cuda
