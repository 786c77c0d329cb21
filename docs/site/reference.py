# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the reference pages, in Markdown, from what comments.py finds in the interfaces."""

import re

import comments

# Modules that programs import; all others are parts, for code that builds on them.
_ORDER = (
    "vmm.stream",
    "vmm.manager",
    "vmm.containers",
    "vmm.registry",
    "vmm.backend",
    "vmm.share",
    "vmm.market",
    "vmm.suspend",
    "vmm.multi_device",
    "vmm.observe",
    "vmm.cuda",
    "vmm.host",
    "vmm.fake",
    "vmm.level_zero",
)
_LABELS = ("Requires", "Effects", "Errors", "Cost", "Thread safety", "Threads", "Forks")
_LABEL = re.compile(rf"(?:(?<=[.);:])\s+|^)({'|'.join(_LABELS)}):\s", flags=re.MULTILINE)
# Identifiers in a comment's prose: what has an underscore, a scope or a call's parentheses.
_CODE = re.compile(
    r"(`[^`]*`)|((?<![\w/.&])(?:[A-Za-z]\w*::)*~?[A-Za-z]\w*(?:_\w+|::\w+|"
    r"\(\))(?:\(\)|\*)?(?:\.\w+(?:\(\))?)?|\b[A-Za-z]+_\*(?:_\w+)*)"
)


def escape(text):
    """Text of a comment as Markdown: identifiers as code, nothing else special."""

    def one(match):
        if match.group(1):
            return match.group(1)
        return f"`{match.group(2)}`"

    parts, at = [], 0
    for match in _CODE.finditer(text):
        parts.append(_plain(text[at : match.start()]))
        parts.append(one(match))
        at = match.end()
    parts.append(_plain(text[at:]))
    return "".join(parts)


def _plain(text):
    text = re.sub(r"([\\*<>\[\]|$])", r"\\\1", text)
    return (
        text.replace("{", "&#123;").replace("}", "&#125;").replace("#", "&#35;")
        if text.strip().startswith(("#", "{"))
        else text
    )


class Writer:
    """Pages of one reference, and the places of the names that comments mention."""

    def __init__(self, root):
        self.root = root

    def link(self, text):
        """docs/contract.md and docs/decisions/0006 become links."""

        def page(match):
            path = match.group(1)
            if (self.root / "docs" / path).is_file():
                return f"[{path}](/{path})"
            found = sorted((self.root / "docs" / "decisions").glob(f"{path.split('/')[-1]}-*.md"))
            return (
                f"[decision {path.split('/')[-1]}](/decisions/{found[0].name})"
                if path.startswith("decisions/") and found
                else match.group(0)
            )

        return re.sub(r"\bdocs/((?:[\w-]+/)*(?:[\w-]+\.md|\d{4}))\b", page, text)

    def prose(self, text):
        """A comment as paragraphs: one for what it says first, one for each of its labels."""
        text = re.sub(r"\s*\[[A-Z]\d+(?:[-,] ?[A-Z]?\d+)*\]", "", text)  # numbers of features
        paragraphs = []
        for block in re.split(r"\n\s*\n", text.strip()):
            lines = block.split("\n")
            if sum(bool(re.match(r"(?!I\d+ ):?[\w]+ {2,}\S", line)) for line in lines) > 1:
                paragraphs.append("```text\n" + block + "\n```")  # a list in columns
                continue
            if all(line.startswith("    ") or not line for line in lines):
                paragraphs.append("```text\n" + "\n".join(line[4:] for line in lines) + "\n```")
                continue
            paragraphs += self._paragraphs(block)
        return "\n\n".join(paragraphs)

    def _paragraphs(self, block):
        if re.match(r"- ", block):  # a list stays one
            items = re.split(r"\n(?=- )", block)
            return ["\n".join(self.link(escape(" ".join(each.split()))) for each in items)]
        block = re.sub(r"^(I\d+)  ", r"\n\1: ", block, flags=re.MULTILINE)  # invariants
        pieces = []
        for part in block.split("\n\n"):
            flat = " ".join(part.split())
            if not flat:
                continue
            parts = _LABEL.split(flat)
            if parts[0].strip():
                pieces.append(self.link(escape(parts[0].strip())))
            for label, said in zip(parts[1::2], parts[2::2]):
                pieces.append(f"**{label}:** {self.link(escape(said.strip()))}")
        return pieces


def code(language, text):
    return f"```{language}\n{text}\n```"


# ---- modules -----------------------------------------------------------------------------------


def _without_bodies(text):
    """A type as it is written, without function bodies, private parts and the word export."""
    text = re.sub(r"^(\s*)export ", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"\n\s*(private|protected):.*(?=\n\};?$)", "", text, flags=re.DOTALL)
    return text.strip()


def _signature(declaration):
    return re.sub(r"(^|\n)(\s*)export ", r"\1\2", declaration).rstrip(";") + ";"


def _is_plain(entity):
    """Whether a type is shown as it is written: an enum, or a struct of values."""
    functions = [each for each in entity.members if each.kind == "function"]
    return entity.kind == "enum" or (entity.kind in ("struct", "union") and not functions)


def _anchor(scope, name):
    return re.sub(r"[^a-z0-9]+", "-", f"{scope}-{name}".lower()).strip("-")


def _entity_lines(writer, entity, scope, level=2):
    heading = "#" * level
    lines = [f"({_anchor(scope, entity.name)})=", f"{heading} {entity.name}", ""]
    if entity.comment:
        lines += [writer.prose(entity.comment), ""]
    if _is_plain(entity):
        lines += [code("cpp", _without_bodies(entity.body or _signature(entity.declaration))), ""]
        return lines
    lines += [code("cpp", _signature(entity.declaration)), ""]
    public = [
        each
        for each in entity.members
        if each.access == "public" and each.kind != "using" and each.name
    ]
    for group in _groups(public):
        names = [
            each.name for each in group if each.kind == "function" and each.name.isidentifier()
        ]
        if names and entity.name not in names:
            lines += [f"{heading}# {', '.join(dict.fromkeys(names))}", ""]
        lines += [code("cpp", "\n".join(_signature(each.declaration) for each in group)), ""]
        said = group[0].comment
        if said:
            lines += [f":::{{container}} said\n{writer.prose(said)}\n:::", ""]
    return lines


def _groups(members):
    """Neighbours that share a comment stand together."""
    groups = []
    for each in members:
        if groups and groups[-1][0].comment == each.comment and groups[-1][0].kind == each.kind:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _unique(entities):
    """Declarations of one name together: overloads under one heading."""
    by_name = {}
    for each in entities:
        if each.kind == "using" or comments.is_specialization(each.declaration):
            continue
        by_name.setdefault(each.name, []).append(each)
    return by_name


def module_page(writer, unit, brought):
    how = f"`import {unit.name};`"
    if common := sorted({each.name for each in unit.entities} & brought):
        how += f". `import vmm;` brings {', '.join(f'`{name}`' for name in common)}."
    lines = [f"# {unit.name}", "", how, "", writer.prose(_without_title(unit.head)), ""]
    for all_of_it in _unique(unit.entities).values():
        # A type that is only declared first is shown where it is defined.
        defined = [
            each for each in all_of_it if each.members or each.kind not in ("class", "struct")
        ] or all_of_it
        first, *others = defined
        lines += _entity_lines(writer, first, unit.name)
        for each in others:
            lines += [code("cpp", _signature(each.declaration)), ""]
            if each.comment and each.comment != first.comment:
                lines += [writer.prose(each.comment), ""]
    return "\n".join(lines)


def _without_title(head):
    """`vmm.stream - a pool` without the name that is the page's heading."""
    said = re.sub(r"\A[\w.:]+ - ", "", head)
    return said[:1].upper() + said[1:]


# ---- headers -----------------------------------------------------------------------------------


def _flat(entities):
    for each in entities:
        if each.kind == "namespace":
            if each.name != "detail":
                yield from _flat(each.members)
        else:
            yield each


def header_page(writer, path):
    text = (writer.root / path).read_text()
    name = path.rsplit("/", 1)[-1]
    entities = [
        each
        for each in _flat(comments.read_source(text, path))
        if each.kind != "using"
        and each.name not in comments._NOT_FOR_USERS
        and not each.name.startswith("VMM_HAS_")
    ]
    head = re.sub(
        r"^(\w+)( {3,})",
        r"\n**\1.** ",
        _without_title(comments.head_comment(text)),
        flags=re.MULTILINE,
    )
    lines = [f"# {name}", "", _bold_prose(writer, head), ""]
    sections = _sections(text)
    is_c = path.endswith(".h")
    for group in _header_groups(entities, text):
        while sections and sections[0][0] < group[0].line:
            lines += [f"## {sections.pop(0)[1].capitalize()}", ""]
        lines += _header_entity(writer, group, name, is_c)
    return "\n".join(lines)


def _bold_prose(writer, head):
    """The head of a header, whose paragraphs may begin with a word in bold."""
    parts = []
    for part in re.split(r"\n\s*\n", head):
        found = re.match(r"\*\*(\w+)\.\*\*\s*", part.strip())
        if found:
            parts.append(f"**{found.group(1)}.** {writer.prose(part.strip()[found.end() :])}")
        elif part.strip():
            parts.append(writer.prose(part))
    return "\n\n".join(parts)


def _sections(text):
    return [
        (text.count("\n", 0, found.start()) + 1, found.group(1))
        for found in re.finditer(r"^(?:/\*|//) ---- (.+?) -{3,}", text, flags=re.MULTILINE)
    ]


def _header_groups(entities, text):
    """Entities that share one comment without an empty line between them."""
    groups = []
    for each in entities:
        if (
            groups
            and each.comment
            and groups[-1][0].comment == each.comment
            and each.kind == groups[-1][0].kind
        ):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _header_entity(writer, group, scope, is_c):
    language = "c" if is_c else "cpp"
    names = [each.name if each.name != "enum" else "" for each in group]
    title = ", ".join(name for name in names if name)
    if not title:
        title = ", ".join(value.name for value in group[0].members[:2]) + ", …"
    lines = [f"({_anchor(scope, title.split(',')[0])})=", f"### {title}", ""]
    if group[0].comment:
        lines += [writer.prose(group[0].comment), ""]
    first = group[0]
    if first.body and (is_c or _is_plain(first)):
        lines += [code(language, _without_bodies(first.body)), ""]
    elif first.body:
        return lines[:-1] + ["", *_class_lines(writer, first)]
    else:
        lines += [code(language, "\n".join(_c_signature(each.declaration) for each in group)), ""]
    return lines


def _class_lines(writer, entity):
    lines = [code("cpp", _signature(entity.declaration)), ""]
    public = [each for each in entity.members if each.access == "public" and each.name]
    for group in _groups(public):
        lines += [code("cpp", "\n".join(_signature(each.declaration) for each in group)), ""]
        if group[0].comment:
            lines += [f":::{{container}} said\n{writer.prose(group[0].comment)}\n:::", ""]
    return lines


def _c_signature(declaration):
    if declaration.startswith("#"):
        return declaration
    text = re.sub(r"\b(VMM_API|VMM_CHECKED) ", "", declaration).replace(" VMM_NOEXCEPT", "")
    text = re.sub(r"\n {4,}", "\n    ", text)
    return text + ";"


# ---- Python ------------------------------------------------------------------------------------


def python_page(writer, name, said, entities):
    lines = [f"# {name}", "", _docstring(writer, said), ""]
    for each in entities:
        lines += [f"({_anchor(name, each.name)})=", f"## {each.name}", ""]
        lines += [code("python", each.declaration), "", _docstring(writer, each.comment), ""]
        fields = [member.declaration for member in each.members if member.kind == "field"]
        if fields:
            lines += [code("python", "\n".join(fields)), ""]
        for member in each.members:
            if member.kind == "field" or (
                member.name == "__init__" and not member.comment and "(self)" in member.declaration
            ):
                continue
            mark = "@property\n" if member.kind == "property" else ""
            lines += [code("python", mark + member.declaration), ""]
            if member.comment:
                lines += [f":::{{container}} said\n{_docstring(writer, member.comment)}\n:::", ""]
    return "\n".join(lines)


def _docstring(writer, said):
    parts = []
    for part in re.split(r"\n\s*\n", said):
        lines = part.split("\n")
        if all(line.startswith("    ") for line in lines if line):
            parts.append(code("python", "\n".join(line[4:] for line in lines)))
        else:
            parts.append(writer.prose(part))
    return "\n\n".join(parts)


# ---- all of it ---------------------------------------------------------------------------------


def _names_page(rows):
    lines = [
        "# All names",
        "",
        "Every public name, with the page that describes it.",
        "",
        "| name | where |",
        "| --- | --- |",
    ]
    for name, page, anchor in sorted(set(rows), key=lambda row: row[0].lower()):
        lines.append(f"| {{ref}}`{name} <{anchor}>` | `{page}` |")
    return "\n".join(lines)


def _index(groups):
    lines = [
        "# Reference",
        "",
        (
            "These pages are made from the comments in the interfaces. [All names](names.md) "
            "lists every name."
        ),
        "",
    ]
    for title, pages in groups:
        lines += [f"**{title}.** " + " · ".join(f"[{page}]({page}.md)" for page in pages), ""]
    return "\n".join(lines)


def write(root, out):
    """Writes the pages into `out` and returns their groups: (title, names of pages)."""
    writer = Writer(root)
    modules = comments.read_modules(root)
    brought = comments.umbrella(modules)
    shown = [name for name in modules if name not in ("vmm", "vmm.std") and modules[name].entities]
    users = [name for name in _ORDER if name in shown]
    parts = sorted(name for name in shown if name not in users)
    rows, pages = [], {}
    for name in users + parts:
        pages[name] = module_page(writer, modules[name], brought)
        rows += [(each, name, _anchor(name, each)) for each in _unique(modules[name].entities)]
    headers = []
    for path in comments.HEADERS:
        name = path.rsplit("/", 1)[-1]
        headers.append(name)
        pages[name] = header_page(writer, path)
    python = comments.python_modules(root)
    named = []
    for name, (said, entities) in python.items():
        if name.endswith("__main__") or not (said or entities):
            continue
        named.append(name)
        pages[name] = python_page(writer, name, said, entities)
        rows += [(each.name, name, _anchor(name, each.name)) for each in entities]
    for name, page in pages.items():
        for anchor, title in re.findall(r"^\((\S+)\)=\n#+ (.+)$", page, flags=re.MULTILINE):
            if name in headers:
                rows += [(each, name, anchor) for each in title.split(", ") if each != "…"]
    groups = [
        ("Modules that programs import", users),
        ("C and C++17", headers),
        ("Python", named),
        ("The parts below", parts),
    ]
    pages["names"] = _names_page(rows)
    pages["index"] = _index(groups)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (out / f"{name}.md").write_text(text + "\n")
    return groups
