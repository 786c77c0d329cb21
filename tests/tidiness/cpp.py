# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# The tokens of a C++ source, and its declarations as far as braces and the tokens before them show
# them: module and imports, exported names, functions, members of classes, public calls.
from __future__ import annotations

import dataclasses
import re

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

    def skip_attributes(self) -> None:
        """[[...]], and the macros of modules/base/thread_annotations.h."""
        while self.text() == "[[" or self.text().startswith("VMM_"):
            if self.text() == "[[":
                self.skip("[[", "]]")
                continue
            self.at += 1
            if self.text() == "(":
                self.skip("(", ")")

    def skip_requires(self) -> None:
        """`requires` clauses: primaries joined by && and ||."""
        while self.has_more():
            self.at += 1  # requires, && or ||
            if self.text() == "requires":
                self.at += 1
                if self.text() == "(":
                    self.skip("(", ")")
                self.skip("{", "}")
            elif self.text() == "(":
                self.skip("(", ")")
            else:
                self.skip_qualified_name()
            if self.text() not in ("&&", "||"):
                return

    def skip_qualified_name(self) -> None:
        while is_word(self.text()) or self.text() in ("::", "!"):
            joined = self.text() in ("::", "!")
            self.at += 1
            if self.text() == "<":
                self.skip("<", ">")
            if not joined and self.text() != "::":
                return

    def declared_name(self) -> str:
        """Of a function or variable: the last word before what cannot be part of a type."""
        name = ""
        while self.has_more() and self.text() not in ("(", "=", "{", ";", "["):
            self.skip_attributes()
            if self.text() == "operator":
                return ""
            if self.text() == "<":
                self.skip("<", ">")
                if self.text() in ("(", "=", "{", ";"):
                    return ""  # a specialization
                continue
            if self.text() in ("decltype", "alignas", "explicit") and self.text(1) == "(":
                self.at += 1
                self.skip("(", ")")
                continue
            if is_word(self.text()):
                name = self.text()
            self.at += 1
        return name

    def exported_name(self) -> str:
        """What the declaration here, which follows the word export, introduces."""
        self.skip_attributes()
        while self.text() == "template":
            self.at += 1
            if self.text() == "<" and self.text(1) == ">":
                return ""  # an explicit specialization
            self.skip("<", ">")
            if self.text() == "requires":
                self.skip_requires()
            self.skip_attributes()
        if self.text() == "using":
            self.at += 1  # an alias's name stands before the =, a name's own before the ;
        if self.text() == "concept":
            return self.text(1)
        if self.text() not in ("struct", "class", "union", "enum"):
            return self.declared_name()
        self.at += 1
        if self.text() in ("struct", "class"):
            self.at += 1
        self.skip_attributes()
        return "" if self.text(1) == "<" else self.text()  # X<...> is a partial specialization


class Unit(Cursor):
    """What a file declares to the outside. Names of operators and specializations are left out."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.module = ""
        self.interface = False
        self.imports: list[tuple[str, int]] = []
        self.names: list[tuple[str, int]] = []
        self.export_blocks: list[int] = []
        self.scopes: list[str] = []
        while self.has_more():
            self.step()

    def step(self) -> None:
        starts = self.text(-1) in ("", ";", "}", "{", "]]", ":")
        if starts and self.text() == "namespace":
            first = self.at
            self.joined_until("{", ";", "=")
            if self.text() == "{":
                words = self.source.words[first : self.at]
                self.scopes.append("".join(w for w in words if w not in ("namespace", "inline")))
                self.at += 1
            return
        if self.text() == "{":
            self.scopes.append("")
        if self.text() == "}" and self.scopes:
            self.scopes.pop()
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
        elif exported:
            if name := Cursor(self.source, self.at).exported_name():
                self.names.append(("::".join([*filter(None, self.scopes), name]), line))
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


INTEGERS = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64, "ptr")]
INTEGERS += ["size_t", "ptrdiff_t", "int", "unsigned", "long"]


@dataclasses.dataclass
class Scope:
    is_class: bool = False
    is_open: bool = False  # users can call what is declared here
    name: str = ""


class PublicCalls(Cursor):
    """The exported functions of an interface unit, and the public ones of its exported classes."""

    def __init__(self, source: Source, text: str) -> None:
        super().__init__(source)
        self.text_lines = [each.lstrip(" ") for each in text.split("\n")]
        self.uncommented: list[tuple[str, int]] = []  # name and line
        self.integer_pairs: list[tuple[str, int, str]] = []  # name, line, type: two side by side
        self.scopes = [Scope()]
        self.class_exported = False
        self.forget()
        while self.has_more():
            self.step()

    def forget(self) -> None:
        self.exported = self.namespace = self.opens_class = self.is_struct = False
        self.parameters = self.equals = self.needs_none = False
        self.first_line = 0  # of the statement; 0 between two
        self.name = self.class_name = ""
        self.declared_at = 0

    def is_usable(self) -> bool:
        return self.scopes[-1].is_open if self.scopes[-1].is_class else self.exported

    def step(self) -> None:
        now = self.text()
        self.first_line = self.first_line or self.line()
        if now == "template" and self.text(1) == "<":
            self.at += 1
            return self.skip("<", ">")
        self.exported = self.exported or now == "export"
        self.namespace = self.namespace or now == "namespace"
        if now in ("friend", "operator", "~", "static_assert"):
            self.needs_none = True
        if now in ("class", "struct", "union") and not self.parameters:
            self.opens_class, self.is_struct = True, now != "class"
            self.class_name = self.name_of_class()
        if now in ("public", "private", "protected") and self.text(1) == ":":
            self.scopes[-1].is_open = now == "public" and self.class_exported
            self.at += 2
            self.first_line = 0
            return None
        if now == "(":
            return self.skip_parameters()
        self.equals = self.equals or now == "="
        if now == "=" and self.text(1) in ("delete", "default"):
            self.needs_none = True
        if now == "{":
            return self.open()
        if now == "}":
            self.scopes = self.scopes[:-1] or self.scopes
            self.forget()
        if now == ";":
            self.end_of_statement()
        self.at += 1
        return None

    def name_of_class(self) -> str:
        name = Cursor(self.source, self.at + 1)
        while name.text() == "[[" or name.text().startswith("VMM_"):
            ending = "]]" if name.text() == "[[" else ")"
            while name.has_more() and name.text() != ending:
                name.at += 1
            name.at += 1
        return name.text()

    def skip_parameters(self) -> None:
        """The first parentheses after a name are a function's parameters."""
        before, first = self.text(-1), self.at
        is_call = is_word(before) and not before.startswith("VMM_")
        is_call = is_call and before not in ("requires", "alignas", "explicit", "decltype")
        if is_call and not self.parameters and not self.equals:
            self.parameters = True
            self.name, self.declared_at = before, self.first_line
            # A copy or a move: the first parameter is of the class itself.
            kind = 2 if self.text(1) == "const" else 1
            of_itself = before == self.scopes[-1].name and self.text(kind) == before
            if of_itself and self.text(kind + 1) in ("&", "&&"):
                self.needs_none = True
        self.skip("(", ")")
        if self.is_usable():
            self.find_integers(before, self.source.lines[first], first + 1)

    def find_integers(self, name: str, line: int, begin: int) -> None:
        before, depth, angles = "", 1, 0
        for at in range(begin, self.at):
            now = self.source.text(at)
            depth += (now == "(") - (now == ")")
            angles = max(angles + (now == "<") - (now == ">"), 0)
            if depth == 0 or (depth == 1 and angles == 0 and now == ","):
                kind = self.integer_of(self.source.words[begin:at])
                if kind and kind == before:
                    self.integer_pairs.append((name, line, kind))
                before, begin = kind, at + 1

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

    def open(self) -> None:
        if self.namespace:
            self.scopes.append(Scope())
        elif self.opens_class and not self.parameters:
            usable = self.is_usable()
            if not self.scopes[-1].is_class:
                self.class_exported = self.exported
            self.scopes.append(Scope(True, usable and self.is_struct, self.class_name))
        else:
            is_value = not self.parameters or self.is_initializer()
            self.skip("{", "}")
            if not is_value:
                self.end_of_statement()
            return
        self.at += 1
        self.forget()

    def is_initializer(self) -> bool:
        """x(a), y{b} {}: the member that is given a value in braces."""
        depth = 0
        if not is_word(self.text(-1)) and self.text(-1) != ">":
            return False
        for at in range(self.at - 1, -1, -1):
            now = self.source.words[at]
            depth += (now in (")", "}")) - (now in ("(", "{"))
            if depth < 0 or (depth == 0 and now == ";"):
                return False
            is_label = self.source.text(at - 1) in ("public", "private")
            if depth == 0 and now == ":" and not is_label:
                return True
            if self.source.lines[at] < self.first_line:
                return False
        return False

    def end_of_statement(self) -> None:
        has_call = self.is_usable() and self.parameters and not self.needs_none
        if has_call and not self.has_comment():
            self.uncommented.append((self.name, self.declared_at))
        self.forget()

    def has_comment(self) -> bool:
        """Up to the comment before the first of the declarations without an empty line between."""
        if "//" in self.text_lines[self.declared_at - 1]:
            return True
        for above in reversed(self.text_lines[: self.declared_at - 1]):
            if above.startswith("//"):
                return True
            if above in ("", "public:", "private:"):
                return False
        return False
