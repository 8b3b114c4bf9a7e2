# SPDX-License-Identifier: Apache-2.0
"""The cases of an interop program: their names, their command line, and how they are run."""
import argparse
import os
import re
import time

# Variables of the caller's job, or of its proxies, that the cases must not see.
FOREIGN = re.compile(r"^(FERRY_|TORCHELASTIC_|TORCHFT_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|MASTER_|GLOO_|TORCH_DIST|.*_proxy$)",
                     re.IGNORECASE)


class Skip(Exception):
    """The reason for which a case cannot run here."""


class Cases:
    """Functions by name: `case = Cases()`, then `@case`."""

    def __init__(self):
        self.functions = {}

    def __call__(self, function):
        self.functions[function.__name__] = function
        return function

    def parser(self):
        """Adds the arguments --ferry=FILE and CASE..."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--ferry", type=os.path.abspath)
        parser.add_argument("--python", help="ignored: the interpreter is the one that runs this")
        parser.add_argument("cases", nargs="*", metavar="CASE", help="all without: " + " ".join(self.functions))
        return parser

    def run(self, parser, names, argument):
        """Calls the named cases, or all of them, with `argument`, and prints a line for each. Returns 1 if one has
        failed, otherwise 0."""
        unknown = set(names) - set(self.functions)
        if unknown:
            parser.error(f"unknown: {' '.join(sorted(unknown))}")
        for name in [name for name in os.environ if FOREIGN.match(name)]:
            del os.environ[name]
        is_failed = False
        for name in names or self.functions:
            start = time.monotonic()
            try:
                self.functions[name](argument)
                verdict, why = "ok", ""
            except Skip as reason:
                verdict, why = "SKIPPED", f": {reason}"
            except Exception as error:  # Any error is a failure of the case.
                verdict, why = "FAILED", ": " + " | ".join((str(error) or repr(error)).splitlines())
                is_failed = True
            print(f"{verdict} {name} ({time.monotonic() - start:.1f} s){why}", flush=True)
        return int(is_failed)
