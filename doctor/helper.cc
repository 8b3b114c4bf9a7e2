// SPDX-License-Identifier: Apache-2.0
// ferry doctor-helper: the checks that call into drivers, which may crash or hang.
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/verb.h"
#include "doctor/gpu_checks.h"
#include "doctor/ipc_probe.h"
#include "doctor/lines.h"
#include "doctor/nccl_checks.h"
#include "doctor/peer_probe.h"
#include "gpu/cuda/cuda_device.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

struct HelperFlags {
  std::string role;
  int gpu = 0;
  std::string socket;
  int gpu_count = 0;
  int cuda_version = 0;
  absl::Duration timeout = absl::Seconds(60);
};

void TellPhase(absl::string_view phase) { WriteHelperLine("phase", std::string(phase)); }

void Tell(const doctor::Finding& finding) { WriteHelperLine("finding", FindingJson(finding)); }

absl::Status LookAtGpus() {
  WriteHelperLine("check", "driver");
  TellPhase("loading the CUDA driver");
  std::unique_ptr<cuda::CudaApi> api;
  const doctor::GpuFacts facts = doctor::ReadGpuFacts(doctor::LocalHostReader(), api);
  for (const doctor::Finding& finding : doctor::CheckGpus(facts)) Tell(finding);
  // Each ordinal is tested.
  WriteHelperLine("gpus", facts.gpus.size() + facts.gpu_failures.size());
  WriteHelperLine("cuda_version", facts.cuda_version);
  if (api == nullptr) return absl::OkStatus();
  WriteHelperLine("check", "peer access");
  const auto outcomes = doctor::ProbePeers(std::move(api), TellPhase);
  if (!outcomes.ok()) return outcomes.status();
  Tell(doctor::JudgePeers(*outcomes));
  return absl::OkStatus();
}

absl::Status LookAtNccl(const HelperFlags& flags) {
  WriteHelperLine("check", "nccl");
  TellPhase("loading NCCL");
  const doctor::LocalHostReader host;
  std::unique_ptr<nccl::NcclApi> api;
  const doctor::NcclFacts facts = doctor::ReadNcclFacts(host, api);
  Tell(doctor::JudgeNccl(facts, flags.gpu_count, flags.cuda_version));
  if (api == nullptr) return absl::OkStatus();
  WriteHelperLine("check", "nccl id");
  TellPhase("making an id");
  Tell(doctor::JudgeNcclId(doctor::TryNcclId(host, *api)));
  return absl::OkStatus();
}

absl::StatusOr<doctor::IpcProbeOptions> OpenGpu(const HelperFlags& flags) {
  TellPhase(absl::StrCat("opening gpu:", flags.gpu));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::CudaApi> api, cuda::CudaApi::Load());
  doctor::IpcProbeOptions options;
  FERRY_ASSIGN_OR_RETURN(options.device, cuda::CudaDevice::Open(std::move(api), flags.gpu));
  options.deadline = SteadyClock().Now() + flags.timeout;
  options.on_phase = TellPhase;
  return options;
}

absl::Status Export(const HelperFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const doctor::IpcProbeOptions options, OpenGpu(flags));
  FERRY_ASSIGN_OR_RETURN(const doctor::ProbeSocket listener, doctor::ListenForProbe());
  WriteHelperLine("socket", listener.name);
  FERRY_ASSIGN_OR_RETURN(const UniqueFd socket, AcceptProbe(listener, options.deadline));
  return doctor::ExportForProbe(options, socket);
}

Json OutcomeJson(const doctor::IpcOutcome& outcome) {
  Json json = {{"taken_s", absl::ToDoubleSeconds(outcome.taken)}};
  if (!outcome.status.ok()) json["reason"] = Printable(outcome.status.message());
  return json;
}

absl::Status Import(const HelperFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const doctor::IpcProbeOptions options, OpenGpu(flags));
  FERRY_ASSIGN_OR_RETURN(const UniqueFd socket, doctor::ConnectProbe(flags.socket));
  FERRY_ASSIGN_OR_RETURN(const doctor::IpcProbeReport report,
                         doctor::ImportForProbe(options, socket));
  WriteHelperLine("descriptor", OutcomeJson(report.descriptor));
  WriteHelperLine("handle", OutcomeJson(report.handle));
  return absl::OkStatus();
}

absl::StatusOr<int> Help(const HelperFlags& flags) {
  absl::Status done = absl::InvalidArgumentError(absl::StrCat("there is no role ", flags.role));
  if (flags.role == "gpus") done = LookAtGpus();
  if (flags.role == "nccl") done = LookAtNccl(flags);
  if (flags.role == "export") done = Export(flags);
  if (flags.role == "import") done = Import(flags);
  if (absl::IsInvalidArgument(done)) return done;
  if (!done.ok()) WriteHelperLine("error", Printable(done.message()));
  WriteHelperLine("end", true);
  return kDone;
}

}  // namespace

Verb AddDoctorHelperVerb(CLI::App& app) {
  auto flags = std::make_shared<HelperFlags>();
  CLI::App& verb = *app.add_subcommand("doctor-helper", "One of the processes of ferry doctor");
  verb.group("");  // Hidden.
  verb.add_option("role", flags->role)->required();
  constexpr int kMost = std::numeric_limits<int>::max();
  AddNumber(verb, "--gpu", flags->gpu, "", 0, kMost);
  verb.add_option("--socket", flags->socket);
  AddNumber(verb, "--gpu-count", flags->gpu_count, "", 0, kMost);
  AddNumber(verb, "--cuda-version", flags->cuda_version, "", 0, kMost);
  AddDuration(verb, "--timeout", flags->timeout, "of waits for the other process");
  return [flags]() { return Help(*flags); };
}

}  // namespace ferry::cli
