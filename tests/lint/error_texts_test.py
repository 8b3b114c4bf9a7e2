# SPDX-License-Identifier: Apache-2.0
# Errors that name an option name it as the user can set it: as a flag of the tool too, if there is
# one.
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("base", "net", "coord", "tensor", "gpu", "transport", "rendezvous", "tensorflow", "node",
           "launch")
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')
OPTION = re.compile(r"\b\w*(?:Options|Limits)::\w+")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+[a-z]")
# The tool has no flag for these, and sets or leaves them alone.
WITHOUT_FLAG = {
    "DeviceExecutorOptions::max_waiting": "a node has no such option",
    "GrpcTensorFetcherOptions::max_tensor_bytes": "a node has no such option",
    "ResponseCacheLimits::max_entries": "nodes keep no responses",
    "TransferOptions::enabled": "the tool sets it where it is needed",
}
# Options of container engines and of Slurm, which errors name as well.
OF_OTHERS = {"--cpus", "--cpus-per-task", "--gpus", "--gres", "--shm-size", "--ulimit", "--device", "--ipc",
             "--pid", "--network", "--memory", "--mem", "--pids-limit"}


def texts(path):
    """The string literals of a file, those that follow each other as one."""
    code = re.sub(r"^\s*(//|#include).*$", "", path.read_text(), flags=re.M)
    end, text = 0, ""
    for match in LITERAL.finditer(code):
        # Operands of one StrCat are one text as well.
        if re.search(r"[;{}]", code[end:match.start()]):
            yield text
            text = ""
        text += match.group()[1:-1]
        end = match.end()
    yield text


def all_texts():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.cc")):
            for text in texts(path):
                yield path.relative_to(ROOT), text


class ErrorTexts(unittest.TestCase):
    def test_options_come_with_their_flags(self):
        seen = set()
        for path, text in all_texts():
            for option in OPTION.findall(text):
                seen.add(option)
                if option not in WITHOUT_FLAG:
                    self.assertRegex(text, FLAG, f"{path}: {option} without its flag")
        self.assertGreater(len(seen - set(WITHOUT_FLAG)), 3)
        self.assertEqual(set(WITHOUT_FLAG) - seen, set(), "is no longer named")

    def test_options_of_nodes_are_those_of_the_public_api(self):
        """A program that uses include/ferry cannot set any others."""
        header = (ROOT / "include/ferry/node.h").read_text()
        for path, text in all_texts():
            for option in re.findall(r"\b(?:Node|Transfer\w*)Options::(\w+)", text):
                self.assertRegex(header, rf"\b{option} = |\b{option};", f"{path}: {text}")
            self.assertNotIn("TransferEngineOptions::", text, path)

    def test_flags_are_those_of_the_tool(self):
        tool = "".join(path.read_text() for folder in ("cli", "bench", "doctor")
                       for path in (ROOT / folder).glob("*.cc"))
        for path, text in all_texts():
            for flag in FLAG.findall(text):
                if flag not in OF_OTHERS:
                    self.assertTrue(f'"{flag}' in tool, f"{path}: {text}")


if __name__ == "__main__":
    unittest.main()
