# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# The tokens of a C++ source, and its declarations as far as braces and the tokens before them show
# them: module and imports, functions, members of classes. Exported names and public calls are those
# that docs/site/comments.py reads for the reference.
from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "site"))
import comments

LITERAL = '""'  # what every string and character literal reads as
RAW = r'R"(?P<mark>[^(]*)\((?s:.*?)(?:\)(?P=mark)"|\Z)'
QUOTED = r'"(?:\\(?s:.)|[^"\\\n])*(?:["\n]|\Z)|{0}\'(?:\\(?s:.)|[^\'\\\n])*(?:[\'\n]|\Z)'
TOKEN = re.compile(
    r"(?P<directive>^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*)"
    r"|(?P<comment>//[^\n]*|/\*(?s:.*?)(?:\*/|\Z))"
    rf"|(?P<literal>(?:[A-Za-z_]\w*)?{RAW}|{QUOTED.format('')})"
    r"|(?P<word>[A-Za-z_]\w*|[0-9][\w'.]*|::|->|\[\[|\]\]|&&|\|\||\S)",
    re.MULTILINE | re.ASCII,
)


def is_word(text: str) -> bool:
    return text[:1].isalpha() or text[:1] == "_"


class Source:
    """Tokens without comments, and preprocessor lines, each with its line."""

    def __init__(self, text: str) -> None:
        self.words: list[str] = []
        self.lines: list[int] = []
        self.directives: list[tuple[str, int]] = []
        line, last = 1, 0
        for found in TOKEN.finditer(text):
            line += text.count("\n", last, found.start())
            last = found.start()
            if found.lastgroup == "directive":
                self.directives.append((found.group().lstrip(), line))
            elif found.lastgroup != "comment":
                self.words.append(found.group() if found.lastgroup == "word" else LITERAL)
                self.lines.append(line)

    def text(self, at: int) -> str:
        return self.words[at] if 0 <= at < len(self.words) else ""


class Cursor:
    """A position in the tokens that reads past the end as empty words."""

    def __init__(self, source: Source, at: int = 0) -> None:
        self.source = source
        self.at = at

    def text(self, ahead: int = 0) -> str:
        return self.source.text(self.at + ahead)

    def line(self) -> int:
        return self.source.lines[self.at]

    def has_more(self) -> bool:
        return self.at < len(self.source.words)

    def skip(self, opening: str, closing: str) -> None:
        """Past the bracket that closes the one here."""
        depth = 0
        while self.has_more():
            depth += (self.text() == opening) - (self.text() == closing)
            self.at += 1
            if depth == 0:
                return


class Unit(Cursor):
    """The module of a file, what it imports, and the lines at which it exports blocks."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.module = ""
        self.interface = False
        self.imports: list[tuple[str, int]] = []
        self.export_blocks: list[int] = []
        while self.has_more():
            self.step()

    def step(self) -> None:
        starts = self.text(-1) in ("", ";", "}", "{", "]]", ":")
        if starts and self.text() in ("export", "import", "module"):
            self.declaration()
        else:
            self.at += 1

    def joined_until(self, *ends: str) -> str:
        first = self.at
        while self.has_more() and self.text() not in ends:
            self.at += 1
        return "".join(self.source.words[first : self.at])

    def declaration(self) -> None:
        line, exported = self.line(), self.text() == "export"
        self.at += exported
        if self.text() == "module" and (is_word(self.text(1)) or self.text(1) == ";"):
            self.interface = self.interface or exported
            self.at += 1
            self.module = self.joined_until(";") or self.module
        elif self.text() == "import":
            self.at += 1
            self.imports.append((self.joined_until(";"), line))
        elif exported and self.text() in ("{", "namespace"):
            self.export_blocks.append(line)
        else:
            self.at += 1


def using_declarations(source: Source) -> list[str]:
    """The names in the using-declarations, qualified as written."""
    names = []
    for at, word in enumerate(source.words):
        if word == "using":
            end = next(i for i in range(at, len(source.words) + 1) if source.text(i) in ";=")
            names += "".join(source.words[at + 1 : end]).split(",")
    return names


@dataclasses.dataclass
class Statement:
    """The tokens since the last statement ended, by which a brace is classified."""

    first_line: int
    type_word: bool = False  # namespace, class, struct, union or enum
    parameters: bool = False  # a closing parenthesis outside every other
    initializers: bool = False  # a colon after the parameters: a constructor's member list
    equals: bool = False  # a value follows, unless parameters came first
    in_operator: bool = False  # after the word operator, before its parameters
    angles: int = 0  # open brackets of template parameters and arguments

    def note(self, word: str) -> None:
        # What stands between the word operator and its parameters is a name.
        self.in_operator = (self.in_operator or word == "operator") and word != ")"
        if self.in_operator:
            return
        self.equals = self.equals or (word == "=" and not self.parameters)
        self.initializers = self.initializers or (word == ":" and self.parameters)
        # A template's parameters may say class without declaring one.
        self.angles = max(self.angles + (word == "<") - (word == ">"), 0)
        if self.angles == 0 and word in ("namespace", "class", "struct", "union", "enum"):
            self.type_word = True

    def opens(self, previous: str) -> str:
        """What a brace behind these tokens is: a scope, a function or a value."""
        if self.type_word or previous == LITERAL:  # extern "C" {
            return "scope"
        is_member = self.initializers and (is_word(previous) or previous == ">")
        return "function" if self.parameters and not self.equals and not is_member else "value"


def functions_of(source: Source) -> list[tuple[int, int]] | None:
    """First and last line of each function with a body, outermost only. None: the braces do not
    balance."""
    found, previous, parentheses, inside = [], "", 0, 0
    opened: list[tuple[str, Statement]] = []
    now: Statement | None = None
    for word, line in zip(source.words, source.lines):
        if inside:
            inside += (word == "{") - (word == "}")
            if inside == 0:
                found.append((opened.pop()[1].first_line, line))
                now = None
        elif word == "{" and parentheses == 0:
            now = now or Statement(line)
            kind = now.opens(previous)
            opened.append((kind, now))
            inside = int(kind == "function")
            now = None if kind == "scope" else now
        elif word == "}" and parentheses == 0:
            if not opened or opened[-1][0] == "function":
                return None
            kind, before = opened.pop()
            now = before if kind == "value" else None
        elif word == ";" and parentheses == 0:
            now = None
        else:
            now = now or Statement(line)
            parentheses += (word == "(") - (word == ")")
            now.parameters = now.parameters or (word == ")" and parentheses == 0)
            if parentheses < 0:
                return None
            if parentheses == 0:
                now.note(word)
        previous = word
    return None if opened or parentheses else found


class Classes(Cursor):
    """The number of functions that each class of a text declares."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.counts: dict[str, int] = {}
        self.scopes: list[str] = []  # of classes; empty for namespaces and enumerations
        self.forget()
        while self.has_more():
            self.step()

    def forget(self) -> None:
        self.name = ""  # of the class that the declaration may open
        self.parameters = self.other = self.operator = False
        self.angles = 0  # open brackets of the arguments of templates

    def step(self) -> None:
        now = self.text()
        if now == "template" and self.text(1) == "<":
            self.at += 1
            self.skip("<", ">")
            return None
        is_class = now in ("class", "struct", "union") and self.text(-1) != "enum"
        if is_class and not self.name and not self.parameters:
            name = Cursor(self.source, self.at + 1)
            while name.text() in ("[[", "alignas") or name.text().startswith("VMM_"):
                ending = "]]" if name.text() == "[[" else ")"
                while name.has_more() and name.text() != ending:
                    name.at += 1
                name.at += 1
            self.name = name.text()
        if now in ("namespace", "extern", "enum", "using", "friend", "static_assert"):
            self.other = True
        self.operator = self.operator or now == "operator"
        if now == "<" and not self.operator:
            self.angles += 1
        if now == ">" and self.angles > 0:
            self.angles -= 1
        if now == "=" and not self.operator and not self.parameters:
            self.other = True
        if now == "=" and self.text(1) in ("delete", "default"):
            self.other = True
        if now == "(":
            return self.skip_parameters()
        if now == "{":
            return self.open()
        if now == "}" and self.scopes:
            self.scopes.pop()
        if now == ";":
            self.end_of_declaration()
        if now == "}" or (now == ":" and self.text(-1) in ("public", "private", "protected")):
            self.forget()
        self.at += 1

    def skip_parameters(self) -> None:
        before = self.text(-1)
        is_call = is_word(before) and not before.startswith("VMM_")
        is_call = is_call and before not in ("alignas", "decltype", "noexcept", "requires")
        self.parameters = self.parameters or (is_call and self.angles == 0) or self.operator
        self.skip("(", ")")
        if self.operator and self.text() == "(":
            self.skip("(", ")")  # operator()(...)

    def open(self) -> None:
        before = self.text(-1)
        if self.parameters:
            is_body = not is_word(before) or before in ("const", "noexcept", "override")
            self.skip("{", "}")
            if is_body or self.text() not in (",", "{"):
                self.end_of_declaration()
        elif not self.name and not self.other:
            self.skip("{", "}")  # a value
        else:
            if before != "{":
                self.scopes.append("" if self.other else self.name)
            self.forget()
            self.at += 1

    def end_of_declaration(self) -> None:
        scope = self.scopes[-1] if self.scopes else ""
        if scope and self.parameters and not self.other:
            self.counts[scope] = self.counts.get(scope, 0) + 1
        self.forget()


# ---- declarations, as the reference reads them --------------------------------------------------

INTEGERS = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64, "ptr")]
INTEGERS += ["size_t", "ptrdiff_t", "int", "unsigned", "long"]
declarations = functools.cache(comments.read_source)  # of a text and its path


def exported_names(text: str, path: str) -> list[tuple[str, int]]:
    """With their lines; without those of operators and specializations."""

    def walk(entities, scope: str):
        for each in entities:
            if each.kind == "namespace":
                yield from walk(each.members, f"{scope}{each.name}::" if each.name else scope)
            elif each.exported and not each.name.startswith("operator"):
                if not comments.is_specialization(each.declaration):
                    yield scope + each.name, each.line

    return list(walk(declarations(text, path), ""))


class PublicCalls:
    """The exported functions of an interface unit, and the public ones of its exported classes."""

    def __init__(self, text: str, path: str) -> None:
        self.text_lines = [each.lstrip(" ") for each in text.split("\n")]
        self.uncommented: list[tuple[str, int]] = []  # name and line
        self.integer_pairs: list[tuple[str, int, str]] = []  # name, line, type: two side by side
        self.walk(declarations(text, path), "")

    def walk(self, entities, owner: str) -> None:
        for each in entities:
            if each.kind == "namespace":
                self.walk(each.members, "")
            elif not (each.access == "public" if owner else each.exported):
                continue
            elif each.kind in ("class", "struct", "union"):
                self.walk(each.members, each.name)
            elif each.kind == "function":
                is_plain = owner and comments.needs_none(each, owner)
                if not is_plain and not self.has_comment(each.line):
                    self.uncommented.append((each.name, each.line))
                self.integer_pairs += [(each.name, each.line, kind) for kind in self.pairs_of(each)]

    @classmethod
    def pairs_of(cls, call):
        """The types of two integers that stand side by side among its parameters."""
        words = Source(call.declaration).words
        calls = (at for at in range(1, len(words)) if words[at - 1 : at + 1] == [call.name, "("])
        first = next(calls, len(words))  # an operator's integers are not exchanged by mistake
        before, depth, angles, begin = "", 0, 0, first + 1
        for at in range(first, len(words)):
            now = words[at]
            depth += (now in "([{") - (now in ")]}")
            angles = max(angles + (now == "<") - (now == ">"), 0)
            if depth == 0 or (depth == 1 and angles == 0 and now == ","):
                kind = cls.integer_of(words[begin:at])
                if kind and kind == before:
                    yield kind
                before, begin = kind, at + 1
            if depth == 0:
                return

    @staticmethod
    def integer_of(parameter: list[str]) -> str:
        """The integer type of a parameter that is passed by value and has a name."""
        if parameter[:1] == ["const"]:
            parameter = parameter[1:]
        if parameter[:2] == ["std", "::"]:
            parameter = parameter[2:]
        is_named = len(parameter) > 1 and is_word(parameter[1])
        ends = len(parameter) < 3 or parameter[2] == "="
        return parameter[0] if is_named and ends and parameter[0] in INTEGERS else ""

    def has_comment(self, line: int) -> bool:
        """Up to the comment before the first of the declarations without an empty line between."""
        if "//" in self.text_lines[line - 1]:
            return True
        for above in reversed(self.text_lines[: line - 1]):
            if above.startswith("//"):
                return True
            if above in ("", "public:", "private:"):
                return False
        return False
