"""Reads bodies of Rust functions as trees of expressions, by offsets, as far as mutants need it.

Only what a mutant can change is told apart: operators, match arms, struct literals. Types, patterns and macros are
passed over as text. What is not understood is an error: nothing is guessed.
"""

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
    |(?P<comment>/\*)
    |(?P<raw>(?:br|cr|r)(?P<hash>\#*)")
    |(?P<str>(?:b|c)?"(?:[^"\\]|\\.)*")
    |(?P<char>b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\}|.))')
    |(?P<lifetime>'[A-Za-z_][A-Za-z0-9_]*)
    |(?P<num>[0-9](?:[0-9A-Za-z_]|\.(?=[0-9])(?<![.][0-9]\.)|(?<=[0-9][eE])[+-](?=[0-9]))*)
    |(?P<ident>(?:r\#)?[A-Za-z_][A-Za-z0-9_]*)
    |(?P<punct>.)""",
    re.X | re.S,
)

CLOSES = {"(": ")", "[": "]", "{": "}"}
BINARY = {
    "||": 3, "&&": 4, "==": 5, "!=": 5, "<": 5, ">": 5, "<=": 5, ">=": 5, "|": 6, "^": 7, "&": 8, "<<": 9, ">>": 9,
    "+": 10, "-": 10, "*": 11, "/": 11, "%": 11,
}
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "^=", "&=", "|=", "<<=", ">>="}
OPERATORS = sorted([*BINARY, *ASSIGN, "..", "..=", "=>", "->", "::"], key=len, reverse=True)
ITEMS = {"fn", "struct", "enum", "use", "impl", "trait", "type", "static", "mod", "const", "pub", "extern"}


@dataclass
class Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass
class Node:
    """An expression (or an arm, a field, a block) with the offsets of its text and of its operator."""

    kind: str
    start: int
    end: int
    kids: list = field(default_factory=list)
    op: str = ""
    at: int = -1  # where the operator, the guard or the pattern's end stands


class Unreadable(Exception):
    pass


def tokens(text):
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        kind, end = match.lastgroup, match.end()
        if match["raw"]:
            kind, end = "str", text.index('"' + match["hash"], end) + 1 + len(match["hash"])
        elif kind == "comment":
            depth, end = 1, match.end()
            while depth:
                step = re.compile(r"/\*|\*/").search(text, end)
                depth += 1 if step[0] == "/*" else -1
                end = step.end()
        elif kind == "num" and re.fullmatch(r"[0-9_]+", match[0]) and re.match(r"\.(?![.A-Za-z_])", text[end:]):
            if not (found and found[-1].text == "."):
                end += 1
        if kind not in ("skip", "comment"):
            if kind == "num" and found and found[-1].text == "." and "." in text[at:end]:
                end = at + text[at:end].index(".")  # a.0.1
            found.append(Token(kind, text[at:end], at, end))
        at = end
    return found


class Reader:
    """One file. `block_at(offset)` reads the block that opens there."""

    def __init__(self, text):
        self.text = text
        self.tokens = tokens(text)
        self.by_start = {token.start: index for index, token in enumerate(self.tokens)}
        self.partner = {}
        stack = []
        for index, token in enumerate(self.tokens):
            if token.kind == "punct" and token.text in "([{":
                stack.append(index)
            elif token.kind == "punct" and token.text in ")]}":
                self.partner[stack.pop()] = index
        self.i = 0

    # ---- tokens

    def peek(self, ahead=0):
        index = self.i + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def kind(self, ahead=0):
        index = self.i + ahead
        return self.tokens[index].kind if index < len(self.tokens) else ""

    @property
    def start(self):
        return self.tokens[self.i].start

    @property
    def end(self):
        """The end of what was read last."""
        return self.tokens[self.i - 1].end

    def operator(self):
        """The longest operator that stands here, or nothing."""
        if self.kind() != "punct":
            return ""
        for operator in OPERATORS:
            if self.text.startswith(operator, self.start):
                return operator
        return self.peek()

    def take(self, operator):
        self.i += len(operator)

    def expect(self, text):
        if self.peek() != text:
            line = self.text.count("\n", 0, self.start) + 1
            raise Unreadable(f"line {line}: {text!r} was expected, not {self.peek()!r}")
        self.i += 1

    def skip_group(self):
        self.i = self.partner[self.i] + 1

    def skip_attributes(self):
        while self.peek() == "#" and (self.peek(1) == "[" or (self.peek(1) == "!" and self.peek(2) == "[")):
            self.i += 2 if self.peek(1) == "!" else 1
            self.skip_group()

    def skip_generics(self):
        """`<…>`, where no expression can stand."""
        depth = 0
        while True:
            if self.operator() in ("->", "=>"):
                self.i += 2
                continue
            text = self.peek()
            if text in CLOSES:
                self.skip_group()
                continue
            if not text:
                raise Unreadable("generics do not end")
            depth += (text == "<") - (text == ">")
            self.i += 1
            if depth == 0:
                return

    def skip_until(self, *stops):
        """A pattern, with its type."""
        while True:
            operator = self.operator()
            text = self.peek()
            if operator in stops or (self.kind() == "ident" and text in stops):
                return
            if text == "<":
                self.skip_generics()
            elif text in CLOSES and self.kind() == "punct":
                self.skip_group()
            elif not text or text in ")]}":
                raise Unreadable(f"offset {self.start}: none of {stops}")
            else:
                self.take(operator or " ")

    def skip_type(self):
        while self.peek() in ("&", "*", "mut", "const", "dyn", "impl") or self.kind() == "lifetime":
            self.i += 1
        if self.peek() in ("(", "["):
            return self.skip_group()
        if self.peek() == "<":
            self.skip_generics()
        else:
            self.i += 1
        while True:
            if self.operator() == "::":
                self.i += 2
                if self.peek() != "<":
                    self.i += 1
            elif self.operator() == "<":
                self.skip_generics()
            else:
                return

    # ---- blocks and statements

    def block_at(self, offset):
        self.i = self.by_start[offset]
        return self.block()

    def block(self):
        start = self.start
        close = self.partner[self.i]
        self.expect("{")
        kids = []
        while self.i < close:
            kids += self.statement()
        self.expect("}")
        return Node("block", start, self.end, kids)

    def statement(self):
        self.skip_attributes()
        text = self.peek()
        if text == ";":
            self.i += 1
            return []
        if text == "let":
            return self.let()
        if (text in ITEMS and not (text == "const" and self.peek(1) == "{")) or (text == "async" and self.peek(1) == "fn"):
            return self.item()
        kid = self.expression(statement=True)
        if self.peek() == ";":
            self.i += 1
        return [kid]

    def let(self):
        self.i += 1
        self.skip_until("=", ";")
        kids = []
        if self.peek() == "=":
            self.i += 1
            kids.append(self.expression())
            if self.peek() == "else":
                self.i += 1
                kids.append(self.block())
        self.expect(";")
        return kids

    def item(self):
        """An item within a body: functions are read, the rest is text."""
        is_function = False
        while self.peek() not in ("{", ";"):
            is_function |= self.peek() == "fn"
            if self.peek() in ("(", "["):
                self.skip_group()
            else:
                self.i += 1
        if self.peek() == ";":
            self.i += 1
            return []
        if is_function:
            return [self.block()]
        self.skip_group()
        if self.peek() == ";":
            self.i += 1
        return []

    # ---- expressions

    def expression(self, least=0, structs=True, statement=False):
        start = self.start
        left = self.prefix(structs, statement)
        if statement and left.kind in ("block", "if", "match", "loop", "macro{"):
            if self.peek() == "." and self.operator() == ".":
                left = self.postfix(left, structs)
            elif self.peek() == "?":
                left = self.postfix(left, structs)
            else:
                return left
        while True:
            operator = self.operator()
            if self.peek() == "as" and least <= 12:
                self.i += 1
                self.skip_type()
                left = Node("other", start, self.end, [left])
            elif operator in BINARY and BINARY[operator] >= least:
                at = self.start
                self.take(operator)
                right = self.expression(BINARY[operator] + 1, structs)
                left = Node("binary", start, self.end, [left, right], operator, at)
            elif operator in ASSIGN and least <= 1:
                at = self.start
                self.take(operator)
                right = self.expression(1, structs)
                left = Node("assign", start, self.end, [left, right], operator, at)
            elif operator in ("..", "..=") and least <= 2:
                self.take(operator)
                kids = [left]
                if self.begins_expression(structs):
                    kids.append(self.expression(3, structs))
                left = Node("other", start, self.end, kids)
            else:
                return left

    def begins_expression(self, structs):
        text = self.peek()
        if self.kind() == "punct":
            return text in ("(", "[", "-", "!", "*", "&", "|", "<", "#") or (text == "{" and structs)
        return text not in ("else", "as", "")

    def prefix(self, structs, statement=False):
        self.skip_attributes()
        start, text = self.start, self.peek()
        if self.kind() == "punct":
            operator = self.operator()
            if text in "-!*":
                self.i += 1
                kid = self.expression(13, structs)
                return Node("unary", start, self.end, [kid], text, start)
            if text == "&":
                self.i += 1
                if self.peek() == "mut":
                    self.i += 1
                return Node("other", start, self.end_of(kid := self.expression(13, structs)), [kid])
            if operator in ("..", "..="):
                self.take(operator)
                kids = [self.expression(3, structs)] if self.begins_expression(structs) else []
                return Node("other", start, self.end, kids)
            if text == "|":
                return self.closure(structs)
        if text in ("move", "async") and self.peek(1) in ("|", "move") and self.peek(2) in ("|",) or (
            text == "move" and self.peek(1) == "|"
        ) or (text == "async" and self.peek(1) == "|"):
            while self.peek() != "|":
                self.i += 1
            return self.closure(structs, start)
        if text in ("return", "break", "continue", "yield") and self.kind() == "ident":
            self.i += 1
            if self.kind() == "lifetime":
                self.i += 1
            kids = []
            if text != "continue" and self.begins_expression(structs):
                kids.append(self.expression(0, structs))
            return Node("other", start, self.end, kids)
        if text == "let":
            self.i += 1
            self.skip_until("=")
            self.i += 1
            kid = self.expression(5, False)
            return Node("let", start, self.end, [kid])
        return self.postfix(self.primary(structs), structs, statement)

    @staticmethod
    def end_of(node):
        return node.end

    def closure(self, structs, start=None):
        start = self.start if start is None else start
        self.i += 1
        self.skip_until("|", "||") if self.operator() != "|" or self.peek() != "|" else None
        self.expect("|")
        if self.operator() == "->":
            self.i += 2
            self.skip_type()
            kid = self.block()
        else:
            kid = self.expression(0, structs)
        return Node("other", start, self.end, [kid])

    def postfix(self, left, structs, statement=False):
        if statement and left.kind in ("block", "if", "match", "loop", "macro{"):
            return left
        start = left.start
        while True:
            text = self.peek()
            if text == "?":
                self.i += 1
                left = Node("other", start, self.end, [left])
            elif text == "." and self.operator() == ".":
                self.i += 2
                if self.operator() == "::":
                    self.i += 2
                    self.skip_generics()
                left = Node("other", start, self.end, [left])
            elif text == "(" and self.kind() == "punct":
                left = Node("other", start, None, [left, *self.list()])
                left.end = self.end
            elif text == "[" and self.kind() == "punct":
                left = Node("other", start, None, [left, *self.list()])
                left.end = self.end
            else:
                return left

    def list(self):
        """What stands between brackets, apart by commas (or a semicolon)."""
        close = self.partner[self.i]
        self.i += 1
        kids = []
        while self.i < close:
            kids.append(self.expression())
            if self.peek() in (",", ";"):
                self.i += 1
        self.i = close + 1
        return kids

    def primary(self, structs):
        start, text, kind = self.start, self.peek(), self.kind()
        if kind in ("num", "str", "char"):
            self.i += 1
            return Node("other", start, self.end)
        if kind == "lifetime":
            self.i += 1
            self.expect(":")
            return self.primary(structs)
        if text in ("(", "["):
            kids = self.list()
            return Node("other", start, self.end, kids)
        if text == "{":
            return self.block()
        if text == "<":
            self.skip_generics()
            return self.path(structs, start)
        if kind != "ident":
            line = self.text.count("\n", 0, start) + 1
            raise Unreadable(f"line {line}: no expression begins with {text!r}")
        if text in ("unsafe", "const", "async") and self.peek(1) in ("{", "move"):
            self.i += 2 if self.peek(1) == "move" else 1
            return Node("block", start, self.end_of(kid := self.block()), [kid])
        if text == "if":
            return self.condition()
        if text == "match":
            return self.match()
        if text in ("loop", "while", "for"):
            return self.loop()
        return self.path(structs, start)

    def condition(self):
        start = self.start
        self.i += 1
        kids = [self.expression(structs=False), self.block()]
        if self.peek() == "else":
            self.i += 1
            kids.append(self.condition() if self.peek() == "if" else self.block())
        return Node("if", start, self.end, kids)

    def loop(self):
        start, text, kids = self.start, self.peek(), []
        self.i += 1
        if text == "for":
            self.skip_until("in")
            self.i += 1
        if text != "loop":
            kids.append(self.expression(structs=False))
        kids.append(self.block())
        return Node("loop", start, self.end, kids)

    def match(self):
        start = self.start
        self.i += 1
        kids = [self.expression(structs=False)]
        close = self.partner[self.i]
        self.expect("{")
        while self.i < close:
            kids.append(self.arm())
        self.expect("}")
        return Node("match", start, self.end, kids)

    def arm(self):
        self.skip_attributes()
        start = self.start
        self.skip_until("=>", "if")
        at, kids = self.end, []
        if self.peek() == "if":
            self.i += 1
            kids.append(self.expression(structs=False))
        self.take("=>")
        kids.append(self.expression(statement=self.peek() == "{"))
        if self.peek() == ",":
            self.i += 1
        return Node("arm", start, self.end, kids, "if" if len(kids) == 2 else "", at)

    def path(self, structs, start):
        if self.operator() != "::":
            self.i += 1
        while self.operator() == "::":
            self.i += 2
            if self.peek() == "<":
                self.skip_generics()
            else:
                self.i += 1
        if self.peek() == "!" and self.operator() == "!" and self.peek(1) in CLOSES:
            self.i += 1
            is_block = self.peek() == "{"
            self.skip_group()
            return Node("macro{" if is_block else "other", start, self.end)
        if self.peek() == "{" and structs:
            return self.struct(start)
        return Node("other", start, self.end)

    def struct(self, start):
        close = self.partner[self.i]
        self.i += 1
        kids = []
        while self.i < close:
            self.skip_attributes()
            at = self.start
            if self.operator() == "..":
                self.i += 2
                kids.append(Node("base", at, self.end_of(kid := self.expression()), [kid]))
            elif self.peek(1) == ":" and self.peek(2) != ":":
                self.i += 2
                kids.append(Node("field", at, self.end_of(kid := self.expression()), [kid]))
            else:
                self.i += 1
                kids.append(Node("field", at, self.end))
            if self.peek() == ",":
                self.i += 1
        self.expect("}")
        return Node("struct", start, self.end, kids)


def body_start(reader, start):
    """Where the body of the function opens whose span begins at `start`."""
    index = next(i for i, token in enumerate(reader.tokens) if token.start >= start)
    while reader.tokens[index].text != "fn":
        index = reader.partner[index] + 1 if reader.tokens[index].text in ("[", "(") else index + 1
    while reader.tokens[index].text not in ("{", ";"):
        index = reader.partner[index] + 1 if reader.tokens[index].text in ("(", "[") else index + 1
    return reader.tokens[index].start if reader.tokens[index].text == "{" else None
