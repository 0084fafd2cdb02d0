"""Values of features by the definition, without any index: the reference of tests."""

import math
from hashlib import md5

SECOND = 1_000_000


def recorded(events, accept_late_us):
    """The events that count, in the order of receipt: valid ones, each id once while it is remembered."""
    known, kept = {}, []
    for event in sorted(events, key=lambda event: event["received_at"]):
        late = event["received_at"] - event["occurred_at"]
        before = known.get(event["id"])
        if late > accept_late_us or late < -5 * SECOND or not any(event["keys"].values()):
            continue
        if before is None or event["received_at"] - before > accept_late_us:
            known[event["id"]] = event["received_at"]
            kept.append(event)
    return kept


def estimate(texts):
    registers = [0] * 1024
    for text in texts:
        number = int.from_bytes(md5(text.encode()).digest()[:8], "little")
        rest, rank = number >> 10, 1
        while rank < 55 and rest & 1 == 0:
            rest, rank = rest >> 1, rank + 1
        registers[number & 1023] = max(registers[number & 1023], rank)
    raw = 0.7213 / (1 + 1.079 / 1024) * 1024**2 / sum(2.0**-rank for rank in registers)
    zeros = registers.count(0)
    return 1024 * math.log(1024 / zeros) if raw <= 2560 and zeros else raw


def aggregate(feature, events, key, now):
    """The value of an aggregate without its default; NaN if no event counts."""
    events = [
        event
        for event in events
        if event["received_at"] < now
        and event["keys"].get(feature.entity) == key
        and all(event["texts"].get(field) in values for field, values in feature.where.items())
    ]
    number = [event["numbers"].get(feature.of) if feature.of else 1.0 for event in events]
    if feature.is_decayed:
        ages = [(now - event["occurred_at"]) / SECOND / feature.half_life for event in events]
        return sum(n * 2.0**-age for n, age in zip(number, ages, strict=True) if n is not None)
    tile = feature.tile * SECOND
    end = (now - feature.delay * SECOND) // tile
    inside = [end - feature.tiles < event["occurred_at"] // tile <= end for event in events]
    events = [event for event, counts in zip(events, inside, strict=True) if counts]
    times = [event["occurred_at"] for event in events]
    if feature.aggregate == "distinct":
        of = [event["texts"].get(feature.of) or event["keys"].get(feature.of) for event in events]
        return estimate([text for text in of if text is not None])
    if feature.aggregate == "seconds_since_last":
        return max((now - max(times)) / SECOND, 0) if times else math.nan
    if feature.aggregate == "seconds_since_first":
        return max((now - min(times)) / SECOND, 0) if times else math.nan
    number = [n for n, counts in zip(number, inside, strict=True) if counts and n is not None]
    if feature.aggregate in {"count", "sum"}:
        return float(sum(number))
    if not number:
        return math.nan
    return {"mean": lambda n: sum(n) / len(n), "min": min, "max": max}[feature.aggregate](number)


def value(declared, feature, recorded_events, keys, now):
    """The value of a feature for a decision. `recorded_events` are the results of `recorded` by kind."""
    if any(keys.get(entity) is None for entity in declared.needs(feature)):
        return feature.missing
    if feature.ratio is None:
        found = aggregate(feature, recorded_events[feature.event], keys[feature.entity], now)
    else:
        above, below = (
            aggregate(part, recorded_events[part.event], keys[part.entity], now)
            for part in map(declared.feature, feature.ratio)
        )
        found = above / below if below else math.nan
    return feature.missing if math.isnan(found) else found
