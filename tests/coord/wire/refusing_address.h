// SPDX-License-Identifier: Apache-2.0
// RefusingAddress: an address on the loopback that refuses connections.
#ifndef FERRY_TESTS_COORD_WIRE_REFUSING_ADDRESS_H_
#define FERRY_TESTS_COORD_WIRE_REFUSING_ADDRESS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace ferry::coord {

// Its port is bound as long as it lives, and nobody listens there. That of a server that has ended
// could become another test's, or the connecting socket's own, which then connects to itself.
class RefusingAddress final {
 public:
  RefusingAddress() {
    sockaddr_in bound = {};
    bound.sin_family = AF_INET;
    bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(bound);
    FERRY_CHECK(bind(fd_.get(), reinterpret_cast<sockaddr*>(&bound), bytes) == 0);
    FERRY_CHECK(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) == 0);
    text_ = absl::StrCat("127.0.0.1:", ntohs(bound.sin_port));
  }

  const std::string& text() const { return text_; }

 private:
  const UniqueFd fd_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::string text_;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_WIRE_REFUSING_ADDRESS_H_
