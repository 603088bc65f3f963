"""Puts every mutant of cargo-mutants into one copy of the tree, each behind a switch that is read when a test runs.

`MUTANT=ID` turns one on. With `MUTANTS_REACHED=FILE` a process appends the ids of the mutants that it reaches to the
file. A mutant of a comparison, a guard or an arm counts only if its value would differ from the original's.
"""

import json
import re
import subprocess
from collections import defaultdict

import rust_parser

COMPARISONS = {"==", "!=", "<", ">", "<=", ">="}

MODULE = '''//! The switches of the mutants.
use std::{fs::File, io::Write as _, sync::{LazyLock, atomic::{AtomicBool, Ordering::Relaxed}}};
static ACTIVE: LazyLock<u32> = LazyLock::new(|| std::env::var("MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(0));
static LIST: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = std::env::var_os("MUTANTS_REACHED")?;
    File::options().append(true).create(true).open(path).ok()
});
static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
fn reach(id: u32) {
    if let Some(mut list) = LIST.as_ref() && !REACHED[id as usize].swap(true, Relaxed) {
        let _ = list.write_all(format!("{id}\\n").as_bytes());
    }
}
/// Whether this mutant is on.
pub fn is(id: u32) -> bool { reach(id); *ACTIVE == id }
/// Whether an arm is kept: not if its mutant is on.
pub fn keep(id: u32) -> bool { !is(id) }
/// 0 for the original, or the position of the mutant that is on, from 1.
pub fn which(ids: &[u32]) -> usize {
    if LIST.is_some() { ids.iter().for_each(|id| reach(*id)); }
    ids.iter().position(|id| *id == *ACTIVE).map_or(0, |index| index + 1)
}
/// The original, or the value of the mutant that is on.
pub fn pick(original: bool, others: &[(u32, bool)]) -> bool {
    if LIST.is_some() { others.iter().filter(|(_, value)| *value != original).for_each(|(id, _)| reach(*id)); }
    others.iter().find(|(id, _)| *id == *ACTIVE).map_or(original, |(_, value)| *value)
}
/// Whether the right side is evaluated: of `&&` if the left is true, of `||` if it is false. The mutant is the other operator.
pub fn right(id: u32, left: bool, and: bool) -> bool {
    if left != and { reach(id); }
    (left == and) != (*ACTIVE == id)
}
/// The value of the right side, if it was evaluated.
pub fn last(id: u32, right: bool, and: bool) -> bool {
    if right != and { reach(id); }
    right
}
/// One of two iterators.
#[derive(Clone)]
pub enum Either<L, R> { Left(L), Right(R) }
impl<L: Iterator, R: Iterator<Item = L::Item>> Iterator for Either<L, R> {
    type Item = L::Item;
    fn next(&mut self) -> Option<L::Item> { match self { Self::Left(l) => l.next(), Self::Right(r) => r.next() } }
    fn size_hint(&self) -> (usize, Option<usize>) { match self { Self::Left(l) => l.size_hint(), Self::Right(r) => r.size_hint() } }
}
impl<L: DoubleEndedIterator, R: DoubleEndedIterator<Item = L::Item>> DoubleEndedIterator for Either<L, R> {
    fn next_back(&mut self) -> Option<L::Item> { match self { Self::Left(l) => l.next_back(), Self::Right(r) => r.next_back() } }
}
impl<L: ExactSizeIterator, R: ExactSizeIterator<Item = L::Item>> ExactSizeIterator for Either<L, R> {}
'''


# How each package gets the module of switches.
LIBRARIES = {"core/src/lib.rs": "pub mod mutant;", "src/lib.rs": "pub use plimsoll_core::mutant;"}
# The unit tests of each package, and their name in run.py.
UNITS = {"plimsoll_core": "core", "plimsoll": "lib"}
# The tests that use sockets.
PROGRAMS = ["rewriting", "threads", "compacting", "reading", "estimate", "replay"]


def cargo_selection(programs):
    """The arguments with which cargo builds these test programs."""
    if programs == ["core"]:
        return ["--package", "plimsoll-core", "--lib"]
    units = ["--lib"] if set(programs) & {*UNITS.values()} else []
    return units + [word for name in programs if name in PROGRAMS for word in ("--test", name)]


class File:
    """One source file with its mutants. `render` writes it with their switches."""

    def __init__(self, path, text, mutants):
        self.path, self.text = path, text
        self.line_starts = [0]
        for line in text.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        self.parser = rust_parser.Parser(text)
        self.constants = []  # mutants in constants: they cannot be switched
        self.written_out = set()  # offsets of operators whose whole expression is written once for each mutant
        self.bodies, self.matches = {}, {}
        self.fn_values = defaultdict(list)
        self.by_offset = defaultdict(list)
        for mutant in mutants:
            self.add(mutant)

    def offset(self, position):
        return self.line_starts[position["line"] - 1] + position["column"] - 1

    def add(self, mutant):
        mutant["start"], mutant["end"] = self.offset(mutant["span"]["start"]), self.offset(mutant["span"]["end"])
        function = mutant["function"]
        body = None
        if function:
            start = self.offset(function["span"]["start"])
            body = rust_parser.body_start(self.parser, start)
            index = next(i for i, token in enumerate(self.parser.tokens) if token.start >= start)
            head = self.parser.tokens[index : self.parser.by_start[body]]
            if any(a.text == "const" and b.text in ("fn", "unsafe") for a, b in zip(head, head[1:])):
                body = None
        if body is None or not body < mutant["start"]:
            self.constants.append(mutant)
            return
        if body not in self.bodies:
            self.bodies[body] = self.parser.block_at(body)
        if mutant["genre"] == "FnValue":
            self.fn_values[body].append(mutant)
        else:
            self.by_offset[mutant["start"]].append(mutant)

    def render(self, not_viable):
        self.not_viable, self.used = not_viable, set()
        self.not_switched = []
        outer, outer_end = [], -1
        for start in sorted(self.bodies):
            if start > outer_end:
                outer.append(self.bodies[start])
                outer_end = self.bodies[start].end
        text, position = "", 0
        for body in outer:
            text += self.text[position : body.start] + self.write(body)
            position = body.end
        text += self.text[position:]
        for mutants in self.by_offset.values():
            for mutant in mutants:
                if mutant["id"] not in self.used and mutant["id"] not in not_viable:
                    self.not_switched.append(mutant)
        return text

    def take(self, offset, *genres):
        """The mutants of these genres at an offset, which are written now."""
        found = [m for m in self.by_offset.get(offset, ()) if m["genre"] in genres and m["id"] not in self.not_viable]
        self.used |= {m["id"] for m in found}
        return found

    def write_children(self, node, start=None):
        """The text of a node, from `start` on, with the switches of its expressions."""
        position = node.start if start is None else start
        text = ""
        for child in node.children:
            text += self.text[position : child.start] + self.write(child)
            position = child.end
        return text + self.text[position : node.end]

    def copies(self, node, mutants, default):
        """The expression once as it is, and once with each mutant."""
        ids = ",".join(str(m["id"]) for m in mutants)
        text = f"(match crate::mutant::which(&[{ids}]) {{ 0 => {{ {default} }}"
        for index, mutant in enumerate(mutants, 1):
            changed = self.text[node.start : mutant["start"]] + mutant["replacement"] + self.text[mutant["end"] : node.end]
            case = "_" if index == len(mutants) else index
            text += f", {case} => {{ {marked(mutant, changed)} }}"
        return text + " })"

    def write(self, node):
        if node.kind == "block":
            return self.block(node)
        if node.kind == "binary":
            return self.binary(node)
        if node.kind == "assign":
            mutants = self.take(node.op_offset, "BinaryOperator")
            return self.copies(node, mutants, self.write_children(node)) if mutants else self.write_children(node)
        if node.kind == "unary":
            mutants = self.take(node.op_offset, "UnaryOperator")
            return self.copies(node, mutants, self.write_children(node)) if mutants else self.write_children(node)
        if node.kind == "struct":
            mutants = [m for child in node.children for m in self.take(child.start, "StructField")]
            return self.copies(node, mutants, self.write_children(node)) if mutants else self.write_children(node)
        if node.kind == "match":
            return self.match(node)
        if node.kind == "arm":
            return self.arm(node)
        return self.write_children(node)

    def block(self, node):
        mutants = [m for m in self.fn_values.get(node.start, ()) if m["id"] not in self.not_viable]
        text = self.write_children(node)
        if not mutants:
            return text
        if "impl Iterator" in mutants[0]["function"]["return_type"]:
            ids = ",".join(str(m["id"]) for m in mutants)
            text = f"{{ match crate::mutant::which(&[{ids}]) {{ 0 => crate::mutant::Either::Left({text})"
            for index, mutant in enumerate(mutants, 1):
                is_last = index == len(mutants)
                value = marked(mutant, mutant["replacement"])
                value = value if is_last else f"crate::mutant::Either::Left({value})"
                text += f", {'_' if is_last else index} => " + "crate::mutant::Either::Right(" * index + value + ")" * index
            return f"/*i{node.start}*/{text} }} }}/*i/{node.start}*/"
        opening = "".join(
            f"if crate::mutant::is({m['id']}) {{ {marked(m, 'return ' + m['replacement'] + ';')} }} " for m in mutants
        )
        first = mutants[0]["start"] - node.start  # nothing before the first statement is changed
        return text[:first] + opening + text[first:]

    def binary(self, node):
        mutants = self.take(node.op_offset, "BinaryOperator")
        if not mutants:
            return self.write_children(node)
        if node.op == "&&" and has_let(node):
            self.used -= {m["id"] for m in mutants}
            return self.write_children(node)
        if node.op_offset in self.written_out:
            return self.copies(node, mutants, self.write_children(node))
        left, right = (self.write(child) for child in node.children)
        mark = f"/*n{node.op_offset}*/{{}}/*n/{node.op_offset}*/"
        if node.op in COMPARISONS:
            others = ", ".join(f"({m['id']}, {marked(m, '*__l ' + m['replacement'] + ' *__r')})" for m in mutants)
            return mark.format(
                f"(match (&({left}), &({right})) {{ (__l, __r) => crate::mutant::pick(*__l {node.op} *__r, &[{others}]) }})"
            )
        if node.op in ("&&", "||") and [m["replacement"] for m in mutants] == ["||" if node.op == "&&" else "&&"]:
            number, is_and = mutants[0]["id"], "true" if node.op == "&&" else "false"
            return mark.format(
                f"(match ({left}) {{ __l => if crate::mutant::right({number}, __l, {is_and}) "
                f"{{ crate::mutant::last({number}, {right}, {is_and}) }} else {{ __l }} }})"
            )
        return self.copies(node, mutants, self.write_children(node))

    def match(self, node):
        """Without a deleted arm the match may not be exhaustive. The compiler then reports an error at the scrutinee."""
        arms = [m["id"] for arm in node.children[1:] for m in self.by_offset.get(arm.start, ()) if m["genre"] == "MatchArm"]
        self.matches[node.start] = arms
        value = node.children[0]
        text = self.text[node.start : value.start] + f"/*a{node.start}*/{self.write(value)}/*a/{node.start}*/"
        position = value.end
        for arm in node.children[1:]:
            text += self.text[position : arm.start] + self.write(arm)
            position = arm.end
        return text + self.text[position : node.end]

    def arm(self, node):
        deleted = self.take(node.start, "MatchArm")
        guards = self.take(node.children[0].start, "MatchArmGuard") if node.op else []
        if not deleted and not guards:
            return self.write_children(node)
        keep = "".join(f"crate::mutant::keep({m['id']}) && " for m in deleted)
        if not node.op:
            mark = f"/*m{deleted[0]['id']}*/ if {keep}true /*m/{deleted[0]['id']}*/"
            rest = self.write_children(node, node.op_offset)
            return self.text[node.start : node.op_offset] + mark + rest
        guard = self.write(node.children[0])
        if guards:
            others = ", ".join(f"({m['id']}, {marked(m, m['replacement'])})" for m in guards)
            guard = f"crate::mutant::pick({guard}, &[{others}])"
        if deleted:
            guard = f"{keep}({guard})"
        body = node.children[1]
        return (
            self.text[node.start : node.children[0].start] + guard + self.text[node.children[0].end : body.start]
            + self.write(body) + self.text[body.end : node.end]
        )


def marked(mutant, text):
    return f"/*m{mutant['id']}*/{text}/*m/{mutant['id']}*/"


def has_let(node):
    return any(child.kind == "let" or (child.kind == "binary" and child.op == "&&" and has_let(child)) for child in node.children)


def outermost(span):
    """The span in the file: of code from a macro, the span of its outermost call."""
    while span["expansion"]:
        span = dict(span["expansion"]["span"], is_primary=span["is_primary"])
    return span


def marked_regions(data):
    """The region of each mark in a written file: start, end, kind and number. Offsets are in bytes, as in the compiler's
    errors."""
    found = []
    for match in re.finditer(rb"/\*([mnia])(\d+)\*/", data):
        end = data.index(b"/*%s/%s*/" % (match[1], match[2]), match.end())
        found.append((match.start(), end, match[1].decode(), int(match[2])))
    return found


def copy_tree(root, tree):
    """The files that git tracks or would track. Files of the copy that are not among them are deleted."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=root, check=True, capture_output=True
    ).stdout.decode().split("\0")[:-1]
    names = {name for name in names if (root / name).is_file()}
    for old in [path for path in tree.rglob("*") if path.is_file() or path.is_symlink()]:
        if str(old.relative_to(tree)) not in names and old.name != "mutant.rs":
            old.unlink()
    return names


def write(path, data):
    """Writes a file only if it changes, so that cargo does not build it again."""
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class Tree:
    """The copy of the tree with every mutant in it."""

    def __init__(self, root, tree, mutants):
        self.root, self.tree, self.mutants = root, tree, mutants
        self.not_viable = {}  # mutant → the compiler's error
        by_file = defaultdict(list)
        for number, mutant in enumerate(mutants, 1):
            mutant["id"] = number
            by_file[mutant["file"]].append(mutant)
        self.files = {path: File(path, (root / path).read_text(), found) for path, found in by_file.items()}
        self.constants = [m for file in self.files.values() for m in file.constants]

    def write(self):
        names = copy_tree(self.root, self.tree)
        for name in names:
            if name not in self.files and name not in LIBRARIES:
                path = self.tree / name
                write(path, (self.root / name).read_bytes())
                path.chmod((self.root / name).stat().st_mode)
        for name, module in LIBRARIES.items():
            library = (self.root / name).read_text()
            forbid = "#![forbid(unsafe_code)]\n"
            library = library.replace(forbid, f"#![allow(warnings, clippy::all)]\n{forbid}{module}\n")
            write(self.tree / name, library.encode())
        write(self.tree / "core/src/mutant.rs", MODULE.replace("COUNT", str(len(self.mutants) + 1)).encode())
        for path, file in self.files.items():
            write(self.tree / path, file.render(self.not_viable).encode())
            for mutant in file.not_switched:  # `&&` next to `let`: Rust allows no other operator there
                self.not_viable[mutant["id"]] = "no other operator next to `let`" if mutant["replacement"] == "||" else "?"

    def build(self, command, environment, keep):
        """Builds again without the mutants that the compiler refuses, until it succeeds. Returns the test programs by name."""
        for attempt in range(30):
            self.write()
            found = subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True)
            messages = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
            errors = [m["message"] for m in messages if m["reason"] == "compiler-message" and m["message"]["level"] == "error"]
            errors = list({error["rendered"]: error for error in errors}.values())  # the library is compiled twice
            if found.returncode == 0:
                return {
                    m["target"]["name"] if m["target"]["kind"] == ["test"] else UNITS[m["target"]["name"]]: m["executable"]
                    for m in messages if m["reason"] == "compiler-artifact" and m["profile"]["test"] and m["executable"]
                    and m["target"]["kind"] != ["bin"] and m["target"]["name"] in {*PROGRAMS, *UNITS}
                }
            before = len(self.not_viable), sum(len(file.written_out) for file in self.files.values())
            unknown = [error for error in errors if error["spans"] and not self.attribute(error)]
            after = len(self.not_viable), sum(len(file.written_out) for file in self.files.values())
            keep()
            print(f"build {attempt}: {len(errors)} errors, {after[0]} not viable, {after[1]} expressions written out", flush=True)
            if before == after:
                for error in unknown[:20]:
                    print(error["rendered"][:1500])
                raise SystemExit(found.stderr[-3000:])
        raise SystemExit("the tree does not build after 30 attempts")

    def attribute(self, error):
        """Finds the mutant that causes an error, or the operator whose expression must be written out. Returns whether one
        was found."""
        spans = sorted([outermost(span) for span in error["spans"]], key=lambda span: not span["is_primary"])
        for kind in ("m", "n", "i", "a"):
            for span in spans:
                if not span["is_primary"] and kind != "i" and any(s["is_primary"] and self.regions_around(s) for s in spans):
                    continue
                inner = [region for region in self.regions_around(span) if region[2] == kind]
                if not inner:
                    continue
                region = max(inner)
                file = self.files[span["file_name"]]
                if kind == "m":
                    self.not_viable[region[3]] = error["message"]
                elif kind == "n":
                    file.written_out.add(region[3])
                elif kind == "a":
                    self.not_viable.update({number: error["message"] for number in file.matches[region[3]]})
                else:  # the mutants that return an iterator over `&mut` where one over `&` is declared, or else all of them
                    values = [m for m in file.fn_values[region[3]] if m["id"] not in self.not_viable]
                    leaking = [m for m in values if "Box::leak" in m["replacement"]]
                    self.not_viable.update({m["id"]: error["message"] for m in leaking or values})
                return True
        return False

    def regions_around(self, span):
        if span["file_name"] not in self.files:
            return []
        data = (self.tree / span["file_name"]).read_bytes()
        return [p for p in marked_regions(data) if p[0] <= span["byte_start"] and span["byte_end"] <= p[1] + 1]
