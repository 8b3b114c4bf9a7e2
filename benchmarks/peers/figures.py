# SPDX-License-Identifier: Apache-2.0
"""From the figures of rounds to medians, ratios, and goals. Pure."""
import statistics


def median(values):
    return statistics.median(values) if values else None


def of_row(rounds, reasons):
    """The row of a peer in a work: `rounds` has its figure, or None, for each round."""
    values = [value for value in rounds if value is not None]
    row = {"rounds": rounds, "median": median(values), "low": min(values, default=None),
           "high": max(values, default=None), "count": len(values)}
    if reasons:
        row["reason"] = reasons[-1]
    return row


def advantage(ferry, peer, better):
    """How many times better Ferry is: above 1 it is ahead. The median over the rounds that both have."""
    pairs = [(mine, its) for mine, its in zip(ferry, peer) if mine and its]
    if not pairs:
        return None
    return median([its / mine if better == "less" else mine / its for mine, its in pairs])


def with_ratios(work):
    """The same work, each row with how many times better the first row of Ferry is."""
    mine = next((row for row in work["rows"] if row["is_ferry"]), None)
    for row in work["rows"]:
        row["ferry_is"] = None
        if mine is not None and row is not mine and not row["is_floor"]:
            row["ferry_is"] = advantage(mine["rounds"], row["rounds"], work["better"])
    return work


def added(old, new):
    """A work with the rounds of both runs."""
    known = {row["peer"]: row for row in old["rows"]}
    names = [*known, *(row["peer"] for row in new["rows"] if row["peer"] not in known)]
    rows = []
    for name in names:
        mine = [next((row for row in work["rows"] if row["peer"] == name), None) for work in (old, new)]
        rounds = [value for row, work in zip(mine, (old, new))
                  for value in (row["rounds"] if row else [None] * work["rounds"])]
        others = [value for row, work in zip(mine, (old, new))
                  for value in (row["others"] if row else [None] * work["rounds"])]
        told = {key: value for key, value in next(row for row in mine[::-1] if row).items() if key != "reason"}
        reasons = [row["reason"] for row in mine if row and "reason" in row]
        rows.append({**told, "others": others, **of_row(rounds, reasons)})
    return with_ratios({**new, "rounds": old["rounds"] + new["rounds"], "rows": rows})


def merged(old, new, is_adding=False):
    """A document with the works of both. Of a work that both have, the new one's; or all rounds, if it `is_adding` to
    what the same commit has measured. Of another machine, or quick ones, nothing is kept."""
    if not old or any(old.get(name) != new[name] for name in ("machine", "quick", "cores")):
        return new
    works = dict(old["works"])
    for name, work in new["works"].items():
        is_same = is_adding and name in works and works[name]["commit"] == work["commit"]
        works[name] = added(works[name], work) if is_same else work
    order = {name: place for place, name in enumerate(new["order"])}
    return {**new, "works": dict(sorted(works.items(), key=lambda each: order.get(each[0], len(order))))}


def outcome(goal, works):
    """(the figure, whether it is reached) of a goal; None for both if it cannot be computed.

    `peers` are beginnings of names; the least of their ratios counts, as Ferry has to be ahead of all. With "most_s"
    the figure is the time of peers[0] itself, with "least_per_s" its rate, with "flat" its slowest by its fastest. With
    "floor" it is the ratio of peers[0] and that row: at most "most" of its time (and "plus_s"), or at least "least" of
    its rate."""
    def medians(peer):
        return [row["median"] for name in goal["works"] for row in works.get(name, {}).get("rows", [])
                if row["peer"] == peer and row["median"]]

    if any(kind in goal for kind in ("most_s", "least_per_s", "flat", "floor")):
        own = medians(goal["peers"][0])
        floors = medians(goal["floor"]) if "floor" in goal else own
        if len(own) < len(goal["works"]) or len(floors) < len(own):
            return None, None
        if "most_s" in goal:
            return max(own), max(own) <= goal["most_s"]
        if "least_per_s" in goal:
            return min(own), min(own) >= goal["least_per_s"]
        if "flat" in goal:
            return max(own) / min(own), max(own) / min(own) <= goal["least"]
        ratios = [mine / floor for mine, floor in zip(own, floors)]
        if "least" in goal:
            return min(ratios), min(ratios) >= goal["least"]
        return max(ratios), all(mine <= goal["most"] * floor + goal.get("plus_s", 0) for mine, floor in zip(own, floors))
    ratios = []
    for name in goal["works"]:
        rows = works.get(name, {}).get("rows", [])
        found = [row["ferry_is"] for row in rows if row["ferry_is"] is not None and not row["is_ferry"]
                 and any(row["peer"].startswith(peer) for peer in goal["peers"])]
        if not found:
            return None, None
        ratios += found
    return min(ratios), min(ratios) >= goal["least"]
