"""The messages of one user, turn after turn, and the request bodies that carry them."""

from __future__ import annotations

import json

from deployctl.load.api import api_of
from deployctl.load.prompts import PREFIX_TOKENS, TEMPLATE_TOKENS, PromptBank, unique_prefix
from deployctl.load.script import Draw
from deployctl.load.spec import LoadSpec

_SYSTEM_TOKENS = 150


class Texts:
    """What all users of a run share: the prompt banks and the constant part of every request."""

    def __init__(self, spec: LoadSpec) -> None:
        workload = spec.workload
        languages = ("en", "es") if workload.language == "mixed" else (workload.language,)
        self.banks = [PromptBank.read(spec.prompts, language, spec.tokens_per_word) for language in languages]
        self.spec = spec
        self.api = api_of(spec)
        self.system = self.banks[0].text(_SYSTEM_TOKENS, 0) if workload.warm else ""

    def user_text(self, draw: Draw, user: int, seq: int) -> str:
        """Return the text of one user turn; it begins with a unique prefix unless the workload is warm."""
        bank = self.banks[draw.pick % len(self.banks)]
        pick = draw.pick // len(self.banks)
        if self.spec.workload.warm:
            return bank.text(draw.prompt_tokens - TEMPLATE_TOKENS, pick)
        text = bank.text(draw.prompt_tokens - TEMPLATE_TOKENS - PREFIX_TOKENS, pick)
        return f"{unique_prefix(self.spec.nonce, user, seq)}: {text}"


class Dialogue:
    """One user's conversation: begins anew after its number of turns; earlier turns are sent again with each turn."""

    __slots__ = ("_messages", "_texts", "turn", "turns")

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._messages: list[dict[str, str]] = []
        self.turn = 0
        self.turns = 0

    def begin(self, turns: int) -> None:
        """Start a new conversation of ``turns`` turns."""
        self.turn, self.turns = 0, turns
        system = self._texts.system
        self._messages = [{"role": "system", "content": system}] if system else []

    @property
    def words(self) -> int:
        """Words between spaces in everything that the latest request carries."""
        return sum(len(message["content"].split()) for message in self._messages)

    @property
    def over(self) -> bool:
        """Whether every turn has been had."""
        return self.turn >= self.turns

    @property
    def needs_answer(self) -> bool:
        """Whether the next turn sends this turn's answer back."""
        return self.turn + 1 < self.turns

    def body(self, draw: Draw, user: int, seq: int, text: str | None = None) -> bytes:
        """Return the JSON body of the next turn's request; ``text`` replaces the drawn prompt (a replayed one)."""
        content = self._texts.user_text(draw, user, seq) if text is None else text
        self._messages.append({"role": "user", "content": content})
        body = self._texts.api.body(self._texts.spec, self._messages, draw)
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def answered(self, answer: str | None) -> None:
        """Close the turn with the model's answer; None (a failure) ends the conversation."""
        self.turn += 1
        if answer is None:
            self.turn = self.turns
        elif not self.over:
            self._messages.append({"role": "assistant", "content": answer})
