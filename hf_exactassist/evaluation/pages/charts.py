"""What is drawn, in numbers; and what a picture says to those who do not see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """Values of one way of decoding.

    Attributes:
        label (`str`): its name.
        style (`int`): its number among all ways of the report, which looks the same in every picture.
        points (`tuple[tuple[float, float], ...]`): place and value.
        spans (`tuple[tuple[float, float] | None, ...]`): an interval for each point, if there are any.
        joined (`bool`): whether a line joins the points.
        marked (`bool`): whether the points themselves show.
    """

    label: str
    style: int
    points: tuple[tuple[float, float], ...]
    spans: tuple[tuple[float, float] | None, ...] = ()
    joined: bool = True
    marked: bool = True

    def words(self) -> str:
        """All values."""
        values = [
            f"{value:.2f} at {place:g}" + (f" ({span[0]:.2f} to {span[1]:.2f})" if span else "")
            for (place, value), span in zip(self.points, self.spans or (None,) * len(self.points), strict=True)
        ]
        return f"{self.label}: {', '.join(values)}."


@dataclass(frozen=True)
class Lines:
    """Values over whole numbers.

    Attributes:
        title (`str`): what it shows.
        across (`str`): what the numbers are.
        series (`tuple[Series, ...]`): at least one, each with a point.
        shares (`bool`): whether values are shares of 1.
        level (`tuple[str, float]`, *optional*): a line across, with its name.
        base (`float`, *optional*): the value that means no difference.
    """

    title: str
    across: str
    series: tuple[Series, ...]
    shares: bool = False
    level: tuple[str, float] | None = None
    base: float | None = None

    def words(self) -> str:
        """The figures."""
        level = [] if self.level is None else [f"{self.level[0]}: {self.level[1]:.2f}."]
        return " ".join([f"By {self.across}.", *(one.words() for one in self.series), *level])


@dataclass(frozen=True)
class Bars:
    """How wholes are made up.

    Attributes:
        title (`str`): what it shows.
        labels (`tuple[str, ...]`): one for each bar.
        parts (`dict[str, tuple[float, ...]]`): by part, its share in each bar.
    """

    title: str
    labels: tuple[str, ...]
    parts: dict[str, tuple[float, ...]]

    def words(self) -> str:
        """The figures."""
        bars = [
            f"{label}: " + ", ".join(f"{name} {100 * values[place]:.0f}%" for name, values in self.parts.items())
            for place, label in enumerate(self.labels)
        ]
        return ". ".join(bars) + "."


@dataclass(frozen=True)
class Dots:
    """Values by kind.

    Attributes:
        title (`str`): what it shows.
        kinds (`tuple[str, ...]`): from above.
        series (`tuple[Series, ...]`): their points' places are numbers of kinds.
        shares (`bool`): whether values are shares of 1.
        base (`float`, *optional*): the value that means no difference.
    """

    title: str
    kinds: tuple[str, ...]
    series: tuple[Series, ...]
    shares: bool = False
    base: float | None = None

    def words(self) -> str:
        """The figures."""
        ways = [
            f"{one.label}: " + ", ".join(f"{value:.2f} for {self.kinds[int(place)]}" for place, value in one.points)
            for one in self.series
        ]
        return ". ".join(ways) + "."


Chart = Lines | Bars | Dots
