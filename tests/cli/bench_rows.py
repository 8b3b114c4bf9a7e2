# SPDX-License-Identifier: Apache-2.0
"""The rows of a ferry bench, and checks that apply to all of them."""
import json


def rows_of(case, *arguments, timeout_s=100):
    """The document of a bench, and its rows, of which everything that holds for all is checked."""
    document = json.loads(case.succeed("bench", *arguments, "--json", timeout_s=timeout_s))
    case.assertEqual(document["bench"], arguments[0])
    case.assertEqual(document["wrong_bytes"], 0)
    names = [tuple(row[key] for key in ("mode", "transport", "inflight", "batch", "nodes", "threads", "pair",
                                        "bytes")) for row in document["rows"]]
    case.assertEqual(len(names), len(set(names)), "a row is there twice")
    for row in document["rows"]:
        case.assertEqual(row["wrong_bytes"], 0)
        case.assertGreater(row["p50_s"], 0)
        case.assertLessEqual(row["p50_low_s"], row["p50_s"])
        case.assertLessEqual(row["p50_s"], row["p50_high_s"])
        case.assertLessEqual(row["p50_s"], row["p90_s"])
        case.assertLessEqual(row["p90_s"], row["p99_s"])
        case.assertLessEqual(row["p99_s"], row["p99_9_s"])
        if row["floor"] is not None:
            case.assertAlmostEqual(row["share_of_floor"] * row["p50_s"] / row["floor_s"], 1, 6)
    return document, document["rows"]
