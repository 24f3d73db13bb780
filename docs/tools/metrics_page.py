"""Write the page of all metrics, from their table.

``python docs/tools/metrics_page.py > docs/reference/metrics.md`` stores it.
"""

from __future__ import annotations

from typing import Final

from postroom.metrics import table

HEAD: Final = """# Metrics

Made from `postroom/metrics/table.py`; [metrics](../operate/metrics.md) tells how to get them. A
histogram has the series `_bucket`, `_count` and `_sum`.
"""
PARTS: Final = {
    "A node": table.NODE,
    "Clients of a served node": table.CLIENTS,
    "Messages": table.MESSAGES,
    "Queues": table.QUEUES,
}


def page() -> str:
    """Return the page."""
    lines = [HEAD]
    for title, metrics in PARTS.items():
        lines += [
            f"## {title}",
            "",
            "| metric | kind | labels | meaning |",
            "| --- | --- | --- | --- |",
        ]
        lines += [_row(each) for each in metrics]
        lines.append("")
    return "\n".join(lines)


def _row(metric: table.Metric) -> str:
    labels = ", ".join(f"`{each}`" for each in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 (the purpose of the program)
