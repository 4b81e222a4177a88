"""Draw names, words, numbers and phrasings from a seed.

Promises: equal seeds give equal draws; made-up words and listed names belong to one split: a text
is in the held-out split if its CRC-32 is divisible by ten. Does not know: what the draws are used
for.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar
from zlib import crc32

from builtin_model.families import facts_tables, kinds, names
from builtin_model.families.example import Check, Example, Message, Tool

Item = TypeVar("Item")
Split = Literal["train", "heldout"]

ONSETS = (
    "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl fr gl gr kl kr pl pr sh sk sl st th tr "
    "qu sp tw vl zh"
).split()
VOWELS = "a e i o u a e i o u ai ea ee ia io oo ou y au".split()
CODAS = "n r l s t m k x d p g nd rk st lm ng sh ck ss th".split()
ACCENTED = "áàâäãåçéèêëíîïñóôöõøúûüýßœæčšžřłńśźąęğışőű"
SCRIPTS = (
    "абвгдежзиклмнопрстуфхцчшыэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "一二三人大中国日本月山水火木金土上下左右天地小女子学生先東京北南西",
    "あいうえおかきくけこさしすせそたちつてとなにぬねのまみむめも",
    "가나다라마바사아자차카타파하고노도로모보소오조",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "कखगघचछजझटठडढतथदधनपफबभमयरलवशसह",
    "😀🎉🚀🌍🐱🍕⭐🔥💡✅",
)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OPENERS = (
    "Please ",
    "Hi, ",
    "Hello. ",
    "Hey, ",
    "Quick one: ",
    "OK, ",
    "Now ",
    "Could you help? ",
    "I have a request. ",
    "Task: ",
    "Q: ",
)
CLOSERS = (
    " Thanks.",
    " Thank you!",
    " Please.",
    " Be brief.",
    " Only the answer.",
    " No explanation.",
    " Just the answer, please.",
    "\n",
    "  ",
)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer briefly.",
    "You are the assistant of a small company.",
    "Answer exactly and without extra words.",
    "You are a precise assistant.",
    "Follow the user's instructions.",
    "You help people with short tasks.",
    "Be accurate.",
    "You are an assistant inside an application. Output only what is asked for.",
)


_KEYWORDS = "true false null yes no non unknown and or of the a is in on out off".split()
WORDS = tuple(
    {
        word: None
        for text in (*names.ALL_WORDS, *kinds.ALL_WORDS, *facts_tables.ALL_WORDS)
        for word in text.split()
        if word.isalpha() and word.lower() not in _KEYWORDS
    }
)
"""All words of the tables, for copying."""


def is_heldout(text: str) -> bool:
    """Whether a made-up word or a listed name belongs to the held-out split."""
    return crc32(text.casefold().encode()) % 10 == 0


class Draw:
    """The random draws of an example. split: decides which words and names may occur."""

    def __init__(self, seed: str, split: Split) -> None:
        self.random = random.Random(f"{split}/{seed}")
        self.split: Split = split

    def pick(self, choices: Sequence[Item]) -> Item:
        """Return one of the choices."""
        return choices[int(self.random.random() * len(choices))]

    def sample(self, choices: Sequence[Item], count: int) -> list[Item]:
        """Return distinct choices in random order."""
        return self.random.sample(choices, min(count, len(choices)))

    def shuffled(self, choices: Sequence[Item]) -> list[Item]:
        """Return the choices in random order."""
        return self.random.sample(choices, len(choices))

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random.random() < probability

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int(self.random.random() * (high - low + 1))

    def _of_split(self, make: Callable[[], str]) -> str:
        wanted = self.split == "heldout"
        for _ in range(200):
            text = make()
            if is_heldout(text) == wanted:
                return text
        return make()

    def _syllables(self) -> str:
        draw = self.random.random
        text = ""
        for _ in range(1 + (draw() < 0.75) + (draw() < 0.25)):
            text += self.pick(ONSETS) if draw() < 0.9 else ""
            text += self.pick(VOWELS)
            text += self.pick(CODAS) if draw() < 0.45 else ""
        return text if len(text) > 2 else text + self.pick(CODAS) + self.pick(VOWELS)

    def _wild(self) -> str:
        style = self.whole(0, 9)
        length = self.whole(2, 8)
        if style == 0:
            letters: str = self.pick(SCRIPTS)
            return "".join(self.pick(letters) for _ in range(self.whole(1, 5)))
        if style <= 2:
            letters = LETTERS.lower() + ACCENTED
            return "".join(self.pick(letters) for _ in range(length))
        if style == 3:
            return "".join(self.pick(LETTERS) for _ in range(length))
        if style == 4:
            letters = LETTERS + LETTERS.lower()
            return "".join(self.pick(letters) for _ in range(length))
        if style == 5:
            return "".join(self.pick(LETTERS.lower()) for _ in range(length))
        return self.pick(WORDS)

    def word(self) -> str:
        """Return a made-up word in lower case; sometimes any word or string of letters."""
        return self._of_split(self._wild if self.chance(0.12) else self._syllables)

    def title(self) -> str:
        """Return a made-up word with a capital letter."""
        return self._of_split(lambda: self._syllables().capitalize())

    def plain_word(self) -> str:
        """Return a made-up word of the letters a to z."""
        return self._of_split(self._syllables)

    def first_name(self) -> str:
        """Return a first name, listed or made up."""
        if self.chance(0.35):
            return self.title()
        return self._of_split(lambda: self.pick(names.FIRST_NAMES))

    def full_name(self) -> str:
        """Return a first name and a surname."""
        if self.chance(0.4):
            return f"{self.first_name()} {self.title()}"
        return f"{self.first_name()} {self._of_split(lambda: self.pick(names.SURNAMES))}"

    def two_names(self) -> tuple[str, str]:
        """Return two different first names."""
        first = self.first_name()
        second = self.first_name()
        while second == first:
            second = self.first_name()
        return first, second

    def place(self) -> str:
        """Return a town, listed or made up."""
        if self.chance(0.4):
            return self.title()
        return self._of_split(lambda: self.pick(names.PLACES))

    def noun(self) -> str:
        """Return a common noun in lower case."""
        return self.pick(names.NOUNS)

    def code(self) -> str:
        """Return an identifier of letters and digits."""
        letters = "".join(self.pick(LETTERS) for _ in range(self.whole(1, 3)))
        digits = "".join(str(self.whole(0, 9)) for _ in range(self.whole(2, 5)))
        style = self.whole(0, 4)
        if style == 0:
            return f"{letters}{digits}"
        if style == 1:
            return f"{letters.lower()}_{digits}"
        if style == 2:
            return f"{digits}-{letters}"
        return f"{letters}-{digits}"

    def date(self) -> str:
        """Return a date as year-month-day."""
        year, month, day = self.whole(1990, 2039), self.whole(1, 12), self.whole(1, 28)
        return f"{year}-{month:02d}-{day:02d}"

    def clock(self) -> str:
        """Return a time of day at a quarter of an hour."""
        return f"{self.whole(0, 23):02d}:{self.pick(('00', '15', '30', '45'))}"

    def email(self) -> str:
        """Return an e-mail address of made-up parts."""
        domain = self.pick(("com", "org", "net", "example", "io"))
        user = f"{self.plain_word()}{self.pick(('', '.', '_'))}{self.plain_word()}"
        return f"{user}@{self.plain_word()}.{domain}"

    def phrase(self, low: int = 2, high: int = 6) -> str:
        """Return a few words, some of them made up."""
        count = self.whole(low, high)
        return " ".join(self.word() if self.chance(0.3) else self.noun() for _ in range(count))

    def number(self) -> int:
        """Return a whole number of varying length."""
        return self.whole(0, self.pick((9, 20, 99, 99, 999, 9999)))

    def decimal(self) -> float:
        """Return a number with one or two decimal places."""
        places = self.whole(1, 2)
        value = round(self.whole(1, 9999) / 10**places, places)
        return value if value != int(value) else round(value + 0.5, 1)

    def polite(self, request: str) -> str:
        """Return a request as people type it: with an opener or a closer, or in lower case."""
        roll = self.random.random()
        if roll < 0.62:
            return request
        if roll < 0.74:
            opener = self.pick(OPENERS)
            if opener[-2] == "," or opener == "Please ":
                request = request[0].lower() + request[1:] if request[1:2].islower() else request
            return opener + request
        if roll < 0.88:
            return request + self.pick(CLOSERS)
        if roll < 0.94:
            return request[0].lower() + request[1:]
        return request.rstrip(".")

    def example(
        self,
        family: str,
        user: str,
        answer: str,
        check: Check,
        *,
        reasoning: str,
        thinking: float = 0.35,
        system: str | None = None,
        history: Sequence[Message] = (),
        tools: Sequence[Tool] = (),
    ) -> Example:
        """Return an exchange, with `reasoning` before the answer at the given probability."""
        enable = self.chance(thinking)
        if system is None and self.chance(0.3):
            system = self.pick(SYSTEMS)
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages.extend(history)
        messages.append({"role": "user", "content": user})
        messages.append(self.reply(answer, reasoning if enable else None))
        return Example(family, tuple(messages), check, tuple(tools), enable)

    def reply(
        self, answer: str | None, reasoning: str | None, calls: Sequence[dict[str, Any]] = ()
    ) -> Message:
        """Return the assistant's message, with reasoning and tool calls if there are any."""
        message: Message = {"role": "assistant", "content": answer}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        return message
