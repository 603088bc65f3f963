//! Counts the steps of readers in tests, which check that twice the input takes no more than twice the steps.
//!
//! A step is a comparison in a search, or a byte that is looked at again. Outside tests nothing is counted.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts steps of this thread.
#[inline]
pub(crate) fn count(steps: usize) {
    #[cfg(test)]
    STEPS.with(|all| all.set(all.get() + steps));
    let _ = steps;
}

/// The steps that `work` takes.
#[cfg(test)]
pub(crate) fn during(work: impl FnOnce()) -> usize {
    STEPS.with(|all| all.set(0));
    work();
    STEPS.with(std::cell::Cell::get)
}
