//! Tidelock: record.
