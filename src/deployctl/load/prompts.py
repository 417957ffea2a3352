"""Builds prompts of a wanted length from texts in loadtests/prompts, each with a prefix that no other prompt has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

TOKENS_PER_WORD = {"en": 1.15, "es": 1.35}
"""Tokens of the shipped texts per word. Measured with Gemma 3's vocabulary of 262,144: 1.11 (English, 698 words) and
1.30 (Spanish, 670 words); smaller vocabularies need a little more. The server's ``prompt_eval_count`` is the truth and
is recorded with every request."""

TEMPLATE_TOKENS = 8
"""What a chat template adds around one message: 6 with Gemma 3, about 10 with Llama 3."""

PREFIX_TOKENS = 9
"""What the unique prefix and its colon cost: 8 or 9 with Gemma 3."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PREFIX_LETTERS = 13  # 61 bits: among 10 million prompts a repetition has a probability of 2 in 100,000


@dataclass(frozen=True)
class PromptBank:
    """Texts of one language: ``openers`` ask for a long continuation, ``words`` are running text.

    ``starts`` are the positions in ``words`` at which a sentence begins.
    """

    language: str
    openers: tuple[str, ...]
    words: tuple[str, ...]
    starts: tuple[int, ...]
    tokens_per_word: float

    @classmethod
    def read(cls, folder: Path, language: str, tokens_per_word: float | None = None) -> PromptBank:
        """Read ``<folder>/<language>.txt``: lines after ``> `` are openers, other lines are sentences, # comments."""
        openers: list[str] = []
        sentences: list[list[str]] = []
        for line in (folder / f"{language}.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("> "):
                openers.append(line[2:].strip())
            elif line.strip() and not line.startswith("#"):
                sentences.append(line.split())
        if not openers or not sentences:
            raise ValueError(f"{folder / language}.txt needs openers and sentences")
        starts = [0, *accumulate(len(sentence) for sentence in sentences)][:-1]
        words = [word for sentence in sentences for word in sentence]
        rate = tokens_per_word or TOKENS_PER_WORD[language]
        return cls(language, tuple(openers), tuple(words), tuple(starts), rate)

    def text(self, tokens: int, pick: int) -> str:
        """Return an opener and running text of about ``tokens`` tokens together, cut in mid-sentence.

        ``pick`` is any non-negative number; the same number gives the same text. The text ends in mid-sentence so that
        a model goes on writing, base models included. Very short prompts are words of the text alone.
        """
        words = max(1, round(tokens / self.tokens_per_word))
        opener = self.openers[pick % len(self.openers)]
        room = words - opener.count(" ") - 1
        if room < 4:
            opener, room = "", words
        begin = self.starts[pick // len(self.openers) % len(self.starts)]
        total = len(self.words)
        if begin + room <= total:
            running = " ".join(self.words[begin : begin + room])
        else:
            rounds = (begin + room) // total + 1
            running = " ".join((self.words * rounds)[begin : begin + room])
        return f"{opener}\n\n{running}" if opener else running


def unique_prefix(nonce: str, user: int, seq: int) -> str:
    """Return letters that begin this prompt and no other, so that no server can reuse a cached prefix."""
    digest = hashlib.blake2b(f"{nonce}/{user}/{seq}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    letters = []
    for _ in range(_PREFIX_LETTERS):
        number, index = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[index])
    return "".join(letters)
