#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records gpu_check on the fake driver with libferry_cuda_recorder.so, and replays that with
cuda_replay: all is the same on the same fake driver, and what is changed, in the driver or in the
record, is told.

Usage: cuda_replay_test.py GPU_CHECK FAKE_DRIVER RECORDER CUDA_REPLAY"""
import glob
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, FAKE_DRIVER, RECORDER, REPLAY = sys.argv[1:5]
PATIENCE_S = 120


def clean_environment(**variables):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("STRICT_CUDA_", "FERRY_", "NCCL_", "CUDA_"))}
    return {**env, **variables}


def record(folder, parts):
    """Returns the folder of records."""
    calls = os.path.join(folder, "calls")
    session = os.path.join(folder, "session")
    os.makedirs(calls)
    os.makedirs(session)
    subprocess.run([PROGRAM, f"--json={folder}/out.json", f"--report={folder}/out.md", "--quick",
                    f"--parts={parts}"], check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL,
                   env=clean_environment(FERRY_CUDA_LIBRARY=RECORDER, FERRY_CUDA_RECORD=calls,
                                         FERRY_CUDA_RECORD_LIBRARY=FAKE_DRIVER,
                                         FERRY_NVML_LIBRARY=FAKE_DRIVER, FERRY_NCCL_LIBRARY=FAKE_DRIVER,
                                         STRICT_CUDA_SESSION=session, STRICT_CUDA_DELAY_US="20"))
    return calls


class CudaReplay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.calls = record(os.path.join(cls.folder, "parts"), "ipc,memory,foreign")

    def replay(self, *paths, flags=(), **variables):
        """(exit status, stdout, stderr)."""
        done = subprocess.run([REPLAY, *flags, *paths], capture_output=True, text=True,
                              timeout=PATIENCE_S, env=clean_environment(**variables))
        return done.returncode, done.stdout, done.stderr

    def edited(self, change, needs=""):
        """A folder with one record: the lines of the first process that opened a device, allocated
        and has a line that matches `needs`, after change(lines). Not of that with the lowest number:
        numbers begin again. A process that ends early lacks some calls."""
        found = []
        for path in glob.glob(os.path.join(self.calls, "*.calls")):
            with open(path, encoding="utf-8") as file:
                lines = file.readlines()
            if any(" cuMemCreate " in line for line in lines) and any(
                    re.search(needs, line) for line in lines) and not any(
                    " cuMemImport" in line or " cuIpcOpen" in line for line in lines):
                found.append((min(int(line.split()[0]) for line in lines if " = " in line), lines))
        lines = min(found)[1]
        folder = tempfile.mkdtemp(dir=self.folder)
        with open(os.path.join(folder, "1.calls"), "w", encoding="utf-8") as file:
            file.writelines(change(lines))
        return folder

    def changed(self, pattern, replacement):
        """The same with the first line that matches changed, and its number."""
        found = []

        def change(lines):
            for i, line in enumerate(lines):
                new, count = re.subn(pattern, replacement, line)
                if count:
                    found.append(i + 1)
                    return lines[:i] + [new] + lines[i + 1:]
            raise AssertionError(f"no line matches {pattern}")

        return self.edited(change, needs=pattern), found

    def test_the_same_fake_driver_gives_the_same(self):
        status, out, err = self.replay(self.calls)
        self.assertEqual(status, 0, out + err)
        match = re.fullmatch(r"cuda_replay: (\d+) calls of (\d+) processes performed; 0 differences; "
                             r"0 calls not performed\n", out)
        self.assertTrue(match, out)
        lines = 0
        for path in glob.glob(os.path.join(self.calls, "*.calls")):
            with open(path, encoding="utf-8") as file:
                lines += sum(" = " in line for line in file)
        self.assertEqual(int(match[1]), lines)
        self.assertGreater(int(match[2]), 10)
        self.assertGreater(lines, 3000)

    def test_memory_of_another_process_is_opened_in_the_replay(self):
        """The test before relies on it: the record has such calls."""
        text = ""
        for path in glob.glob(os.path.join(self.calls, "*.calls")):
            with open(path, encoding="utf-8") as file:
                text += file.read()
        for symbol in ("cuIpcOpenMemHandle_v2", "cuIpcOpenEventHandle",
                       "cuMemImportFromShareableHandle"):
            self.assertTrue(re.search(rf" {symbol} .* = 0 ", text), symbol)

    def test_a_process_that_was_killed_is_gone_in_the_replay(self):
        """Otherwise its peer would destroy events that it still has open, which breaks a rule."""
        calls = record(os.path.join(self.folder, "failures"), "failures")
        status, out, err = self.replay(calls)
        self.assertEqual(status, 0, out + err)

        # The same records without a word of who was gone.
        for path in glob.glob(os.path.join(calls, "*.calls")):
            with open(path, encoding="utf-8") as file:
                kept = [line for line in file if not line.startswith("gone ")]
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(kept)
        status, out, err = self.replay(calls)
        self.assertEqual(status, 1, out)
        self.assertIn("the process of the replay died of signal 6 in cuEventDestroy_v2", out)
        self.assertIn("event-destroyed-while-imported", err)

    def test_a_process_has_not_ended_before_its_last_call_returned(self):
        """A thread is in a call when another one ends the process."""
        def change(lines):
            first = next(line for line in lines if " = " in line)
            return [line for line in lines if not line.startswith("end ")] + [
                f"end {int(first.split()[0]) + 1}\n"]

        status, out, err = self.replay(self.edited(change))
        self.assertEqual(status, 0, out + err)
        self.assertIn("; 0 differences; 0 calls not performed", out)

    def test_a_process_is_gone_although_a_child_that_it_forked_lives(self):
        folder = tempfile.mkdtemp(dir=self.folder)
        env = clean_environment(FERRY_CUDA_RECORD=folder, FERRY_CUDA_RECORD_LIBRARY=FAKE_DRIVER,
                                STRICT_CUDA_SESSION=tempfile.mkdtemp(dir=self.folder))
        call = f"import ctypes, os, sys; ctypes.CDLL({RECORDER!r}).cuInit(0); "
        # The child waits for the end of its input, and the parent does not wait for the child.
        parent = subprocess.Popen(
            [sys.executable, "-c", call + "os.fork() == 0 and sys.stdin.read(); os._exit(0)"],
            env=env, stdin=subprocess.PIPE)
        try:
            self.assertEqual(parent.wait(timeout=PATIENCE_S), 0)
            other = subprocess.run([sys.executable, "-c", call + "print(os.getpid())"], env=env,
                                   check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        finally:
            parent.stdin.close()
        with open(os.path.join(folder, f"{other.stdout.strip()}.calls"), encoding="utf-8") as file:
            self.assertRegex(file.read(), rf'gone \d+ "{parent.pid}\.calls"\n')

    def exports(self, count, **limits):
        """(exit status, stdout, stderr) of a process that exports `count` descriptors."""
        def change(lines):
            export = next(i for i, line in enumerate(lines)
                          if " cuMemExportToShareableHandle " in line and " = 0 " in line)
            return lines[:export] + count * [lines[export]] + lines[export + 1:]

        folder = self.edited(change, needs=" cuMemExportToShareableHandle .* = 0 ")
        done = subprocess.run([REPLAY, folder], capture_output=True, text=True,
                              timeout=PATIENCE_S, env=clean_environment(),
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                    (limits["soft"],
                                                                     limits["hard"])))
        return done.returncode, done.stdout, done.stderr

    def test_more_descriptors_than_the_soft_limit(self):
        status, out, err = self.exports(400, soft=256, hard=1024)
        self.assertEqual(status, 0, out + err)

    def test_more_descriptors_than_there_can_be_are_no_difference(self):
        status, out, err = self.exports(400, soft=256, hard=256)
        self.assertEqual(status, 2, out + err)
        self.assertNotIn("difference:", out)
        self.assertIn("no descriptor is left", err)
        self.assertIn("ulimit -n", err)

    def test_a_death_names_a_few_of_its_calls(self):
        """Each call of the record is under way at the same time."""
        def change(lines):
            made = next(i for i, line in enumerate(lines) if " cuCtxGetCurrent " in line)
            return lines[:made] + 50 * [lines[made]] + lines[made + 1:]

        folder = self.edited(change, needs=" cuCtxGetCurrent ")
        status, out, _ = self.replay(folder, STRICT_CUDA_FAIL="cuCtxGetCurrent:-2")
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"died of signal 9 in cuCtxGetCurrent of line \d+.* and 4\d more;")

    def test_a_child_records_although_the_line_of_its_parent_was_cut(self):
        folder = tempfile.mkdtemp(dir=self.folder)
        env = clean_environment(FERRY_CUDA_RECORD=folder, FERRY_CUDA_RECORD_LIBRARY=FAKE_DRIVER,
                                STRICT_CUDA_SESSION=tempfile.mkdtemp(dir=self.folder))
        done = subprocess.run([sys.executable, "-c", f"""if True:
            import ctypes, os, resource
            driver = ctypes.CDLL({RECORDER!r})
            whole = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, whole[1]))
            version = ctypes.c_int()
            for _ in range(100):
                driver.cuDriverGetVersion(ctypes.byref(version))
            child = os.fork()
            if child == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, whole)
                driver.cuDriverGetVersion(ctypes.byref(version))
                os._exit(0)
            os.waitpid(child, 0)
            print(os.getpid(), child)
            """], env=env, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        texts = []
        for pid in done.stdout.split():
            with open(os.path.join(folder, f"{pid}.calls"), encoding="utf-8") as file:
                texts.append(file.read())
        parent, child = texts
        self.assertEqual(len(parent), 1000)
        self.assertRegex(child, r"^ferry-cuda-calls .*\nprocess .*\n\d+ \d+ cuDriverGetVersion .*\n$")

    def test_a_handle_of_a_process_that_was_killed_cannot_be_opened_in_the_replay(self):
        """Nothing but the call that fails tells the record that the process is gone."""
        folder = tempfile.mkdtemp(dir=self.folder)
        env = clean_environment(FERRY_CUDA_RECORD=folder, FERRY_CUDA_RECORD_LIBRARY=FAKE_DRIVER,
                                STRICT_CUDA_SESSION=tempfile.mkdtemp(dir=self.folder))
        begin = f"""if True:
            import ctypes, sys
            class Handle(ctypes.Structure):
                _fields_ = [("bytes", ctypes.c_char * 64)]
            driver = ctypes.CDLL({RECORDER!r})
            context, event, handle = ctypes.c_void_p(), ctypes.c_void_p(), Handle()
            def call(name, *arguments):
                assert getattr(driver, name)(*arguments) == 0, name
            call("cuInit", 0)
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            call("cuCtxPushCurrent_v2", context)
            """
        owner = begin + """
            call("cuEventCreate", ctypes.byref(event), 2 | 4)
            call("cuIpcGetEventHandle", ctypes.byref(handle), event)
            print(ctypes.string_at(ctypes.byref(handle), 64).hex(), flush=True)
            sys.stdin.read()
            """
        opener = begin + """
            print("ready", flush=True)
            ctypes.memmove(ctypes.byref(handle), bytes.fromhex(sys.stdin.readline()), 64)
            assert driver.cuIpcOpenEventHandle(ctypes.byref(event), handle) == 205
            """
        pipes = {"env": env, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", opener], **pipes) as late:
            self.assertEqual(late.stdout.readline(), "ready\n")
            with subprocess.Popen([sys.executable, "-c", owner], **pipes) as killed:
                handle = killed.stdout.readline()
                killed.kill()
            late.communicate(handle, timeout=PATIENCE_S)
            self.assertEqual(late.returncode, 0)
        status, out, err = self.replay(folder)
        self.assertEqual(status, 0, out + err)

    def test_another_attribute_is_told(self):
        status, out, _ = self.replay(self.calls, STRICT_CUDA_ATTRIBUTES="119=9")
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"difference: \d+\.calls:\d+ cuDeviceGetAttribute: value: "
                              r"recorded 1, replayed 9\n")
        self.assertRegex(out, r"difference: cuDeviceGetAttribute: value: \d+ in all\n")

    def test_fewer_devices_are_told(self):
        status, out, _ = self.replay(self.calls, STRICT_CUDA_DEVICES="1")
        self.assertEqual(status, 1, out)
        self.assertIn("cuDeviceGetCount: count: recorded 2, replayed 1\n", out)
        self.assertIn("cuDeviceGet: result: recorded 0, replayed 101\n", out)

    def test_another_result_is_told_and_what_depends_on_it(self):
        folder = self.edited(lambda lines: lines, needs=" cuMemRelease ")
        status, out, _ = self.replay(folder, STRICT_CUDA_FAIL="cuMemCreate:2")
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"difference: 1\.calls:\d+ cuMemCreate: result: recorded 0, "
                              r"replayed 2\n")
        self.assertRegex(out, r"not performed: 1\.calls:\d+ cuMemRelease: allocation:0x[0-9a-f]+ does "
                              r"not exist in the replay, since line \d+ failed")

    def test_a_call_that_does_not_return_is_told(self):
        folder = self.edited(lambda lines: lines)
        status, out, _ = self.replay(folder, flags=["--timeout=1"],
                                     STRICT_CUDA_FAIL="cuMemCreate:-1")
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"1\.calls:\d+ cuMemCreate: does not return: recorded .*, replayed more "
                              r"than 1s beyond; the replay ends here")

    def test_a_process_that_dies_is_told(self):
        folder = self.edited(lambda lines: lines)
        status, out, _ = self.replay(folder, STRICT_CUDA_FAIL="cuMemCreate:-2")
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"1\.calls: the process of the replay died of signal 9 in cuMemCreate of "
                              r"line \d+")

    def test_a_wrong_result_in_the_record_is_told(self):
        folder, found = self.changed(r"( cuMemGetAllocationGranularity .*) = 0 (\d+) .*",
                                     r"\1 = 801 \2")
        status, out, _ = self.replay(folder)
        self.assertEqual(status, 1, out)
        self.assertEqual(out.splitlines()[0], f"difference: 1.calls:{found[0]} "
                         "cuMemGetAllocationGranularity: result: recorded 801, replayed 0")

    def test_a_wrong_value_in_the_record_is_told(self):
        folder, found = self.changed(r"granularity=\d+", "granularity=4096")
        status, out, _ = self.replay(folder)
        self.assertEqual(status, 1, out)
        self.assertRegex(out.splitlines()[0],
                         rf"difference: 1.calls:{found[0]} cuMemGetAllocationGranularity: "
                         r"granularity: recorded 4096, replayed \d+")

    def test_an_unknown_handle_is_an_error(self):
        folder, found = self.changed(r" cuEventDestroy_v2 event=event:0x[0-9a-f]+",
                                     " cuEventDestroy_v2 event=event:0x1234567")
        status, out, _ = self.replay(folder)
        self.assertEqual(status, 2, out)
        self.assertEqual(out.splitlines()[0],
                         f"not performed: 1.calls:{found[0]} cuEventDestroy_v2: event:0x1234567 comes "
                         "from no call of this record")

    def test_records_that_cannot_be_read_are_refused(self):
        cases = [(self.changed(r" cuMemCreate ", " cuMemInvent "),
                  "'cuMemInvent' is not a driver function that is known here"),
                 (self.changed(r"ferry-cuda-calls 1", "ferry-cuda-calls 9"),
                  "version '9' of the format; this program reads 1"),
                 ((self.edited(lambda lines: lines[:-1] + [lines[-1].rstrip("\n")]), None),
                  "the line is cut"),
                 ((self.edited(lambda lines: lines[1:]), None), "the first line is not"),
                 ((self.edited(lambda lines: []), None), "the record is empty"),
                 (self.changed(r" = 0 \d+ allocation=allocation:0x.*", " = 0 5"),
                  "the line ends where the argument allocation of cuMemCreate should be")]
        for (folder, found), expected in cases:
            with self.subTest(expected):
                status, out, err = self.replay(folder)
                self.assertEqual((status, out), (2, ""))
                place = f"1.calls:{found[0]}: " if found else "1.calls:"
                self.assertIn(place, err + ":")
                self.assertIn(expected, err)

    def test_usage_is_checked(self):
        for arguments, expected in [([], "no RECORD is given"), (["--what"], "unknown flag --what"),
                                    (["--timeout=0", "x"], "--timeout is from 1 to 3600"),
                                    (["/nowhere.calls"], "No such file"),
                                    ([self.folder], "there are no *.calls in")]:
            with self.subTest(expected):
                status, _, err = self.replay(*arguments)
                self.assertEqual(status, 2)
                self.assertIn(expected, err)
        status, _, err = self.replay(self.calls, flags=["--library=/nowhere.so"])
        self.assertEqual(status, 2)
        self.assertIn("the library cannot be loaded: /nowhere.so", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
