"""Units of measure: what a word measures, and its size in the base unit of that."""

import re
from fractions import Fraction

# dimension -> unit -> its size, and its names
_TABLE = {
    "length": "mm .001 millimeter|cm .01 centimeter|dm .1 decimeter|m 1 meter|km 1000 kilometer"
    "|in .0254 inch|ft .3048 foot|yd .9144 yard|mi 1609.344 mile",
    "time": "ms .001 millisecond|s 1 sec second|min 60 minute|h 3600 hr hour|d 86400 day|wk 604800 week"
    "|mo 2629800 month|yr 31557600 year",
    "mass": "mg .001 milligram|g 1 gram|kg 1000 kilogram|t 1000000 ton tonne|oz 28.349523125 ounce|lb 453.59237 pound",
    "volume": "ml .001 mL milliliter|l 1 L liter|gal 3.785411784 gallon",
    "money": "cents .01 cent|$ 1 dollar",
    "energy": "J 1 joule|kJ 1000 kilojoule",
    "force": "N 1 newton",
    "power": "W 1 watt|kW 1000 kilowatt",
    "voltage": "V 1 volt",
    "current": "A 1 amp ampere",
    "frequency": "Hz 1 hertz",
    "pressure": "Pa 1 pascal",
    "angle": "deg 1 degree",
    "angle in radians": "rad 1 radian",
}
_IRREGULAR = {"feet": "foot", "inches": "inch", "metre": "meter", "litre": "liter"}
_FACTOR = re.compile(r"(?P<name>[A-Za-z$]+)\s*(?:\^?\s*\{?\s*(?P<power>-?\d)\s*\}?)?")
_SPEED = re.compile(r"\b(m|k|km)p?h\b")
_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}

Measure = tuple[tuple[tuple[str, int], ...], Fraction]


def _units() -> dict[str, tuple[str, Fraction]]:
    entries = [(dimension, entry.split()) for dimension, row in _TABLE.items() for entry in row.split("|")]
    return {name: (what, Fraction(size)) for what, (short, size, *names) in entries for name in (short, *names)}


_UNITS = _units()


def is_unit(name: str) -> bool:
    return _unit(name) is not None


def measure(text: str) -> Measure | None:
    """What a product or quotient such as `m/s^2` measures, with its size; None if a word of it is unknown.

    A measure is the powers of its dimensions in alphabetical order.
    """
    text = _SPEED.sub(lambda found: f"{'mile' if found[1] == 'm' else 'km'}/h", text)
    powers: dict[str, int] = {}
    size, next_power = Fraction(1), 1
    numerator, *denominators = re.split(r"/|\bper\b", text)
    for sign, part in ((1, numerator), *((-1, one) for one in denominators)):
        for factor in _FACTOR.finditer(part):
            if factor["name"] in _WORDS:
                next_power = _WORDS[factor["name"]]
                continue
            if (unit := _unit(factor["name"])) is None:
                return None
            power = sign * next_power * int(factor["power"] or 1)
            powers[unit[0]] = powers.get(unit[0], 0) + power
            size, next_power = size * unit[1] ** power, 1
    return tuple(sorted(powers.items())), size


def _unit(name: str) -> tuple[str, Fraction] | None:
    for spelling in (name, name.lower()):
        single = spelling[:-1] if spelling.endswith("s") else spelling
        for form in (spelling, single, spelling[:-2] if spelling.endswith("es") else spelling):
            form = re.sub(r"(met|lit)re$", r"\1er", _IRREGULAR.get(form, form))
            if form in _UNITS:
                return _UNITS[form]
    return None
