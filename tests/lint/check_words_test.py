# SPDX-License-Identifier: Apache-2.0
# Proves that scripts/check_words finds each kind of wording in a small tree, and only those.
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_words"


class CheckWords(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def check(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        done = subprocess.run([sys.executable, SCRIPT, self.root], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def test_refuses_a_comment_that_begins_with_of_or_what(self):
        for word in ("Of", "What"):
            status, lines = self.check("base/a.h", f"int a;\n// {word} the file.\n")
            self.assertEqual((status, lines),
                             (1, [f'base/a.h:2: the comment begins with "{word}"']))

    def test_allows_them_on_a_later_line_and_inside_a_word(self):
        self.assertEqual(self.check("base/a.h", "// The size\n// Of course.\nint a;\n// Off.\n")[0], 0)

    def test_reads_the_line_after_the_licence(self):
        for name in ("base/a.h", "proto/a.proto"):
            self.assertEqual(self.check(name, "// SPDX-License-Identifier: X\n// What it does.\n"),
                             (1, [f'{name}:2: the comment begins with "What"']))
            (self.root / name).unlink()

    def test_refuses_whoever_in_comments_and_not_in_code(self):
        status, lines = self.check("base/a.cc", "int a;  // for whoever asks\nint whoever;\n")
        self.assertEqual((status, lines), (1, ['base/a.cc:1: the comment says "whoever"']))

    def test_reads_python_shell_and_cmake_in_all_folders(self):
        for name in ("tests/a_test.py", "tests/CMakeLists.txt", "examples/a.sh",
                     "base/CMakeLists.txt", "cmake/a.cmake"):
            self.assertEqual(self.check(name, "a\n# What it does.\n"),
                             (1, [f'{name}:2: the comment begins with "What"']))
            self.assertEqual(self.check(name, "a\n# It does.\n")[0], 0)
        self.assertEqual(self.check("scripts/a", "#!/bin/sh\n# Of a.\n")[0], 1)
        self.assertEqual(self.check("scripts/a", "no script\n# Of a.\n")[0], 0)

    def test_refuses_a_docstring_that_begins_with_of_or_what(self):
        self.assertEqual(self.check("benchmarks/a.py", 'def a():\n    """Whatever it is."""\n'),
                         (1, ['benchmarks/a.py:2: the comment begins with "Whatever"']))
        self.assertEqual(self.check("benchmarks/a.py", 'def a():\n    """A. What it is."""\n')[0], 0)

    def test_refuses_numbered_scenarios_in_comments_and_test_names(self):
        for line in ("// Scenario 12.", "int a;  // Scenarios 3 to 5.", "TEST(A, Scenario7Is) {"):
            self.assertEqual(self.check("tests/a_test.cc", line + "\n")[0], 1, line)
        self.assertEqual(self.check("tests/a_test.cc", "int scenario4;  // The scenario.\n")[0], 0)

    def test_refuses_long_prose_and_allows_long_tables_and_code(self):
        long = "word " * 30
        text = f"| {long} |\n```\n{long}\n```\n    {long}\n"
        self.assertEqual(self.check("docs/a.md", text)[0], 0)
        self.assertEqual(self.check("docs/a.md", text + long + "\n")[0], 1)


if __name__ == "__main__":
    unittest.main()
