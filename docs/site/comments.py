# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the public names of vmm and their comments out of its interfaces: the module units, the C
and C++ headers, and the Python package. The reference pages are written from what it finds, and a
test fails for each name that it finds without a comment.

An entity is a dict-like record of one name. Nothing here compiles anything: the reader knows the
shape of declarations, comments and brackets, which tests/docs/reference_test.py holds it to.
"""

import ast
import dataclasses
import pathlib
import re


@dataclasses.dataclass
class Entity:
    """One public name: what declares it, what its comment says, and what is inside."""

    name: str
    kind: str  # namespace, class, struct, union, enum, function, alias, concept, value, macro
    declaration: str
    comment: str
    path: str
    line: int
    exported: bool = False
    access: str = ""  # of a member: public, protected or private
    has_own_comment: bool = False
    members: list = dataclasses.field(default_factory=list)
    body: str = ""  # of an enum or a plain struct, as it is written


# ---- C and C++ ---------------------------------------------------------------------------------

_BRACKETS = {"(": ")", "{": "}", "[": "]"}
_SPACE = re.compile(r"[ \t\r\f\v]+")


class _Reader:
    """Walks one scope of a source: declarations with the comments before and behind them."""

    def __init__(self, text, path):
        self.text, self.path, self.at = text, path, 0

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def literal(self, at):
        """Behind the string or character literal that begins at `at`."""
        quote = self.text[at]
        if quote == "'" and at and self.text[at - 1].isalnum():
            return at + 1  # 1'000
        if quote == '"' and self.text[at - 1 : at] == "R":
            close = ")" + self.text[at + 1 : self.text.index("(", at)] + '"'
            return self.text.index(close, at) + len(close)
        at += 1
        while self.text[at] != quote:
            at += 2 if self.text[at] == "\\" else 1
        return at + 1

    def skip(self, at):
        """Behind a comment or literal that begins at `at`; `at` itself where none does."""
        if self.text.startswith("//", at):
            return self.end_of_line(at)
        if self.text.startswith("/*", at):
            return self.text.index("*/", at) + 2
        if self.text[at] in "\"'":
            return self.literal(at)
        return at

    def end_of_line(self, at):
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end

    def balanced(self, at):
        """Behind the bracket that closes the one at `at`."""
        depth = 0
        while at < len(self.text):
            next_at = self.skip(at)
            if next_at != at:
                at = next_at
                continue
            if self.text[at] in "({[":
                depth += 1
            elif self.text[at] in ")}]":
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        raise ValueError(f"{self.path}: brackets do not pair")

    def angles(self, at):
        """Behind the parameters of a template, which begin at `at`."""
        depth = 0
        while True:
            if self.text[at] in "({[":
                at = self.balanced(at)
                continue
            depth += {"<": 1, ">": -1}.get(self.text[at], 0)
            at += 1
            if depth == 0:
                return at

    def directive(self):
        """Passes a preprocessor line; a macro that is a constant is an item."""
        begin = self.at
        while True:
            end = self.end_of_line(self.at)
            self.at = end + 1
            if not self.text[:end].endswith("\\"):
                break
        return self.text[begin:end]

    def comment(self):
        """The comment at the cursor, and whether it stands behind something on its line."""
        begin = self.at
        end = self.skip(begin)
        self.at = end
        return self.text[begin:end]

    def declaration(self):
        """(head, body, end) of the declaration at the cursor. The body is the text in the braces
        of a namespace, class, struct, union or enum, and None for all others."""
        begin, at, has_parameters, in_list, has_value = self.at, self.at, False, False, False
        head_end = None
        body = None
        while at < len(self.text):
            passed = self.skip(at)
            if passed != at:
                at = passed
                continue
            now = self.text[at]
            if now == ";":
                self.at = at + 1
                return self.text[begin : head_end or at], body
            if (
                now == "="
                and not has_parameters
                and not re.search(r"\boperator\s*[=!<>+*/&|^%-]*$", self.text[begin:at])
            ):
                has_value = True
            if (
                now == ":"
                and has_parameters
                and self.text[at - 1] != ":"
                and self.text[at + 1] != ":"
                and self.text[at - 1] != "?"
                and head_end is None
            ):
                in_list, head_end = True, at
            if now == "<" and re.search(r"\btemplate\s*$", self.text[begin:at]):
                at = self.angles(at)
                continue
            if now == "(":
                is_macro = re.search(r"\bVMM_\w+$", self.text[begin:at])
                has_parameters = has_parameters or not (has_value or is_macro)
                at = self.balanced(at)
                continue
            if now == "[":
                at = self.balanced(at)
                continue
            if now == "{":
                before = self.text[begin:at].rstrip()
                opens = re.search(
                    r"\b(namespace|class|struct|union|enum|extern)\b", _without_templates(before)
                )
                closed = self.balanced(at)
                if in_list and re.search(r"[\w>]$", before):
                    at = closed
                    continue
                if opens and not has_parameters and not has_value:
                    body = (at + 1, closed - 1)
                    head_end = at
                    if opens.group(1) in ("namespace", "extern"):
                        self.at = closed
                        return self.text[begin:head_end], body
                    at = closed
                    continue
                if (
                    has_value
                    or re.search(r"requires\s*(\([^()]*\))?$", before)
                    or not has_parameters
                ):
                    at = closed
                    continue
                self.at = closed
                return self.text[begin : head_end or at], None
            at += 1
        raise ValueError(
            f"{self.path}: a declaration does not end: {self.text[begin : begin + 80]}"
        )


def _without_templates(text):
    """Without comments and the parameters of templates, where the word class opens nothing."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def plain_comment(text):
    """What a comment says, without its marks."""
    lines = []
    for line in text.split("\n"):
        line = line.strip()
        line = re.sub(r"^(///?<?|/\*\*?<?|\*(?!/))[ ]?", "", line)
        lines.append(re.sub(r"\s*\*/$", "", line).rstrip())
    return "\n".join(lines).strip()


def _tidy(declaration):
    declaration = re.sub(r"//[^\n]*|/\*.*?\*/", "", declaration, flags=re.DOTALL)
    lines = [line.rstrip() for line in declaration.strip().split("\n")]
    return "\n".join(line for line in lines if line)


_TYPE = re.compile(
    r"\b(enum\s+class|enum\s+struct|enum|class|struct|union)\s+"
    r"(?:\[\[.*?\]\]\s*|VMM_\w+(?:\([^()]*\))?\s+)*([A-Za-z_]\w*)?"
)


def _name_and_kind(head, has_body):
    """What a declaration declares, by its shape."""
    bare = re.sub(r"\[\[.*?\]\]", "", head, flags=re.DOTALL)
    bare = re.sub(r"^\s*extern\s+\"C\"\s*", "", bare)
    if found := re.match(r"(?:export\s+)?(?:inline\s+)?namespace\s*([\w:]*)", bare.strip()):
        return found.group(1), "namespace"
    flat = _without_templates(bare)
    flat = re.sub(r"\btemplate\b", " ", flat)
    flat = re.sub(r"\b(export|inline|VMM_API|VMM_CHECKED|friend|typedef)\b", " ", flat)
    flat = " ".join(flat.split())
    if found := re.match(r"concept (\w+)", flat):
        return found.group(1), "concept"
    if " concept " in f" {flat}":
        return re.search(r"concept (\w+)", flat).group(1), "concept"
    if found := re.search(r"(?:^| )using (\w+) ?=", flat):
        return found.group(1), "alias"
    if flat.startswith("using "):
        return flat.split("::")[-1], "using"
    if found := re.match(r"[^(]*\( ?\* ?(\w+) ?\) ?\(", flat):
        return found.group(1), "alias"  # a pointer to a function
    if has_body and (found := _TYPE.search(flat + " ")):
        return found.group(2) or "", found.group(1).split()[0]
    if found := re.match(r"(class|struct|union|enum)( class)? (\w+)(?: ?: ?[\w:]+)?$", flat):
        return found.group(3), found.group(1)  # declared only
    if found := re.search(r"(operator ?(?:\(\)|[^\s\w(]+|\w[\w: ]*[*&]?)) ?\(", flat):
        return found.group(1).replace(" ", "") if "bool" not in found.group(1) else found.group(
            1
        ), "function"
    flat = re.sub(r"\brequires ?\((?:[^()]|\([^()]*\))*\)", "", flat)
    before_value = re.split(r"(?<![=!<>])=(?!=)", flat)[0]
    if found := re.search(r"(~?\w+) ?\(", before_value):
        return found.group(1), "function"
    if found := re.search(r"(\w+) ?(?:\[[^\]]*\] ?)*(?:\{.*)?$", before_value.strip()):
        return found.group(1), "value"
    return "", "value"


def is_specialization(head):
    bare = re.sub(r"\[\[.*?\]\]", "", head, flags=re.DOTALL)
    return bool(
        re.match(r"\s*(export\s+)?template\s*<\s*>", bare)
        or re.search(r"\b(class|struct)\s+\w+\s*<", _after_template(bare))
    )


def _after_template(text):
    text = text.strip()
    text = re.sub(r"^export\s+", "", text)
    while text.startswith("template"):
        at, depth = text.index("<"), 0
        while True:
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
        text = text[at:].strip()
    return text


class _Scope:
    """Collects the entities of one scope in the order of the source."""

    def __init__(self, reader, end, access):
        self.reader, self.end, self.access = reader, end, access
        self.found = []
        self.comment, self.comment_end = "", -1
        self.previous_end = -1

    def read(self):
        reader = self.reader
        text = reader.text
        while True:
            while reader.at < self.end and text[reader.at].isspace():
                reader.at += 1
            if reader.at >= self.end:
                return self.found
            if (
                text[reader.at] == "#"
                and not text[text.rfind("\n", 0, reader.at) + 1 : reader.at].strip()
            ):
                self.directive()
            elif text.startswith(("//", "/*"), reader.at):
                self.take_comment()
            elif found := re.compile(r"(public|private|protected)\s*:").match(text, reader.at):
                self.access = found.group(1)
                reader.at = found.end()
                self.comment = ""
            elif text[reader.at] in ";}":
                reader.at += 1
            else:
                self.item()

    def directive(self):
        begin = self.reader.at
        line = self.reader.directive()
        if found := re.match(r"#\s*define\s+(\w+)(?!\()\s+(.+)", line, flags=re.DOTALL):
            behind = re.search(r"/\*.*?\*/|//.*$", found.group(2))
            own = plain_comment(behind.group(0)) if behind else ""
            self.add(found.group(1), "macro", line, begin, own, None)
        else:
            self.comment = ""

    def take_comment(self):
        reader = self.reader
        begin = reader.at
        line_begin = reader.text.rfind("\n", 0, begin) + 1
        text = reader.comment()
        if (
            self.found
            and line_begin <= self.previous_end <= begin
            and "\n" not in reader.text[self.previous_end : begin]
        ):
            last = self.found[-1]  # behind a declaration, on its line
            said = plain_comment(text)
            last.comment = f"{last.comment} {said}".strip() if last.has_own_comment else said
            last.has_own_comment = True
            self.trailing_end = reader.at
            return
        joined = self.comment and "\n\n" not in re.sub(
            r"[ \t]", "", reader.text[self.comment_end : begin]
        )
        self.comment = (self.comment + "\n" + text) if joined else text
        self.comment_end = reader.at

    def item(self):
        reader = self.reader
        begin = reader.at
        head, body = reader.declaration()
        if re.match(r"\s*(export\s+)?(module|import)\b", head) or head.strip().startswith(
            "static_assert"
        ):
            self.comment = ""
            return
        self.add(None, None, head, begin, "", body)

    def add(self, name, kind, head, begin, own, body):
        reader = self.reader
        end = reader.at
        if name is None:
            name, kind = _name_and_kind(head, body is not None)
        comment = plain_comment(self.comment) if self.comment else ""
        if comment and (
            comment.startswith("----")
            or re.search(r"\n[ \t]*\n", reader.text[self.comment_end : begin])
        ):
            comment = ""  # of a section, or an empty line stands between
        entity = Entity(
            name,
            kind,
            _tidy(head),
            comment or own,
            reader.path,
            reader.line(begin),
            exported=bool(re.match(r"\s*(template\s*<.*?>\s*)?export\b", head)),
            access=self.access,
            has_own_comment=bool(comment or own),
        )
        if (
            not entity.comment
            and self.found
            and kind == self.found[-1].kind
            and not re.search(r"\n[ \t]*\n", reader.text[self.previous_end : begin])
        ):
            entity.comment = self.found[-1].comment  # of both, without an empty line between
        self.comment = ""
        if kind == "namespace" or (body is not None and head.lstrip().startswith("extern")):
            inner = _Reader(reader.text, reader.path)
            inner.at = body[0]
            entity.members = _Scope(inner, body[1], "").read()
            entity.kind = "namespace"
        elif body is not None:
            entity.body = reader.text[begin:end]
            inner = _Reader(reader.text, reader.path)
            inner.at = body[0]
            if kind == "enum":
                entity.members = _enumerators(reader, body)
            else:
                access = (
                    "private" if re.search(r"\bclass\b", _without_templates(head)) else "public"
                )
                entity.members = _Scope(inner, body[1], access).read()
            if found := re.match(r"\s*(\w+)\s*;", reader.text[body[1] + 1 :]):
                if head.lstrip().startswith("typedef"):
                    entity.name = found.group(1)
        self.found.append(entity)
        self.previous_end = end


def _enumerators(reader, body):
    """The names of an enum, each with the comment before it or behind it on its line."""
    found, before = [], ""
    text = reader.text[body[0] : body[1]]
    for match in re.finditer(
        r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<name>[A-Za-z_]\w*)[^,/\n]*(?:,|(?=\s*$)|"
        r"(?=\s*(?://|/\*)))|(?P<gap>\n[ \t]*\n)",
        text,
        flags=re.DOTALL,
    ):
        line = reader.line(body[0] + match.start())
        if match["gap"]:
            before = ""
        elif match["name"]:
            found.append(
                Entity(
                    match["name"],
                    "enumerator",
                    match.group(0).strip(" ,\n"),
                    plain_comment(before),
                    reader.path,
                    line,
                    has_own_comment=bool(before),
                )
            )
            before = ""
        elif found and found[-1].line == line and not found[-1].has_own_comment:
            found[-1].comment, found[-1].has_own_comment = plain_comment(match["comment"]), True
        else:
            before = match["comment"] if not before else before + "\n" + match["comment"]
    return found


def read_source(text, path):
    """The entities of a C or C++ source, in order; namespaces hold theirs as members."""
    reader = _Reader(text, path)
    return _Scope(reader, len(text), "").read()


def head_comment(text):
    """The comment at the top of a file without the two licence lines, and without the name that
    its first line begins with."""
    block = re.match(r"(?://[^\n]*\n)+|/\*.*?\*/", text, flags=re.DOTALL)
    said = plain_comment(block.group(0)) if block else ""
    return "\n".join(line for line in said.split("\n") if not line.startswith("SPDX-")).strip()


# ---- modules -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Unit:
    """One module with all of its interface units."""

    name: str
    head: str
    path: str
    entities: list = dataclasses.field(default_factory=list)
    brings: set = dataclasses.field(default_factory=set)  # names of others that it exports


def _exported(entities, scope):
    for each in entities:
        if each.kind == "namespace":
            yield from _exported(each.members, f"{scope}{each.name}::" if each.name else scope)
        elif each.exported:
            each.name = scope.removeprefix("vmm::") + each.name
            yield each


def read_modules(root):
    """Each module by its name. Partitions that a module re-exports are part of it; those that it
    keeps for itself have no public names."""
    sources = {}
    for folder in ("modules", "backends"):
        for path in sorted((root / folder).rglob("*.cppm")):
            text = path.read_text()
            declared = re.search(r"^export module ([\w.:]+);", text, flags=re.MULTILINE)
            if not declared:
                continue  # a partition that its module keeps for itself
            sources[declared.group(1)] = (text, path.relative_to(root).as_posix())
    modules = {}
    for name, (text, path) in sources.items():
        if ":" in name:
            continue
        unit = modules[name] = Unit(name, head_comment(text), path)
        unit.brings = set(re.findall(r"^export using vmm::(\w+);", text, flags=re.MULTILINE))
        parts = [
            f"{name}{part}"
            for part in re.findall(r"^export import (:[\w.]+);", text, flags=re.MULTILINE)
        ]
        for part in [name, *parts]:
            entities = read_source(*sources[part])
            unit.entities += [each for each in _exported(entities, "") if each.name]
    return modules


def umbrella(modules):
    """The names that `import vmm;` brings: its file is their list."""
    return modules["vmm"].brings


# ---- Python ------------------------------------------------------------------------------------


def _signature(node):
    arguments = ast.unparse(node.args)
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({arguments}){answer}"


def _decorators(node):
    return {ast.unparse(each).split("(")[0] for each in node.decorator_list}


def _text_below(body, node):
    """The text that stands as a statement of its own behind an assignment."""
    at = body.index(node) + 1
    below = body[at] if at < len(body) else None
    if (
        isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    ):
        return below.value.value
    return ""


def _class_members(node, path):
    for each in node.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if each.name.startswith("_") and each.name != "__init__":
                continue
            marks = _decorators(each)
            if any(mark.endswith(".setter") for mark in marks):
                continue
            is_property = bool(marks & {"property", "cached_property", "functools.cached_property"})
            yield Entity(
                each.name,
                "property" if is_property else "function",
                _signature(each),
                ast.get_docstring(each) or "",
                path,
                each.lineno,
            )
        elif isinstance(each, ast.AnnAssign) and not each.target.id.startswith("_"):
            yield Entity(each.target.id, "field", ast.unparse(each), "", path, each.lineno)
        elif isinstance(each, ast.Assign) and not each.targets[0].id.startswith("_"):
            yield Entity(each.targets[0].id, "field", ast.unparse(each), "", path, each.lineno)


def read_python(text, path):
    """(docstring, entities, exports) of a Python module: its public classes, functions and
    constants, and what __all__ names, which may come from elsewhere."""
    tree = ast.parse(text)
    entities, exports = [], None
    lines = text.split("\n")
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            entities.append(
                Entity(
                    node.name,
                    "function",
                    _signature(node),
                    ast.get_docstring(node) or "",
                    path,
                    node.lineno,
                )
            )
        elif isinstance(node, ast.ClassDef):
            bases = ", ".join(ast.unparse(each) for each in node.bases)
            entities.append(
                Entity(
                    node.name,
                    "class",
                    f"class {node.name}({bases})" if bases else f"class {node.name}",
                    ast.get_docstring(node) or "",
                    path,
                    node.lineno,
                    members=list(_class_members(node, path)),
                )
            )
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if not isinstance(target, ast.Name):
                continue
            if target.id == "__all__":
                exports = [each.value for each in node.value.elts]
                continue
            above = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
            if text_below := _text_below(tree.body, node):
                above = f"# {text_below}"
            behind = lines[node.end_lineno - 1].partition("#")[2].strip()
            said = behind or (above[1:].strip() if above.startswith("#") else "")
            entities.append(Entity(target.id, "value", ast.unparse(node), said, path, node.lineno))
    return ast.get_docstring(tree) or "", entities, exports


def _inherit(entity, classes):
    """Adds the members of base classes that have no page of their own."""
    bases = re.findall(r"[\w.]+", entity.declaration.partition("(")[2])
    for base in filter(None, (classes.get(each.rpartition(".")[2]) for each in bases)):
        _inherit(base, classes)
        known = {each.name for each in entity.members}
        entity.members += [each for each in base.members if each.name not in known]


def python_modules(root):
    """{module: (docstring, public entities)} of the package libvmm. A public name of a private
    module belongs to the public module that exports it."""
    folder = root / "adapters" / "python" / "src"
    read = {}
    for path in sorted((folder / "libvmm").rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        read[name] = read_python(path.read_text(), path.relative_to(root).as_posix())
    public, hidden = {}, {}
    for name, (said, entities, exports) in read.items():
        is_private = any(part.startswith("_") for part in name.split("."))
        own = [
            each
            for each in entities
            if (each.name in exports if exports is not None else not each.name.startswith("_"))
        ]
        shown = [] if is_private else own
        hidden.update((each.name, each) for each in entities if each not in shown)
        if not is_private:
            public[name] = (said, own)
    for _, own in public.values():
        for each in own:
            if each.kind == "class":
                _inherit(each, hidden)
    return public


# ---- what has no comment -----------------------------------------------------------------------


def needs_none(entity, owner):
    """Members that say all there is by their form: copies, moves, destructors, operators."""
    flat = entity.declaration
    return (
        entity.kind not in ("function", "class", "struct", "enum")
        or entity.name.startswith(("~", "operator"))
        or "= default" in flat
        or "= delete" in flat
        or flat.startswith("friend")
        or re.search(rf"\b{owner}\s*\((const\s+)?{owner}(<[^>]*>)?\s*&", flat)
        or re.search(rf"\b{owner}\s*\(\s*\)", flat)
    )


def modules_without_comments(modules):
    for unit in modules.values():
        if unit.name in ("vmm.std", "vmm"):
            continue
        if not unit.head:
            yield f"{unit.path}:1: the module {unit.name} says nothing of itself"
        for each in unit.entities:
            if (
                each.kind != "using"
                and not each.comment
                and not each.name.split("::")[-1].startswith("operator")
                and not is_specialization(each.declaration)
            ):
                yield f"{each.path}:{each.line}: {each.name} is exported without a comment"


def header_without_comments(text, path):
    """Each function, type and constant of a C or C++ header; names in `detail` are internal."""

    def walk(entities, owner):
        for each in entities:
            if each.kind == "namespace":
                if each.name != "detail":
                    yield from walk(each.members, "")
                continue
            if each.access not in ("", "public") or not each.name or each.kind == "using":
                continue
            if each.name.startswith("VMM_HAS_") or each.name in _NOT_FOR_USERS:
                continue
            is_said = each.comment or (owner and needs_none(each, owner))
            if not is_said and not (each.kind == "struct" and not each.members):
                yield f"{path}:{each.line}: {each.name} has no comment"
            if each.kind in ("class", "struct") and not path.endswith(".h"):
                yield from walk(each.members, each.name)
            if each.kind == "enum":
                for value in each.members:
                    if not value.comment and not each.comment:
                        yield f"{path}:{value.line}: {value.name} has no comment"

    entities = read_source(text, path)
    yield from walk(entities, "")
    for each in _all_enums(entities):
        if not each.name and not each.comment:
            for value in each.members:
                if not value.comment:
                    yield f"{path}:{value.line}: {value.name} has no comment"


# How the headers say what a compiler understands; no part of the interface.
_NOT_FOR_USERS = {"VMM_API", "VMM_CHECKED", "VMM_NOEXCEPT"}


def _all_enums(entities):
    for each in entities:
        if each.kind == "enum":
            yield each
        elif each.kind == "namespace":
            yield from _all_enums(each.members)


def python_without_comments(modules):
    for name, (said, entities) in modules.items():
        if not said:
            yield f"{name}: the module has no docstring"
        for each in entities:
            if not each.comment:
                yield f"{each.path}:{each.line}: {name}.{each.name} has no docstring"
            for member in each.members:
                if (
                    member.kind in ("function", "property")
                    and not member.comment
                    and member.name != "__init__"
                ):
                    yield (
                        f"{member.path}:{member.line}: {name}.{each.name}.{member.name} "
                        "has no docstring"
                    )


HEADERS = (
    "adapters/c/include/vmm.h",
    "adapters/c/include/vmm_allocator.h",
    "adapters/c/include/vmm.hpp",
)


def without_comments(root):
    """A line for each public name of the tree that says nothing."""
    root = pathlib.Path(root)
    found = list(modules_without_comments(read_modules(root)))
    for path in HEADERS:
        found += header_without_comments((root / path).read_text(), path)
    found += python_without_comments(python_modules(root))
    return found
