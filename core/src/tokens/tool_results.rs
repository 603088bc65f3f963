//! The errors of tool results: the structure around them is the provider's, and the same each time.
//!
//! One of the experts of `learn`. Bounded; makes no statement with fewer than three results of a tool, or one
//! that is as large.

use serde::{Deserialize, Serialize};

/// Tokens of structure that may surround new text, whatever its size.
pub(super) const STRUCTURE: f64 = 60.0;
/// Results of a tool that are remembered: the median of a few follows a change soon.
const RESULTS: usize = 7;
/// The fewest results of a tool that make a statement: with fewer, an outlier may be the median.
const FEWEST: usize = 3;
/// Errors of more tokens than this, and than a fifth of the result, are not errors of counting its text.
const SMALL: u32 = 10;
/// This many equal errors in a row are believed, once there are `FEWEST` results.
const AGREE: usize = 2;
/// Tools of a model that are remembered: the most recently used.
const TOOLS: usize = 64;

/// A hash of a tool's name, and whether reasoning is read: results may cost more then (Gemini).
type ToolKey = (u64, bool);

/// The errors of results by tool, the most recently used tool last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ToolResults(Vec<ToolSamples>);

/// The errors of one tool's results, newest last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ToolSamples {
    name: u64,
    reads: bool,
    /// An earlier version did not store the results' sizes; its data is ignored and learned again.
    #[serde(default)]
    results: Vec<ResultSample>,
}

/// A tool result: its counted tokens, and the error of that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ResultSample {
    counted: u32,
    off: i32,
}

impl ToolResults {
    pub(super) fn is_whole(&self) -> bool {
        self.0.len() <= TOOLS && self.0.iter().all(|tool| tool.results.len() <= RESULTS)
    }

    /// The expected error of a result of that many tokens: the median. `None` if too little is known.
    pub(super) fn offset(&self, tool: ToolKey, tokens: u64) -> Option<i64> {
        let results = self.samples(tool);
        if results.len() < FEWEST {
            return None;
        }
        median(results.iter().map(|result| result.offset(tokens)).collect())
    }

    /// The error of earlier results that were counted as just as many tokens: they are mostly the same text, a
    /// confirmation with another name in it. `None` if there are none.
    pub(super) fn alike(&self, tool: ToolKey, tokens: u64) -> Option<i64> {
        let results = self.samples(tool).iter();
        let equals = results.filter(|result| {
            let limit = SMALL.max(result.counted / 5);
            u64::from(result.counted) == tokens && result.off.unsigned_abs() <= limit
        });
        median(equals.map(|result| i64::from(result.off)).collect())
    }

    pub(super) fn agree(&self, tool: ToolKey) -> bool {
        let results = self.samples(tool);
        let newest = results.last_chunk::<AGREE>();
        // With exact counting, equal errors are the structure around the results.
        results.len() >= FEWEST
            && newest.is_some_and(|newest| newest.windows(2).all(|pair| pair[0].off == pair[1].off))
    }

    pub(super) fn keep(&mut self, (name, reads): ToolKey, counted: u64, off: i64) {
        // Removed and pushed again below: the most recently used tool is the last.
        let mut tool = match self.0.iter().position(|tool| tool.key() == (name, reads)) {
            Some(at) => self.0.remove(at),
            None => ToolSamples { name, reads, results: Vec::new() },
        };
        let counted = u32::try_from(counted).unwrap_or(u32::MAX);
        let off = off.clamp(-1_000_000, 1_000_000) as i32;
        tool.results.push(ResultSample { counted, off });
        if tool.results.len() > RESULTS {
            tool.results.remove(0);
        }
        self.0.push(tool);
        if self.0.len() > TOOLS {
            self.0.remove(0);
        }
    }

    fn samples(&self, tool: ToolKey) -> &[ResultSample] {
        let samples = self.0.iter().find(|samples| samples.key() == tool);
        samples.map_or(&[], |samples| &samples.results)
    }
}

/// Of two in the middle the smaller one: a correction too small is the lesser fault.
fn median(mut off: Vec<i64>) -> Option<i64> {
    off.sort_unstable();
    let middle = [off.get(off.len().saturating_sub(1) / 2), off.get(off.len() / 2)];
    middle.into_iter().flatten().copied().min_by_key(|off| off.unsigned_abs())
}

impl ToolSamples {
    fn key(&self) -> ToolKey {
        (self.name, self.reads)
    }
}

impl ResultSample {
    fn offset(self, tokens: u64) -> i64 {
        // Structure costs the same whatever the size; any error beyond it belongs to the text, and a text of
        // half the size may still have all of it.
        let size = 2.0 * tokens as f64 / f64::from(self.counted.max(1));
        let limit = STRUCTURE.max(f64::from(self.off.unsigned_abs()) * size.min(1.0));
        i64::from(self.off).clamp(-limit as i64, limit as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(offs: &[i64]) -> ToolResults {
        let mut results = ToolResults::default();
        offs.iter().for_each(|off| results.keep((7, false), 1_000, *off));
        results
    }

    /// The median of the last seven results; of two in the middle, the smaller one. Fewer than three results give no
    /// offset.
    #[test]
    fn offset_of_tool_is_median_of_its_last_results() {
        let offset = |offs: &[i64]| kept(offs).offset((7, false), 1_000);
        assert_eq!(offset(&[]), None);
        assert_eq!(offset(&[9, 9]), None);
        assert_eq!(offset(&[9, 9, 9]), Some(9));
        assert_eq!(offset(&[1, 50, 9]), Some(9));
        assert_eq!(offset(&[1, 50, 9, 20]), Some(9));
        assert_eq!(offset(&[-1, -50, -9, -20]), Some(-9));
        assert_eq!(offset(&[90, 90, 90, 90, 1, 1, 1, 1]), Some(1), "the first is forgotten");
        assert_eq!(offset(&[90, 90, 90, 90, 1, 1, 1]), Some(90), "and before that it counts");
        let results = kept(&[9, 9, 9]);
        assert_eq!(results.offset((8, false), 1_000), None);
        assert_eq!(results.offset((7, true), 1_000), None);
    }

    /// A confirmation of the same size has the same error, unless that is too large for an error of counting.
    #[test]
    fn result_of_same_size_is_off_as_before() {
        let offset = |offs: &[i64]| kept(offs).alike((7, false), 1_000);
        assert_eq!(offset(&[]), None);
        assert_eq!(offset(&[-3]), Some(-3));
        assert_eq!(offset(&[201]), None);
        assert_eq!(offset(&[200, 201]), Some(200));
        assert_eq!(kept(&[-3]).alike((7, false), 1_001), None);
        assert_eq!(kept(&[-3]).alike((8, false), 1_000), None);
    }

    /// A limited number of tools is remembered, those used last. A longer list is invalid.
    #[test]
    fn few_tools_are_remembered() {
        let mut results = ToolResults::default();
        let mut three = |name: u64| (0..3).for_each(|_| results.keep((name, false), 1_000, 5));
        (0..TOOLS as u64).for_each(&mut three);
        three(0);
        three(999);
        assert_eq!(results.0.len(), TOOLS);
        let knows = |name| results.offset((name, false), 1_000).is_some();
        assert!(knows(0));
        assert!(!knows(1));
        assert!(knows(2));
        assert!(knows(999));
        assert!(results.is_whole());
        let mut many = results.clone();
        many.0.push(many.0[0].clone());
        assert!(!many.is_whole());
        results.0[0].results = vec![ResultSample { counted: 1, off: 1 }; RESULTS + 1];
        assert!(!results.is_whole());
    }
}
