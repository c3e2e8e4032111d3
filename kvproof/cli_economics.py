"""The command line of when a cache pays: `kvproof plan` and `kvproof simulate`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproof.errors import UsageError

if TYPE_CHECKING:
    from kvproof.economics.plans import Plan

_PLAN = """When a remote cache pays: load or recompute a hit, how large a cache, where to route.

  kvproof plan --size 48400 --rate 52200 --bandwidth 10.76e9 --fixed 0.33 --tokens 16390
  kvproof plan --measure -c redis-py --size 48400 --rate 52200
  kvproof plan tiers TRACE          hit rate of every capacity, and whether a power law holds
  kvproof plan routing TRACE        four policies over replicas with caches of their own

TRACE is a file of JSON lines with timestamp (ms), input_length, output_length and hash_ids, as the Mooncake project
publishes them. Exit codes: 0, or 2 for wrong usage.
"""
_SIMULATE = """Simulate an engine with a remote cache as a queue.

  kvproof simulate --facts h1b        a measured run from its stated inputs, and how far off that is
  kvproof simulate --size 48400 --rate 52200 --bandwidth 0.85e9 --arrivals 1.21 --tokens 16390
"""


def add(commands: Any) -> None:
    """Add both to the parser's commands."""
    plan = commands.add_parser("plan", help="when a cache pays: cost, tiers, routing", description=_PLAN,
                               formatter_class=argparse.RawDescriptionHelpFormatter)
    _cost(plan)
    plan.add_argument("--tokens", type=_whole, action="append", metavar="N", help="a hit's tokens; may be repeated")
    plan.add_argument("--measure", action="store_true", help="measure --bandwidth and --fixed on a connector")
    plan.add_argument("-c", "--connector", metavar="NAME", help="the connector that is measured")
    plan.add_argument("--chunk-bytes", type=_whole, metavar="N", help="of the chunks that are loaded (default: 1 MiB)")
    plan.add_argument("--server", metavar="SERVER", help="valkey (default), or redis://HOST:PORT")
    plan.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where buffers live")
    _written(plan)
    plan.set_defaults(command=_bounded(_plan))
    kinds = plan.add_subparsers(title="of a trace", metavar="KIND")

    tiers = kinds.add_parser("tiers", help="how large a cache has to be")
    tiers.add_argument("trace", type=Path, metavar="TRACE")
    tiers.add_argument("--token-bytes", type=_whole, default=131_072, metavar="N", help="of a token's KV (131072)")
    tiers.add_argument("--capacity", type=_whole, action="append", metavar="BLOCKS", help="may be repeated")
    tiers.add_argument("--from", dest="least", type=_whole, default=0, metavar="BLOCKS", help="fit from here")
    tiers.add_argument("--to", dest="most", type=_whole, default=0, metavar="BLOCKS", help="up to here")
    tiers.add_argument("--servers", type=_whole, default=1, metavar="N", help="compare one pool with N parts")
    tiers.add_argument("--saves", type=_positive, metavar="MONEY", help="what a block that hits saves, for C*")
    tiers.add_argument("--rent", type=_positive, metavar="MONEY", help="of a byte for a second, for C*")
    _written(tiers, beside=True)
    tiers.set_defaults(command=_bounded(_tiers))

    routing = kinds.add_parser("routing", help="which replica should serve a request")
    routing.add_argument("trace", type=Path, nargs="?", metavar="TRACE")
    routing.add_argument("--prefixes", type=_whole, metavar="N",
                         help="in place of a trace: prompts that are one of N prefixes of 8 blocks")
    routing.add_argument("--requests", type=_whole, metavar="N", help="of such prompts (20000)")
    routing.add_argument("--replicas", type=_whole, default=8, metavar="N", help="(8)")
    routing.add_argument("--capacity", type=_whole, default=4000, metavar="BLOCKS", help="of each cache (4000)")
    routing.add_argument("--rate", type=_positive, default=10_000.0, metavar="TOKENS/S", help="of each replica (10000)")
    routing.add_argument("--beginning", type=_whole, default=2, metavar="BLOCKS", help="what is hashed (2)")
    _written(routing, beside=True)
    routing.set_defaults(command=_bounded(_routing))

    simulate = commands.add_parser("simulate", help="an engine with a remote cache as a queue", description=_SIMULATE,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    simulate.add_argument("--facts", action="append", metavar="RUN", help="h1b, h2b, h3 or h5b; may be repeated")
    simulate.add_argument("--seeds", type=_whole, default=20, metavar="N", help="of which the median is taken (20)")
    _cost(simulate)
    simulate.add_argument("--arrivals", type=_positive, metavar="RATE", help="requests a second, at random")
    simulate.add_argument("--tokens", type=_positive, metavar="N", help="of a prompt")
    simulate.add_argument("--cached", type=_share, metavar="SHARE", help="of each prompt in the cache (1)")
    simulate.add_argument("--requests", type=_whole, metavar="N", help="(450)")
    simulate.add_argument("--instances", type=_whole, metavar="N", help="over which a prompt is spread (1)")
    simulate.add_argument("--asynchronous", action="store_true", help="load beside the engine's work")
    simulate.add_argument("--deadline", type=_positive, metavar="SECONDS", help="of an asynchronous lookup")
    _written(simulate)
    simulate.set_defaults(command=_bounded(_simulate))


def _cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=_positive, metavar="BYTES", help="of a token's KV")
    parser.add_argument("--rate", type=_positive, metavar="TOKENS/S", help="that are recomputed")
    parser.add_argument("--bandwidth", type=_positive, metavar="BYTES/S", help="of a load (of one instance)")
    parser.add_argument("--fixed", type=_number, metavar="SECONDS", help="that every load takes besides (0)")


def _written(parser: argparse.ArgumentParser, *, beside: bool = False) -> None:
    """Add where it is written to; beside: the parser above has these, too, and what is given there holds."""
    for name, said in (("json", "write the figures as JSON (- for standard output)"), ("plot", "draw it: .png or .svg"),
                       ("html", "one page with the figures and the plot")):
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=said,
                            default=argparse.SUPPRESS if beside else None)


_MOST = 1e18


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < _MOST:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to {_MOST:g}, got {text[:40]!r}")
    return found


def _positive(text: str) -> float:
    try:
        found = _number(text)
    except argparse.ArgumentTypeError:
        found = 0.0
    if not found:
        raise argparse.ArgumentTypeError(f"expected a number above 0, up to {_MOST:g}, got {text[:40]!r}")
    return found


def _share(text: str) -> float:
    found = _number(text)
    if found > 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got {text!r}")
    return found


def _whole(text: str) -> int:
    try:
        found = _positive(text)
    except argparse.ArgumentTypeError:
        found = 0.5
    if found != int(found) or found > 1e8:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 10^8, got {text[:40]!r}")
    return int(found)


def _plan(options: argparse.Namespace) -> int:
    from kvproof.economics import measure, plans, plots

    _checked(options)
    if not options.measure:
        given = [f"--{name.replace('_', '-')}" for name in ("connector", "chunk_bytes", "server")
                 if getattr(options, name) is not None]
        if given:
            raise UsageError(f"{' '.join(given)} is of --measure; give both, or neither")
        _need(options, "plan", "size", "rate", "bandwidth")
        plan = plans.cost(options.size, options.rate, options.bandwidth, options.fixed or 0.0, options.tokens or [])
        return _show(options, [plan], lambda: plots.cost(plan))
    if not options.connector:
        raise UsageError("--measure: name the connector with -c; `kvproof connectors` lists them")
    for name in ("bandwidth", "fixed"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is what --measure finds; leave one of them out")
    if (options.size is None) != (options.rate is None):
        raise UsageError("--measure: give --size and --rate both, for what it says of hits, or neither")
    if options.tokens and options.size is None:
        raise UsageError("--tokens: what it says of hits needs --size and --rate")
    version, points = measure.loads(
        options.connector, chunk_bytes=options.chunk_bytes or measure.CHUNK_BYTES, server=options.server,
        device=options.device, progress=_progress)
    found = measure.fitted(points)
    shown = [plans.estimated(options.connector, version, found)]
    shown[0].data["loads"] = [{"bytes": size, "seconds": times} for size, times in points]
    # Without a model of an engine only the loads are drawn, in bytes.
    if not math.isfinite(found.bandwidth):
        raise UsageError(f"{options.connector}: a longer load takes no longer here, so that it has no bandwidth; try "
                         "larger chunks with --chunk-bytes")
    size, rate = options.size or 1.0, options.rate or 1e18
    cost = plans.cost(size, rate, found.bandwidth, max(found.fixed, 0.0), options.tokens or [], found)
    if options.size is not None and found.worst <= plans.MISSES:
        shown.append(cost)
    return _show(options, shown, lambda: plots.cost(cost, points))


def _tiers(options: argparse.Namespace) -> int:
    from kvproof.economics import plans, plots
    from kvproof.economics import trace as traces
    from kvproof.models import reuse

    _checked(options)
    _of_a_trace(options)
    if (options.saves is None) != (options.rent is None):
        raise UsageError("C* needs both --saves and --rent")
    if options.most and options.most <= options.least:
        raise UsageError(f"--from {options.least} --to {options.most}: expected the lesser first")
    trace = traces.of_prefixes(options.trace)
    money = (options.saves, options.rent) if options.saves is not None else None
    plan = plans.tiers(trace, options.token_bytes, options.capacity or [], options.least, options.most,
                       options.servers, money)
    return _show(options, [plan], lambda: plots.tiers(plan, reuse.curve(trace).rate))


def _routing(options: argparse.Namespace) -> int:
    from kvproof.economics import plans, plots
    from kvproof.economics import trace as traces
    from kvproof.models import workloads

    _checked(options)
    _of_a_trace(options)
    if (options.trace is None) == (options.prefixes is None):
        raise UsageError("name a TRACE, or --prefixes N, and not both")
    if options.trace is not None and options.requests is not None:
        raise UsageError("--requests is of prompts that are made up (--prefixes); leave it out with a trace")
    trace = traces.of_prefixes(options.trace) if options.trace is not None else workloads.shared(
        options.prefixes, options.requests or 20_000, own=0)
    plan = plans.routes(trace, options.replicas, options.capacity, options.rate, options.beginning)
    return _show(options, [plan], lambda: plots.routes(plan))


def _simulate(options: argparse.Namespace) -> int:
    from kvproof.economics import facts, plans, plots
    from kvproof.models.queueing import Engine, poisson

    _checked(options)
    if options.facts:
        given = [f"--{name}" for name in ("size", "rate", "bandwidth", "fixed", "arrivals", "tokens", "cached",
                                          "requests", "instances", "asynchronous", "deadline")
                 if getattr(options, name) not in (None, False)]
        if given:
            raise UsageError(f"--facts has figures of its own; leave {' '.join(given)} out")
        for name in options.facts:
            if name not in facts.ROWS:
                raise UsageError(f"--facts {name}: expected one of {', '.join(facts.ROWS)}")
        if options.plot is not None and len(options.facts) > 1:
            raise UsageError(f"--plot draws one run; give one of --facts {' --facts '.join(options.facts)}")
        rows = [facts.ROWS[name] for name in options.facts]
        first, tokens = rows[0], facts.TOKENS[1]
        return _show(options, [plans.facts(row, options.seeds) for row in rows], lambda: plots.latency(
            first.engine, f" ({first.id})", lambda rate: facts.arrivals(0, rate), tokens, tokens * facts.CACHED))
    _need(options, "simulate", "size", "rate", "bandwidth", "arrivals", "tokens")
    if options.deadline is not None and not options.asynchronous:
        raise UsageError("--deadline is of --asynchronous lookups; give both, or neither")
    engine = Engine(options.rate, options.size, options.bandwidth, options.instances or 1, options.fixed or 0.0,
                    options.asynchronous, options.deadline or math.inf)
    cached = 1.0 if options.cached is None else options.cached

    def arrivals(rate: float, seed: int = 0) -> Any:
        return poisson(rate, options.requests or 450, seed, [options.tokens], cached)

    plan = plans.simulated(engine, lambda seed: arrivals(options.arrivals, seed), options.seeds, options.arrivals,
                           engine.keeps_up(options.tokens, options.tokens * cached))
    return _show(options, [plan], lambda: plots.latency(engine, "", arrivals, options.tokens, options.tokens * cached))


def _of_a_trace(options: argparse.Namespace) -> None:
    given = [f"--{name}" for name in ("size", "bandwidth", "fixed", "tokens", "connector", "server")
             if getattr(options, name) is not None] + ["--measure"] * options.measure
    if given:
        raise UsageError(f"{' '.join(given)} is of `kvproof plan` itself, not of a trace; leave it out")


def _need(options: argparse.Namespace, command: str, *names: str) -> None:
    missing = [f"--{name}" for name in names if getattr(options, name) is None]
    if missing:
        raise UsageError(f"kvproof {command} needs {' '.join(missing)}; kvproof {command} --help shows how")


def _checked(options: argparse.Namespace) -> None:
    """Refuse what cannot be written before anything is measured."""
    from kvproof.economics import plots
    from kvproof.results import check_writable

    check_writable(options.json, options.plot, options.html)
    if options.plot is not None:
        plots.check(options.plot)


def _show(options: argparse.Namespace, shown: list[Plan], drawn: Callable[[], Any]) -> int:
    from kvproof.economics import page, plots
    from kvproof.results import write_text

    data = [plan.data for plan in shown]
    if options.json is not None:
        text = json.dumps(_finite(data[0] if len(data) == 1 else data), indent=1, allow_nan=False) + "\n"
        if str(options.json) == "-":
            print(text, end="")
        else:
            write_text(options.json, text)
    if str(options.json) != "-":
        print("\n".join(line for plan in shown for line in plan.lines), flush=True)
    if options.plot is not None:
        plots.write(drawn(), options.plot)
    if options.html is not None:
        write_text(options.html, page.document([plan.lines for plan in shown], plots.svg(drawn())))
    return 0


def _finite(data: Any) -> Any:
    """Return data with None for what is without bounds, for which JSON has no number."""
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _bounded(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Return a command that says in a line when its figures are beyond what can be computed."""

    def bounded(options: argparse.Namespace) -> int:
        try:
            return command(options)
        except (OverflowError, ZeroDivisionError, MemoryError) as error:
            raise UsageError(f"these figures are beyond what can be computed ({type(error).__name__}); expected "
                             "those of a real cache") from error

    return bounded


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\rmeasuring: {done} of {of}{'' if done < of else chr(10)}", end="", file=sys.stderr, flush=True)
