//! Tidelock: jetstream.
