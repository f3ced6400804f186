"""What was said in a chat, and how it is written to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ferrum_local.errors import FerrumError

_NAMES = {"system": "System", "user": "You", "assistant": "Model"}


class Conversation:
    """The turns so far, as OpenAI's messages, and the system message before them."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[dict[str, str]] = []

    def messages(self) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self._turns]

    def __len__(self) -> int:
        """Turns of both sides."""
        return len(self._turns)

    def ask(self, text: str) -> None:
        self._turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Note an answer; an empty one takes its question away, so that it can be asked again."""
        if text.strip():
            self._turns.append({"role": "assistant", "content": text})
        elif self._turns and self._turns[-1]["role"] == "user":
            self._turns.pop()

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self._turns.clear()

    def save(self, path: Path) -> None:
        """Write a new file: OpenAI's messages if its name ends in ``.json``, else Markdown.

        :raises FerrumError: there is such a file already, or it cannot be written.
        """
        text = self._json() if path.suffix.lower() == ".json" else self._markdown()
        try:
            with path.expanduser().open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise FerrumError(f"{path} is there already; choose another name.") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise FerrumError(f"{path} cannot be written: {os.fspath(reason)}.") from None

    def _json(self) -> str:
        return json.dumps(self.messages(), ensure_ascii=False, indent=2) + "\n"

    def _markdown(self) -> str:
        parts = [f"## {_NAMES[m['role']]}\n\n{m['content'].strip()}\n" for m in self.messages()]
        return "\n".join(parts)
