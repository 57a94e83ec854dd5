//! Tidelock: api.
