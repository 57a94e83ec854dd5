//! The only source of randomness of the process: the system's.

use std::fs::File;
use std::io::{self, Read};

/// Random bytes, fit for keys.
///
/// # Errors
/// When the system gives none.
pub(crate) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
