//! Tidelock: wire.
