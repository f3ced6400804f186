"""The conversation in a terminal: reading, asking, showing, and the commands with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ferrum_local.cli.chat.answers import Answers
from ferrum_local.cli.chat.conversation import Conversation
from ferrum_local.cli.chat.display import display_for, tell
from ferrum_local.errors import ContextOverflow, FerrumError

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'
HELP = f"""\
/system [TEXT]   what the model is told first; without TEXT: show it
/model [NAME]    switch to another model; without NAME: list them
/save FILE       write the conversation: Markdown, or messages if FILE ends in .json
/reset           forget the conversation
/help            this list
/exit            leave, as Ctrl-D does

Several lines: begin and end with {QUOTES}, or end a line with a backslash.
Ctrl-C stops an answer; twice at an empty prompt, it leaves."""


class Leave(Exception):
    """The person has finished."""


class ChatSession:
    """:param markdown: render answers, where stdout is a terminal."""

    def __init__(self, answers: Answers, conversation: Conversation, *, markdown: bool) -> None:
        self._answers = answers
        self._conversation = conversation
        self._markdown = markdown
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._system,
            "/model": self._model,
            "/save": self._save,
            "/reset": self._reset,
            "/help": lambda _text: tell(HELP),
            "/exit": self._exit,
            "/quit": self._exit,
            "/bye": self._exit,
        }

    def run(self) -> None:
        """Until the person leaves.

        :raises KeyboardInterrupt: they left by Ctrl-C.
        """
        tell(f"{self._answers.model} answers. /help lists the commands, Ctrl-D leaves.")
        interrupted = False
        while True:
            try:
                text = read_message(_read_line)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                tell("\nCtrl-C once more leaves; so does Ctrl-D.")
                continue
            except EOFError:
                tell("")
                return
            interrupted = False
            try:
                self._take(text)
            except Leave:
                return
            except FerrumError as error:
                tell(f"Error: {error.message}")
            except KeyboardInterrupt:  # while a model was loaded, or a command ran
                tell("\n(stopped)")

    def _take(self, text: str) -> None:
        if not text.strip():
            return
        name, _, rest = text.strip().partition(" ")
        if name in self._commands:
            self._commands[name](rest.strip())
        elif name.startswith("/") and name[1:].isalpha():
            tell(f"There is no command {name}; /help lists them.")
        else:
            self._converse(text)

    def _converse(self, text: str) -> None:
        try:
            self.ask(text)
        except KeyboardInterrupt:
            tell("(stopped)")
        except ContextOverflow:
            raise FerrumError(
                "The conversation is longer than the model's context. /reset begins anew; "
                "--ctx-size makes room."
            ) from None

    def ask(self, text: str) -> None:
        """One question, and its answer on stdout. What came before an error or Ctrl-C is kept.

        :raises KeyboardInterrupt: the answer was stopped.
        """
        self._conversation.ask(text)
        said: list[str] = []
        finish_reason = None
        try:
            display = display_for(sys.stdout, markdown=self._markdown)
            with display, closing(self._answers.answer(self._conversation.messages())) as pieces:
                for piece in pieces:
                    said.append(piece.text)
                    display.add(piece)
                    finish_reason = piece.finish_reason or finish_reason
        finally:
            self._conversation.answer("".join(said))
        if finish_reason == "length":
            tell("(cut: the context or --max-tokens is used up)")

    # -- commands ----------------------------------------------------------------------------

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = text
        tell(f"System: {self._conversation.system or '(nothing)'}")

    def _model(self, name: str) -> None:
        if name:
            self._answers.use(name)
        for known in self._answers.models() if not name else (self._answers.model,):
            tell(f"{'*' if known == self._answers.model else ' '} {known}")

    def _save(self, name: str) -> None:
        if not name:
            raise FerrumError("Say where to: /save FILE")
        if not len(self._conversation):
            raise FerrumError("There is nothing to save yet.")
        self._conversation.save(Path(name))
        tell(f"Saved to {name}.")

    def _reset(self, _text: str) -> None:
        self._conversation.reset()
        tell("The conversation begins anew.")

    def _exit(self, _text: str) -> None:
        raise Leave


def read_message(read_line: Callable[[str], str]) -> str:
    """One message: a line, several that end with a backslash each, or all within quotes.

    :param read_line: asks for one line with the prompt that it is given.
    :raises EOFError: there is no further line, and nothing was begun.
    """
    line = read_line(PROMPT)
    lines = []
    if line.lstrip().startswith(QUOTES):
        line = line.lstrip().removeprefix(QUOTES)
        while not line.rstrip().endswith(QUOTES):
            lines.append(line)
            try:
                line = read_line(MORE)
            except EOFError:
                return "\n".join(lines).strip("\n")
        lines.append(line.rstrip().removesuffix(QUOTES))
        return "\n".join(lines).strip("\n")
    while line.endswith("\\"):
        lines.append(line.removesuffix("\\"))
        try:
            line = read_line(MORE)
        except EOFError:
            return "\n".join(lines)
    return "\n".join([*lines, line])


def _read_line(prompt: str) -> str:
    try:
        import readline  # noqa: F401 - gives ``input`` line editing and its history
    except ImportError:  # Windows: the console has its own
        pass
    return input(prompt)
