# SPDX-License-Identifier: Apache-2.0
# Proves that scripts/tidy_units finds a source file by itself and in a batch, and nothing else.
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/tidy_units"


class TidyUnits(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name).resolve()
        self.batch = self.write("out/a.dir/Unity/unity_0_cxx.cxx",
                                f'#include "{self.root}/a/one.cc"\n\n#include "{self.root}/a/two.cc"\n')
        self.alone = self.write("b/alone.cc", '#include "a/one.cc"\n')
        self.write("a/one.cc", "")
        self.write("a/two.cc", "")
        # One that is made by the build and is not there yet.
        units = [self.batch, self.alone, self.root / "out/made.cc", self.root / "c.c"]
        self.write("out/compile_commands.json", json.dumps(
            [{"file": str(unit), "directory": ".", "command": ""} for unit in units]))

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def units(self, *files):
        done = subprocess.run([sys.executable, SCRIPT, "out"], input="\n".join(files), cwd=self.root,
                              capture_output=True, text=True, check=True)
        return [pathlib.Path(line) for line in done.stdout.splitlines()]

    def test_a_file_of_a_batch_is_read_with_its_batch(self):
        self.assertEqual(self.units("a/two.cc"), [self.batch])
        self.assertEqual(self.units("a/one.cc", "a/two.cc"), [self.batch])

    def test_a_file_that_is_compiled_alone_is_read_alone(self):
        self.assertEqual(self.units("b/alone.cc"), [self.alone])

    def test_what_is_not_compiled_is_not_read(self):
        self.assertEqual(self.units("a/three.cc", "out/made.cc", "a/one.h"), [])
        self.assertEqual(self.units(), [])


if __name__ == "__main__":
    unittest.main()
