//! Tidelock: store.
