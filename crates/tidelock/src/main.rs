//! The Tidelock server binary.
fn main() {}
