"""What grammar runs are asked for, in the dialects of three libraries, and whether a text is that.

Outputs are bounded, so that a model that writes rough English comes to an end, or bounded enough with some patience.
"""

import json
import re
from dataclasses import dataclass

import jsonschema

from hf_exactassist.demo import PROMPTS


def _object(**properties):
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


def _text(least, most):
    return {"type": "string", "pattern": f"^[A-Za-z ,.']{{{least},{most}}}$"}


def _many(items, least, most):
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


BOOLEAN, WHO = {"type": "boolean"}, {"enum": ["king", "queen", "fool", "messenger"]}
SCHEMAS = [
    _object(name=_text(2, 12), alive=BOOLEAN),
    _object(who=WHO, says=_text(5, 30)),
    _object(who=WHO, when={"enum": ["now", "never"]}, act={"enum": [1, 2, 3, 4, 5]}),
    _object(scene=_object(act={"enum": [1, 2]}, place=_text(3, 16)), night=BOOLEAN),
    _object(lines=_many(_text(2, 12), 1, 3)),
    _many(WHO, 2, 4),
    _many(_object(who=WHO, in_love=BOOLEAN), 1, 2),
    _object(title={"const": "Hamlet"}, note={"type": "string", "minLength": 1, "maxLength": 4}),
    _object(a=BOOLEAN, b=BOOLEAN, c=BOOLEAN, d=BOOLEAN),
    _object(letter={"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"}),
    _object(age={"type": "integer"}, sex={"enum": ["m", "f"]}),
    _object(deep=_object(deeper=_object(deepest=_text(1, 6)))),
    _object(either={"anyOf": [BOOLEAN, _text(3, 10)]}),
    _many(_many(BOOLEAN, 1, 2), 2, 3),
    _object(nothing={"type": "null"}, king=_text(4, 18)),
    _text(8, 40),
    WHO,
]
REGEXES = [
    "[A-Za-z ]{3,14}!",
    "(King|Queen) [A-Z][a-z]{2,8}",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "(to be|or not){1,3}",
    "[a-z]{2,8}@[a-z]{2,8}\\.(com|org)",
    "(yes|no|perhaps)",
    "[A-Z]{2,4}: [a-z ]{4,20}\\.",
    "\\([0-9]{3}\\) [0-9]{3}-[0-9]{4}",
    "(the (king|queen|fool) (of|and) ){1,2}me",
    "[IVX]{1,6}\\. [A-Z][a-z]{3,9}",
    "#[0-9a-f]{6}",
    "([a-z]{2,6} ){3}[a-z]{2,6}\\?",
    '"[^"\\n]{3,18}"',
    "-?[0-9]{1,3}\\.[0-9]{2}",
    "O,? ([a-z]{3,9},? ){1,3}O",
    "[aeiou]{1,4}[^aeiou ]{1,3}",
    "(a|ab|abc|abcd){2,5}x",
]
# rules of alternatives; a name of a rule stands for it, anything else for itself
DIGIT = [(digit,) for digit in "0123456789"]
NOUN = [("king",), ("queen",), ("night",), ("sword",)]
GRAMMARS = [
    {"root": [("(", "root", ")"), ("[", "root", "]"), ("x",)]},
    {"root": [("term", "+", "root"), ("term",)], "term": [("digit",), ("(", "root", ")")], "digit": DIGIT},
    {
        "root": [("[", "items", "]"), ("[]",)],
        "items": [("item", ", ", "item"), ("item",)],
        "item": [("root",), *NOUN],
    },
    {"root": [("a", "root", "b"), ("ab",)]},
    {"root": [("no ", "root", " on"), ("was ", "root", " saw"), ("I",)]},
    {"root": [("<b>", "body", "</b>"), ("sword",)], "body": [("root",), ("<i>", "root", "</i>"), *NOUN]},
    {"root": [("(", "noun", " ", "root", ")"), ("noun",)], "noun": NOUN},
    {"root": [("the ", "noun", " of ", "root"), ("the ", "noun")], "noun": NOUN},
]


def _nested(rules, depth):
    """The rules with `root` inside `root` so many times at most: a greedy model can open brackets for ever."""

    def inside(part, level):
        return f"{part}{level + (part == 'root')}" if part in rules else part

    nested = {"root": [("root0",)]}
    for level in range(depth + 1):
        for name, alternatives in rules.items():
            allowed = [found for found in alternatives if level < depth or "root" not in found]
            nested[f"{name}{level}"] = [tuple(inside(part, level) for part in found) for found in allowed]
    return nested


@dataclass(frozen=True)
class Case:
    """One grammar and one prompt.

    Attributes:
        kind (`str`): `"schema"`, `"regex"` or `"grammar"`.
        source: a JSON schema, a regular expression, or rules.
        prompt (`str`): what the text begins with.
    """

    kind: str
    source: object
    prompt: str

    def parses(self, text):
        """Whether a whole text is what was asked for."""
        if self.kind == "schema":
            try:
                jsonschema.validate(json.loads(text), self.source)
            except (ValueError, jsonschema.ValidationError):
                return False
            return True
        if self.kind == "regex":
            return re.fullmatch(self.source, text) is not None
        return len(text) in ends(self.source, "root", text, 0)


def ends(rules, symbol, text, start, known=None):
    """Where a symbol can end that starts at a place of a text. For rules that do not begin with themselves."""
    known = {} if known is None else known
    if symbol not in rules:
        return {start + len(symbol)} if text.startswith(symbol, start) else set()
    if (symbol, start) not in known:
        found = set()
        for alternative in rules[symbol]:
            places = {start}
            for part in alternative:
                places = {end for place in places for end in ends(rules, part, text, place, known)}
            found |= places
        known[symbol, start] = found
    return known[symbol, start]


def ebnf(rules):
    """Rules as xgrammar reads them."""
    return _rendered(rules, "{} ::= {}")


def lark(rules):
    """Rules as llguidance reads them."""
    return _rendered({"start": [("root",)], **rules}, "{}: {}")


def _rendered(rules, line):
    def alternative(parts):
        return " ".join(part if part in rules else json.dumps(part) for part in parts)

    return "\n".join(line.format(name, " | ".join(map(alternative, found))) for name, found in rules.items())


_KINDS = {
    "schema": SCHEMAS,
    "regex": REGEXES,
    "grammar": [_nested(rules, depth) for depth in (2, 5) for rules in GRAMMARS],
}
CASES = [
    Case(kind, source, PROMPTS[(7 * i + 3 * len(kind)) % len(PROMPTS)])
    for kind, sources in _KINDS.items()
    for i, source in enumerate(sources)
]
assert len(CASES) == 50
