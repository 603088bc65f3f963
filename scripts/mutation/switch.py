"""Puts every mutant of cargo-mutants into one copy of the tree, each behind a switch that is read when a test runs.

`MUTANT=ID` turns one on. `MUTANTS_MET=FILE` has the numbers appended to it of those a process meets where the mutant
would have mattered: for a comparison, a guard or an arm that means another value than the original's.
"""

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import rust

COMPARISONS = {"==", "!=", "<", ">", "<=", ">="}

MODULE = '''//! The switches of the mutants.
use std::{fs::File, io::Write as _, sync::{LazyLock, atomic::{AtomicBool, Ordering::Relaxed}}};
static ACTIVE: LazyLock<u32> = LazyLock::new(|| std::env::var("MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(0));
static LIST: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = std::env::var_os("MUTANTS_MET")?;
    File::options().append(true).create(true).open(path).ok()
});
static MET: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
fn meet(id: u32) {
    if let Some(mut list) = LIST.as_ref() && !MET[id as usize].swap(true, Relaxed) {
        let _ = list.write_all(format!("{id}\\n").as_bytes());
    }
}
/// Whether this mutant is on.
pub fn is(id: u32) -> bool { meet(id); *ACTIVE == id }
/// Whether an arm stays: it does not where its mutant is on.
pub fn keep(id: u32) -> bool { !is(id) }
/// 0 for the original, else which of them is on.
pub fn which(ids: &[u32]) -> usize {
    if LIST.is_some() { ids.iter().for_each(|id| meet(*id)); }
    ids.iter().position(|id| *id == *ACTIVE).map_or(0, |index| index + 1)
}
/// The original, or the value of the mutant that is on.
pub fn pick(original: bool, others: &[(u32, bool)]) -> bool {
    if LIST.is_some() { others.iter().filter(|(_, value)| *value != original).for_each(|(id, _)| meet(*id)); }
    others.iter().find(|(id, _)| *id == *ACTIVE).map_or(original, |(_, value)| *value)
}
/// Whether the right side counts: of `&&` where the left is true, of `||` where it is false; the mutant is the other.
pub fn right(id: u32, left: bool, and: bool) -> bool {
    if left != and { meet(id); }
    (left == and) != (*ACTIVE == id)
}
/// The right side, where only it decides.
pub fn last(id: u32, right: bool, and: bool) -> bool {
    if right != and { meet(id); }
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


# Where each package finds the switch.
LIBRARIES = {"core/src/lib.rs": "pub mod mutant;", "src/lib.rs": "pub use plimsoll_core::mutant;"}
# The unit tests of each package, by the name that play.py knows them by.
UNITS = {"plimsoll_core": "core", "plimsoll": "lib"}
# The tests over sockets.
PROGRAMS = ["rewriting", "threads", "compacting", "reading", "estimate", "replay"]


def selected(programs):
    """How cargo is told to build these test programs."""
    if programs == ["core"]:
        return ["--package", "plimsoll-core", "--lib"]
    units = ["--lib"] if set(programs) & {*UNITS.values()} else []
    return units + [word for name in programs if name in PROGRAMS for word in ("--test", name)]


class File:
    """One source file: its text, its mutants, and how each place is written."""

    def __init__(self, path, text, mutants):
        self.path, self.text = path, text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.reader = rust.Reader(text)
        self.apart = []  # cannot be switched: constants
        self.plain = set()  # places whose comparison is written out once for each mutant
        self.bodies, self.matches = {}, {}
        self.values = defaultdict(list)
        self.at = defaultdict(list)
        for mutant in mutants:
            self.place(mutant)

    def offset(self, place):
        return self.starts[place["line"] - 1] + place["column"] - 1

    def place(self, mutant):
        mutant["start"], mutant["end"] = self.offset(mutant["span"]["start"]), self.offset(mutant["span"]["end"])
        function = mutant["function"]
        body = None
        if function:
            start = self.offset(function["span"]["start"])
            body = rust.body_start(self.reader, start)
            index = next(i for i, token in enumerate(self.reader.tokens) if token.start >= start)
            head = self.reader.tokens[index : self.reader.by_start[body]]
            if any(a.text == "const" and b.text in ("fn", "unsafe") for a, b in zip(head, head[1:])):
                body = None
        if body is None or not body < mutant["start"]:
            self.apart.append(mutant)
            return
        if body not in self.bodies:
            self.bodies[body] = self.reader.block_at(body)
        if mutant["genre"] == "FnValue":
            self.values[body].append(mutant)
        else:
            self.at[mutant["start"]].append(mutant)

    def render(self, dropped):
        self.dropped, self.used = dropped, set()
        self.not_switched = []
        outer, last = [], -1
        for start in sorted(self.bodies):
            if start > last:
                outer.append(self.bodies[start])
                last = self.bodies[start].end
        text, at = "", 0
        for body in outer:
            text += self.text[at : body.start] + self.write(body)
            at = body.end
        text += self.text[at:]
        for start, mutants in self.at.items():
            for mutant in mutants:
                if mutant["id"] not in self.used and mutant["id"] not in dropped:
                    self.not_switched.append(mutant)
        return text

    def take(self, at, *genres):
        found = [m for m in self.at.get(at, ()) if m["genre"] in genres and m["id"] not in self.dropped]
        self.used |= {m["id"] for m in found}
        return found

    def kids(self, node, start=None, end=None):
        """The text of a node, its expressions written with their switches."""
        at, end = node.start if start is None else start, node.end if end is None else end
        text = ""
        for kid in node.kids:
            text += self.text[at : kid.start] + self.write(kid)
            at = kid.end
        return text + self.text[at:end]

    def copies(self, node, mutants, default):
        """The expression once as it is, and once for each mutant."""
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
            mutants = self.take(node.at, "BinaryOperator")
            return self.copies(node, mutants, self.kids(node)) if mutants else self.kids(node)
        if node.kind == "unary":
            mutants = self.take(node.at, "UnaryOperator")
            return self.copies(node, mutants, self.kids(node)) if mutants else self.kids(node)
        if node.kind == "struct":
            mutants = [m for kid in node.kids for m in self.take(kid.start, "StructField")]
            return self.copies(node, mutants, self.kids(node)) if mutants else self.kids(node)
        if node.kind == "match":
            return self.match(node)
        if node.kind == "arm":
            return self.arm(node)
        return self.kids(node)

    def block(self, node):
        mutants = [m for m in self.values.get(node.start, ()) if m["id"] not in self.dropped]
        text = self.kids(node)
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
        at = mutants[0]["start"] - node.start  # nothing before the first statement is changed
        return text[:at] + opening + text[at:]

    def binary(self, node):
        mutants = self.take(node.at, "BinaryOperator")
        if not mutants:
            return self.kids(node)
        if node.op == "&&" and has_let(node):
            self.used -= {m["id"] for m in mutants}
            return self.kids(node)
        if node.at in self.plain:
            return self.copies(node, mutants, self.kids(node))
        left, right = (self.write(kid) for kid in node.kids)
        mark = f"/*n{node.at}*/{{}}/*n/{node.at}*/"
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
        return self.copies(node, mutants, self.kids(node))

    def match(self, node):
        """Without an arm that is deleted it may no longer be exhaustive: then the compiler blames the scrutinee."""
        arms = [m["id"] for arm in node.kids[1:] for m in self.at.get(arm.start, ()) if m["genre"] == "MatchArm"]
        self.matches[node.start] = arms
        value = node.kids[0]
        text = self.text[node.start : value.start] + f"/*a{node.start}*/{self.write(value)}/*a/{node.start}*/"
        at = value.end
        for arm in node.kids[1:]:
            text += self.text[at : arm.start] + self.write(arm)
            at = arm.end
        return text + self.text[at : node.end]

    def arm(self, node):
        deleted = self.take(node.start, "MatchArm")
        guards = self.take(node.kids[0].start, "MatchArmGuard") if node.op else []
        if not deleted and not guards:
            return self.kids(node)
        keep = "".join(f"crate::mutant::keep({m['id']}) && " for m in deleted)
        if not node.op:
            mark = f"/*m{deleted[0]['id']}*/ if {keep}true /*m/{deleted[0]['id']}*/"
            rest = self.kids(node, node.at)
            return self.text[node.start : node.at] + mark + rest
        guard = self.write(node.kids[0])
        if guards:
            others = ", ".join(f"({m['id']}, {marked(m, m['replacement'])})" for m in guards)
            guard = f"crate::mutant::pick({guard}, &[{others}])"
        if deleted:
            guard = f"{keep}({guard})"
        body = node.kids[1]
        return (
            self.text[node.start : node.kids[0].start] + guard + self.text[node.kids[0].end : body.start]
            + self.write(body) + self.text[body.end : node.end]
        )


def marked(mutant, text):
    return f"/*m{mutant['id']}*/{text}/*m/{mutant['id']}*/"


def has_let(node):
    return any(kid.kind == "let" or (kid.kind == "binary" and kid.op == "&&" and has_let(kid)) for kid in node.kids)


def outermost(span):
    """Where it stands in the file, for what stands in a macro."""
    while span["expansion"]:
        span = dict(span["expansion"]["span"], is_primary=span["is_primary"])
    return span


def places(data):
    """Where each mutant and each comparison stands in a written file, in bytes: the error of a compiler names bytes."""
    found = []
    for match in re.finditer(rb"/\*([mnia])(\d+)\*/", data):
        end = data.index(b"/*%s/%s*/" % (match[1], match[2]), match.end())
        found.append((match.start(), end, match[1].decode(), int(match[2])))
    return found


def copy_tree(root, tree):
    """The files that git knows or would, as they are now; what has not changed keeps its time."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=root, check=True, capture_output=True
    ).stdout.decode().split("\0")[:-1]
    names = {name for name in names if (root / name).is_file()}
    for old in [path for path in tree.rglob("*") if path.is_file() or path.is_symlink()]:
        if str(old.relative_to(tree)) not in names and old.name != "mutant.rs":
            old.unlink()
    return names


def write(path, data):
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class Tree:
    """The copy of the tree with every mutant in it."""

    def __init__(self, root, tree, mutants):
        self.root, self.tree, self.mutants = root, tree, mutants
        self.dropped = {}  # mutant → why the compiler refuses it
        by_file = defaultdict(list)
        for number, mutant in enumerate(mutants, 1):
            mutant["id"] = number
            by_file[mutant["file"]].append(mutant)
        self.files = {path: File(path, (root / path).read_text(), found) for path, found in by_file.items()}
        self.apart = [m for file in self.files.values() for m in file.apart]

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
            write(self.tree / path, file.render(self.dropped).encode())
            for mutant in file.not_switched:  # `&&` beside `let`: the language has no other operator there
                self.dropped[mutant["id"]] = "no other operator beside `let`" if mutant["replacement"] == "||" else "?"

    def build(self, command, environment, keep):
        """Builds until the compiler refuses no mutant. Returns the test programs by name."""
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
            before = len(self.dropped), sum(len(file.plain) for file in self.files.values())
            unknown = [error for error in errors if error["spans"] and not self.blame(error)]
            after = len(self.dropped), sum(len(file.plain) for file in self.files.values())
            keep()
            print(f"build {attempt}: {len(errors)} errors, {after[0]} not viable, {after[1]} written out", flush=True)
            if before == after:
                for error in unknown[:20]:
                    print(error["rendered"][:1500])
                raise SystemExit(found.stderr[-3000:])
        raise SystemExit("the tree does not build")

    def blame(self, error):
        """Finds the mutant that an error is about, else the comparison that is to be written out."""
        spans = sorted([outermost(span) for span in error["spans"]], key=lambda span: not span["is_primary"])
        for kind in ("m", "n", "i", "a"):
            for span in spans:
                if not span["is_primary"] and kind != "i" and any(s["is_primary"] and self.within(s) for s in spans):
                    continue
                inner = [place for place in self.within(span) if place[2] == kind]
                if not inner:
                    continue
                place = max(inner)
                file = self.files[span["file_name"]]
                if kind == "m":
                    self.dropped[place[3]] = error["message"]
                elif kind == "n":
                    file.plain.add(place[3])
                elif kind == "a":
                    self.dropped.update({number: error["message"] for number in file.matches[place[3]]})
                else:  # an iterator over `&mut` where one over `&` is promised, else all of them
                    values = [m for m in file.values[place[3]] if m["id"] not in self.dropped]
                    leaking = [m for m in values if "Box::leak" in m["replacement"]]
                    self.dropped.update({m["id"]: error["message"] for m in leaking or values})
                return True
        return False

    def within(self, span):
        if span["file_name"] not in self.files:
            return []
        data = (self.tree / span["file_name"]).read_bytes()
        return [p for p in places(data) if p[0] <= span["byte_start"] and span["byte_end"] <= p[1] + 1]
