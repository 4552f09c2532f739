"""The front door: ``python -m benchmarks list | run NAME | report``.

`run` measures and writes a result file; `report` renders the newest valid results into tables, plots and the READMEs.
They are apart because a GPU machine measures and the repository is elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import NAMES, find_case
from benchmarks.results import RESULTS, latest, load, write_latest
from hs_formats.errors import HsError

__all__ = ["main", "make_parser"]

_DESCRIPTION = """\
Benchmarks and long checks, each a folder with its question and method in README.md. A run with failed requests
is invalid and gives no figure. Ratios come from things measured side by side in one run.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = make_parser().parse_args(argv)
    try:
        if options.command == "list":
            for name in NAMES:
                sys.stdout.write(f"{name:<12} {find_case(name).QUESTION}\n")
        elif options.command == "report":
            for name in options.names or NAMES:
                _report(name, options.results)
        elif options.name == "all":
            for name in NAMES:
                _run(name, make_parser().parse_args(["run", name, *(["--quick"] if options.quick else [])]))
        else:
            _run(options.name, options)
    except HsError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("list", help="the cases and their questions")
    run = commands.add_parser("run", help="run a case")
    cases = run.add_subparsers(dest="name", metavar="NAME", required=True)
    for name in (*NAMES, "all"):
        case = cases.add_parser(
            name,
            description=None if name == "all" else find_case(name).QUESTION,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        case.add_argument("--quick", action="store_true", help="the short form: shapes and counts, no figures")
        if name != "all":
            case.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the result goes")
            find_case(name).add_arguments(case)
    report = commands.add_parser("report", help="tables and plots of the newest valid results, into the READMEs")
    report.add_argument("names", nargs="*", metavar="NAME", choices=[[], *NAMES], help="cases (default: all)")
    report.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the results are")
    return parser


def _run(name: str, options: argparse.Namespace) -> None:
    path = find_case(name).run(options)
    sys.stdout.write(f"\n{find_case(name).table(load(path))}\nresult {path}\n")


def _report(name: str, folder: Path) -> None:
    case = find_case(name)
    sections: list[str] = []
    for path, record in latest(name, folder):
        picture = path.with_suffix(".png")
        case.plot(record, picture)
        shown = f"![{name}](../results/{name}/{picture.name})"
        sections.append(f"`{path.name}`, commit {record['commit'][:12]}:\n\n{case.table(record)}\n{shown}\n")
        sys.stdout.write(f"{picture}\n")
    if sections and folder == RESULTS:
        write_latest(name, "\n".join(sections))
