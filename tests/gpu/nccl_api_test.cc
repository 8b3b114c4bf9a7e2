// SPDX-License-Identifier: Apache-2.0
// Where NCCL is searched for, and the error when it is not found.
#include "gpu/nccl/nccl_api.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/scoped_environment.h"

namespace ferry::nccl {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NcclSearchTest : public ::testing::Test {
 protected:
  NcclSearchTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "ferry_nccl_XXXXXX");
    root_ = mkdtemp(pattern.data());
    paths_.system_root = root_ + "/usr";
  }
  ~NcclSearchTest() override { fs::remove_all(root_); }

  std::string Put(const std::string& file) {
    const fs::path path = fs::path(root_) / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "not a library";
    return path.string();
  }

  std::string root_;
  NcclSearchPaths paths_;
};

TEST_F(NcclSearchTest, FindsTheWheelOfAVirtualEnvironment) {
  const std::string file = Put("venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2");
  paths_.virtual_env = root_ + "/venv";
  EXPECT_THAT(SearchNccl(paths_).found, ElementsAre(file));
}

// A daemon started by systemd has at most PATH: its python3 identifies the environment, whether
// that is its own or only linked.
TEST_F(NcclSearchTest, FindsTheEnvironmentOfThePythonOnPath) {
  const std::string base = Put("base/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
  const std::string own = Put("env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
  Put("base/bin/python3");
  fs::create_directories(root_ + "/env/bin");
  fs::create_symlink(root_ + "/base/bin/python3", root_ + "/env/bin/python3");
  paths_.path = root_ + "/nowhere:" + root_ + "/env/bin";
  EXPECT_THAT(SearchNccl(paths_).found, ElementsAre(own, base));
}

TEST_F(NcclSearchTest, FindsCondasOwnLibraryAndItsWheels) {
  const std::string wheel = Put("conda/lib/python3.10/site-packages/nvidia/nccl/lib/libnccl.so.2");
  const std::string own = Put("conda/lib/libnccl.so.2");
  paths_.conda_prefix = root_ + "/conda";
  EXPECT_THAT(SearchNccl(paths_).found, ElementsAre(wheel, own));
}

TEST_F(NcclSearchTest, FindsTheSystemsPackagesAndToolkit) {
  const std::string user =
      Put("home/.local/lib/python3.9/site-packages/nvidia/nccl/lib/libnccl.so.2");
  const std::string dist =
      Put("usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib/libnccl.so.2");
  const std::string debian = Put("usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2");
  const std::string toolkit = Put("usr/local/cuda/lib64/libnccl.so.2");
  paths_.home = root_ + "/home";
  EXPECT_THAT(SearchNccl(paths_).found, ElementsAre(user, dist, debian, toolkit));
}

TEST_F(NcclSearchTest, ReportsWhereItSearchedWhenThereIsNone) {
  paths_.virtual_env = root_ + "/venv";
  paths_.python_path = root_ + "/a:" + root_ + "/b";
  const NcclSearch search = SearchNccl(paths_);
  EXPECT_THAT(search.found, IsEmpty());
  EXPECT_THAT(search.folders, Contains(root_ + "/b/nvidia/nccl/lib"));
  EXPECT_THAT(search.folders, Contains(root_ + "/venv/lib/python3*/site-packages/nvidia/nccl/lib"));
}

TEST_F(NcclSearchTest, OldLibraryIsSkippedWithItsReason) {
  ScopedEnvironment environment;
  environment.Set("FERRY_NCCL_LIBRARY", FERRY_OLD_NCCL);
  const auto api = NcclApi::Load(paths_);
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(api.status().message(), HasSubstr("is NCCL 2.18.6, at least 2.19.1 is needed"));
  EXPECT_THAT(api.status().message(), HasSubstr(FERRY_OLD_NCCL));
}

// An incomplete installation: the loader would map pages that do not exist, and the process would
// die of it.
TEST_F(NcclSearchTest, TruncatedFileIsNotLoaded) {
  const std::string file = Put("short.so");
  fs::copy_file(FERRY_OLD_NCCL, file, fs::copy_options::overwrite_existing);
  for (const uintmax_t left : {uintmax_t{4096}, uintmax_t{100}}) {
    SCOPED_TRACE(left);
    fs::resize_file(file, left);
    ScopedEnvironment environment;
    environment.Set("FERRY_NCCL_LIBRARY", file);
    const auto api = NcclApi::Load();
    ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(api.status().message(), HasSubstr("it is cut short: "));
  }
}

// A user who names a file does not want another that happens to be installed.
TEST_F(NcclSearchTest, NamedLibraryIsTheOnlyOneTried) {
  ScopedEnvironment environment;
  environment.Set("FERRY_NCCL_LIBRARY", root_ + "/none.so");
  const auto api = NcclApi::Load();
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(api.status().message(), HasSubstr("none.so (FERRY_NCCL_LIBRARY)"));
  EXPECT_THAT(api.status().message(), ::testing::Not(HasSubstr("looked into")));
}

TEST_F(NcclSearchTest, InvalidFileIsNamedWithTheSearchedFolders) {
  const std::string file = Put("venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2");
  paths_.virtual_env = root_ + "/venv";
  const auto api = NcclApi::Load(paths_);
  if (api.ok()) GTEST_SKIP() << "the loader knows an NCCL: " << (*api)->path();
  EXPECT_THAT(api.status().message(), HasSubstr(file));
  EXPECT_THAT(api.status().message(), HasSubstr("looked into"));
}

// The fake library has every function of 2.28.
TEST(NcclApi, EveryFunctionOfARecentLibraryIsAvailable) {
  ScopedEnvironment environment;
  environment.Set("FERRY_NCCL_LIBRARY", FERRY_STRICT_CUDA);
  const auto api = NcclApi::Load();
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ((*api)->version(), 22809);
  EXPECT_EQ(VersionText((*api)->version()), "2.28.9");
  const NcclTable& table = (*api)->table();
  EXPECT_NE(table.init_rank_scalable, nullptr);
  EXPECT_NE(table.shrink, nullptr);
  EXPECT_NE(table.revoke, nullptr);
  // It exports those of 2.29 too, but says that it is older.
  EXPECT_NE(table.put_signal, nullptr);
  EXPECT_FALSE(HasPut(**api));
}

TEST(NcclApi, EachResultHasItsStatus) {
  ScopedEnvironment environment;
  environment.Set("FERRY_NCCL_LIBRARY", FERRY_STRICT_CUDA);
  const auto api = NcclApi::Load();
  ASSERT_TRUE(api.ok()) << api.status();
  const auto code = [&api](Result result) { return (*api)->Check(result, "ncclSend").code(); };
  EXPECT_EQ(code(kSuccess), absl::StatusCode::kOk);
  EXPECT_EQ(code(kUnhandledCudaError), absl::StatusCode::kInternal);
  EXPECT_EQ(code(kSystemError), absl::StatusCode::kInternal);
  EXPECT_EQ(code(kInternalError), absl::StatusCode::kInternal);
  EXPECT_EQ(code(kInvalidArgument), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(kInvalidUsage), absl::StatusCode::kInternal);
  EXPECT_EQ(code(kRemoteError), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(kInProgress), absl::StatusCode::kOk);
  EXPECT_EQ(code(kTimeout), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(kTimeout + 1), absl::StatusCode::kInternal);
}

TEST(SharedGpu, NeedsTheVersionAndTheVariableOrAHostId) {
  unsetenv("NCCL_HOSTID");
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  EXPECT_FALSE(AllowsSharedGpu(23003));
  for (const char* const off : {"0", "", "yes"}) {
    ScopedEnvironment environment;
    environment.Set("NCCL_MULTI_RANK_GPU_ENABLE", off);
    EXPECT_FALSE(AllowsSharedGpu(23003)) << off;
  }
  {
    ScopedEnvironment environment;
    environment.Set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    EXPECT_TRUE(AllowsSharedGpu(23003));
    EXPECT_TRUE(AllowsSharedGpu(23203));
    EXPECT_FALSE(AllowsSharedGpu(23002));
  }
  ScopedEnvironment environment;
  environment.Set("NCCL_HOSTID", "a");
  EXPECT_TRUE(AllowsSharedGpu(kMinVersion));
}

}  // namespace
}  // namespace ferry::nccl
