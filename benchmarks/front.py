"""The front door: ``python -m benchmarks list | run NAME | report | sizing``.

`run` measures and writes a result file; `report` renders the newest valid results into tables, plots and the READMEs.
They are apart because a GPU machine measures and the repository is elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import NAMES, find_case
from benchmarks.checkout import ROOT
from benchmarks.cluster_sizing import cluster_text, newest_store_sources, read_store_rate
from benchmarks.headlines import headlines
from benchmarks.machine import NotHere
from benchmarks.results import RESULTS, alike, latest, load, write_between_marks, write_latest
from benchmarks.sizing import KIMI, Model, Plan, newest_sources, read_sources, sizing_text
from hs_formats.errors import HsError, UsageError

__all__ = ["CLUSTER", "SIZING", "main", "make_parser"]

SIZING = ROOT / "docs" / "sizing.md"
CLUSTER = ROOT / "docs" / "cluster.md"

_DESCRIPTION = """\
Benchmarks and long checks, each a folder with its question and method in README.md. A run with failed requests
is invalid and gives no figure. Ratios come from things measured side by side in one run.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, for `all` that of the first case that failed."""
    options = make_parser().parse_args(argv)
    try:
        if options.command == "list":
            for name in NAMES:
                sys.stdout.write(f"{name:<12} {find_case(name).QUESTION}\n")
        elif options.command == "report":
            for name in options.names or NAMES:
                _report(name, options.results)
            if options.results == RESULTS:
                sources = newest_sources()
                measured = read_sources(sources)
                write_between_marks(SIZING, sizing_text(sources, measured))
                stores = newest_store_sources()
                text = cluster_text({**sources, **stores}, measured, read_store_rate(stores))
                write_between_marks(CLUSTER, text)
                write_between_marks(ROOT / "README.md", headlines())
        elif options.command == "sizing":
            sys.stdout.write(_sizing(options))
        elif options.name == "all":
            return _run_all(options)
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
        case.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the result goes")
        if name == "all":
            case.add_argument("--skip", nargs="+", default=[], choices=NAMES, metavar="NAME", help="cases to leave out")
        else:
            find_case(name).add_arguments(case)
    _add_sizing(commands.add_parser("sizing", help="hours, TB and cores of a large run, computed from the results"))
    report = commands.add_parser("report", help="tables and plots of the newest valid results, into the READMEs")
    report.add_argument("names", nargs="*", metavar="NAME", choices=[[], *NAMES], help="cases (default: all)")
    report.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the results are")
    return parser


def _add_sizing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=KIMI.name, metavar="NAME", help=f"for the text ({KIMI.name})")
    parser.add_argument("--hidden", type=int, default=KIMI.hidden, metavar="H", help=f"hidden size ({KIMI.hidden})")
    parser.add_argument("--slots", type=int, default=KIMI.slots, metavar="N", help=f"states a token ({KIMI.slots})")
    parser.add_argument(
        "--active", type=float, default=KIMI.active_billions, metavar="B",
        help=f"billions of parameters that a token meets ({KIMI.active_billions:g})",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 1_000_000], metavar="N")
    parser.add_argument("--tokens", type=int, default=4096, metavar="N", help="of a sample on average (4096)")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="H200 of a server (8)")
    parser.add_argument(
        "--together", type=float, default=0.5, metavar="F", help="part of N times one GPU that they reach (0.5)"
    )
    many = parser.add_argument_group("many nodes, with a server each: the table of docs/cluster.md")
    many.add_argument("--within", type=float, nargs="+", default=[], metavar="H", help="the nodes for so many hours")
    many.add_argument("--nodes", type=int, nargs="+", default=[], metavar="N", help="the hours of so many nodes")


def _sizing(options: argparse.Namespace) -> str:
    numbers = (options.hidden, options.slots, options.active, *options.samples, options.tokens, options.gpus)
    within, nodes = options.within, options.nodes
    if min(*numbers, *within, *nodes) <= 0 or not 0 < options.together <= 1:
        raise UsageError("sizes must be above 0, and --together not above 1")
    model = Model(name=options.model, hidden=options.hidden, slots=options.slots, active_billions=options.active)
    plan = Plan(tokens=options.tokens, gpus=options.gpus, together=options.together)
    sources = newest_sources()
    measured = read_sources(sources)
    if not within and not nodes:
        return sizing_text(sources, measured, model=model, plan=plan, samples=options.samples)
    stores = newest_store_sources()
    rate, named = read_store_rate(stores), {**sources, **stores}
    try:
        return "\n".join(
            cluster_text(named, measured, rate, model=model, plan=plan, samples=samples, within=within, nodes=nodes)
            for samples in options.samples
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run_all(options: argparse.Namespace) -> int:
    """One case after the other, whatever becomes of each; in the end what did not run, and why."""
    code, endings = 0, list[str]()
    for name in (name for name in NAMES if name not in options.skip):
        argv = ["run", name, *(["--quick"] if options.quick else []), "--out", str(options.out)]
        try:
            _run(name, make_parser().parse_args(argv))
            endings.append(f"{name:<12} done")
        except NotHere as error:
            endings.append(f"{name:<12} SKIPPED: {_first_line(error)}")
        except UsageError as error:  # the long form of some cases needs to be told what to measure
            code = code or (error.exit_code if options.quick else 0)
            endings.append(f"{name:<12} {'FAILED' if options.quick else 'SKIPPED'}: {_first_line(error)}")
        except HsError as error:
            code = code or error.exit_code
            sys.stderr.write(f"error: {name}: {error}\n")
            endings.append(f"{name:<12} FAILED: {_first_line(error)}")
    sys.stdout.write("\n".join(["", *endings, *(f"{name:<12} SKIPPED: --skip" for name in options.skip), ""]))
    return code


def _first_line(error: HsError) -> str:
    return str(error).partition("\n")[0]


def _run(name: str, options: argparse.Namespace) -> None:
    try:
        path = find_case(name).run(options)
    except AssertionError as error:  # so the helpers of the tests say that a server or a mover does not do
        raise HsError(str(error)) from error
    record = load(path)
    sys.stdout.write(f"\n{find_case(name).table(record)}\nresult {path}\n")
    if record["problems"]:
        count, first = len(record["problems"]), record["problems"][0]
        raise HsError(f"the run is invalid, {count} problems, the first: {first} (all in {path})")


def _report(name: str, folder: Path) -> None:
    case = find_case(name)
    sections: list[str] = []
    merge = getattr(case, "merge", None)  # of a case whose runs add up
    for path, newest in latest(name, folder):
        record = newest if merge is None else merge(alike(newest, name, folder))
        picture = path.with_suffix(".png")
        case.plot(record, picture)
        shown = f"![{name}](../results/{name}/{picture.name})"
        sections.append(f"`{path.name}`, commit {record['commit'][:12]}:\n\n{case.table(record)}\n{shown}\n")
        sys.stdout.write(f"{picture}\n")
    if sections and folder == RESULTS:
        write_latest(name, "\n".join(sections))
