"""Plans: what a cost model, a trace and a fleet say, as data and as lines for a person."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvproof.economics.facts import Row, told
from kvproof.models import reuse, routing
from kvproof.models.cost import Cost
from kvproof.models.estimate import Estimate
from kvproof.models.queueing import Asked, Engine, Simulated, simulate
from kvproof.models.requests import BLOCK_TOKENS, Request, summary
from kvproof.models.tiers import Rent

MISSES = 0.25
"""By which share the line may miss what was measured, for anything to follow from it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan: what it is of, as JSON data, and the lines that say it."""

    data: dict[str, Any]
    lines: Sequence[str]


def cost(size: float, rate: float, bandwidth: float, fixed: float, tokens: Sequence[int],
         measured: Estimate | None = None) -> Plan:
    """Return whether to load or to recompute hits of so many tokens.

    size: bytes of a token's KV. rate: tokens recomputed a second. bandwidth, fixed: of a load; measured: where they
    come from.
    """
    tier = Cost(Fraction(size), Fraction(rate), Fraction(bandwidth), Fraction(fixed))
    best = float(tier.break_even(Fraction(1)))
    lines = [f"a hit may pay above B* = {best / 1e9:.3g} GB/s (s R); this tier has {bandwidth / 1e9:.3g} GB/s"]
    data: dict[str, Any] = {"plan": "cost", "size": size, "rate": rate, "bandwidth": bandwidth, "fixed": fixed,
                            "break_even": best, "floor_tokens": float(tier.floor(Fraction(1)))}
    if tier.fast(Fraction(1)):
        data["least_tokens"] = least = float(tier.least_tokens())
        lines.append(f"from n* = {least:,.0f} tokens on a hit is loaded; below that it is recomputed (T0 R = "
                     f"{data['floor_tokens']:,.0f}: no bandwidth makes a shorter one pay)" if fixed else
                     "a hit of any length is loaded, since a load takes nothing besides")
    else:
        data["least_tokens"] = None
        lines.append("every hit is recomputed: no length makes it pay at this bandwidth")
    data["hits"] = []
    for count in tokens:
        load, recompute = float(tier.load_time(Fraction(count))), float(tier.recompute_time(Fraction(count)))
        chosen = "load" if tier.loads(Fraction(count)) else "recompute"
        one = {"tokens": count, "load": load, "recompute": recompute, "choice": chosen, "gains": abs(load - recompute)}
        words = f"{count:>9,} tokens: load {load:.3f} s, recompute {recompute:.3f} s: {chosen}"
        if measured is not None:
            one["regret_at_most"] = regret = _regret(measured, count * size, recompute, chosen == "load")
            words += f"; the estimate may cost {regret:.3f} s at most"
        data["hits"].append(one)
        lines.append(words)
    return Plan(data, lines)


def _regret(measured: Estimate, size: float, recompute: float, loads: bool) -> float:
    """Return what the choice can cost at most, wherever within its intervals the truth is."""
    slowest = measured.fixed_interval[1] + size / measured.bandwidth_interval[0]
    fastest = measured.fixed_interval[0] + size / measured.bandwidth_interval[1]
    return max(0.0, slowest - recompute if loads else recompute - max(0.0, fastest))


def estimated(name: str, version: str, found: Estimate) -> Plan:
    """Return what was measured on a connector."""
    low, high = found.bandwidth_interval
    data = {"plan": "measured", "connector": name, "version": version, "fixed": found.fixed,
            "fixed_interval": list(found.fixed_interval), "bandwidth": found.bandwidth,
            "bandwidth_interval": [low, high], "worst": found.worst, "points": found.points}
    first = (f"{name} {version}, {found.points} lengths: T0 = {found.fixed * 1e3:.2f} ms "
             f"[{found.fixed_interval[0] * 1e3:.2f}, {found.fixed_interval[1] * 1e3:.2f}], B = "
             f"{found.bandwidth / 1e9:.3g} GB/s [{low / 1e9:.3g}, {high / 1e9:.3g}] (95 %)")
    fits = "" if found.worst <= MISSES else (
        ": a load is no fixed cost and a bandwidth here, and nothing is said of hits")
    return Plan(data, [first, f"the line misses a measured median by {found.worst:.0%} at most{fits}"])


def tiers(requests: Sequence[Request], token_bytes: int, capacities: Sequence[int], least: int, most: int, servers: int,
          money: tuple[float, float] | None = None) -> Plan:
    """Return what capacities of a cache would have hit on a trace.

    token_bytes: of a token's KV. capacities: blocks; some that are spread evenly where none is given. least, most:
    blocks between which a power law is fitted. servers: of which each has its own part of a capacity, against one pool.
    money: what a hit block saves, and the rent of a byte for a second, in one unit.
    """
    about, curve = summary(requests), reuse.curve(requests)
    block = token_bytes * BLOCK_TOKENS
    chosen = list(capacities) or curve.capacities(12)
    data: dict[str, Any] = {
        "plan": "tiers", "requests": about.requests, "seconds": about.seconds, "mean_input": about.mean_input,
        "blocks": about.accesses, "distinct_blocks": about.distinct_blocks, "block_bytes": block,
        "unbounded_hit_rate": curve.most,
        "curve": [{"blocks": each, "bytes": each * block, "hit_rate": curve.rate(each)} for each in chosen]}
    first = (f"{about.requests:,} requests in {about.seconds:,.0f} s, {about.accesses:,} blocks of {BLOCK_TOKENS} "
             f"tokens, {about.distinct_blocks:,} distinct; a cache without bounds hits {curve.most:.2%}")
    lines = [first]
    lines += [f"{each:>10,} blocks ({each * block / 1e9:>9,.1f} GB): {curve.rate(each):.2%}" for each in chosen]
    fitted = reuse.fit(requests, least, most)
    if fitted is None:
        lines.append("no power law is fitted: too few blocks are used again, or the curve is flat from --from to --to")
    else:
        data["fit"] = {"k": fitted.k, "beta": fitted.beta, "interval": [fitted.low, fitted.high],
                       "halves": list(fitted.slopes), "worst": fitted.worst, "holds": fitted.holds,
                       "least": fitted.least, "most": fitted.most}
        holds = "holds" if fitted.holds else "does NOT hold, so that nothing follows from beta"
        lines.append(f"h = k C^beta from {fitted.least:,} to {fitted.most:,} blocks: beta = {fitted.beta:.3f} "
                     f"[{fitted.low:.3f}, {fitted.high:.3f}] (95 %), {fitted.slopes[0]:.3f} in the lower half and "
                     f"{fitted.slopes[1]:.3f} in the upper one; it misses by a factor of {fitted.worst:.2f} at most: "
                     f"it {holds}")
    if servers > 1:
        data["pooled"] = []
        parts = [reuse.curve(requests[server::servers]) for server in range(servers)]
        for each in chosen:
            split = sum(part.rate(each // servers) * part.accesses for part in parts) / max(1, curve.accesses)
            data["pooled"].append({"blocks": each, "servers": servers, "pooled": curve.rate(each), "split": split})
            lines.append(f"{each:>10,} blocks in one pool: {curve.rate(each):.2%}; split over {servers} servers "
                         f"that are asked in turn: {split:.2%}")
    if money is not None and (fitted is None or not fitted.holds):
        lines.append("C* follows from a power law, which does not hold here; --from and --to choose where it is fitted")
    elif money is not None and fitted is not None:
        lines += _pays(data, fitted, about.accesses / max(about.seconds, 1e-9), block, money)
    return Plan(data, lines)


def _pays(data: dict[str, Any], fitted: reuse.Fit, rate: float, block: int, money: tuple[float, float]) -> list[str]:
    saved, rent = money
    data["best"] = []
    lines = []
    for name, beta in (("beta", fitted.beta), ("its least", fitted.low), ("its most", fitted.high)):
        # The law of that slope that agrees with the fitted one in the middle of its range.
        middle = math.sqrt(fitted.least * fitted.most)
        k = fitted.rate(middle) / middle**beta
        best = Rent(rate, saved, rent * block, k, beta).best()
        within = fitted.least <= best <= fitted.most
        data["best"].append({"beta": beta, "blocks": best, "within": within})
        shown = f"{best:,.0f} blocks ({best * block / 1e9:,.1f} GB)" if best < 1e15 else "without bounds"
        lines.append(f"C* with {name} ({beta:.3f}): {shown}{'' if within else ', outside of what was fitted'}")
    return lines


def routes(requests: Sequence[Request], replicas: int, capacity: int, rate: float, beginning: int) -> Plan:
    """Return what each policy makes of a trace: replicas of `capacity` blocks that prefill `rate` tokens a second."""
    data: dict[str, Any] = {"plan": "routing", "requests": len(requests), "replicas": replicas, "capacity": capacity,
                            "rate": rate, "policies": []}
    lines = [f"{'policy':<14}{'hit rate':>10}{'consistent':>12}{'p50 TTFT':>11}{'p99 TTFT':>11}{'imbalance':>11}"]
    for policy in routing.policies(replicas, rate):
        found = routing.route(requests, policy, capacity=capacity, rate=rate, beginning=beginning)
        middle, tail = found.percentile(0.5), found.percentile(0.99)
        data["policies"].append({"policy": policy.name, "hit_rate": found.hit_rate, "consistency": found.consistency,
                                 "p50": middle, "p99": tail, "imbalance": found.imbalance,
                                 "requests": list(found.counts)})
        lines.append(f"{policy.name:<14}{found.hit_rate:>10.2%}{found.consistency:>12.2%}{middle:>9.2f} s{tail:>9.2f} s"
                     f"{found.imbalance:>11.2f}")
    keys = list(dict.fromkeys(request.blocks[:beginning] for request in requests))
    data["moved"] = moved = routing.moved(lambda size: routing.BoundedHash(size, beginning=beginning), replicas, keys)
    lines.append(f"one replica more moves {moved:.1%} of the beginnings on the ring; 1 / {replicas + 1} is "
                 f"{1 / (replicas + 1):.1%}")
    lines.append("hit rate: of blocks, as the replicas had them. consistent: of requests whose beginning was seen "
                 "before, those that went where the last one went")
    return Plan(data, lines)


def facts(row: Row, seeds: int) -> Plan:
    """Return a measured run beside the simulated one."""
    figures = told(row, seeds)
    data = {"plan": "facts", "run": row.id, "says": row.says, "assumed": list(row.assumed), "figures": [
        {"name": each.name, "measured": each.measured, "simulated": each.simulated, "low": each.low, "high": each.high,
         "deviation": each.deviation} for each in figures]}
    lines = [f"{row.id} of the rank-sharded cache (docs/economics.md): {row.says}"]
    for each in figures:
        unit = "" if each.name == "late" else " s"
        range_ = f" ({each.low:.2f} to {each.high:.2f} over the measured bandwidths)" if each.low != each.high else ""
        lines.append(f"  {each.name:<7} measured {each.measured:.2f}{unit}, simulated {each.simulated:.2f}{unit}"
                     f"{range_}: {round(each.deviation, 2) + 0.0:+.0%}")
    return Plan(data, [*lines, *(f"  the source does not give {each}" for each in row.assumed)])


def simulated(engine: Engine, arrivals: Callable[[int], Sequence[Asked]], seeds: int, rate: float, most: float) -> Plan:
    """Return what becomes of requests at an engine, the median over seeds.

    rate: how many come a second; most: with how many the engine keeps up.
    """
    runs = [simulate(engine, arrivals(seed)) for seed in range(seeds)]

    def middle(figure: Callable[[Simulated], float]) -> float:
        return statistics.median(figure(run) for run in runs)

    shares = {how: middle(lambda run, how=how: run.share(how))  # type: ignore[misc]  # a default binds it
              for how in ("loaded", "recomputed", "late", "memory")}
    data = {"plan": "simulated", "seeds": seeds, "keeps_up_with": most,
            "median": middle(lambda run: run.percentile(0.5)), "p99": middle(lambda run: run.percentile(0.99)),
            "queued": middle(lambda run: run.queued), "busy": middle(lambda run: run.busy), "shares": shares}
    told = ", ".join(f"{share:.1%} {how}" for how, share in shares.items() if share)
    lines = [f"TTFT: median {data['median']:.3f} s, p99 {data['p99']:.3f} s",
             f"at most {data['queued']:g} wait at once; the engine prefills {data['busy']:.1%} of the time", told,
             f"each is the median over {seeds} seeds"]
    if rate > most:
        lines.insert(0, f"{rate:g} requests a second are more than it keeps up with ({most:.3g}): there is no steady "
                        "state, and all of this grows with the number of requests")
    return Plan(data, lines)
