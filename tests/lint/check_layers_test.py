# SPDX-License-Identifier: Apache-2.0
# Proves that scripts/check_layers finds each kind of violation in a small tree, and only those.
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_layers"
HEAD = "// SPDX-License-Identifier: Apache-2.0\n// A file of the test.\n"
LAYERS = """# Comments and line breaks as in the real one.
set(FERRY_LAYERS base proto topology coord gpu
                 rendezvous tensorflow/graph node cli)
set(FERRY_INNER_LAYERS coord/core coord/wire coord/server)
"""


def header(path, body=""):
    guard = "FERRY_" + path.upper().replace("/", "_").replace(".", "_") + "_"
    return f"{HEAD}#ifndef {guard}\n#define {guard}\n{body}\n#endif  // {guard}\n"


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.write("cmake/FerryTargets.cmake", LAYERS)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def check(self):
        done = subprocess.run([sys.executable, SCRIPT, self.root], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def assert_clean(self):
        self.assertEqual(self.check()[0], 0, self.check()[1])

    def assert_only(self, complaint):
        status, output = self.check()
        self.assertEqual(output, complaint + "\n")
        self.assertEqual(status, 1)

    def refuses(self, path, include, complaint):
        self.write(path, f"{HEAD}#include {include}\n")
        self.assert_only(f"{path}:3: {complaint}")

    def allows(self, path, include):
        self.write(path, f"{HEAD}#include {include}\n")
        self.assert_clean()

    # Public headers.

    def refuses_in_public_header(self, include):
        self.write("include/ferry/node.h", header("include/ferry/node.h", f"#include {include}"))
        self.assert_only(f"include/ferry/node.h:5: {include[1:-1]} may not be included by a public "
                         'header: only <ferry/...>, "absl/..." and the C++ library')

    def test_allows_public_headers_abseil_and_the_standard_library(self):
        self.write("include/ferry/tensor.h", header("include/ferry/tensor.h"))
        self.write("include/ferry/node.h",
                   header("include/ferry/node.h", "#include <memory>\n#include <string_view>\n"
                          '#include "absl/status/status.h"\n#include <ferry/tensor.h>'))
        self.assert_clean()

    def test_refuses_internal_headers_in_public_ones(self):
        self.write("node/node.h", header("node/node.h"))
        self.refuses_in_public_header('"node/node.h"')

    def test_refuses_third_parties_in_public_headers(self):
        self.refuses_in_public_header("<grpcpp/grpcpp.h>")

    def test_refuses_public_headers_that_do_not_exist(self):
        self.refuses_in_public_header("<ferry/nothing.h>")

    def test_refuses_too_many_lines_of_public_headers(self):
        self.write("include/ferry/node.h", header("include/ferry/node.h", "\n" * 1493))
        self.assert_clean()
        self.write("include/ferry/node.h", header("include/ferry/node.h", "\n" * 1494))
        self.assert_only("include/ferry/:1: 1500 lines of public headers; fewer than 1500 are "
                         "allowed")

    def test_refuses_public_headers_in_a_layer(self):
        self.write("include/ferry/tensor.h", header("include/ferry/tensor.h"))
        self.refuses("node/node.cc", "<ferry/tensor.h>",
                     "node may not include the public ferry/tensor.h")

    # Layers.

    def test_allows_own_folder_and_those_to_the_left(self):
        self.write("base/text.h", header("base/text.h"))
        self.write("coord/store.h", header("coord/store.h", '#include "base/text.h"'))
        self.write("coord/store.cc", f'{HEAD}#include "coord/store.h"\n\n#include <string>\n')
        self.assert_clean()

    def test_refuses_a_folder_to_the_right(self):
        self.refuses("coord/a.cc", '"rendezvous/b.h"', "coord may not include rendezvous")

    def test_refuses_the_last_folder_of_the_list(self):
        self.refuses("tensorflow/graph/a.cc", '"cli/b.h"', "tensorflow/graph may not include cli")

    def test_finds_an_include_with_spaces(self):
        self.write("base/a.cc", f'{HEAD}  #  include   "cli/b.h"\n')
        self.assert_only("base/a.cc:3: base may not include cli")

    def test_finds_nested_folders(self):
        self.refuses("gpu/cuda/a.cc", '"tensorflow/graph/b.h"', "gpu may not include tensorflow/graph")

    def test_orders_the_folders_within_a_layer(self):
        self.write("coord/core/a.h", header("coord/core/a.h"))
        self.allows("coord/server/a.cc", '"coord/core/a.h"')
        self.refuses("coord/core/a.cc", '"coord/wire/b.h"', "coord/core may not include coord/wire")

    def test_refuses_tests_in_a_layer(self):
        self.refuses("coord/a.cc", '"tests/support/b.h"', "coord may not include tests")

    def test_refuses_benchmarks_in_a_layer(self):
        self.refuses("cli/a.cc", '"benchmarks/b.h"', "cli may not include benchmarks")

    def test_allows_anything_in_tests_and_benchmarks(self):
        self.allows("tests/base/a_test.cc", '"cli/b.h"')
        self.allows("benchmarks/a.cc", "<grpcpp/grpcpp.h>")

    def test_refuses_a_path_that_does_not_start_at_the_root(self):
        self.write("coord/b.h", header("coord/b.h"))
        self.refuses("coord/a.cc", '"b.h"', '"b.h" is not a path from the repository root')

    # Confinement.

    def test_confines_grpc(self):
        who = ("may only be included by coord/{wire,client,server}/, rendezvous/recv_tensor/, "
               "tensorflow/ and the files that scripts/check_layers names")
        self.refuses("coord/a.cc", "<grpcpp/grpcpp.h>", f"grpcpp/grpcpp.h {who}")
        self.refuses("coord/a.cc", "<grpc/grpc.h>", f"grpc/grpc.h {who}")
        self.refuses("coord/a.cc", '"proto/x.grpc.pb.h"', f"proto/x.grpc.pb.h {who}")
        # Even where messages are welcome, stubs are not.
        (self.root / "coord/a.cc").unlink()
        self.refuses("coord/x_proto.cc", '"proto/x.grpc.pb.h"', f"proto/x.grpc.pb.h {who}")

    def test_allows_grpc_in_its_folders(self):
        self.allows("coord/server/server.cc", "<grpcpp/grpcpp.h>")
        self.allows("tensorflow/graph/a.cc", '"proto/x.pb.h"')

    def test_confines_messages(self):
        who = "may only be included by *_proto.* files and where gRPC may be included"
        self.refuses("coord/a.cc", '"proto/x.pb.h"', f"proto/x.pb.h {who}")

    def test_allows_messages_in_proto_files_and_graph(self):
        self.allows("topology/format_proto.cc", '"proto/x.pb.h"')
        self.allows("tensorflow/graph/a.cc", '"proto/x.pb.h"')

    def test_confines_cuda(self):
        who = "may only be included by gpu/cuda/"
        self.refuses("gpu/a.cc", "<cuda.h>", f"cuda.h {who}")
        self.refuses("gpu/a.cc", "<cuda_runtime_api.h>", f"cuda_runtime_api.h {who}")
        (self.root / "gpu/a.cc").unlink()
        self.allows("gpu/cuda/driver.cc", "<cuda.h>")

    def test_confines_nccl(self):
        self.refuses("gpu/cuda/a.cc", "<nccl.h>", "nccl.h may only be included by gpu/nccl/")
        (self.root / "gpu/cuda/a.cc").unlink()
        self.allows("gpu/nccl/communicator.cc", "<nccl.h>")

    def test_confines_eigen(self):
        self.refuses("coord/a.cc", "<Eigen/Core>",
                     "Eigen/Core may only be included by tensorflow/worker/kernels/")

    def test_confines_pugixml(self):
        self.refuses("topology/a.cc", "<pugixml.hpp>",
                     "pugixml.hpp may only be included by topology/nccl_xml*")
        (self.root / "topology/a.cc").unlink()
        self.allows("topology/nccl_xml_reader.cc", "<pugixml.hpp>")

    def test_confines_hwloc(self):
        self.refuses("topology/a.cc", "<hwloc.h>",
                     "hwloc.h may only be included by topology/host_discovery.cc")
        (self.root / "topology/a.cc").unlink()
        self.allows("topology/host_discovery.cc", "<hwloc.h>")

    def test_confines_the_command_line_parser(self):
        self.refuses("coord/a.cc", "<CLI/CLI.hpp>",
                     "CLI/CLI.hpp may only be included by cli/, bench/, doctor/ and main.cc")
        (self.root / "coord/a.cc").unlink()
        self.allows("cli/a.cc", "<CLI/CLI.hpp>")

    def test_confines_json(self):
        self.refuses("topology/a.cc", "<nlohmann/json.hpp>",
                     "nlohmann/json.hpp may only be included by topology/format_json.*, "
                     "node/tf_config.cc, cli/, bench/ and doctor/")
        (self.root / "topology/a.cc").unlink()
        self.allows("topology/format_json.cc", "<nlohmann/json.hpp>")
        self.allows("node/tf_config.cc", "<nlohmann/json.hpp>")
        self.allows("cli/status.cc", "<nlohmann/json.hpp>")

    # Form.

    def test_requires_the_licence_line(self):
        self.write("base/a.cc", "// A file.\n")
        self.assert_only(
            "base/a.cc:1: the first line is not // SPDX-License-Identifier: Apache-2.0")

    def test_requires_the_licence_line_of_an_empty_file(self):
        self.write("tests/a_test.cc", "")
        self.assert_only(
            "tests/a_test.cc:1: the first line is not // SPDX-License-Identifier: Apache-2.0")

    def test_requires_the_line_of_purpose(self):
        self.write("base/a.cc", HEAD.splitlines()[0] + "\n#include <string>\n")
        self.assert_only("base/a.cc:2: the second line does not say what the file is for")

    def test_requires_the_header_guard(self):
        self.write("base/a.h", HEAD + "#pragma once\n")
        self.assert_only("base/a.h:3: the header guard is not FERRY_BASE_A_H_")

    def test_requires_the_header_guard_to_be_the_path(self):
        self.write("gpu/cuda/a.h", header("gpu/a.h"))
        self.assert_only("gpu/cuda/a.h:3: the header guard is not FERRY_GPU_CUDA_A_H_")

    # Cycles.

    def test_finds_a_cycle(self):
        self.write("base/a.h", header("base/a.h", '#include "base/b.h"'))
        self.write("base/b.h", header("base/b.h", '#include "base/c.h"'))
        self.write("base/c.h", header("base/c.h", '#include "base/a.h"'))
        self.assert_only(
            "base/c.h:5: include cycle: base/a.h -> base/b.h -> base/c.h -> base/a.h")

    def test_finds_a_file_that_includes_itself(self):
        self.write("base/a.h", header("base/a.h", '#include "base/a.h"'))
        self.assert_only("base/a.h:5: include cycle: base/a.h -> base/a.h")

    def test_does_not_take_a_diamond_for_a_cycle(self):
        self.write("base/a.h", header("base/a.h", '#include "base/b.h"\n#include "base/c.h"'))
        self.write("base/b.h", header("base/b.h", '#include "base/d.h"'))
        self.write("base/c.h", header("base/c.h", '#include "base/d.h"'))
        self.write("base/d.h", header("base/d.h"))
        self.assert_clean()

    def test_lists_every_violation(self):
        self.write("base/a.cc", f'{HEAD}#include "cli/b.h"\n#include <nccl.h>\n')
        self.write("base/b.cc", f'{HEAD}#include "coord/b.h"\n')
        status, output = self.check()
        self.assertEqual(status, 1)
        self.assertEqual(output.splitlines(), [
            "base/a.cc:3: base may not include cli",
            "base/a.cc:4: nccl.h may only be included by gpu/nccl/",
            "base/b.cc:3: base may not include coord",
        ])


if __name__ == "__main__":
    unittest.main()
