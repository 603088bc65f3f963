//! Where a value with brackets ends, byte by byte, in text that arrives in pieces.
//!
//! Reads brackets and strings only: a text that is no JSON may seem to end. Never looks at a byte twice.

/// The brackets and the string that are open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nesting {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The last bracket was closed.
    ended: bool,
    /// Something stood beside the value.
    is_odd: bool,
}

impl Nesting {
    pub(crate) fn read(&mut self, byte: u8) {
        if self.in_string {
            let escaped = std::mem::take(&mut self.escaped);
            match byte {
                b'\\' if !escaped => self.escaped = true,
                b'"' if !escaped => self.in_string = false,
                _ => {}
            }
            return;
        }
        // Outside the value only white space may follow.
        self.is_odd |= self.depth == 0
            && !byte.is_ascii_whitespace()
            && (self.ended || !matches!(byte, b'{' | b'['));
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                self.ended = self.depth == 0;
            }
            _ => {}
        }
    }

    pub(crate) fn closes(&mut self, byte: u8) -> bool {
        let was_open = self.depth > 0;
        self.read(byte);
        was_open && self.depth == 0
    }

    /// Whether what was read is one value with brackets, whole.
    pub(crate) fn is_closed(&self) -> bool {
        self.ended && !self.is_odd
    }
}
