# SPDX-License-Identifier: Apache-2.0
"""The page benchmarks/RESULTS.md: each case as it was measured last."""
import json

from figures import outcome
from table import figure_text, line, number, shown, verdict, wanted

HEAD = """# Results

The newest figure of every case that `scripts/bench-peers` measures, one row a case. This page is
generated: `scripts/results_page --write` makes it from the JSON files in [results/](results/), and
a test compares the two. Goals that are missed stay in it.

- How each case is measured, and what is equal for all systems:
  [docs/benchmarks.md](../docs/benchmarks.md#alternatives).
- All systems with their spread, and what is not equal, next to each JSON file, such as
  [results/peers-2026-11-24.md](results/peers-2026-11-24.md).
- Why goals are missed, and the figures of the other benchmarks (coordinator, rendezvous, graphs,
  steps of TensorFlow clients, RecvTensor, kernels), by date: [log/](log/).
"""

CASES = """Medians. *Ferry* is the row that the goals are about, *best peer* the fastest of the other systems,
and *baseline* the fastest bare operation that was measured beside them (memcpy, raw sockets, empty
gRPC calls). The goal "X >= 5.00: 4.49" wants Ferry to be five times as fast as X; it is 4.49 times
as fast. The best peer may do less than Ferry (a set of TCPStore is not acknowledged, for example):
the differences are in the files next to the JSON.
"""

GPUS = """## GPUs{title}

Taken by `gpu-check` ([docs/benchmarks.md](../docs/benchmarks.md#gpus)) on {date}, commit {commit}:
{device}, {count} GPU, driver {driver}, NCCL {nccl}. Its report has every figure and every check:
{report}.
{sharing} Times are medians; *floor /
Ferry* is 1 where Ferry is as fast as the machine.

| what | bytes | at a time | us | floor us | floor / Ferry | goal |
|---|---|---|---|---|---|---|
"""
# By whether MPS was in use.
SHARING = {
    False: "Two processes on one GPU take turns on it, and the times include that.",
    True: "The two processes share the GPU by MPS.",
}
# The figures of gpu-check that the page shows.
GPU_BYTES = (8, 64 << 10, 1 << 20, 16 << 20, 256 << 20)


def read(folder):
    """[(name, document)] of the folder's files, the oldest first; runs of `--quick` are no figures."""
    documents = [(path.name, json.loads(path.read_text(encoding="utf-8")))
                 for path in sorted(folder.glob("peers-*.json"))]
    return [(name, document) for name, document in documents if not document["quick"]]


def of_gpus(folder):
    """The sections of the newest gpu-*.json of each kind of GPU, without MPS and with it."""
    documents = [(path, json.loads(path.read_text(encoding="utf-8")))
                 for path in sorted(folder.glob("gpu-*.json"))]
    newest_runs = {}
    for path, document in sorted(documents, key=lambda each: each[1]["date"]):
        if document["gpu_count"] > 0 and not document["is_double"]:
            newest_runs[(document["device"], document.get("mps", False))] = (path, document)
    if not newest_runs:
        return ("## GPUs\n\nNo figure of a GPU has been taken yet. `scripts/package` packs "
                "`gpu-check`, which takes them.\n")
    return "\n".join(of_gpu_run(*newest_runs[kind]) for kind in sorted(newest_runs))


def of_gpu_run(path, document):
    mps = document.get("mps", False)
    report = f"[{path.stem}.md](results/{path.stem}.md)"
    lines = [GPUS.format(title=f": {document['device']}{', shared by MPS' if mps else ''}", sharing=SHARING[mps],
                         report=report, device=document["device"], count=document["gpu_count"],
                         driver=document["versions"]["driver"],
                         nccl=document["versions"].get("nccl", "none"),
                         date=document["date"][:10], commit=document["commit"][:7]).rstrip("\n")]
    for part in document["parts"]:
        for figure in part["figures"]:
            if figure["bytes"] not in GPU_BYTES:
                continue
            goal = "-"
            if figure["meets_goal"] is not None:
                goal = f">= {figure['goal']}: {'reached' if figure['meets_goal'] else 'MISSED'}"
            floor = figure.get("floor")
            lines.append(
                f"| {figure['name']} | {figure['bytes']} | {figure['in_flight']} "
                f"| {figure['ferry']['median_us']:.1f} "
                f"| {'-' if not floor else format(floor['median_us'], '.1f')} "
                f"| {'-' if figure['ratio'] is None else format(figure['ratio'], '.2f')} "
                f"| {goal} |")
    return "\n".join(lines) + "\n"


def newest(documents):
    """{case: (the case, its machine)}: of a case in several documents, the one with the latest date."""
    found = {}
    for _, document in documents:
        for name, work in document["works"].items():
            if name not in found or work["date"] >= found[name][0]["date"]:
                found[name] = (work, document["machine"])
    order = {name: index for index, name in enumerate(documents[-1][1]["order"])}
    return dict(sorted(found.items(), key=lambda each: order.get(each[0], len(order))))


def goal_cell(name, work, goals):
    """The goal of this case alone; goals about several sizes at once are in the first table."""
    cells = []
    for goal in goals:
        if name in goal["works"] and not goal.get("flat"):
            figure, reached = outcome({**goal, "works": [name]}, {name: work})
            # The reason is in the first table.
            word = verdict({}, figure, reached)
            if "most_s" in goal or "least_per_s" in goal:
                cells.append(f"{wanted(goal)}: {word}")
                continue
            of = (goal["floor"].removeprefix("floor: ") if "floor" in goal else
                  "best peer" if len(goal["peers"]) > 2 else " and ".join(goal["peers"]))
            told = "" if figure is None else f"{number(figure)} "
            cells.append(f"{of} {wanted(goal)}: {told}{word}")
    return "; ".join(cells) or "-"


def best(rows, work):
    """The best row, with its name; None if none of them has a figure. Rates are best when they are high."""
    measured = [row for row in rows if row["median"] is not None]
    if not measured:
        return None
    return (min if work["better"] == "less" else max)(measured, key=lambda row: row["median"])


def cell(row, work):
    if row is None:
        return "-"
    name = row["peer"].removeprefix("floor: ")
    return f"{shown(row['median'], work)}, {name}"


def of_documents(documents, goals, gpus):
    works = newest(documents)
    machines = []
    for _, machine in works.values():
        if machine not in machines:
            machines.append(machine)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    lines = [HEAD, "## Goals", "", line(["goal", "wanted", "figure", ""]), "|---|---|---|---|"]
    for goal in goals:
        figure, reached = outcome(goal, {name: work for name, (work, _) in works.items()})
        lines.append(line([goal["text"], wanted(goal), figure_text(goal, figure), verdict(goal, figure, reached)]))
    lines += ["", "## Cases", "",
              CASES,
              line(["case", "goal", "Ferry", "best peer", "baseline", "date", "commit", "machine"]),
              "|---|---|---|---|---|---|---|---|"]
    for name, (work, machine) in works.items():
        mine = next((row for row in work["rows"] if row["is_ferry"]), None)
        floors = [row for row in work["rows"] if row["is_floor"]]
        peers = [row for row in work["rows"] if not row["is_floor"] and not row["is_ferry"]]
        own = shown(mine["median"], work) if mine and mine["median"] is not None else "-"
        lines.append(line([f"{work['title']} (`{name}`)", goal_cell(name, work, goals), own,
                           cell(best(peers, work), work), cell(best(floors, work), work),
                           work["date"], work["commit"], letters[machines.index(machine)]]))
    lines += ["", "Machines:", ""]
    for letter, machine in zip(letters, machines):
        lines.append(f"- {letter}: {machine['processor']}, {machine['cores']} cores, "
                     f"{machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, "
                     f"{machine['system']}")
    return "\n".join(lines) + "\n\n" + gpus


def of_folder(folder, goals):
    """The page of the JSON files in that folder."""
    return of_documents(read(folder), goals, of_gpus(folder))
