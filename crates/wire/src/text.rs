//! Decimal numbers, written by hand.

/// Digits of the largest `u64`.
pub const DECIMAL_DIGITS_MAX: usize = 20;

/// A number in decimal digits, without allocation.
#[derive(Default)]
pub struct Decimal(itoa::Buffer);

impl Decimal {
    /// An empty buffer, to be used again and again.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The digits of `n`.
    #[inline]
    pub fn format(&mut self, n: u64) -> &[u8] {
        self.0.format(n).as_bytes()
    }
}

impl std::fmt::Debug for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Decimal")
    }
}

/// Appends the digits of `n`.
#[inline]
pub fn push_decimal(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(Decimal::new().format(n));
}
