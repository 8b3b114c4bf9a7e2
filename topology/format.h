// SPDX-License-Identifier: Apache-2.0
// Formats topologies as text (an aligned matrix), JSON and Graphviz.
#ifndef FERRY_TOPOLOGY_FORMAT_H_
#define FERRY_TOPOLOGY_FORMAT_H_

#include <string>

#include "topology/global_topology.h"
#include "topology/local_topology.h"

namespace ferry {

// A table of the devices, then a matrix in the style of nvidia-smi topo -m, then a legend of the
// link types that occur. The matrix's title gives its direction; rows and columns are aligned. For
// a job with more than `max_matrix_devices` devices the matrix shows the first ones, and says so.
std::string FormatText(const LocalTopology& topology, int max_matrix_devices = 64);
std::string FormatText(const GlobalTopology& topology, int max_matrix_devices = 64);

// One JSON object, indented: devices with all known fields, and links as pairs of device names. A
// job's object also has its nodes, partitions and counts, and lists links within nodes only: links
// between nodes follow from machines and fabrics (see GlobalTopology::LinkBetween) and are too
// many.
std::string FormatJson(const LocalTopology& topology);
std::string FormatJson(const GlobalTopology& topology);

// An undirected Graphviz graph: a cluster per node, an edge per known link within it, and for a job
// an edge from each node to the network.
std::string FormatDot(const LocalTopology& topology);
std::string FormatDot(const GlobalTopology& topology);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_FORMAT_H_
