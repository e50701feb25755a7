"""Texts that are hard to write."""

UNUSUAL = 'GLHF! \U0001f3d6\ufe0f naïve \x1b[31m\x7f\x85\x9f\u2028\ufeff\ufffe "\\ud83c" & <a>'
"""Has a character beyond U+FFFF, control characters, line separators, a noncharacter, and what looks like an escape."""
