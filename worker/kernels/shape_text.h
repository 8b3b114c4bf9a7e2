// SPDX-License-Identifier: Apache-2.0
// Shapes as TensorFlow writes them in errors.
#ifndef FERRY_WORKER_KERNELS_SHAPE_TEXT_H_
#define FERRY_WORKER_KERNELS_SHAPE_TEXT_H_

#include <string>

#include "proto/tf_tensor.pb.h"

namespace ferry::worker {

// "[2,?]"; "<unknown>" for an unknown rank.
std::string PartialShapeText(const tensorflow::TensorShapeProto& shape);

}  // namespace ferry::worker

#endif  // FERRY_WORKER_KERNELS_SHAPE_TEXT_H_
