"""Parses the bodies of Rust functions into trees of expressions with offsets, as far as mutants need it.

The tree has only what a mutant can change: operators, match arms, struct literals. Types, patterns and macros are
skipped. Anything that the parser does not understand is an error: it never guesses.
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
    children: list = field(default_factory=list)
    op: str = ""
    op_offset: int = -1  # of the operator; for an arm, where its pattern ends


class ParseError(Exception):
    pass


def tokens(text):
    found, offset = [], 0
    while offset < len(text):
        match = TOKEN.match(text, offset)
        kind, end = match.lastgroup, match.end()
        if match["raw"]:
            kind, end = "str", text.index('"' + match["hash"], end) + 1 + len(match["hash"])
        elif kind == "comment":
            depth, end = 1, match.end()
            while depth:
                delimiter = re.compile(r"/\*|\*/").search(text, end)
                depth += 1 if delimiter[0] == "/*" else -1
                end = delimiter.end()
        elif kind == "num" and re.fullmatch(r"[0-9_]+", match[0]) and re.match(r"\.(?![.A-Za-z_])", text[end:]):
            if not (found and found[-1].text == "."):
                end += 1
        if kind not in ("skip", "comment"):
            if kind == "num" and found and found[-1].text == "." and "." in text[offset:end]:
                end = offset + text[offset:end].index(".")  # a.0.1
            found.append(Token(kind, text[offset:end], offset, end))
        offset = end
    return found


class Parser:
    """One file. `block_at(offset)` parses the block that opens there."""

    def __init__(self, text):
        self.text = text
        self.tokens = tokens(text)
        self.by_start = {token.start: index for index, token in enumerate(self.tokens)}
        self.closing = {}
        stack = []
        for index, token in enumerate(self.tokens):
            if token.kind == "punct" and token.text in "([{":
                stack.append(index)
            elif token.kind == "punct" and token.text in ")]}":
                self.closing[stack.pop()] = index
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
        """The end of the token before."""
        return self.tokens[self.i - 1].end

    def operator(self):
        """The longest operator at this position, or an empty text."""
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
            raise ParseError(f"line {line}: expected {text!r}, found {self.peek()!r}")
        self.i += 1

    def skip_group(self):
        self.i = self.closing[self.i] + 1

    def skip_attributes(self):
        while self.peek() == "#" and (self.peek(1) == "[" or (self.peek(1) == "!" and self.peek(2) == "[")):
            self.i += 2 if self.peek(1) == "!" else 1
            self.skip_group()

    def skip_generics(self):
        """Skips `<…>`, which has no expressions."""
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
                raise ParseError("generics are not closed")
            depth += (text == "<") - (text == ">")
            self.i += 1
            if depth == 0:
                return

    def skip_until(self, *stops):
        """Skips a pattern with its type."""
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
                raise ParseError(f"offset {self.start}: expected one of {stops}")
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
        close = self.closing[self.i]
        self.expect("{")
        children = []
        while self.i < close:
            children += self.statement()
        self.expect("}")
        return Node("block", start, self.end, children)

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
        child = self.expression(statement=True)
        if self.peek() == ";":
            self.i += 1
        return [child]

    def let(self):
        self.i += 1
        self.skip_until("=", ";")
        children = []
        if self.peek() == "=":
            self.i += 1
            children.append(self.expression())
            if self.peek() == "else":
                self.i += 1
                children.append(self.block())
        self.expect(";")
        return children

    def item(self):
        """An item in a body: functions are parsed, the rest is skipped."""
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

    def expression(self, min_precedence=0, allow_structs=True, statement=False):
        start = self.start
        left = self.prefix(allow_structs, statement)
        if statement and left.kind in ("block", "if", "match", "loop", "macro{"):
            if self.peek() == "." and self.operator() == ".":
                left = self.postfix(left, allow_structs)
            elif self.peek() == "?":
                left = self.postfix(left, allow_structs)
            else:
                return left
        while True:
            operator = self.operator()
            if self.peek() == "as" and min_precedence <= 12:
                self.i += 1
                self.skip_type()
                left = Node("other", start, self.end, [left])
            elif operator in BINARY and BINARY[operator] >= min_precedence:
                op_offset = self.start
                self.take(operator)
                right = self.expression(BINARY[operator] + 1, allow_structs)
                left = Node("binary", start, self.end, [left, right], operator, op_offset)
            elif operator in ASSIGN and min_precedence <= 1:
                op_offset = self.start
                self.take(operator)
                right = self.expression(1, allow_structs)
                left = Node("assign", start, self.end, [left, right], operator, op_offset)
            elif operator in ("..", "..=") and min_precedence <= 2:
                self.take(operator)
                children = [left]
                if self.begins_expression(allow_structs):
                    children.append(self.expression(3, allow_structs))
                left = Node("other", start, self.end, children)
            else:
                return left

    def begins_expression(self, allow_structs):
        text = self.peek()
        if self.kind() == "punct":
            return text in ("(", "[", "-", "!", "*", "&", "|", "<", "#") or (text == "{" and allow_structs)
        return text not in ("else", "as", "")

    def prefix(self, allow_structs, statement=False):
        self.skip_attributes()
        start, text = self.start, self.peek()
        if self.kind() == "punct":
            operator = self.operator()
            if text in "-!*":
                self.i += 1
                child = self.expression(13, allow_structs)
                return Node("unary", start, self.end, [child], text, start)
            if text == "&":
                self.i += 1
                if self.peek() == "mut":
                    self.i += 1
                return Node("other", start, self.end_of(child := self.expression(13, allow_structs)), [child])
            if operator in ("..", "..="):
                self.take(operator)
                children = [self.expression(3, allow_structs)] if self.begins_expression(allow_structs) else []
                return Node("other", start, self.end, children)
            if text == "|":
                return self.closure(allow_structs)
        if text in ("move", "async") and self.peek(1) in ("|", "move") and self.peek(2) in ("|",) or (
            text == "move" and self.peek(1) == "|"
        ) or (text == "async" and self.peek(1) == "|"):
            while self.peek() != "|":
                self.i += 1
            return self.closure(allow_structs, start)
        if text in ("return", "break", "continue", "yield") and self.kind() == "ident":
            self.i += 1
            if self.kind() == "lifetime":
                self.i += 1
            children = []
            if text != "continue" and self.begins_expression(allow_structs):
                children.append(self.expression(0, allow_structs))
            return Node("other", start, self.end, children)
        if text == "let":
            self.i += 1
            self.skip_until("=")
            self.i += 1
            child = self.expression(5, False)
            return Node("let", start, self.end, [child])
        return self.postfix(self.primary(allow_structs), allow_structs, statement)

    @staticmethod
    def end_of(node):
        return node.end

    def closure(self, allow_structs, start=None):
        start = self.start if start is None else start
        self.i += 1
        self.skip_until("|", "||") if self.operator() != "|" or self.peek() != "|" else None
        self.expect("|")
        if self.operator() == "->":
            self.i += 2
            self.skip_type()
            child = self.block()
        else:
            child = self.expression(0, allow_structs)
        return Node("other", start, self.end, [child])

    def postfix(self, left, allow_structs, statement=False):
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
        """The expressions between brackets, separated by commas or a semicolon."""
        close = self.closing[self.i]
        self.i += 1
        children = []
        while self.i < close:
            children.append(self.expression())
            if self.peek() in (",", ";"):
                self.i += 1
        self.i = close + 1
        return children

    def primary(self, allow_structs):
        start, text, kind = self.start, self.peek(), self.kind()
        if kind in ("num", "str", "char"):
            self.i += 1
            return Node("other", start, self.end)
        if kind == "lifetime":
            self.i += 1
            self.expect(":")
            return self.primary(allow_structs)
        if text in ("(", "["):
            children = self.list()
            return Node("other", start, self.end, children)
        if text == "{":
            return self.block()
        if text == "<":
            self.skip_generics()
            return self.path(allow_structs, start)
        if kind != "ident":
            line = self.text.count("\n", 0, start) + 1
            raise ParseError(f"line {line}: an expression cannot begin with {text!r}")
        if text in ("unsafe", "const", "async") and self.peek(1) in ("{", "move"):
            self.i += 2 if self.peek(1) == "move" else 1
            return Node("block", start, self.end_of(child := self.block()), [child])
        if text == "if":
            return self.condition()
        if text == "match":
            return self.match()
        if text in ("loop", "while", "for"):
            return self.loop()
        return self.path(allow_structs, start)

    def condition(self):
        start = self.start
        self.i += 1
        children = [self.expression(allow_structs=False), self.block()]
        if self.peek() == "else":
            self.i += 1
            children.append(self.condition() if self.peek() == "if" else self.block())
        return Node("if", start, self.end, children)

    def loop(self):
        start, text, children = self.start, self.peek(), []
        self.i += 1
        if text == "for":
            self.skip_until("in")
            self.i += 1
        if text != "loop":
            children.append(self.expression(allow_structs=False))
        children.append(self.block())
        return Node("loop", start, self.end, children)

    def match(self):
        start = self.start
        self.i += 1
        children = [self.expression(allow_structs=False)]
        close = self.closing[self.i]
        self.expect("{")
        while self.i < close:
            children.append(self.arm())
        self.expect("}")
        return Node("match", start, self.end, children)

    def arm(self):
        self.skip_attributes()
        start = self.start
        self.skip_until("=>", "if")
        pattern_end, children = self.end, []
        if self.peek() == "if":
            self.i += 1
            children.append(self.expression(allow_structs=False))
        self.take("=>")
        children.append(self.expression(statement=self.peek() == "{"))
        if self.peek() == ",":
            self.i += 1
        return Node("arm", start, self.end, children, "if" if len(children) == 2 else "", pattern_end)

    def path(self, allow_structs, start):
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
        if self.peek() == "{" and allow_structs:
            return self.struct(start)
        return Node("other", start, self.end)

    def struct(self, start):
        close = self.closing[self.i]
        self.i += 1
        children = []
        while self.i < close:
            self.skip_attributes()
            field_start = self.start
            if self.operator() == "..":
                self.i += 2
                children.append(Node("base", field_start, self.end_of(child := self.expression()), [child]))
            elif self.peek(1) == ":" and self.peek(2) != ":":
                self.i += 2
                children.append(Node("field", field_start, self.end_of(child := self.expression()), [child]))
            else:
                self.i += 1
                children.append(Node("field", field_start, self.end))
            if self.peek() == ",":
                self.i += 1
        self.expect("}")
        return Node("struct", start, self.end, children)


def body_start(parser, start):
    """The offset of the opening brace of the function whose span begins at `start`; None if it has no body."""
    index = next(i for i, token in enumerate(parser.tokens) if token.start >= start)
    while parser.tokens[index].text != "fn":
        index = parser.closing[index] + 1 if parser.tokens[index].text in ("[", "(") else index + 1
    while parser.tokens[index].text not in ("{", ";"):
        index = parser.closing[index] + 1 if parser.tokens[index].text in ("(", "[") else index + 1
    return parser.tokens[index].start if parser.tokens[index].text == "{" else None
