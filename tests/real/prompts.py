"""200 prompts: stretches of texts that everyone has here, and lines in many scripts written by hand."""

import importlib
import inspect
import itertools
from pathlib import Path
from pydoc_data.topics import topics


WRITTEN = [
    # English, some of it unfinished or oddly spaced
    "The history of the lighthouse begins with a storm in the year",
    "It was late in the evening when the two travellers fin",
    "Two  spaces after  every  word  are  hard  to  keep  up,",
    "A line.\n\nAnother line after an empty one.\n\n\nAnd after two",
    "Dear Ms. Alvarez,\n\nThank you for your letter of 3 March. We regret that",
    '"Who is there?" she whispered. Nobody answered. "I said:',
    "In 1987, the company sold 12,345 units at $19.99 each, which is a total of",
    "trailing spaces are part of the text, too   ",
    "   and so are leading ones, which begin a quoted",
    "UPPER CASE TEXT IS CUT INTO OTHER PIECES THAN",
    "antidisestablishmentarianism, floccinaucinihilipilification and pneumono",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog. The quick",
    "To be, or not to be, that is the question: Whether 'tis nobler in",
    "it's  they're  we'll  I'd  don't  o'clock  rock'n'",
    "Visit https://www.example.org/index.html?page=2&lang=en#top or write to info@",
    # lists, tables, markup
    "Monday, Tuesday, Wednesday, Thursday,",
    "Shopping list:\n- eggs\n- milk\n- bread\n- ",
    "Steps to change a bicycle tyre:\n\n1. Turn the bicycle upside down.\n2. ",
    "| name | age | city |\n|---|---|---|\n| Ada | 36 | London |\n| Alan |",
    "# Heading\n\n## Smaller heading\n\nSome *emphasis*, some **more",
    "<ul>\n  <li>first</li>\n  <li>second</li>\n  <li>",
    "name,born,died\nAda Lovelace,1815,1852\nAlan Turing,1912,",
    "a b c a b c a b c a b c a b",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    # chat of either family: markers of the one are plain text to the other
    "<|im_start|>user\nWhat is the boiling point of water?<|im_end|>\n<|im_start|>assistant\n",
    "<start_of_turn>user\nWrite a haiku about rain.<end_of_turn>\n<start_of_turn>model\n",
    "Q: What is the capital of France?\nA: Paris.\nQ: What is the capital of Italy?\nA:",
    # code
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return ",
    "import json\n\n\ndef load_config(path):\n    with open(path) as file:\n        ",
    "SELECT name, COUNT(*) FROM orders WHERE created_at > '2024-01-01' GROUP",
    "for (int i = 0; i < n; i++) {\n\tfor (int j = 0; j < n; j++) {\n\t\t",
    '{"name": "Ada", "born": 1815, "languages": ["English", "Fre',
    "fn main() {\n    let words: Vec<&str> = text.split_whitespace().",
    '#!/bin/sh\nset -eu\nfor file in *.txt; do\n  echo "$file"',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    # mathematics
    "The roots of x² − 5x + 6 = 0 are x₁ =",
    "\\begin{equation}\n  \\int_0^1 x^2 \\, dx = \\frac{1}{",
    "∀ε > 0 ∃δ > 0: |x − a| < δ ⇒ |f(x) − f(a)| <",
    "3.14159265358979 × 2 = 6.28318530717958, and 17 × 23 =",
    # German
    "Zwei Dinge erfüllen das Gemüt mit immer neuer Bewunderung:",
    "Die Donaudampfschifffahrtsgesellschaft wurde im Jahr",
    "Sehr geehrte Damen und Herren,\n\nhiermit kündige ich",
    "Übermäßig große Straßen führen über die Brücke nach",
    # French, Spanish, Portuguese, Italian
    "Il était une fois, dans un petit village près de la mer,",
    "L’été dernier, nous avons visité le château où",
    "« Bonjour ! » dit-il en ouvrant la porte. « Comment",
    "¿Dónde está la biblioteca? Está al lado de",
    "Ontem à noite, o coração da cidade não",
    "Nel mezzo del cammin di nostra vita mi ritrovai",
    # Polish, Czech, Turkish, Vietnamese
    "W Szczebrzeszynie chrząszcz brzmi w trzcinie i",
    "Příliš žluťoučký kůň úpěl ďábelské",
    "İstanbul'da yağmurlu bir gün, ışıklar",
    "Hôm nay trời đẹp, chúng tôi đi dạo quanh",
    # Russian, Ukrainian, Greek
    "Все счастливые семьи похожи друг на друга, каждая",
    "Столица России — это город, в котором",
    "Україна має багату історію, яка",
    "Η Αθήνα είναι η πρωτεύουσα της",
    # Chinese, Japanese, Korean
    "北京是中华人民共和国的首都，也是全国的政治和文化中心，",
    "从前有座山，山里有座庙，庙里有个老和尚，他在讲故事：",
    "今天天气很好，我们一起去公园散步，然后在湖边",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと",
    "東京は日本の首都であり、世界で最も人口の多い都市の",
    "コンピューターのプログラムを書くときに大切なのは、",
    "서울은 대한민국의 수도이며, 한강을 끼고 있는",
    "옛날 옛적에 호랑이가 담배 피우던 시절에,",
    # Arabic, Hebrew, Persian
    "القاهرة هي عاصمة جمهورية مصر العربية وأكبر",
    "كان يا ما كان، في قديم الزمان،",
    "ירושלים היא עיר הבירה של מדינת",
    "تهران پایتخت ایران است و می‌توان",
    # Hindi, Bengali, Tamil, Thai
    "भारत की राजधानी नई दिल्ली है और यहाँ",
    "एक समय की बात है, एक छोटे से गाँव में",
    "বাংলাদেশের রাজধানী ঢাকা একটি",
    "தமிழ் நாட்டின் தலைநகரம் சென்னை",
    "กรุงเทพมหานครเป็นเมืองหลวงของประเทศ",
    # emoji, combining marks, characters few vocabularies have
    "I love pizza 🍕🍕🍕 and ice cream 🍦, but my favourite is",
    "Family 👨‍👩‍👧‍👦, flags 🇩🇪🇫🇷🇯🇵, a wave 👋🏽 and thumbs 👍",
    "Combining: e\u0301 a\u0300 o\u0308 n\u0303 cafe\u0301 re\u0301sume\u0301 Z\u0351\u036b\u0343algo",
    "Gothic 𐌰𐌱𐌲, hieroglyphs 𓀀𓀁, music 𝄞 and mathematical 𝒜𝓑𝔠",
    "Mixed: Hello мир 世界 مرحبا 🌍 γειά",
    "\u201cCurly\u201d \u2018quotes\u2019 \u2014 dashes \u2013 ellipsis\u2026 and a no-break\u00a0space",
]
MODULES = ["textwrap", "heapq", "json.decoder", "statistics", "calendar", "shlex", "argparse", "fractions"]
# of stretches, in characters
LENGTHS = [24, 140, 60, 220, 36, 90, 300, 48, 110, 70]


def prompts() -> list[str]:
    """The 200 prompts, all different, 20 to 300 characters each; the first 80 are those written by hand.

    Texts of the standard library differ between releases of Python, not between calls.
    """
    handbook = "".join(topics[name] for name in sorted(topics))
    code = "".join(inspect.getsource(importlib.import_module(name)) for name in MODULES)
    terms = (Path(__file__).parents[2] / "LICENSE").read_text()
    return [*WRITTEN, *_stretches(handbook, 56), *_stretches(code, 56), *_stretches(terms, 8)]


def _stretches(text: str, count: int) -> list[str]:
    """Pieces from all over a text: each begins with a line, and ends in the middle of a word, usually."""
    places: dict[str, int] = {}
    lines = text.splitlines(keepends=True)
    for line, start in zip(lines, itertools.accumulate(map(len, lines), initial=0), strict=False):
        beginning = line[: min(LENGTHS)]
        if len(beginning) == min(LENGTHS) and len(beginning.strip()) > 12:
            places.setdefault(beginning, start)  # no piece begins as another one does
    starts = list(places.values())
    chosen = starts[:: len(starts) // count][:count]
    return [text[start : start + length] for start, length in zip(chosen, itertools.cycle(LENGTHS), strict=False)]
