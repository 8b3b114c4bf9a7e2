// SPDX-License-Identifier: Apache-2.0
// Topologies for people (an aligned matrix), for programs (JSON) and for Graphviz.
#ifndef FERRY_TOPOLOGY_FORMAT_H_
#define FERRY_TOPOLOGY_FORMAT_H_

#include <string>

#include "topology/global_topology.h"
#include "topology/local_topology.h"

namespace ferry {

// A table of the devices, then a matrix in the manner of nvidia-smi topo -m, then what its words
// mean. The matrix's title gives its direction; rows and columns are aligned; only words that occur
// are explained. Of a job with more than `max_matrix_devices` devices the matrix shows the first
// ones, and says so.
std::string FormatText(const LocalTopology& topology, int max_matrix_devices = 64);
std::string FormatText(const GlobalTopology& topology, int max_matrix_devices = 64);

// One JSON object, indented: devices with all that is known of them, and links as pairs of device
// names. A job's object also has its nodes, partitions and counts, and lists links within nodes
// only: those between nodes follow from machines and fabrics (see GlobalTopology::LinkBetween), and
// there are too many of them.
std::string FormatJson(const LocalTopology& topology);
std::string FormatJson(const GlobalTopology& topology);

// An undirected Graphviz graph: a cluster per node, an edge per known link within it, and for a job
// an edge from each node to the network.
std::string FormatDot(const LocalTopology& topology);
std::string FormatDot(const GlobalTopology& topology);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_FORMAT_H_
