//! Tidelock: replica.
