# SPDX-License-Identifier: Apache-2.0
"""Parsers of the peers' outputs. Times are seconds, rates are per second."""
import csv
import json
import re

from processes import Failed

SUFFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


def own(text):
    """The programs of this folder: their figures by name. Failed if a byte was wrong."""
    figures = {}
    for line in text.splitlines():
        if line.startswith('{"name"'):
            told = json.loads(line)
            if told["wrong_bytes"]:
                raise Failed(f"{told['wrong_bytes']} bytes were wrong")
            figures[told["name"]] = told["value"]
    if not figures:
        raise Failed("it printed no figure")
    return figures


def ucx(text):
    """ucx_perftest: the median, the mean of all, and messages per second."""
    for line in reversed(text.splitlines()):
        words = line.replace("Final:", "").split()
        if len(words) == 8 and re.fullmatch(r"[0-9]+", words[0]):
            return {"p50_s": float(words[1]) / 1e6, "overall_s": float(words[3]) / 1e6, "per_s": float(words[7])}
    raise Failed("ucx_perftest printed no line of figures")


def redis(text):
    """redis-benchmark --csv: {"set_p50_s": ..., "set_per_s": ..., ...}."""
    figures = {}
    for row in csv.DictReader(text.splitlines()):
        name = {"SET": "set", "GET": "get", "INCR": "add"}.get(row.get("test"))
        if name:
            figures[f"{name}_per_s"] = float(row["rps"])
            figures[f"{name}_p50_s"] = float(row["p50_latency_ms"]) / 1e3
    if not figures:
        raise Failed("redis-benchmark printed no figure")
    return figures


def counters(text, benchmark):
    """The user counters of a line of Google Benchmark whose name begins so."""
    for line in text.splitlines():
        if line.startswith(benchmark):
            if "ERROR OCCURRED" in line:
                raise Failed(" ".join(line.split()))
            found = re.findall(r"(\w+)=([0-9.]+(?:e[+-]?\d+)?)([kMG]?)(?![\w.])", line)
            return {name: float(value) * SUFFIXES[suffix] for name, value, suffix in found}
    raise Failed(f"there is no {benchmark} in what it printed")


def ferry(text, **wanted):
    """The one row of `ferry bench ... --json` that has these values."""
    document = json.loads(text)
    if document["wrong_bytes"]:
        raise Failed(f"{document['wrong_bytes']} bytes were wrong")
    rows = [row for row in document["rows"] if all(row[name] == value for name, value in wanted.items())]
    if len(rows) != 1:
        raise Failed(f"{len(rows)} rows with {wanted} in what ferry bench printed")
    return rows[0]
