//! Chance that can be repeated: a conversation is its seed.

/// Numbers by splitmix64.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5bf0_3635_dcf5_7a1d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Some words, no two alike.
    pub fn words(&mut self, count: usize) -> String {
        const WORDS: [&str; 12] = [
            "the", "keel", "draws", "water", "\"so\"", "mark\n", "the line", "<b>", "Größe",
            "naïve", "\\", "deep",
        ];
        let mut all: Vec<String> = (0..count).map(|_| self.of(&WORDS).to_owned()).collect();
        all.push(format!("{:08x}", self.next() as u32));
        all.join(" ")
    }
}
