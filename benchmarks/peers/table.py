# SPDX-License-Identifier: Apache-2.0
"""The tables of one run, for the page beside its JSON. Pure."""
from figures import outcome


def number(value):
    """Three digits that mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def shown(value, work):
    """A figure in the unit of its work: seconds and rates are measured."""
    if value is None:
        return "-"
    unit = work["unit"]
    if unit == "GB/s":
        return f"{number(work['bytes'] / value / 1e9)} GB/s"
    if unit == "us":
        return f"{number(value * 1e6)} us"
    if unit == "ms":
        return f"{number(value * 1e3)} ms"
    if value >= 1e6:
        return f"{number(value / 1e6)} M/s"
    return f"{number(value / 1e3)} K/s" if value >= 1e3 else f"{number(value)} /s"


def spread(row, work):
    ends = [row["low"], row["high"]]
    if work["unit"] == "GB/s":
        ends.reverse()
    return " to ".join(shown(end, work) for end in ends)


def cells(row, work):
    if row["median"] is None:
        return [row["peer"], "-", "-", "-", f"no figure: {row.get('reason', 'not run')}"]
    ratio = row["ferry_is"]
    told = row["differs"]
    if row.get("reason"):
        told += f"; {row['count']} of {len(row['rounds'])} rounds, in others: {row['reason']}"
    name = f"**{row['peer']}**" if row["is_ferry"] else row["peer"]
    return [name, shown(row["median"], work), spread(row, work), "-" if ratio is None else f"{number(ratio)}", told]


def line(words):
    return "| " + " | ".join(word.replace("|", "/").replace("\n", " ") for word in words) + " |"


def of_work(work):
    lines = [f"**{work['title']}** (`{work['name']}`, {work['rounds']} rounds, commit {work['commit']}, {work['date']})", "",
             line(["peer", "median", "lowest to highest", "Ferry is ... times better", "what is and is not equal"]),
             "|---|---|---|---|---|"]
    shares = sorted(share for row in work["rows"] for share in row.get("others", []) if share is not None)
    if shares:
        lines[0] += (f"; other processes took {number(shares[len(shares) // 2])} of a core in the median run, "
                     f"{number(shares[-1])} in the worst")
    order = sorted(work["rows"], key=lambda row: (row["is_floor"], not row["is_ferry"], row["median"] is None))
    lines += [line(cells(row, work)) for row in order]
    return lines + [""]


def wanted(goal):
    """Without the figure."""
    if "most_s" in goal:
        return f"<= {number(goal['most_s'])} s"
    if "least_per_s" in goal:
        return f">= {number(goal['least_per_s'] / 1e6)} M/s"
    if "most" in goal:
        return f"<= {number(goal['most'])}" + (f" + {goal['plus_s'] * 1e6:.0f} us" if "plus_s" in goal else "")
    return f"{'<=' if goal.get('flat') else '>='} {number(goal['least'])}"


def figure_text(goal, figure):
    if figure is None:
        return "-"
    return f"{number(figure / 1e6)} M/s" if "least_per_s" in goal else number(figure)


def verdict(goal, figure, reached):
    if figure is None:
        return "not measured"
    if reached:
        return "reached"
    return f"MISSED: {goal['why']}" if "why" in goal else "MISSED"


def of_goals(goals, works):
    lines = ["**Goals**", "", line(["goal", "figure", "wanted", ""]), "|---|---|---|---|"]
    for goal in goals:
        figure, reached = outcome(goal, works)
        lines.append(line([goal["text"], figure_text(goal, figure), wanted(goal), verdict(goal, figure, reached)]))
    return lines + [""]


def of_document(document, goals):
    machine = document["machine"]
    date = max((work["date"] for work in document["works"].values()), default="")
    lines = [f"# Comparison of {date}", "",
             f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
             f"Linux {machine['kernel']}, {machine['system']}.", ""]
    lines += of_goals(goals, document["works"])
    for work in document["works"].values():
        lines += of_work(work)
    return "\n".join(lines).rstrip() + "\n"
