"""``ferrum-local chat``: a conversation in the terminal, or one question and its answer.

``answers`` is who answers (an engine in this process, or a server), ``conversation`` what was
said, ``display`` how an answer looks, ``session`` the loop, ``command`` the flags.
"""
