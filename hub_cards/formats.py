"""How numbers, differences, intervals and lists are written on pages and cards."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .statistics import Interval

# Metrics that are shares of 1 and read better as per cent; their differences are percentage points.
SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "f1_macro", "precision", "recall"})
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MINUS = "\u2212"


@dataclass(frozen=True)
class Scale:
    """How values of a metric and their differences are written."""

    metric: str

    @property
    def is_share(self) -> bool:
        return self.metric in SHARES

    @property
    def name(self) -> str:
        return self.metric.replace("_", " ")

    def axis(self, split: str) -> str:
        return f"{split} {self.name}".capitalize()

    def value(self, value: float | None) -> str:
        if value is None:
            return "\u2013"
        return f"{100 * value:.1f}%" if self.is_share else _signed(f"{value:.4g}")

    def difference(self, value: float) -> str:
        """Signed, without unit."""
        text = f"{100 * value:+.1f}" if self.is_share else f"{value:+.3g}"
        # What rounds to nothing has no sign to show.
        return text.lstrip("+-") if float(text) == 0 else _signed(text)

    def spread(self, value: float | None) -> str:
        if value is None:
            return "\u2013"
        return f"{100 * value:.1f}" if self.is_share else f"{value:.3g}"

    @property
    def unit(self) -> str:
        """What follows a difference in a sentence."""
        return " points" if self.is_share else ""

    def interval(self, interval: Interval | None) -> str:
        if interval is None:
            return "\u2013"
        return f"{self._end(interval.low)} to {self._end(interval.high)}"

    def _end(self, value: float) -> str:
        """An interval's end; one that would be rounded to 0 keeps its sign, as the sign is what matters."""
        text = self.difference(value)
        return _signed(f"{100 * value:+.1g}") if self.is_share and float(_plain(text)) == 0 and value else text


def format_count(number: float) -> str:
    """An integer with thousands separated."""
    return f"{round(number):,}"


def format_flops(flops: float | None) -> str:
    """FLOPs with three digits and a power of ten."""
    if flops is None:
        return "\u2013"
    if flops <= 0:
        return "0"
    exponent = math.floor(math.log10(flops))
    mantissa = f"{flops / 10**exponent:.2f}"
    if mantissa == "10.00":
        mantissa, exponent = "1.00", exponent + 1
    superscript = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}\u00a0\u00b7\u00a010{superscript}"


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "\u2013"
    if seconds < 100:
        return f"{seconds:.1f}\u00a0s"
    return f"{seconds / 60:.1f}\u00a0min" if seconds < 6000 else f"{seconds / 3600:.1f}\u00a0h"


def format_about(seconds: float) -> str:
    """A time rounded to two digits or so: wall-clock times are no exact thing."""
    if seconds < 10:
        return f"{seconds:.2g}\u00a0s"
    return f"{seconds:.0f}\u00a0s" if seconds < 100 else format_seconds(seconds)


def join_words(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(words)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""


def spell(number: int) -> str:
    return _WORDS[number] if 0 <= number < len(_WORDS) else str(number)


def seeds_word(number: int) -> str:
    return f"{spell(number)} seed" + ("" if number == 1 else "s")


def _signed(text: str) -> str:
    return text.replace("-", MINUS)


def _plain(text: str) -> str:
    return text.replace(MINUS, "-")
