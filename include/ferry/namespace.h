// SPDX-License-Identifier: Apache-2.0
// The inline namespace of the public API, whose name changes with the ABI.
#ifndef FERRY_INCLUDE_FERRY_NAMESPACE_H_
#define FERRY_INCLUDE_FERRY_NAMESPACE_H_

// Programs write ferry::Node. The library's own sources also have internal classes of these names
// in namespace ferry; they define FERRY_API_IMPLEMENTATION and write ferry::v0::Node.
#ifdef FERRY_API_IMPLEMENTATION
#define FERRY_NAMESPACE_BEGIN namespace v0 {
#else
#define FERRY_NAMESPACE_BEGIN inline namespace v0 {
#endif
#define FERRY_NAMESPACE_END }

#endif  // FERRY_INCLUDE_FERRY_NAMESPACE_H_
