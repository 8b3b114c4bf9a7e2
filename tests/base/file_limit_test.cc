// SPDX-License-Identifier: Apache-2.0
// Processes that have few descriptors left.
#include "base/file_limit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/unique_fd.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// Leaves this process `left` descriptors above the lowest free one.
class FewDescriptors final {
 public:
  explicit FewDescriptors(rlim_t left) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const UniqueFd lowest(open("/", O_PATH | O_CLOEXEC));
    limit_ = static_cast<rlim_t>(lowest.get()) + left;
    const rlimit few = {limit_, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

  rlim_t limit() const { return limit_; }

 private:
  rlimit before_ = {};
  rlim_t limit_ = 0;
};

TEST(CheckFileRoom, ThereIsUsuallyRoom) { EXPECT_TRUE(CheckFileRoom(16).ok()); }

TEST(CheckFileRoom, CountsDescriptorsLeftBelowTheLimit) {
  const FewDescriptors few(3);
  EXPECT_TRUE(CheckFileRoom(0).ok());
  EXPECT_TRUE(CheckFileRoom(3).ok());
  const absl::Status status = CheckFileRoom(4);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("only 3 more descriptors can be opened, but this process needs about 4"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("`ulimit -n`, which is ", few.limit())));
}

TEST(CheckFileRoom, CountsGapsBetweenOpenDescriptors) {
  const FewDescriptors few(3);
  UniqueFd first(open("/", O_PATH | O_CLOEXEC));
  const UniqueFd second(open("/", O_PATH | O_CLOEXEC));
  ASSERT_TRUE(first.valid() && second.valid());
  EXPECT_TRUE(CheckFileRoom(1).ok());
  EXPECT_FALSE(CheckFileRoom(2).ok());
  first.Reset();
  EXPECT_TRUE(CheckFileRoom(2).ok());
}

TEST(FileLimitHint, NamesTheReachedLimit) {
  const FewDescriptors few(1);
  EXPECT_THAT(ErrorWithFileLimit(EMFILE),
              absl::StrCat("Too many open files (raise `ulimit -n`, which is ", few.limit(), ")"));
  EXPECT_THAT(FileLimitHint(ENFILE), HasSubstr("fs.file-max"));
  EXPECT_EQ(ErrorWithFileLimit(EACCES), "Permission denied");
}

TEST(WhyNoDescriptor, IsSilentIfThereIsOne) {
  EXPECT_EQ(WhyNoDescriptor(), "");
  const FewDescriptors few(0);
  EXPECT_THAT(WhyNoDescriptor(), HasSubstr("raise `ulimit -n`"));
}

}  // namespace
}  // namespace ferry
