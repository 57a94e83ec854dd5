//! Tidelock: wal.
