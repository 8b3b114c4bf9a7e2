#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A test program for gpu_check_test.py with GoogleTest's output: it passes, hangs, crashes, fails."""
import os
import sys
import time

# Each with its behaviour.
tests = [("Played.Passes", "pass"), ("Played.Hangs", "hang"), ("Played.Crashes", "crash"),
         ("Played.Fails", "fail"), ("Played.IsSkipped", "skip"), ("Played.IsLast", "pass")]
for argument in sys.argv[1:]:
    if argument.startswith("--gtest_filter=-"):
        left_out = argument.split("-", 3)[3].split(":")
        tests = [test for test in tests if test[0] not in left_out]
print(f"[==========] Running {len(tests)} tests from 1 test suite.")
for name, does in tests:
    print(f"[ RUN      ] {name}", flush=True)
    print("words of no account", flush=True)
    if does == "hang":
        print("played.cc:3: Failure\nit waits\n", flush=True)
        time.sleep(1000)
    if does == "crash":
        print("the end is near", flush=True)
        os.abort()
    if does == "fail":
        print("played.cc:7: Failure\nExpected equality of these values:\n  1\n  2\n")
    if does == "skip":
        print("played.cc:9: Skipped\nthere is no moon\n")
    if does == "pass":
        print("seen: 3 of 4")
    mark = {"fail": "  FAILED  ", "skip": "  SKIPPED "}.get(does, "       OK ")
    print(f"[{mark}] {name} (12 ms)", flush=True)
print("[==========] all tests ran. (0 ms total)")
print("[  FAILED  ] 1 test, listed below:\n[  FAILED  ] Played.Fails")
sys.exit(1)
