// SPDX-License-Identifier: Apache-2.0
// The coordination methods in the messages of NumberedTasks.
#include "coord/server/coordination_methods_impl.h"

namespace ferry::coord {

template void ServeCoordination<NumberedTasks>(CoordinationMethod, Frontend&, DeviceInfoMerger&,
                                               UnaryCall&, grpc::ByteBuffer&);

}  // namespace ferry::coord
