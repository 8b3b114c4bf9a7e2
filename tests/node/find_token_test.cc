// SPDX-License-Identifier: Apache-2.0
// Where a process finds the job's token.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "node/transfer_engine.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class FindTokenTest : public ::testing::Test {
 protected:
  ~FindTokenTest() override { std::filesystem::remove(path_); }

  // Writes a file of that content, and names it.
  void NameFile(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    environment_["FERRY_JOB_TOKEN_FILE"] = path_;
  }
  absl::StatusOr<std::string> Find() {
    return FindToken(options_, [this](absl::string_view name) -> std::optional<std::string> {
      const auto found = environment_.find(std::string(name));
      if (found == environment_.end()) return std::nullopt;
      return found->second;
    });
  }
  void ExpectToken(const std::string& token) {
    const absl::StatusOr<std::string> found = Find();
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, token);
  }
  void ExpectRefused(const std::string& why) {
    const absl::StatusOr<std::string> found = Find();
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << found.status();
    EXPECT_THAT(std::string(found.status().message()),
                HasSubstr(absl::StrCat("FERRY_JOB_TOKEN_FILE=", path_, ": ", why)));
  }

  const std::string path_ = absl::StrCat(testing::TempDir(), "/ferry-find-token-", getpid());
  TransferEngineOptions options_;
  std::map<std::string, std::string> environment_;
};

TEST_F(FindTokenTest, OptionsComeFirst_ThenTheVariable_ThenTheFile) {
  ExpectToken("");
  NameFile("from the file");
  ExpectToken("from the file");
  environment_["FERRY_JOB_TOKEN"] = "";
  ExpectToken("from the file");
  environment_["FERRY_JOB_TOKEN"] = "from the variable";
  ExpectToken("from the variable");
  options_.token = "from the options";
  ExpectToken("from the options");
}

// As editors and `echo` write them.
TEST_F(FindTokenTest, FileIsReadWithoutSpaceAroundTheToken) {
  NameFile("\n  two words\r\n\n");
  ExpectToken("two words");
}

TEST_F(FindTokenTest, FileWithoutToken_IsRefused) {
  environment_["FERRY_JOB_TOKEN_FILE"] = path_;
  ExpectRefused("cannot be read: No such file or directory");
  NameFile("");
  ExpectRefused("it holds no token");
  NameFile(" \n");
  ExpectRefused("it holds no token");
}

TEST_F(FindTokenTest, FileOfMoreThan4096Bytes_IsRefused) {
  NameFile(std::string(4096, 'x'));
  ExpectToken(std::string(4096, 'x'));
  NameFile(std::string(4097, 'x'));
  ExpectRefused("it has more than 4096 bytes");
}

}  // namespace
}  // namespace ferry
