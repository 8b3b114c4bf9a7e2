// SPDX-License-Identifier: Apache-2.0
// Early return on error: FERRY_RETURN_IF_ERROR, FERRY_ASSIGN_OR_RETURN, and FERRY_CHECK for
// internal bugs.
#ifndef FERRY_BASE_STATUS_MACROS_H_
#define FERRY_BASE_STATUS_MACROS_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expr` from the enclosing function when it is not OK.
#define FERRY_RETURN_IF_ERROR(expr)                               \
  do {                                                            \
    if (absl::Status ferry_status = (expr); !ferry_status.ok()) { \
      return ferry_status;                                        \
    }                                                             \
  } while (false)

// Moves the value of the StatusOr `expr` into `lhs` (a declaration or an lvalue), or returns its
// status.
#define FERRY_ASSIGN_OR_RETURN(lhs, expr) \
  FERRY_ASSIGN_OR_RETURN_IMPL_(FERRY_CONCAT_(ferry_statusor_, __LINE__), lhs, expr)
#define FERRY_CONCAT_INNER_(a, b) a##b
#define FERRY_CONCAT_(a, b) FERRY_CONCAT_INNER_(a, b)
#define FERRY_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return std::move(tmp).status();     \
  lhs = *std::move(tmp)

// Aborts the process when `cond` is false, i.e. an invariant of Ferry is broken. Never for input.
#define FERRY_CHECK(cond)                                                                 \
  do {                                                                                    \
    if (!(cond)) {                                                                        \
      std::fprintf(stderr, "%s:%d: FERRY_CHECK failed: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

#endif  // FERRY_BASE_STATUS_MACROS_H_
