// SPDX-License-Identifier: Apache-2.0
// Task 1 of a job whose task 0 is TensorFlow's: worker_program HOST:PORT
// Prints its address, and, when its input ends, how many steps, graphs and sessions are left.
#include <unistd.h>

#include <cstdio>

#include "worker_fixture.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  ferry::Endpoint tensorflow;
  tensorflow.peer = {0, 1};
  tensorflow.grpc_address = argv[1];
  ferry::Directory directory;
  directory.Publish(tensorflow);
  ferry::TransferEngineOptions options;
  options.protocol = ferry::WireProtocol::kGrpc;
  ferry::WorkerEnd end(directory, 1, options);
  std::printf("%s\n", end.transfer_engine().self().grpc_address.c_str());
  std::fflush(stdout);
  for (char c = 0; read(STDIN_FILENO, &c, 1) > 0;) {
  }
  std::printf("steps %zu, rendezvous %zu, graphs %zu, sessions %zu, variables %d\n",
              end.worker().step_count(), end.transfer_engine().rendezvous().step_count(),
              end.worker().graph_count(), end.worker().session_count(),
              end.worker().variable_count());
  return 0;
}
