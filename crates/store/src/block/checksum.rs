//! The checksum of bytes that are put together, from the checksums of the parts.
//!
//! A CRC is linear: behind `n` more bytes a checksum counts as if multiplied by `x^8n`, modulo the polynomial. So a record,
//! whose own checksum was made where it entered, need not be read again; and one that has changed in memory since then
//! gives a wrong sum, and is found.

use tidelock_record::RecordRef;

/// CRC-32C, the bit of the highest power last (RFC 3720, B.4).
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
/// Bytes of a record before those that its checksum covers.
const OWN_BYTES: usize = 4;

/// `x^(8 * 2^n)`, as many as there are bits in a length of 32 bits.
#[expect(
    clippy::indexing_slicing,
    reason = "a wrong index would not compile: this is evaluated then"
)]
const POWERS: [u32; 32] = {
    let mut powers = [0; 32];
    // The highest bit is x^0, so that x^8 stands eight places below it.
    let mut power = ONE >> 8;
    let mut n = 0;
    while n < 32 {
        powers[n] = power;
        power = multiply(power, power);
        n += 1;
    }
    powers
};

/// Product modulo the polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 0 { b >> 1 } else { (b >> 1) ^ POLYNOMIAL };
        bit >>= 1;
    }
    product
}

/// `x^8len`.
fn power_of(len: u32) -> u32 {
    let bits = (0..32).zip(POWERS).filter(|(bit, _)| len >> bit & 1 == 1);
    bits.fold(ONE, |product, (_, power)| multiply(product, power))
}

/// A checksum that grows.
#[derive(Debug)]
pub(super) struct Checksum {
    sum: u32,
    /// The last length that was looked up, and its factor: most records of a stream have the same.
    recent: (u32, u32),
}

impl Checksum {
    /// That of no bytes.
    pub(super) const fn new() -> Self {
        Self {
            sum: 0,
            recent: (0, ONE),
        }
    }

    pub(super) const fn get(&self) -> u32 {
        self.sum
    }

    /// Counts bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.sum = crc32c::crc32c_append(self.sum, bytes);
    }

    /// Counts a record by the checksum that it bears.
    pub(super) fn add_record(&mut self, record: &RecordRef<'_>) {
        let bytes = record.bytes();
        let Some((own, covered)) = bytes.split_at_checked(OWN_BYTES) else {
            return self.add(bytes);
        };
        let Ok(len) = u32::try_from(covered.len()) else {
            return self.add(bytes);
        };
        self.add(own);
        if self.recent.0 != len {
            self.recent = (len, power_of(len));
        }
        self.sum = multiply(self.recent.1, self.sum) ^ record.crc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use proptest::prelude::*;
    use tidelock_record::encode_into;

    fn record(payload: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        encode_into(&mut out, b"subject", b"", payload).unwrap();
        out.to_vec()
    }

    proptest! {
        #[test]
        fn is_that_of_all_bytes_together(parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..3000), any::<bool>()), 1..12)) {
            let (mut sum, mut all) = (Checksum::new(), Vec::new());
            for (bytes, is_record) in parts {
                if is_record {
                    let bytes = record(&bytes);
                    sum.add_record(&RecordRef::parse(&bytes).unwrap().0);
                    all.extend(bytes);
                } else {
                    sum.add(&bytes);
                    all.extend(bytes);
                }
                prop_assert_eq!(sum.get(), crc32c::crc32c(&all));
            }
        }

        /// What has changed since its checksum was made does not pass for what was meant.
        #[test]
        fn a_changed_record_is_found(place in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let mut bytes = record(&[5; 100]);
            let place = 16 + place.index(bytes.len() - 16);
            bytes[place] ^= 1 << bit;
            let mut sum = Checksum::new();
            sum.add_record(&RecordRef::parse(&bytes).unwrap().0);
            prop_assert_ne!(sum.get(), crc32c::crc32c(&bytes));
        }
    }

    #[test]
    fn long_records_count_too() {
        for len in [16 << 10, 1 << 20, (8 << 20) - 1] {
            let bytes = record(&vec![9; len]);
            let mut sum = Checksum::new();
            sum.add(b"before");
            sum.add_record(&RecordRef::parse(&bytes).unwrap().0);
            let all = [&b"before"[..], &bytes].concat();
            assert_eq!(sum.get(), crc32c::crc32c(&all), "{len}");
        }
    }
}
