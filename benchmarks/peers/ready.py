# SPDX-License-Identifier: Apache-2.0
"""Requirements of peers: Debian's packages, the programs of this folder, virtual environments. Each is available, or has a reason."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from processes import Failed, last_words, run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INSTALL_S, COMPILE_S, VENV_S = 1200, 300, 1000

# For each requirement: packages; and for programs that are built: compiler, sources, flags after
# them.
PACKAGES = {
    "ucx": ["ucx-utils"],
    "mpi_pair": ["openmpi-bin", "libopenmpi-dev", "g++"],
    "tensorpipe_pair": ["libtensorpipe-dev", "g++"],
    "grpc_pair": ["libgrpc++-dev", "pkg-config", "g++"],
    "wake_floor": ["g++"],
    "tcpstore": ["libtorch-dev", "g++"],
    "store_driver": ["g++"],
    "etcd_client": ["etcd-server", "libgrpc++-dev", "pkg-config", "g++"],
    "redis": ["redis-server", "redis-tools"],
    "gloo": ["python3-torch", "python3-numpy"],
    "jax": ["libgrpc++-dev", "libprotobuf-dev", "protobuf-compiler", "pkg-config", "g++"],
}
PROGRAMS = {
    "mpi_pair": ("mpicxx", ["mpi_pair.cc"], []),
    "tensorpipe_pair": ("g++", ["tensorpipe_pair.cc"], ["-ltensorpipe"]),
    "grpc_pair": ("g++", ["grpc_pair.cc"], ["@grpc++"]),
    "wake_floor": ("g++", ["wake_floor.cc"], []),
    "tcpstore": ("g++", ["tcpstore.cc"], ["-I/usr/include/torch/csrc/api/include", "-ltorch_cpu", "-ltorch", "-lc10"]),
    "store_driver": ("g++", ["store_driver.cc"], []),
    "etcd_client": ("g++", ["etcd_client.cc"], ["@grpc++"]),
    "jax_client": ("g++", ["jax_client.cc"], ["@grpc++", "@protobuf"]),
}
PROTO = ROOT / "proto/xla_coordination.proto"
VENVS = {"jax": "jax-0.10.2", "tensorflow": "tensorflow-2.15.1", "torch": "torch-2.15.0"}
# Those of some gigabytes, which are not made for a benchmark alone.
LARGE_VENVS = {"torch-2.15.0"}
# Ferry's own micro-benchmarks.
BENCHMARKS = ("api_bench", "coordinator_bench", "exchange_bench")
GPUS = {"gpu": 1, "gpus": 2}


def is_installed(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True)
    return done.stdout == "installed"


def missing_packages(needs):
    if not shutil.which("dpkg-query"):
        return []
    wanted = {package for need in needs for package in PACKAGES.get(need, [])}
    return sorted(package for package in wanted if not is_installed(package))


def install(packages, say):
    """The reason for the failure, or None."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    say(f"installing Debian's {' '.join(packages)}")
    try:
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            run([*as_root, "apt-get", "-o", "DPkg::Lock::Timeout=120", *words], INSTALL_S,
                {"DEBIAN_FRONTEND": "noninteractive"})
    except Failed as error:
        return f"apt-get: {error}"
    return None


def flags_of(words):
    found = []
    for word in words:
        found += run(["pkg-config", "--cflags", "--libs", word[1:]], 30).split() if word.startswith("@") else [word]
    return found


def build(name, folder):
    """Compiles unless the program is up to date; Failed has the reason."""
    compiler, sources, words = PROGRAMS[name]
    paths = [HERE / source for source in sources]
    flags = ["-std=c++17", "-O2", "-w", *([f"-I{folder / 'generated'}"] if name == "jax_client" else [])]
    text = b"".join(path.read_bytes() for path in [*paths, *sorted(HERE.glob("*.h")), PROTO])
    stamp = hashlib.sha256(text + repr((compiler, flags, words)).encode()).hexdigest()
    mark = folder / f"{name}.stamp"
    if mark.exists() and mark.read_text() == stamp and (folder / name).exists():
        return
    if name == "jax_client":
        generated = folder / "generated"
        generated.mkdir(parents=True, exist_ok=True)
        run(["protoc", f"--proto_path={ROOT}", f"--cpp_out={generated}", PROTO], COMPILE_S)
        paths.append(generated / "proto/xla_coordination.pb.cc")
    run([compiler, *flags, *paths, "-o", folder / name, *flags_of(words), "-lpthread"], COMPILE_S)
    mark.write_text(stamp)


def venv_reason(release, folder, may_install):
    """Why there is no such virtual environment, or None; it is made like those of the interop tests."""
    if (folder / release / "ferry-requirements.sha256").exists():
        return None
    if release in LARGE_VENVS:
        return f"{release} is not in {folder}: scripts/test --interop=pytorch makes it"
    if not may_install:
        return f"{release} is not in {folder}"
    command = [sys.executable, ROOT / "tests/interop/make_venv.py", folder / release, release]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VENV_S)
    except subprocess.TimeoutExpired:
        return f"{release}: not installed within {VENV_S} s"
    if done.returncode == 0:
        return None
    return last_words(done.stdout.replace("SKIP: ", "") or done.stderr)


def gpu_count():
    try:
        text = run(["/usr/bin/env", "python3", "-c",
                    "import torch; print('gpus', torch.cuda.device_count() if torch.version.cuda else 0)"], 60)
    except Failed:
        return 0
    return int(text.split()[-1])


def reasons(needs, tools, may_install, say):
    """{need: why it is not there} of those that are not."""
    found = {}
    packages = missing_packages(needs)
    if packages:
        why = install(packages, say) if may_install else "--no-install was asked for"
        if why:
            for need in needs:
                lacking = [each for each in PACKAGES.get(need, []) if each in packages and not is_installed(each)]
                if lacking:
                    found[need] = f"Debian's {' '.join(lacking)} is not installed: {why}"
    tools.programs.mkdir(parents=True, exist_ok=True)
    for need in sorted(needs):
        if need in found:
            continue
        if need in ("ferry", *BENCHMARKS):
            path = tools.ferry if need == "ferry" else tools.benchmarks / need
            if not path.exists():
                found[need] = f"{path} is not there: scripts/build"
        if need in VENVS:
            why = venv_reason(VENVS[need], tools.venvs, may_install)
            if why:
                found[need] = why
                continue
        program = "jax_client" if need == "jax" else need
        if program in PROGRAMS:
            try:
                build(program, tools.programs)
            except Failed as error:
                found[need] = f"cannot be built: {error}"
    if set(GPUS) & set(needs):
        count = gpu_count()
        found.update({need: f"{count} GPUs that a PyTorch with CUDA sees, {least} wanted"
                      for need, least in GPUS.items() if need in needs and count < least})
    return found
