//! What differs between two requests of a session: which parts were added, dropped, moved or cut.
//!
//! Compares the sketches of two turns, which have keys and sizes and no text. They are in the order in which providers cache
//! a prompt: tools, system prompt, history. So a cached prefix ends at the first difference. Pure.

use foldhash::HashMap;
use serde::{Deserialize, Serialize};
use strum::AsRefStr;

use super::{PromptSection, SketchPart};
use crate::dialect::PartKey;

/// What differs between two requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RequestComparison {
    /// The beginning that both have.
    pub same: PromptSpan,
    /// The section of the first part of the earlier request that the later one lacks there: a cached prefix ends before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_in: Option<PromptSection>,
    /// All of the earlier request.
    pub earlier: PromptSpan,
    /// All of the later one.
    pub later: PromptSpan,
    /// What was dropped from the earlier request, in its order; then what was added, moved or cut, in the order of the later.
    pub changes: Vec<PartsChange>,
}

/// A number of parts, and what they weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PromptSpan {
    /// How many parts.
    pub parts: usize,
    /// Their estimated tokens.
    pub tokens: u64,
}

impl PromptSpan {
    fn of_parts(parts: &[SketchPart]) -> Self {
        let tokens = parts.iter().map(|part| u64::from(part.tokens)).sum();
        Self { parts: parts.len(), tokens }
    }
}

/// Adjacent parts of one section to which the same happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PartsChange {
    /// What happened to them.
    pub does: PartsFate,
    /// Where they are in the prompt.
    pub section: PromptSection,
    /// The place of the first one among all parts, from 1: of the earlier request if they were dropped, else of the later.
    pub at: usize,
    /// How many they are, and what they weigh.
    pub span: PromptSpan,
    /// Where the first one was before, from 1, if it moved; only for parts that moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<usize>,
    /// Their tokens before they were cut; only for parts that were cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncut: Option<u64>,
}

impl PartsChange {
    fn of_part(does: PartsFate, at: usize, part: &SketchPart) -> Self {
        let span = PromptSpan { parts: 1, tokens: part.tokens.into() };
        Self { does, section: part.place, at: at + 1, span, from: None, uncut: None }
    }

    fn goes_on_with(&self, next: &Self) -> bool {
        let parts = self.span.parts;
        (self.does, self.section, self.at + parts) == (next.does, next.section, next.at)
            && self.from.map(|from| from + parts) == next.from
    }
}

/// What happened to a part between two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, AsRefStr, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum PartsFate {
    /// Only the earlier request has it.
    Dropped,
    /// Only the later request has it.
    Added,
    /// Both have it, in another order.
    Moved,
    /// The later request has it shortened by a rewrite.
    Cut,
}

/// A part of the later request, and the one of the earlier that it comes from.
#[derive(Clone, Copy)]
struct MatchedPart {
    earlier: usize,
    was_cut: bool,
}

/// Compares what two requests sent, part by part.
pub fn compare(earlier: &[SketchPart], later: &[SketchPart]) -> RequestComparison {
    let same = earlier.iter().zip(later).take_while(|(one, other)| one.key == other.key).count();
    let matches = matched(&earlier[same..], &later[same..]);
    let in_order = longest_increasing(&matches);
    let mut is_kept = vec![false; earlier.len()];
    is_kept[..same].fill(true);
    for found in matches.iter().flatten() {
        is_kept[same + found.earlier] = true;
    }
    let mut changes = Vec::new();
    for (at, part) in earlier.iter().enumerate().filter(|(at, _)| !is_kept[*at]) {
        add(&mut changes, PartsChange::of_part(PartsFate::Dropped, at, part));
    }
    for (index, found) in matches.iter().enumerate() {
        let place = same + index;
        let Some(found) = found else {
            add(&mut changes, PartsChange::of_part(PartsFate::Added, place, &later[place]));
            continue;
        };
        let from = same + found.earlier;
        if found.was_cut {
            let cut = PartsChange::of_part(PartsFate::Cut, place, &later[place]);
            add(&mut changes, PartsChange { uncut: Some(earlier[from].tokens.into()), ..cut });
        } else if !in_order[index] {
            let moved = PartsChange::of_part(PartsFate::Moved, place, &later[place]);
            add(&mut changes, PartsChange { from: Some(from + 1), ..moved });
        }
    }
    RequestComparison {
        same: PromptSpan::of_parts(&later[..same]),
        broken_in: earlier.get(same).map(|part| part.place),
        earlier: PromptSpan::of_parts(earlier),
        later: PromptSpan::of_parts(later),
        changes,
    }
}

/// For each part of the later request, the one of the earlier that it is: the next one with its key, whole or cut.
fn matched(earlier: &[SketchPart], later: &[SketchPart]) -> Vec<Option<MatchedPart>> {
    let mut places: HashMap<PartKey, Vec<MatchedPart>> = HashMap::default();
    // The last place is taken first.
    for (at, part) in earlier.iter().enumerate().rev() {
        let uncut = MatchedPart { earlier: at, was_cut: false };
        places.entry(part.key).or_default().push(uncut);
        for cut in [part.key.cut(), part.key.cut().cut()] {
            places.entry(cut).or_default().push(MatchedPart { was_cut: true, ..uncut });
        }
    }
    let mut is_taken = vec![false; earlier.len()];
    let mut matches = Vec::with_capacity(later.len());
    for part in later {
        let mut origin = None;
        while let Some(place) = places.get_mut(&part.key).and_then(Vec::pop) {
            if !is_taken[place.earlier] {
                is_taken[place.earlier] = true;
                origin = Some(place);
                break;
            }
        }
        matches.push(origin);
    }
    matches
}

/// Which of the matched parts are in the order of the earlier request: as many as possible.
fn longest_increasing(matches: &[Option<MatchedPart>]) -> Vec<bool> {
    // Patience sorting: for each length, the end of the run that ends earliest, and the match before each in its run.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = vec![None; matches.len()];
    let place = |index: usize| matches[index].map_or(0, |found| found.earlier);
    for (index, found) in matches.iter().enumerate() {
        let Some(found) = found else { continue };
        let length = ends.partition_point(|end| place(*end) < found.earlier);
        previous[index] = length.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut in_order = vec![false; matches.len()];
    let mut end = ends.last().copied();
    while let Some(index) = end {
        in_order[index] = true;
        end = previous[index];
    }
    in_order
}

/// Adds the change of one part, to the last one if that goes on with it.
fn add(changes: &mut Vec<PartsChange>, change: PartsChange) {
    match changes.last_mut() {
        Some(last) if last.goes_on_with(&change) => {
            last.span.parts += change.span.parts;
            last.span.tokens += change.span.tokens;
            last.uncut = last.uncut.zip(change.uncut).map(|(sum, more)| sum + more);
        }
        _ => changes.push(change),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(keys: &[u128]) -> Vec<SketchPart> {
        let part = |key: &u128| SketchPart {
            key: PartKey(*key),
            tokens: *key as u32,
            place: if *key < 10 { PromptSection::Tools } else { PromptSection::History },
            by_length: false,
        };
        keys.iter().map(part).collect()
    }

    /// What happened, at which place, to how many parts, of how many tokens, and from where.
    fn changes(
        earlier: &[u128],
        later: &[u128],
    ) -> Vec<(PartsFate, usize, usize, u64, Option<usize>)> {
        let compared = compare(&parts(earlier), &parts(later));
        let changes = compared.changes.iter();
        changes.map(|it| (it.does, it.at, it.span.parts, it.span.tokens, it.from)).collect()
    }

    #[test]
    fn history_that_grew_has_only_additions() {
        assert_eq!(changes(&[1, 2, 10], &[1, 2, 10, 11, 12]), [(PartsFate::Added, 4, 2, 23, None)]);
        let compared = compare(&parts(&[1, 10]), &parts(&[1, 10, 11]));
        assert_eq!(compared.same, PromptSpan { parts: 2, tokens: 11 });
        assert_eq!(compared.later, PromptSpan { parts: 3, tokens: 22 });
    }

    /// The part that moved stands further back than where the prefix ends.
    #[test]
    fn prefix_is_broken_where_it_ends() {
        let compared = compare(&parts(&[10, 1, 2, 3]), &parts(&[10, 2, 3, 1]));
        assert_eq!(compared.same.parts, 1);
        assert_eq!(compared.broken_in, Some(PromptSection::Tools));
        assert_eq!(compared.changes[0].at, 4);
        assert_eq!(compare(&parts(&[1]), &parts(&[1, 2])).broken_in, None);
    }

    #[test]
    fn sections_are_told_apart() {
        let expected = [(PartsFate::Added, 1, 1, 3, None), (PartsFate::Added, 2, 1, 10, None)];
        assert_eq!(changes(&[], &[3, 10]), expected);
    }

    #[test]
    fn moved_part_is_neither_added_nor_dropped() {
        let expected = [(PartsFate::Moved, 3, 1, 1, Some(1))];
        assert_eq!(changes(&[1, 2, 3, 10], &[2, 3, 1, 10]), expected);
        let expected = [(PartsFate::Moved, 1, 2, 23, Some(3))];
        assert_eq!(changes(&[13, 14, 11, 12, 15, 16], &[11, 12, 13, 14, 15, 16]), expected);
    }

    #[test]
    fn dropped_and_added_parts_stand_where_they_were() {
        let expected = [(PartsFate::Dropped, 2, 1, 11, None), (PartsFate::Added, 3, 1, 13, None)];
        assert_eq!(changes(&[10, 11, 12], &[10, 12, 13]), expected);
        // Equal parts are matched in their order.
        assert_eq!(changes(&[10, 10], &[10]), [(PartsFate::Dropped, 2, 1, 10, None)]);
    }

    #[test]
    fn cut_part_has_its_size_before() {
        let earlier = parts(&[10, 11, 12]);
        let mut later = earlier.clone();
        for part in &mut later[1..] {
            part.key = part.key.cut();
            part.tokens = 2;
        }
        let compared = compare(&earlier, &later);
        assert_eq!(compared.same.parts, 1);
        let [cut] = compared.changes[..] else { panic!("{:?}", compared.changes) };
        assert_eq!((cut.does, cut.at, cut.uncut), (PartsFate::Cut, 2, Some(23)));
        assert_eq!(cut.span, PromptSpan { parts: 2, tokens: 4 });
        // What was cut before is cut once more.
        let again: Vec<SketchPart> =
            later.iter().map(|part| SketchPart { key: part.key.cut(), ..*part }).collect();
        assert_eq!(compare(&later, &again).changes[0].does, PartsFate::Cut);
    }
}
