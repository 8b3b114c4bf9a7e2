# SPDX-License-Identifier: Apache-2.0
# Proves which kernels cmake/FerryKernels.cmake gives a build without a toolkit, in a small project
# with an installer of its own, and how scripts/get_nvcc and the comparison of the PTX fail.
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ROOT / "gpu/kernels"
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
include({ROOT}/cmake/FerryKernels.cmake)
ferry_embed_kernels(source kernels/ferry_kernels.cu)
add_custom_target(source ALL DEPENDS ${{source}})
message(STATUS "source: ${{source}}")
"""


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def run_it(self, *command, status=0, **environment):
        done = subprocess.run([str(each) for each in command], capture_output=True, text=True,
                              env={**os.environ, **environment}, check=False)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return " ".join((done.stdout + done.stderr).split())

    def program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path


class Configure(Folder):
    def setUp(self):
        super().setUp()
        self.source = self.folder / "source"
        shutil.copytree(KERNELS, self.source / "kernels")
        (self.source / "CMakeLists.txt").write_text(PROJECT)
        self.calls = self.folder / "calls"

    def installer(self, text):
        self.program(self.source / "scripts/get_nvcc", f"echo called >>{self.calls}\n{text}")

    def beside(self, program, name):
        # CMake looks for it below its root.
        root = self.folder / "none"
        folder = program.parent
        if not folder.is_relative_to(root):
            folder = pathlib.Path(f"{root}{folder}")
        self.program(folder / name, "exit 0")

    def configure(self, *options, status=0):
        # Programs are looked for below a folder that has none.
        return self.run_it("cmake", "-S", self.source, "-B", self.folder / "build", "-G", "Ninja",
                           f"-DCMAKE_FIND_ROOT_PATH={self.folder}/none",
                           "-DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=ONLY",
                           f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}", *options, status=status)

    def test_off_is_the_ptx_that_is_checked_in(self):
        for value in ("OFF", "", "NOTFOUND"):
            self.installer("exit 1")
            said = self.configure(f"-DFERRY_NVCC={value}")
            self.assertIn("Kernels: the PTX that is checked in, without nvcc", said)
        self.assertFalse(self.calls.exists())
        self.run_it("cmake", "--build", self.folder / "build")
        made = (self.folder / "build/embedded.cc").read_text()
        numbers = made.split("kPtx[] = {")[1].split("}")[0].replace("\n", "").split(",")
        self.assertEqual(bytes(int(number, 16) for number in numbers),
                         (KERNELS / "ferry_kernels.ptx").read_bytes() + b"\0")
        self.assertNotIn("kBinaries", made)

    def test_without_a_toolkit_nvcc_is_installed(self):
        nvcc = self.program(self.folder / "wheel/bin/nvcc", "exit 0")
        self.beside(nvcc, "ptxas")
        self.installer(f"echo {nvcc}")
        self.assertIn(f"Kernels: binaries and PTX, compiled with {nvcc}", self.configure())

    def test_an_index_that_does_not_answer_is_asked_once(self):
        self.installer("echo get_nvcc: it does not answer >&2; exit 1")
        for _ in range(2):
            self.assertRegex(self.configure(), "Kernels: the PTX that is checked in, without nvcc: no "
                                               "toolkit, and get_nvcc: it does not answer")
        self.assertEqual(self.calls.read_text(), "called\n")

    def test_a_toolkit_that_is_too_old_is_not_used(self):
        nvcc = self.folder / "none/usr/local/cuda/bin/nvcc"
        self.installer("exit 1")
        self.program(nvcc, "echo compute_80; echo compute_90")
        self.assertIn(f"without nvcc: {nvcc} does not know compute_100, and FERRY_FETCH_NVCC is OFF",
                      self.configure("-DFERRY_FETCH_NVCC=OFF"))
        self.program(nvcc, "echo compute_90; echo compute_100")
        self.beside(nvcc, "ptxas")
        self.assertIn(f"compiled with {nvcc}", self.configure())
        self.assertFalse(self.calls.exists())

    def test_the_index_may_be_switched_off(self):
        self.installer("exit 1")
        self.assertIn("FERRY_FETCH_NVCC is OFF", self.configure("-DFERRY_FETCH_NVCC=OFF"))
        self.assertFalse(self.calls.exists())

    def test_with_neither_the_build_says_so(self):
        (self.source / "kernels/ferry_kernels.ptx").unlink()
        said = self.configure("-DFERRY_NVCC=OFF")
        self.assertIn("Kernels: none, since there is neither nvcc (FERRY_NVCC is off) nor", said)
        self.assertIn("source: " + str(self.source / "kernels/embedded_none.cc"), said)

    def test_a_path_that_does_not_exist_is_an_error(self):
        self.assertIn("there is no program /nonexistent/nvcc",
                      self.configure("-DFERRY_NVCC=/nonexistent/nvcc", status=1))


class GetNvcc(Folder):
    def test_without_an_index_the_reason_is_one_line(self):
        said = self.run_it(ROOT / "scripts/get_nvcc", self.folder / "nvcc", status=1,
                           PIP_NO_INDEX="1")
        self.assertRegex(said, r"^get_nvcc: pip install .* failed: ERROR: No matching distribution")

    def test_what_is_installed_is_not_installed_again(self):
        packages = self.folder / "lib/python3.11/site-packages/nvidia/cu13"
        nvcc = self.program(packages / "bin/nvcc", "exit 0")
        pins = (KERNELS / "nvcc_requirements.txt").read_bytes()
        (self.folder / "installed").write_text(hashlib.sha256(pins).hexdigest())
        self.assertEqual(self.run_it(ROOT / "scripts/get_nvcc", self.folder), str(nvcc))


class Compare(Folder):
    def compare(self, made, checked_in, *options, status=0):
        paths = [self.folder / "made.ptx", self.folder / "checked_in.ptx"]
        for path, text in zip(paths, (made, checked_in)):
            path.write_text(text)
        return self.run_it("cmake", f"-DMADE={paths[0]}", f"-DCHECKED_IN={paths[1]}",
                           f"-DREQUIREMENTS={KERNELS}/nvcc_requirements.txt", *options, "-P",
                           ROOT / "cmake/FerryKernelsPtx.cmake", status=status)

    def test_ptx(self):
        now = (KERNELS / "ferry_kernels.ptx").read_text()
        other = now.replace("add.s64", "sub.s64", 1)
        newer = now.replace("V13.0.88", "V13.1.1")
        self.assertIn("is what nvcc 13.0.88 makes of its source", self.compare(now, now))
        self.assertIn("renew_kernels_ptx", self.compare(other, now, status=1))
        self.assertIn("SKIP: this build's nvcc is 13.1.1", self.compare(newer, now))
        self.assertIn("is of nvcc 13.1.1", self.compare(now, newer, status=1))
        self.assertIn("This build's nvcc is 13.1.1", self.compare(newer, now, "-DRENEW=ON", status=1))
        self.compare(other, now, "-DRENEW=ON")
        self.assertEqual((self.folder / "checked_in.ptx").read_text(), other)


if __name__ == "__main__":
    unittest.main()
