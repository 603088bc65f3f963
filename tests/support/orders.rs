//! Every order in which processes can meet: one run for each way to choose which one goes next.
//!
//! A test asks [`Choices`] which process is next, and checks at the end of each run what must hold.

/// The choices of one run, each with the number of options.
#[derive(Default)]
pub struct Choices {
    made: Vec<(usize, usize)>,
    depth: usize,
}

impl Choices {
    /// Chooses one of this many options.
    pub fn next(&mut self, options: usize) -> usize {
        if self.depth == self.made.len() {
            self.made.push((0, options));
        }
        self.depth += 1;
        self.made[self.depth - 1].0
    }

    /// Prepares the next run; `false` if all were made.
    fn advance(&mut self) -> bool {
        self.depth = 0;
        while let Some((made, options)) = self.made.pop() {
            if made + 1 < options {
                self.made.push((made + 1, options));
                return true;
            }
        }
        false
    }
}

/// Runs `run` once for each way to choose; returns the number of runs.
pub fn in_every_order(mut run: impl FnMut(&mut Choices)) -> usize {
    let (mut choices, mut runs) = (Choices::default(), 0);
    loop {
        run(&mut choices);
        runs += 1;
        if !choices.advance() {
            return runs;
        }
    }
}
