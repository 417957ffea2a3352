"""Write docs/sizing-figures.md: every published or measured figure beside its prediction (`--check`: only compare)."""

import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "sizing")]

import test_published_memory as memory  # noqa: E402 - found by the line above
import test_speed as speed  # noqa: E402

from deployctl.catalog.catalog import Catalog  # noqa: E402
from deployctl.catalog.load import load_catalog  # noqa: E402
from deployctl.resources import Project  # noqa: E402
from deployctl.units import format_bytes  # noqa: E402

PAGE = ROOT / "docs" / "sizing-figures.md"
HEAD = """# Published figures and predictions

Made by `python benchmarks/published.py` from `tests/sizing/published_memory.yml` and `published_speeds.yml`; a test
keeps it current. Rows marked • were found after the formulas were written; no constant was fitted to them.
"""


def memory_table(catalog: Catalog) -> str:
    lines, errors, unseen = [], [], []
    for row in memory.ROWS:
        predicted, published = memory.predicted(catalog, row), memory.size(row)
        error = predicted / published - 1
        errors.append(abs(error))
        unseen += [abs(error)] if row.get("unseen") else []
        keys = ("variant", "context", "slots", "type", "ubatch", "layers")
        detail = ", ".join(f"{key} {row[key]}" for key in keys if key in row)
        mark = "• " if row.get("unseen") else ""
        lines.append(
            f"| {mark}{row['what']} | {row['model']} | {detail} | {format_bytes(published)} "
            f"| {format_bytes(predicted)} | {error:+.1%} | {row['source']} |"
        )
    head = (
        f"## Memory\n\n{len(errors)} rows: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}. "
        f"Of them {len(unseen)} •: median {statistics.median(unseen):.1%}, worst {max(unseen):.1%}.\n\n"
        "| what | model | of | published | predicted | error | source |\n|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(lines) + sources(memory.TABLE["sources"])


def speed_table(catalog: Catalog) -> str:
    lines, covered, unseen = [], [], []
    for name, row, engine in speed.rows():
        predicted = speed.predicted(catalog, row, engine)
        ratio = row["tok_s"] / predicted
        inside = 1 / engine.band <= ratio <= engine.band
        covered.append(inside)
        unseen += [inside] if row.get("unseen") else []
        detail = f"{row['variant']}, {row.get('batch', 1)} stream{'s' if row.get('batch', 1) > 1 else ''}"
        mark = "• " if row.get("unseen") else ""
        lines.append(
            f"| {mark}{name} | {row['model']} | {detail} | {row['tok_s']:g} | {predicted:.1f} | {ratio:.2f} "
            f"| {'yes' if inside else 'no'} | {row['source']} |"
        )
    head = (
        f"## Speed\n\n{len(covered)} rows in tokens/s of all streams together: the band (a factor of 1.3 on GPUs, 1.6 "
        f"on CPUs) covers {sum(covered)}. Of them {len(unseen)} •: {sum(unseen)} covered.\n\n"
        "| on | model | of | published | predicted | ratio | in the band | source |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(lines) + sources(speed.PUBLISHED["sources"])


def sources(named: dict[str, Any]) -> str:
    return "\n\nSources:\n\n" + "\n".join(f"- {name}: {where}" for name, where in named.items()) + "\n"


def main() -> None:
    """Write the page, or fail where it is not what would be written."""
    catalog = load_catalog(Project(Path("/nonexistent")))
    page = "\n".join([HEAD, memory_table(catalog), speed_table(catalog)])
    if "--check" not in sys.argv:
        PAGE.write_text(page, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page:
        sys.exit(f"{PAGE.name} is not current: python benchmarks/published.py")


if __name__ == "__main__":
    main()
