// SPDX-License-Identifier: Apache-2.0
// PatientOutput: where a launcher writes, which must not wait for whoever reads it.
#ifndef FERRY_RUNTIME_PATIENT_OUTPUT_H_
#define FERRY_RUNTIME_PATIENT_OUTPUT_H_

#include <poll.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "base/unique_fd.h"

namespace ferry {

// A stream that keeps what is not taken yet, if it is a pipe, a socket or a terminal: a pager that
// shows its first page, or a terminal that was stopped, holds nobody up. Anything else is written
// as it comes. Used on one thread.
class PatientOutput final {
 public:
  // `file` outlives it, and is not written by others meanwhile.
  explicit PatientOutput(std::FILE* file);

  PatientOutput(const PatientOutput&) = delete;
  PatientOutput& operator=(const PatientOutput&) = delete;

  // Adds `bytes`; they are written with others by and by, or by Flush. 0, or errno of a failure to
  // write; what waits is dropped then.
  int Write(absl::string_view bytes);
  // Writes what is taken of what waits; as Write.
  int Flush();

  // Bytes that wait.
  size_t waiting() const { return waiting_.size() - written_; }
  // To poll for POLLOUT while something waits; negative if nothing ever does.
  int fd() const { return socket_ >= 0 ? socket_ : own_fd_.get(); }

 private:
  // As write(2), of the beginning of `waiting_`.
  ssize_t WriteSome();

  std::FILE* const file_;
  // The stream again, in a way that never blocks, or the stream itself if it is a socket; at most
  // one of them is there.
  UniqueFd own_fd_;
  int socket_ = -1;
  std::string waiting_;
  size_t written_ = 0;
};

// Standard output and standard error. If both end at one and the same place, what goes to them
// stays in order.
class PatientOutputs final {
 public:
  PatientOutputs(std::FILE* out, std::FILE* err);

  PatientOutput& out() { return out_; }
  PatientOutput& err() { return own_err_ == nullptr ? out_ : *own_err_; }

  // Of both: errno of the first failure, or 0; what waits.
  int Flush();
  size_t waiting() const {
    return out_.waiting() + (own_err_ != nullptr ? own_err_->waiting() : 0);
  }
  // Adds what is to be polled before the next Flush can write anything.
  void AddPolled(std::vector<pollfd>& polled) const;

 private:
  PatientOutput out_;
  std::unique_ptr<PatientOutput> own_err_;
};

}  // namespace ferry

#endif  // FERRY_RUNTIME_PATIENT_OUTPUT_H_
